"""What README, docs and recipes show is true of the code: commands have flags
and keys that exist, Python blocks run, links between pages lead somewhere.
"""

import ast
import importlib
import re
import shlex
import sys
from unittest import mock

import pytest
from absl import flags
from ml_collections import config_flags
from small import ROOT

PAGES = [
  *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md')),
  *sorted((ROOT / 'docs').glob('*.md')),
]
SOURCES = [*PAGES, *sorted((ROOT / 'configs').glob('*.py'))]
MODULE = re.compile(r'(?:\.venv/bin/)?python -m jaxrl_reason\.(\w+)(.*)', re.S)
FLAG = re.compile(r"flags\.DEFINE_\w+\(\s*'(\w+)'")
# A name in place of what a reader has.
STAND_INS = ('X.py', 'configs/X.py', 'try/mine.py')


def joined(text: str) -> list[str]:
  """Lines of a shell, those that go on with a backslash as one."""
  return re.sub(r'\\+\n\s*', ' ', text).split('\n')


def commands(path) -> list[str]:
  """Shell commands of ours that a file shows, in blocks or in a sentence."""
  text = path.read_text()
  if path.suffix == '.py':
    text = ast.get_docstring(ast.parse(text))
    found = [line.strip() for line in joined(text)]
  else:
    blocks = re.findall(r'^```(?:\w*)\n(.*?)^```', text, re.M | re.S)
    found = [line for block in blocks for line in joined(block)]
    rest = re.sub(r'^```.*?^```', '', text, flags=re.M | re.S)
    found += re.findall(r'`([^`]+)`', rest.replace('\n', ' '))
  shown = [line.strip().removeprefix('$ ') for line in found]
  return [s for s in shown if re.match(r'[A-Z_]+=\S+ tools/|tools/|\S*python ', s)]


SHOWN = [(path, line) for path in SOURCES for line in commands(path)]


def arguments(text: str) -> list[str]:
  """Words of a command line; [--what may be left out] is there, `...` is not."""
  text = re.sub(r'\[(--[^\]]*)\]', r'\1', text)
  words = shlex.split(text, comments=True)
  return [w for w in words if w not in ('...', '&&')]


def flags_of(name: str) -> set[str]:
  """Names of the flags of a command of absl's."""
  text = (ROOT / f'jaxrl_reason/{name}.py').read_text()
  found = {*FLAG.findall(text)}
  return found | {f'no{f}' for f in found} | (
    {'config'} if 'define_recipe' in text else set()
  )


def check_recipe(words: list[str]) -> None:
  """Loads the recipe with the changes that the words make."""
  mine = [w for w in words if re.match(r'--config[.=]', w)]
  recipe = next((w for w in mine if w.startswith('--config=')), '')
  name = recipe.removeprefix('--config=')
  if not name or name in STAND_INS or name == '...':
    mine = [w for w in mine if w is not recipe]
    mine.insert(0, f'--config={ROOT}/configs/arithmetic_tiny.py')
  else:
    assert (ROOT / name).is_file(), name
    mine[mine.index(recipe)] = f'--config={ROOT / name}'
  values = flags.FlagValues()
  config_flags.DEFINE_config_file(
    'config', None, '', flag_values=values, lock_config=False,
    accept_new_attributes=True,
  )  # fmt: skip
  argv = ['x', *(w for w in mine if not w.endswith('...'))]
  with mock.patch.object(sys, 'argv', argv):  # config_flags looks there
    values(argv)
  assert values.config is not None


def check_module(name: str, words: list[str]) -> None:
  """Parses the words as the command would."""
  assert (ROOT / f'jaxrl_reason/{name}.py').is_file(), name
  module = importlib.import_module(f'jaxrl_reason.{name}') if (
    'argparse' in (text := (ROOT / f'jaxrl_reason/{name}.py').read_text())
    or 'command.Parser' in text
  ) else None  # fmt: skip
  names = [w[2:].partition('=')[0] for w in words if w.startswith('--')]
  if module is None:
    known = flags_of(name)
    for flag in names:
      assert flag in known or flag.startswith('config.'), f'--{flag}'
    if 'config' in known and names:
      check_recipe(words)
    return
  parser = getattr(module, 'parser', None) or module._parser
  known = parser()._option_string_actions
  for flag in names:
    assert f'--{flag}' in known, f'--{flag}'


@pytest.mark.parametrize(
  'path, line', SHOWN, ids=[f'{p.stem}-{i}' for i, (p, _) in enumerate(SHOWN)]
)
def test_a_command_is_what_the_code_takes(path, line):
  line = re.sub(r'^([A-Z_]+=\S+ )+', '', line)
  if found := MODULE.match(line):
    check_module(found[1], arguments(found[2]))
    return
  words = arguments(line.partition(' | ')[0])
  if words[0].endswith('python'):
    assert words[1] == '-m' or (ROOT / words[1]).is_file(), words[1]
    return
  assert (ROOT / words[0]).exists(), words[0]
  if words[0] == 'tools/run':
    for word in words[1:]:
      assert re.match(r'--(config[.=]|workdir=|fresh)', word), word
    check_recipe(words)
  for word in words[1:] if words[0] == 'tools/test' else ():
    if word.startswith('tests/'):
      assert (ROOT / word.partition('::')[0]).exists(), word


def test_commands_are_found():
  told = ' '.join(line for _, line in SHOWN)
  for name in ('main', 'plan', 'evaluate', 'convert', 'generate', 'report'):
    assert f'jaxrl_reason.{name}' in told
  assert len(SHOWN) > 60


@pytest.mark.parametrize(
  'line',
  [
    'python -m jaxrl_reason.main --config=configs/none.py --workdir=D',
    'python -m jaxrl_reason.main --config=X.py --work=D',
    'python -m jaxrl_reason.nothing --x',
    'python -m jaxrl_reason.evaluate --modell=a',
    'tools/run --config.rl.sample=3',
    'tools/none',
    'python tools/benchmarks/none.py',
    'tools/test tests/none',
  ],
)
def test_a_wrong_command_is_found(line):
  with pytest.raises((AssertionError, KeyError, flags.Error)):
    test_a_command_is_what_the_code_takes(ROOT, line)
