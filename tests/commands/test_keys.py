"""`jaxrl keys` prints every key of a recipe with default, range and meaning."""

import re
import subprocess
import sys

import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason import list_keys as command
from jaxrl_reason import losses, trees
from jaxrl_reason.config import key_list
from jaxrl_reason.update import optim
from jaxrl_reason.verifiers import tasks


def printed(capsys, *words) -> str:
  command.main(words)
  return capsys.readouterr().out


def test_a_section_has_defaults_ranges_and_meanings(capsys):
  text = printed(capsys, 'rl.optimizer')
  assert 'rl.optimizer.lr = 0.0001  (a number of at least 0)\n' in text
  assert '    peak learning rate\n' in text
  assert 'sft.optimizer' not in text
  assert printed(capsys, 'rl.samples').startswith('rl.samples = 8  (a whole')


def test_a_word_is_found_in_paths_and_meanings(capsys):
  text = printed(capsys, '--search=Temperature')
  assert 'rl.temperature = 1.0' in text and 'eval.temperature = 1.0' in text
  assert 'rl.temperature_control.rate = 0.1' in text
  text = printed(capsys, 'data', '--search=solve rate')
  assert 'data.controller.climb' in text and 'rl.' not in text.split('(')[0]


@pytest.mark.parametrize(
  'path, known',
  [
    ('rl.algorithm', losses.PRESETS),
    ('data.name', tasks.TASKS),
    ('rl.optimizer.name', optim.OPTIMIZERS),
  ],
)
def test_names_in_a_table_are_printed(path, known, capsys):
  words = printed(capsys, path).replace(',', ' ').split()
  assert {*known} <= {*words}


def test_every_table_of_a_meaning_exists():
  tables = [t for k in key_list.keys() for t in command.choices(k.meaning)]
  named = [k for k in key_list.keys() if ' in ' in f' {k.meaning}']
  shown = [k for k in named if re.search(r' in \S*[A-Z]{4}', k.meaning)]
  assert len(tables) == len(shown) > 10


def test_every_key_is_there_once_with_a_meaning():
  known = list(key_list.keys())
  assert not any(re.fullmatch(r'\S+: \w+|', k.meaning) for k in known)
  timed = [k for k in known if k.path.endswith('_s')]
  assert len(timed) > 4 and all('seconds' in k.meaning for k in timed)
  values = config_lib.read(config_lib.default()).to_dict()
  leaves = {k.replace('/', '.') for k in trees.flatten(values)}
  paths = [key.path for key in known]
  assert len(paths) == len({*paths})
  # A section of any keys counts as one key.
  for leaf in leaves:
    assert any(f'{leaf}.'.startswith(f'{path}.') for path in paths), leaf


def test_settings_of_the_loss_have_choices_and_ranges():
  known = {key.path: key for key in key_list.keys()}
  for name in losses.DEFAULTS:
    assert name == 'name' or known[f'rl.loss.{name}'].meaning
  assert 'group_zscore' in known['rl.loss.advantage'].allowed


@pytest.mark.parametrize('words', [['rl.optimiser'], ['--search=zzzz']])
def test_missing_names_are_reported(words, capsys):
  with pytest.raises(SystemExit, match='1'):
    command.main(words)
  assert words[0] in capsys.readouterr().err


def test_a_reader_of_the_first_lines_causes_no_error():
  words = f'{sys.executable} -m jaxrl_reason keys rl | head -n 1'
  done = subprocess.run(words, shell=True, capture_output=True, text=True)
  assert done.stdout.startswith('rl.steps = ') and not done.stderr
