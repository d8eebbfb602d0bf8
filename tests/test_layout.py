"""The rooms of the package and which may import which (docs/design.md)."""

import ast

from small import ROOT

OURS = 'jaxrl_reason'
PACKAGE = ROOT / OURS
# A room imports from lower floors only, never from its own: no circle can hide.
FLOORS = (
  'base command hosts logits losses reading reports tasks trees',
  'config sharding',
  'models',
  'batch checkpoints data',
  'rewards',
  'rollouts update',
  'evals',
  'run',
  'planning',
  'convert generate grade main plan report',
)


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


def test_the_top_level_is_small():
  assert len(list(PACKAGE.glob('*.py'))) <= 17
