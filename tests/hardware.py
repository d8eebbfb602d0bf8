"""The hardware that recipes state, for tests that hold their plans to it."""

import ast
import re

from small import ROOT, load_recipe

RECIPES = sorted((ROOT / 'configs').glob('*.py'))
TOPOLOGY = re.compile(r'\b(?:v4|v5e|v5p|v6e|tpu7x):\d+(?:x\d+)+\b')


def stated(path) -> list[str]:
  """The topologies that a recipe's line `Hardware: ...` names."""
  text = ast.get_docstring(ast.parse(path.read_text()))
  found = [p for p in text.split('\n\n') if p.startswith('Hardware: ')]
  assert len(found) == 1, f'{path.name}: one paragraph begins with Hardware:'
  return TOPOLOGY.findall(found[0])


def to_plan(path) -> dict[str, int | str]:
  """What to change in a recipe of chunks, or of tools in Python, to plan it: a
  plan counts the tokens of one completion, or of turns inside the program.
  """
  c = load_recipe(path).get_config().rl
  if c.chunks.tokens:
    return {'rl.chunks.tokens': 0, 'rl.chunks.carry': 0}
  return {'rl.turns.env': ''} if c.turns.env and c.path == 'host' else {}
