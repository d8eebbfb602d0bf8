"""Environments that run inside the compiled program, by name.

A recipe may add an environment of its own to `ENVS` (docs/turns.md).
"""

from jaxrl_reason import names
from jaxrl_reason.envs import (
  calculator,
  frozen_lake,
  guess,
  kuhn_poker,
  lookup,
  subtraction,
  sudoku,
  tic_tac_toe,
)
from jaxrl_reason.envs.env import Env, Step

__all__ = ['ENVS', 'Env', 'Step', 'get']

ENVS: dict[str, Env] = {
  'calculator': calculator.ENV,
  'frozen_lake': frozen_lake.ENV,
  'guess': guess.ENV,
  'kuhn_poker': kuhn_poker.ENV,
  'lookup': lookup.ENV,
  'subtraction': subtraction.ENV,
  'sudoku': sudoku.ENV,
  'tic_tac_toe': tic_tac_toe.ENV,
}


def get(name: str) -> Env:
  """Returns the environment of that name.

  Raises:
    ValueError: there is no such environment.
  """
  if name not in ENVS:
    raise ValueError(
      f'{names.choice("rl.turns.env", name, ENVS)} A recipe can put one of '
      'its own into jaxrl_reason.envs.ENVS'
    )
  return ENVS[name]
