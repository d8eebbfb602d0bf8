"""The TPU compiler compiles every recipe for its stated chips, and all phases
fit. This takes minutes each, so it is marked slow.
"""

import pytest
from hardware import NAMES, RECIPES, stated, to_plan
from test_plan import planned, pytestmark  # noqa: F401


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
