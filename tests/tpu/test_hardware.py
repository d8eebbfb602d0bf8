"""Every recipe compiled by the TPU compiler for the chips that its docstring
states: all of its phases fit. Minutes each, so marked slow.
"""

import pytest
from hardware import RECIPES, stated, without_turns
from test_plan import planned, pytestmark  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize('path', RECIPES, ids=lambda p: p.stem)
def test_a_recipe_fits_the_chips_that_it_states(tmp_path, path):
  changes = without_turns(path)
  if not all(isinstance(v, int | str) for v in changes.values()):
    pytest.skip('what it changes cannot be said on a command line')
  flags = [f'--config.{k}={v}' for k, v in changes.items()]
  for topology in stated(path):
    facts = planned(tmp_path, path.name, topology, *flags)
    assert facts['fits']
    for phase in facts['phases']:
      assert phase['needs_gib'] < facts['hbm_gib'], phase['phase']
