"""The rooms of the package, and the imports that are allowed between them
(docs/design.md).
"""

import ast
import re
import subprocess
import sys

import pytest
from paths import ROOT

OURS = 'jaxrl_reason'
PACKAGE = ROOT / OURS
# A room imports only from lower floors, and never from its own floor, so there
# are no import cycles.
FLOORS = (
  'names',
  'base hosts logits losses ranges trees verifiers',
  'config envs parts reports sharding',
  'command models',
  'batch checkpoints data',
  'rewards',
  'rollouts update',
  'evals',
  'run',
  'planning studies',
  'convert curate evaluate generate grade list_keys main plan report start '
  'steer study',
  '__main__',
)


def rooms_imported(path) -> set[str]:
  """Returns the rooms that a file imports from, anywhere in the file."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.ImportFrom):
      outer, _, inner = (node.module or '').partition('.')
      names = [inner] if inner else [a.name for a in node.names]
      assert not node.level, f'{path}: import by the absolute name'
    elif isinstance(node, ast.Import):
      split = [a.name.partition('.') for a in node.names]
      outer, names = OURS, [c for a, _, c in split if a == OURS]
    else:
      continue
    if outer == OURS:
      found |= {name.partition('.')[0] for name in names}
  return found - {'', '__version__'}


def test_rooms_import_from_lower_floors_only():
  floor = {room: i for i, row in enumerate(FLOORS) for room in row.split()}
  for path in sorted(PACKAGE.rglob('*.py')):
    here = path.relative_to(PACKAGE).parts[0].removesuffix('.py')
    if here == '__init__':
      continue
    assert here in floor, f'{path}: give the new room a floor here'
    for room in rooms_imported(path) - {here}:
      assert floor[room] < floor[here], f'{path} imports {room}'


@pytest.mark.parametrize('room', ['losses', 'verifiers'])
def test_rooms_that_stand_alone(room):
  for path in (PACKAGE / room).rglob('*.py'):
    assert rooms_imported(path) <= {room, 'names'}, path


def test_verifiers_import_no_jax():
  """Imports every module of the room in a new process."""
  code = (
    'import importlib, pkgutil, sys; import jaxrl_reason.verifiers as room\n'
    'for m in pkgutil.walk_packages(room.__path__, room.__name__ + "."):\n'
    '  if "sandbox" not in m.name: importlib.import_module(m.name)\n'
    'assert "jax" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True)


def test_losses_are_annotated():
  for path in (PACKAGE / 'losses').rglob('*.py'):
    for f in ast.parse(path.read_text()).body:
      if isinstance(f, ast.FunctionDef) and not f.name.startswith('_'):
        arguments = f.args.posonlyargs + f.args.args + f.args.kwonlyargs
        bare = [a.arg for a in arguments if a.annotation is None]
        assert not bare and f.returns, f'{path}: {f.name}: {bare}'


def test_files_are_short():
  for path in PACKAGE.rglob('*.py'):
    assert len(path.read_text().splitlines()) <= 400, path


def test_file_names_of_rooms_differ():
  """A device kernel or environment and its twin in Python may share a name."""
  names = [p.name for p in PACKAGE.rglob('*.py') if p.stem != '__init__']
  twice = {name for name in names if names.count(name) > 1}
  assert twice <= {'calculator.py', 'countdown.py'}


def test_the_top_level_is_small():
  files = {path.stem for path in PACKAGE.glob('*.py')}
  commands = set(FLOORS[-2].split())
  assert commands <= files
  assert len(files - commands - {'__init__', '__main__'}) <= 9


def test_commands_of_messages_work():
  """In a clone, the package and its extras are in .venv."""
  bare = re.compile(r'(?<![/\w])python tools/')
  for path in (ROOT / 'tools').rglob('*.py'):
    assert not bare.search(path.read_text()), path
  for path in PACKAGE.rglob('*.py'):
    if path.name != 'names.py':
      assert 'pip install' not in path.read_text(), f'{path}: names.install'
