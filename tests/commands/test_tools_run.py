"""`tools/run` installs what a command needs, and messages name `tools/run`."""

import glob
import os
import subprocess
import sys

import pytest
from paths import ROOT

RUN = ROOT / 'tools' / 'run'


def script(path, line):
  """Writes an interpreter that has pip and else runs a line of shell."""
  path.write_text(f'#!/bin/sh\n[ "$3" = --version ] && exit\n{line}\n')
  path.chmod(0o755)


@pytest.fixture
def called(tmp_path):
  """Returns a function that calls tools/run with an interpreter that only
  writes its arguments, and returns these lines.
  """
  python = tmp_path / 'venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  script(python, f'echo "$JAXRL_PROGRAM $*" >>{tmp_path}/calls')
  env = {k: v for k, v in os.environ.items() if k != 'JAXRL_EXTRAS'}
  env['JAXRL_VENV'] = str(tmp_path / 'venv')

  def call(*words):
    given = env | {'PYTHON': os.environ.get('PYTHON', '')}
    command = [RUN, *words]
    done = subprocess.run(command, env=given, check=True, stderr=-1, text=True)
    call.said.append(done.stderr)
    return (tmp_path / 'calls').read_text().splitlines()

  call.said = []  # stderr of each call
  return call


@pytest.mark.parametrize(
  'words, extras',
  [
    (['keys', 'rl'], ''),
    (['keys', 'plan'], ''),
    (['report', 'W'], '[report]'),
    (['start', '--data=countdown'], '[hf]'),
    (['start', '--data=countdown', '--on=v5e-8'], '[hf,tpu]'),
    (['plan', '--config=X.py'], ''),
    (['plan', '--config=X.py', '--topology=v5e:4x4'], '[tpu]'),
    (['--config=plan'], ''),
    ([f'--config={ROOT}/configs/arithmetic_tiny.py:smoke'], ''),
    (['--config', f'{ROOT}/configs/smollm2_135m_words.py'], '[gguf,hf]'),
    ([f'--config={ROOT}/configs/grpo_gsm8k.py:smoke'], '[gguf,hf]'),
    (['evaluate', '--model=hf:Qwen/Qwen3-0.6B'], '[hf]'),
    (['convert', '--from=W.gguf'], '[gguf,hf]'),
    (['evaluate', '--model=W', '--simulations=8'], '[mctx]'),
    (['evaluate', '--model=hf:a/b', '--simulations=8'], '[hf,mctx]'),
    (['evaluate', '--model=W', '--suite=run:heldout,p.jsonl'], ''),
    (['evaluate', '--model=W', '--suite=run:heldout,aime24?n=8'], '[hf]'),
    (['evaluate', '--model=W', '--suite', 'gpqa'], '[hf]'),
    (['generate', '--model=W', '--regex=a*'], '[hf,structured]'),
    (['generate', '--model=W', '--json_schema=s'], '[hf,structured]'),
    (['curate', '--file=p.parquet', '--model=hf:a/b'], '[curate,hf]'),
    ([f'--config={ROOT}/configs/search_tiny.py'], '[search]'),
    (['--config.rl.turns.tools.s.tool=search'], '[search]'),
    (
      ['plan', f'--config={ROOT}/configs/search_tiny.py', '--topology=v5e:2x2'],
      '[search,tpu]',
    ),
    (['plan', '--config.rl.regex=a*'], '[structured]'),
    (['--config.rl.json_schema={}'], '[structured]'),
    (['--config.rl.rewards.form.reward=json_schema'], ''),
    (['--config.data.name=gym:chain_sum'], '[gym]'),
    (['start', '--data=gym:chain_sum'], '[gym,hf]'),
    (['--config.rl.turns.env=verifiers'], '[verifiers]'),
  ],
)
def test_the_extras_of_a_command_are_installed(called, words, extras):
  install, *_ = called(*words)
  assert install.endswith(f'--editable {ROOT}{extras}'), install


def test_installed_once_and_called_by_its_own_name(called):
  called('keys', 'rl')
  *_, last = called('keys', 'rl')
  assert last == f'{RUN} -m jaxrl_reason keys rl'
  assert sum('--editable' in line for line in called('keys', 'rl')) == 1


def test_an_installation_names_its_large_downloads(called, tmp_path):
  """pip alone is silent for minutes, or prints a hundred lines."""
  lines = (
    'Collecting jaxlib',
    '  Downloading jaxlib-0.9.0-cp312-cp312-linux_x86_64.whl (80.1 MB)',
    '  Downloading etils-1.0-py3-none-any.whl (1.2 MB)',
    'Installing collected packages: etils, jaxlib',
  )
  printed = '; '.join(f'echo "{line}"' for line in lines)
  wanted = f'echo "$JAXRL_PROGRAM $*" >>{tmp_path}/calls; {printed}'
  script(tmp_path / 'venv' / 'bin' / 'python', wanted)
  called('keys', 'rl')
  said = called.said[0].splitlines()
  assert said[1:3] == ['  jaxlib-0.9.0 (80.1 MB)', '  unpacking']


def test_libtpu_is_quiet_on_a_machine_without_a_tpu(called, tmp_path):
  """Its chips have files in /dev. What the user has set stays."""
  line = f'echo "$TPU_ACCELERATOR_TYPE" >>{tmp_path}/calls'
  script(tmp_path / 'venv' / 'bin' / 'python', line)
  chips = [*glob.glob('/dev/accel*'), *glob.glob('/dev/vfio/*')]
  own = os.environ.get('TPU_ACCELERATOR_TYPE')
  *_, kind = called('keys', 'rl')
  assert kind == (own or ('' if chips else 'v5litepod-4'))


@pytest.mark.parametrize(
  'words, text',
  [
    (['run', '--help'], 'prints the flags of a command'),
    (['run', '--workdir=W', '--help'], 'Trains a recipe'),
    (['run', 'plan', '--help'], '--topology'),
    (['new_user', '--help'], '--folder=NEW'),
  ],
)
def test_help_installs_and_runs_nothing(tmp_path, words, text):
  env = os.environ | {'JAXRL_VENV': str(tmp_path / 'none')}
  name, *rest = words
  command = [ROOT / 'tools' / name, *rest]
  done = subprocess.run(
    command, env=env, cwd=tmp_path, capture_output=True, text=True
  )
  assert text in done.stdout and done.returncode == 0, done.stderr
  assert not [*tmp_path.iterdir()]


def test_an_interrupted_environment_is_made_again(
  called, tmp_path, monkeypatch
):
  """venv makes the interpreter first, and then pip with it."""
  python, whole = tmp_path / 'venv' / 'bin' / 'python', tmp_path / 'whole'
  python.rename(whole)
  python.write_text('#!/bin/sh\necho No module named pip >&2; exit 1\n')
  python.chmod(0o755)
  script(tmp_path / 'make', f'[ "$2" = venv ] && cp {whole} "$3/bin/python"; :')
  monkeypatch.setenv('PYTHON', str(tmp_path / 'make'))
  install, last = called('keys', 'rl')
  assert '--editable' in install and last.endswith('keys rl')


@pytest.mark.parametrize(
  'words', [['--help'], ['plan', '--help'], ['start', '--help'], ['pln']]
)
@pytest.mark.parametrize('program', ['tools/run', ''])
def test_messages_name_the_program_of_the_user(program, words):
  env = {k: v for k, v in os.environ.items() if k != 'JAXRL_PROGRAM'}
  env |= {'JAXRL_PROGRAM': program} if program else {}
  shown = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason', *words],
    env=env, cwd=ROOT, capture_output=True, text=True,
  )  # fmt: skip
  text = shown.stdout + shown.stderr
  assert f'{program or "jaxrl"} ' in text
  assert not program or 'jaxrl ' not in text
