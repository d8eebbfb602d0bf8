"""Errors for unknown names suggest the nearest name."""

import re
import sys

import pytest
from paths import ROOT

from jaxrl_reason import __main__, names
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.data import problems

RECIPE = f'--config={ROOT}/configs/arithmetic_tiny.py'
RUN = ['run', RECIPE, '--workdir=w']
PLAN = ['plan', RECIPE]
EVALUATE = ['evaluate', '--out=w']
REWARD = '--config.rl.rewards.answer.reward='
HOST = ['--config.rl.path=host', '--config.rl.steps_per_dispatch=1']
# Words of a command line -> the name that is suggested.
MEANT = [
  (['rnu'], 'run'),
  (['report', '--opne', 'w'], '--open'),
  # Keys.
  ([*RUN, '--config.rl.lr=1'], 'rl.optimizer.lr'),
  ([*RUN, '--config.rl.learning_rate=1'], 'rl.optimizer.lr'),
  ([*RUN, '--config.rl.num_generations=8'], 'rl.samples'),
  ([*RUN, '--config.RL.samples=8'], 'rl.samples'),
  ([*RUN, '--config.optimizer.clip_nrom=1'], 'rl.optimizer.clip_norm'),
  ([*RUN, '--config.data.max_prompt_length=9'], 'data.prompt_len'),
  ([*RUN, '--config.rl.loss.beta=0.1'], 'rl.loss.kl_coef'),
  (['keys', 'rl.optimiser'], 'rl.optimizer'),
  (['keys', '--search=Temprature'], 'temperature'),
  ([*RUN, '--config.reward=math'], 'rl.rewards.answer.reward'),
  ([*RUN, '--config.rl.reward=math'], 'rl.rewards.answer.reward'),
  ([*RUN, '--config.rl.loss.preset=dapo'], 'rl.algorithm'),
  ([*RUN, '--rl.samples=3'], '--config.rl.samples'),
  ([*RUN, '--rl.smaples=3'], '--config.rl.samples'),
  ([*RUN, '--rl.rewards.answer.weight=3'], '--config.rl.rewards.answer.weight'),
  ([*RUN, 'rl.samples=3'], '--config.rl.samples'),
  ([*RUN, 'config.rl.lr=3'], '--config.rl.optimizer.lr'),
  ([*PLAN, '--samples=3', '--topology=v5e:2x4'], '--config.rl.samples'),
  ([*RUN, '--workdri=w'], '--workdir'),
  ([*RUN, './mine.py'], '--config=./mine.py'),
  ([*RUN, 'a/mine.py:smoke'], '--config=a/mine.py:smoke'),
  ([*RUN, '--rl.loss=grpo'], '--config.rl.algorithm'),
  ([*RUN, '--loss=grpo'], '--config.rl.algorithm'),
  ([*RUN, '--rl.rewards.answer.rewrd=m'], '--config.rl.rewards.answer.reward'),
  # Names.
  ([*RUN, '--config.data.name=arithmetics'], 'arithmetic'),
  ([*RUN, '--config.data.name=GSM8K'], 'gsm8k'),
  ([*RUN, '--config.rl.algorithm=GRPO'], 'grpo'),
  ([*RUN, f'{REWARD}tsak'], 'task'),
  ([*RUN, f'{REWARD}Integer'], 'integer'),
  ([*RUN, f'{REWARD}mth', *HOST], 'math'),
  ([*RUN, '--config.rl.path=hots'], 'host'),
  ([*RUN, '--config.rl.optimizer.name=adamv'], 'adamw'),
  ([*RUN, '--config.rl.optimizer.schedule=Cosine'], 'cosine'),
  ([*RUN, '--config.rl.filter=dead_group'], 'dead_groups'),
  ([*RUN, '--config.data.controller.name=leader'], 'ladder'),
  ([*RUN, '--config.rl.turns.env=calculater'], 'calculator'),
  ([*RUN, '--config.model.attention=flash'], 'splash'),
  ([*RUN, '--config.stages=sft,lr'], 'rl'),
  ([*RUN, '--config.data.template=R1_zero'], 'r1_zero'),
  ([*RUN, '--config.data.tokenizer=Byte'], 'byte'),
  ([*RUN, '--config.rl.padding=packd:4'], 'packed'),
  ([*EVALUATE, '--model=Qwen/Qwen3-1.7B', '--suite=gsm8k'],
   'hf:Qwen/Qwen3-1.7B'),
  ([*EVALUATE, '--model=hf:a/b', '--suite=MATH-500'], 'math500'),
  ([*EVALUATE, '--model=hf:a/b', '--suite=gms8k'], 'gsm8k'),
  (
    [*RUN, '--config.model_dir=Qwen/Qwen2.5-0.5B-Instruct'],
    'hf:Qwen/Qwen2.5-0.5B-Instruct',
  ),
  (['run', '--config=configs/arithmetik_tiny.py', '--workdir=w'],
   'configs/arithmetic_tiny.py'),
  (['run', '--config=arithmetic_tiny', '--workdir=w'],
   'configs/arithmetic_tiny.py'),
  (['run', '--config=arithmetic_tiny.py', '--workdir=w'],
   'configs/arithmetic_tiny.py'),
  (['run', f'{RECIPE}:smok', '--workdir=w'], 'smoke'),
  (['run', f'--config={ROOT}/configs/grpo_gsm8k.py:qwen3-1p7b', '--workdir=w'],
   'qwen3_1p7b'),
  ([*EVALUATE, '--model=hf:a/b', '--suite=task:arithmetics'], 'arithmetic'),
  ([*EVALUATE, '--model=hf:a/b', '--suite=openai/gsm8k'], 'hf:openai/gsm8k'),
  ([*RUN, '--config.data.name=files', '--config.data.dir=openai/gsm8k'],
   'hf:openai/gsm8k'),
  (['start', '--data=openai/gsm8k'], 'hf:openai/gsm8k'),
  ([*RUN, '--config.track=wandbb'], 'wandb'),
  (['grade', '--file=x.jsonl', '--reward=x.py:rewrd'], 'reward'),
  (['convert', '--from=Qwen/Qwen3-1.7B', '--to=w'], 'hf:Qwen/Qwen3-1.7B'),
  # Machines and models of plans.
  (['start', '--data=arithmetic', '--on=v5f-8'], 'v5p-8'),
  (['start', '--data=arithmetic', '--on=v5litepodd-8'], 'v5litepod-8'),
  ([*PLAN, '--topology=v5e-8'], 'v5e:2x4'),
  ([*PLAN, '--topology=v5litepod-8'], 'v5e:2x4'),
  ([*PLAN, '--topology=v5p-8'], 'v5p:2x2x1'),
  ([*PLAN, '--topology=V5E:4x4'], 'v5e:4x4'),
  (['grade', '--file=x.jsonl', '--reward=Math'], 'math'),
  (
    ['generate', '--model=Qwen/Qwen3-1.7B', '--prompt=x'],
    'hf:Qwen/Qwen3-1.7B',
  ),
]  # fmt: skip


def error(words, capsys) -> str:
  """Returns the last line of a command, which must fail."""
  with pytest.raises(SystemExit, match='1'):
    __main__.main(words)
  line = capsys.readouterr().err.strip().splitlines()[-1]
  assert line.startswith('error: ')
  return line


@pytest.mark.parametrize('words, name', MEANT, ids=lambda x: x[-1][-30:])
def test_the_nearest_name_is_suggested(
  words, name, monkeypatch, capsys, tmp_path
):
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'x.jsonl').write_text('{"completion": "1", "answer": "1"}\n')
  (tmp_path / 'x.py').write_text('def reward(completion, example): return 1\n')
  monkeypatch.chdir(tmp_path)
  line = error(words, capsys)
  found = re.search(r"Did you mean '([^']*)'", line)
  assert found and found[1] == name and '?;' not in line, line


@pytest.mark.parametrize(
  'words',
  [
    [*EVALUATE, '--model=runs/nix', '--suite=gsm8k'],
    [*EVALUATE, '--model=here/nix', '--suite=gsm8k'],
    ['convert', '--from=./nix', '--to=w'],
    ['start', '--data=data/nix.jsonl'],
    *(
      ['convert', f'--from={name}', '--to=w']
      for name in ('a/b.csv', 'my/file.txt', 'a/b.gguf', 'out/model', 'data/x')
    ),
    *([*EVALUATE, f'--model={k}/x'] for k in ('models', 'checkpoints', 'exp')),
    [*RUN, '--data=x'],
    [*EVALUATE, '--samples=3'],
    [*RUN, 'my/file.txt'],
  ],
)
def test_a_path_is_no_name_on_the_hub(words, monkeypatch, capsys, tmp_path):
  (tmp_path / 'here').mkdir()
  monkeypatch.chdir(tmp_path)
  assert 'Did you mean' not in error(words, capsys)


# Words of a command line -> a part of the error.
NAMED = [
  ([*RUN, '--config.rl.algorithm=GRPO'], "error: rl.algorithm='GRPO' is no"),
  ([*RUN, '--config.rl.loss.policy=x'], "error: rl.loss.policy='x' is no"),
  (['study', RECIPE, '--out=w'], f'but get_config(): jaxrl run {RECIPE} reads'),
  (
    ['run', f'--config={ROOT}/configs/studies/tokens.py', '--workdir=w'],
    'but get_study(): jaxrl study --config=',
  ),
  (
    ['run', f'--config={ROOT}/configs/grpo_gsm8k.py', '--workdir=w',
     '--config.model_dir=runs/nix'],
    "model 'runs/nix' is no folder",
  ),
  ([*PLAN, '--topology=v5e:2x4', '--model=nix'], "no shape is known for 'nix'"),
  ([*RUN, '--config.rl.lrr=3'], "mean 'rl.optimizer.lr'"),
  ([*RUN, '--config.rl=3'], 'jaxrl keys rl" prints them'),
]  # fmt: skip


@pytest.mark.parametrize('words, part', NAMED, ids=lambda x: x[-1][-30:])
def test_the_error_names_key_and_command(
  words, part, monkeypatch, capsys, tmp_path
):
  def download(*args):
    raise AssertionError('the data is read before the model is found')

  monkeypatch.setattr(problems, 'load', download)
  monkeypatch.delenv('JAXRL_PROGRAM', raising=False)
  monkeypatch.setitem(sys.modules, 'libtpu', None)  # not installed
  monkeypatch.chdir(tmp_path)
  assert part in error(words, capsys)


def test_the_nearest_model_size_is_suggested():
  with pytest.raises(ValueError, match="Did you mean 'qwen3-8b'"):
    pretrained.size_of('Qwen3-8bb')


def test_an_unrelated_word_has_no_suggestion():
  assert names.nearest('zzz', ['alpha', 'beta']) == ''
  assert names.nearest_path('zzz.qqq', ['rl.samples', 'seed']) == ''


def test_an_extra_is_installed_by_the_program_that_was_started(monkeypatch):
  monkeypatch.delenv('JAXRL_PROGRAM', raising=False)
  assert names.install('hf') == 'pip install "jaxrl_reason[hf]"'
  monkeypatch.setenv('JAXRL_PROGRAM', 'tools/run')
  assert names.install('hf') == 'JAXRL_EXTRAS=hf tools/run ...'
