"""The TPU compiler compiles every recipe for its stated chips. All phases fit,
and a recipe for TPUs follows the advice of its plan. This takes minutes each,
so it is marked slow, except for one recipe.
"""

import pytest
from hardware import FOR_TPUS, NAMES, RECIPES, stated, to_plan
from test_plan import planned, pytestmark  # noqa: F401


def worthwhile(facts: dict) -> list[str]:
  """Returns the advice of a plan that saves a share of a step."""
  return [line for line in facts['advice'] if 'less of a step' in line]


@pytest.mark.slow
@pytest.mark.parametrize('path, variant', RECIPES, ids=NAMES)
def test_a_recipe_fits_the_chips_that_it_states(tmp_path, path, variant):
  changes = to_plan(path, variant)
  flags = [f'--config.{k}={v}' for k, v in changes.items()]
  recipe = f'{path.name}:{variant}'.removesuffix(':')
  for topology in stated(path, variant):
    facts = planned(tmp_path, recipe, topology, *flags)
    assert facts['fits']
    for phase in facts['phases']:
      assert phase['needs_gib'] < facts['hbm_gib'], phase['phase']
    assert (path, variant) not in FOR_TPUS or not worthwhile(facts)


def test_the_smallest_recipe_for_tpus_follows_its_plan(tmp_path):
  """In four parts, as before, a step takes 1.16 s instead of 1.08 s."""
  recipe = 'gsm8k_smollm2_135m.py', 'v5e:1x1', '--only=generate,update'
  assert not worthwhile(planned(tmp_path, *recipe))
