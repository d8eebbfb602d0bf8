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


def without_turns(path) -> dict[str, str]:
  """What to change in a recipe of turns or chunks to plan it: a plan counts the
  tokens of one completion.
  """
  c = load_recipe(path).get_config().rl
  if c.chunks.tokens:
    return {'rl.chunks.tokens': 0, 'rl.chunks.carry': 0}
  if not c.turns.env:
    return {}
  changes = {'rl.turns.env': '', 'rl.algorithm': 'grpo'}
  if c.loss.segment_gamma is not None:  # of turns alone
    changes['rl.loss.segment_gamma'] = None
  if not c.rewards:  # the environment's own alone
    changes['rl.rewards'] = {'any': {'reward': 'random', 'weight': 1.0}}
  return changes
