"""An invalid recipe or flag is reported in one line, with its position."""

import errno
import json
import operator
import subprocess
import sys

import pytest
from paths import ROOT

from jaxrl_reason import command, grade, main
from jaxrl_reason import config as config_lib
from jaxrl_reason.config import changes
from jaxrl_reason.data import problems
from jaxrl_reason.run.checks import config_checks

GOOD = """from jaxrl_reason import config as config_lib

def get_config():
  c = config_lib.default()
  c.rl.steps = 20
  return c
"""
STEPS = 'c.rl.steps = 20'
RECIPES = {
  'syntax': (GOOD.replace('default()', 'default('), r'\.py:4: SyntaxError: '),
  'key': (
    GOOD.replace('steps', 'step'),
    ".py:5: AttributeError: unknown key 'step'. Did you mean 'steps'?",
  ),
  'raises': (GOOD.replace('20', "int('x')"), '.py:5: ValueError: invalid lit'),
  'type': (GOOD.replace('20', "'x'"), '.py:5: TypeError: Could not override'),
  'divides': (GOOD.replace('20', '1 // 0'), '.py:5: ZeroDivisionError: int'),
  'reads': (GOOD.replace('20', "open('q')"), '.py:5: FileNotFoundError: '),
  'imports': ('import nothing_there\n', '.py:1: ModuleNotFoundError: No mod'),
  'returns': (
    GOOD.replace('return c', 'pass'),
    '.py: get_config() returned None; return what config',
  ),
  'lacks': (GOOD.replace('get_config', 'get'), 'has no function get_config()'),
}
FLAGS = {
  '--config.rl.samples=x': "rl.samples='x': must be a whole number of at least",
  '--config.data.knobs.max_opps=3': "no such knob. Did you mean 'max_ops'?",
  '--config.rl.rewards.answer.wieght=3': "Did you mean 'weight'?",
  '--config.named.a-b.kind=rl': 'named.a-b.kind: a key has only letters',
  '--config.stages=sft,dpo': "stages=('sft', 'dpo'): choose from",
  '--config.rl.epochs=0': 'rl.epochs=0: must be a whole number of at least 1',
  '--config.mesh=0,1,1': 'mesh=(0, 1, 1): sizes of at least 1 along',
  '--config.rl=3': '--config.rl is a section: set one of its keys',
  '--config.seed=None': "seed='None': must be a whole number",
}


def run(folder, *arguments) -> str:
  """Returns the one error line of main, which must fail."""
  done = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason.main', *arguments]
    + [f'--workdir={folder / "run"}'],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  assert done.returncode == 1 and 'Traceback' not in done.stderr, done.stderr
  (said,) = (x for x in done.stderr.splitlines() if x.startswith('error: '))
  assert len(said) < 500
  return said


@pytest.mark.parametrize('name', RECIPES)
def test_an_error_of_a_recipe_has_its_line(name, tmp_path):
  text, words = RECIPES[name]
  path = tmp_path / 'mine.py'
  path.write_text(text)
  said = run(tmp_path, f'--config={path}')
  assert f'{path}' in said and words.replace('\\', '') in said, said


def test_an_argument_that_a_recipe_does_not_take(tmp_path):
  name = f'--config={ROOT}/configs/grpo_gsm8k.py:xyz'
  assert run(tmp_path, name) == (
    f'error: {name}: the argument of this recipe is one of qwen2p5_0p5b, '
    'qwen3_1p7b and smoke (a run of a minute), or both with a comma'
  )


def test_a_missing_recipe(tmp_path):
  said = run(tmp_path, f'--config={tmp_path / "absent.py"}')
  assert said == f'error: --config={tmp_path / "absent.py"} does not exist'


@pytest.mark.parametrize('flag', FLAGS)
def test_an_invalid_flag_is_named(flag, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(GOOD)
  said = run(tmp_path, f'--config={path}', flag)
  assert FLAGS[flag] in said, said


@pytest.mark.parametrize(
  'arguments',
  [
    ['--config.stages=sft,rl'],
    ['--config.stages', 'sft,rl'],
    ['--config.stages=(sft, rl)'],
    ['--config.stages=[sft,rl]'],
    ["--config.stages=('sft','rl')"],
    ["--config.stages='sft','rl'"],
  ],
)
def test_lists_of_stages_are_read_in_several_notations(arguments, tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(GOOD)
  given = [f'--config={path}', '--workdir=w', *arguments, '--config.seed=3']
  a = main.parser().parse(given)
  config = config_lib.load(a.config, a.changes)
  assert (config.stages, config.seed) == (('sft', 'rl'), 3)


# Texts of the command line, and the values they set.
READ = {
  'rl.optimizer.lr=1': 1.0,
  'rl.replay_routes': True,
  'rl.replay_routes=false': False,
  'mesh=-1,1,1': (-1, 1, 1),
  'mesh=(1, 4, 1)': (1, 4, 1),
  'rl.hints.at=0.5': (0.5,),
  'rl.path=host': 'host',
  'data.knobs.max_ops=3': 3,
  'data.knobs.names=("a",)': ('a',),
  'data.controller.rungs=None': None,
  'named.short.kind=rl': 'rl',
  'rl.rewards.answer.weight=3': 3.0,
}


@pytest.mark.parametrize('change', READ)
def test_a_text_is_read_by_the_type_of_its_key(change):
  config = config_lib.default()
  config.data.controller.rungs = 3
  changes.apply(config, [change])
  value = operator.attrgetter(change.partition('=')[0])(config)
  assert value == READ[change] and type(value) is type(READ[change])


def test_flags_alone_put_files_into_a_recipe_of_a_task(tmp_path):
  """The knobs of the recipe's task are removed, and those of flags are kept."""
  path = tmp_path / 'mine.jsonl'
  rows = ({'Problem': f'{i}+1?', 'Answer': i + 1} for i in range(40))
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  recipe = str(ROOT / 'configs' / 'smollm2_135m_words.py')
  given = ['data.name=files', f'data.dir={path}', 'data.files.heldout=0.5']
  config = config_lib.read(config_lib.load(recipe, given))
  config_checks.check(config, 1)
  assert problems.load(config.data, 0).train[0]['prompt'].endswith('+1?')
  given = ['data.knobs.ops=+', 'data.name=arithmetic']
  assert config_lib.load(recipe, given).data.knobs.to_dict() == {'ops': '+'}
  same = config_lib.load(recipe, ['data.name=word_problems'])
  assert same.data.knobs.max_steps == 1


def test_a_path_of_a_flag_may_begin_with_the_home_folder(monkeypatch):
  monkeypatch.setenv('HOME', '/home/me')
  a = grade.parser().parse(['--file=~/x.jsonl', '--out=a~/b', '--reward=~x'])
  assert (a.file, a.out, a.reward) == ('/home/me/x.jsonl', 'a~/b', '~x')


def test_a_command_without_a_recipe_takes_no_key(capsys):
  with pytest.raises(SystemExit):
    grade.parser().parse(['--file=x', '--config.seed=3'])
  assert 'seed=3: this command reads no recipe' in capsys.readouterr().err


LATE = """
import asyncio, threading, time
from jaxrl_reason import command
from jaxrl_reason.checkpoints import quiet

class Bad:
  def __del__(self):
    raise RuntimeError('late')

def later():
  time.sleep(0.2)
  raise RuntimeError('late')

async def never():
  pass

async def half():
  made = [never() for _ in range(3)]  # gone with the error's frames
  raise ValueError('the disk is full: make room')

kept = Bad()
circle = [never()]
circle.append(circle)
threading.Thread(target=later).start()
try:
  asyncio.run(half())
except ValueError as e:
  command.fail(e)
"""


def test_the_line_with_the_remedy_is_the_last():
  """Coroutines, threads and objects of modules may end after the last line."""
  done = subprocess.run(
    [sys.executable, '-c', LATE], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 1
  assert done.stderr == 'error: the disk is full: make room\n'


def test_a_full_disk_has_a_remedy(capsys):
  with pytest.raises(SystemExit), command.one_line():
    raise OSError(errno.ENOSPC, 'No space left on device')
  assert 'on device. Make room and start' in capsys.readouterr().err
