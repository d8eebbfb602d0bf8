"""Reads the hardware of recipes, for tests of their plans."""

import ast
import re

from paths import ROOT, load_recipe

from jaxrl_reason.config.rl_sections import Turns

TOPOLOGY = re.compile(r'\b(?:v4|v5e|v5p|v6e|tpu7x):\d+(?:x\d+)+\b')


def hardware(path) -> str:
  """Returns the only paragraph of a recipe that begins with `Hardware:`."""
  text = ast.get_docstring(ast.parse(path.read_text()))
  (paragraph,) = (p for p in text.split('\n\n') if p.startswith('Hardware: '))
  return ' '.join(paragraph.split())


def recipes() -> list[tuple]:
  """Returns (path, variant) of every recipe, '' for its default.

  Variants are listed if the paragraph about hardware names them.
  """
  out = []
  for path in sorted((ROOT / 'configs').glob('*.py')):
    variants = load_recipe(path).get_config.variants
    stated = [v for v in variants if v in hardware(path)]
    out += [(path, variant) for variant in stated or ('',)]
  return out


RECIPES = recipes()
NAMES = [f'{path.stem}-{variant}'.rstrip('-') for path, variant in RECIPES]
# The others are for two CPU cores, and state one TPU chip besides.
FOR_TPUS = [found for found in RECIPES if 'CPU' not in hardware(found[0])]


def stated(path, variant: str) -> list[str]:
  """Returns the topologies that the paragraph states for a variant."""
  clauses = hardware(path).split(';')
  of_variant = [c for c in clauses if variant and f'for {variant}' in c]
  return TOPOLOGY.findall(' '.join(of_variant or clauses))


def to_plan(path, variant: str) -> dict[str, int | str]:
  """Returns changes for a plan of a recipe with chunks, Python tools or a
  teacher: a plan counts the tokens of one completion or of turns inside the
  program, and needs no run of the teacher.
  """
  c = load_recipe(path).get_config(variant).rl
  if c.chunks.tokens:
    return {'rl.chunks.tokens': 0, 'rl.chunks.carry': 0}
  if c.teacher.weights:
    return {'rl.teacher.weights': 'zoo:qwen3-0.6b'}
  if not c.turns.env or c.path != 'host':
    return {}
  of_recipe, none = c.turns.to_dict(), Turns().to_dict()
  return {f'rl.turns.{k}': v for k, v in none.items() if of_recipe[k] != v}
