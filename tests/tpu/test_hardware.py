"""Every recipe compiled by the TPU compiler for the chips that its docstring
states: all of its phases fit. Minutes each, so marked slow.
"""

import pytest
from hardware import RECIPES, stated, to_plan
from test_plan import planned, pytestmark  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize('path', RECIPES, ids=lambda p: p.stem)
def test_a_recipe_fits_the_chips_that_it_states(tmp_path, path):
  flags = [f'--config.{k}={v}' for k, v in to_plan(path).items()]
  for topology in stated(path):
    facts = planned(tmp_path, path.name, topology, *flags)
    assert facts['fits']
    for phase in facts['phases']:
      assert phase['needs_gib'] < facts['hbm_gib'], phase['phase']
