"""Sudoku of 4 x 4 cells: the observation of a move `a2=3;` is `+` or `-`.

A digit that differs from the solution is not written. The observation of an
invalid move, or of a move to a filled cell, is `?`. A correct move has a reward
of 0.5 / free cells, and the last one 0.5 more: the reward of an episode is 1 if
all cells are filled, and less than 0.5 otherwise.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step

_REPLIES = ('-', '+', '?')


def _cells(rows: str) -> np.ndarray:
  """Parses the cells [16] of '1.34 3412 ...'; 0: free."""
  digits = rows.replace(' ', '').replace('.', '0')
  return np.int32([int(x) for x in digits])


def _encode(example: dict) -> dict:
  given = _cells(example['meta']['grid'])
  return {'given': given, 'full': _cells(example['answer'])}


def _reset(encoded: dict, key):
  del key
  return encoded | {'grid': encoded['given']}


def _step(state: dict, text, length) -> Step:
  row = moves.place_of('abcd', text[0])
  column, digit = (text[i].astype(jnp.int32) - ord('1') for i in (1, 3))
  at = jnp.clip(row * 4 + column, 0, 15)
  fine = (row >= 0) & (column >= 0) & (column < 4) & (text[2] == ord('='))
  fine &= (digit >= 0) & (digit < 4) & (moves.end_of(text, length) == 4)
  fine &= state['grid'][at] == 0
  right = fine & (state['full'][at] == digit + 1)
  grid = jnp.where(right & (jnp.arange(16) == at), digit + 1, state['grid'])
  full = jnp.all(grid > 0)
  gained = right * 0.5 / jnp.maximum((state['given'] == 0).sum(), 1)
  reply = text_lib.one_of(_REPLIES, jnp.where(fine, right.astype(int), 2))
  gained += (right & full) * 0.5
  return Step(state | {'grid': grid}, *reply, gained, full, ~fine)


ENV = Env(_encode, _reset, _step, ''.join(_REPLIES), moves.STOP, width=8)
