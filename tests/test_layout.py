"""The rooms of the package and which may import which (docs/design.md)."""

import ast
import re

import pytest
from small import ROOT

OURS = 'jaxrl_reason'
PACKAGE = ROOT / OURS
# A room imports from lower floors only, never from its own: no circle can hide.
FLOORS = (
  'base command envs hosts logits losses reports tasks trees',
  'config sharding',
  'models',
  'batch checkpoints data',
  'rewards',
  'rollouts tools update',
  'evals',
  'run',
  'planning studies',
  'convert curate evaluate generate grade main plan report study',
)


# They end with an s, and are none.
NOUNS = 'Arguments Attributes Bytes Keys Means Metrics Rows Sums This Tokens'


def rooms_imported(path) -> set[str]:
  """The rooms that a file imports anything of, wherever in the file."""
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


def test_losses_stand_alone():
  for path in (PACKAGE / 'losses').rglob('*.py'):
    assert rooms_imported(path) <= {'losses'}, path


def public_docstrings(path):
  """(name, docstring) of the public functions and methods of a file."""
  functions = ast.FunctionDef | ast.AsyncFunctionDef
  for node in ast.parse(path.read_text()).body:
    inside = node.body if isinstance(node, ast.ClassDef) else [node]
    for f in inside if not getattr(node, 'name', '_').startswith('_') else ():
      if isinstance(f, functions) and not f.name.startswith('_'):
        yield f.name, ast.get_docstring(f)


@pytest.mark.parametrize('room', ' '.join(FLOORS).split())
def test_docstrings_begin_with_a_verb(room):
  """In the third person."""
  paths = sorted(PACKAGE.glob(f'{room}.py')) or (PACKAGE / room).rglob('*.py')
  found = [(p, *rest) for p in paths for rest in public_docstrings(p)]
  assert found
  for path, name, text in found:
    verb = text.split()[0].strip(',;:') if text else 'Does'
    said = f'{path}: {name} begins with {verb!r}'
    assert re.fullmatch(r'[A-Z][a-z]+s', verb) and verb not in NOUNS.split(), (
      said
    )


def test_losses_are_annotated():
  for path in (PACKAGE / 'losses').rglob('*.py'):
    for f in ast.parse(path.read_text()).body:
      if isinstance(f, ast.FunctionDef) and not f.name.startswith('_'):
        arguments = f.args.posonlyargs + f.args.args + f.args.kwonlyargs
        bare = [a.arg for a in arguments if a.annotation is None]
        assert not bare and f.returns, f'{path}: {f.name}: {bare}'


def test_the_top_level_is_small():
  files = {path.stem for path in PACKAGE.glob('*.py')}
  commands = set(FLOORS[-1].split())
  assert commands <= files
  assert len(files - {'__init__'}) <= 16
