"""Returns error messages of invalid configurations, for tests of runs."""

import pytest

from jaxrl_reason.run.checks import config_checks


def refusal(config, changes: dict) -> str:
  """Returns the error for an rl section with changed keys."""
  with config.rl.unlocked():
    for key, value in changes.items():
      section, _, name = key.rpartition('.')
      (config.rl[section] if section else config.rl)[name] = value
  with pytest.raises(ValueError) as e:
    config_checks.check(config, 1)
  return str(e.value)
