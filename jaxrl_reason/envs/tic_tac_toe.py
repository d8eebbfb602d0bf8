"""Tic-Tac-Toe: the observation of `5;` is the move of a fixed opponent.

  123
  456   X, the policy, moves first; the opponent completes its line if it can,
  789   else blocks, else takes the first free of 5 1 3 7 9 2 4 6 8.

The observation of an invalid move is `?`, and the board does not change. Three
in a row have a reward of 1, a draw 0.5. Both, or three in a row of the
opponent, end the episode.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step

LINES = np.array(
  [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8]]
  + [[0, 4, 8], [2, 4, 6]]
)
ORDER = (4, 0, 2, 6, 8, 1, 3, 5, 7)
_RANK = np.argsort(ORDER)  # of each cell


def _encode(example: dict) -> dict:
  board = example['meta']['board']  # nine of '.XO'
  return {'board': np.int32(['.XO'.index(c) for c in board])}


def _reset(encoded: dict, key):
  del key
  return encoded


def _three(board, who: int):
  return jnp.any(jnp.all(board[LINES] == who, axis=1))


def _completes(board, who: int):
  """Marks the free cells that complete a line of `who`, bool [9]."""
  cells = board[LINES]
  two = ((cells == who).sum(axis=1) == 2) & jnp.any(cells == 0, axis=1)
  hit = jnp.zeros(9, bool).at[LINES].max(two[:, None])
  return hit & (board == 0)


def _reply(board):
  """Returns the cell of the opponent's move."""
  urgency = jnp.where(_completes(board, 2), 2, _completes(board, 1))
  score = jnp.where(board == 0, urgency * 9 - jnp.asarray(_RANK), -99)
  return jnp.argmax(score)


def _step(state: dict, text, length) -> Step:
  board, cell = state['board'], text[0].astype(jnp.int32) - ord('1')
  fine = (cell >= 0) & (cell < 9) & (moves.end_of(text, length) == 1)
  fine &= board[jnp.clip(cell, 0, 8)] == 0
  own = jnp.where(fine & (jnp.arange(9) == cell), 1, board)
  won, full = _three(own, 1), jnp.all(own > 0)
  answer = _reply(own)
  plays = fine & ~won & ~full
  both = jnp.where(plays & (jnp.arange(9) == answer), 2, own)
  lost, full = _three(both, 2), jnp.all(both > 0)
  gained = jnp.where(won, 1.0, jnp.where(full & ~lost, 0.5, 0.0))
  reply = text_lib.character(jnp.where(fine, answer + ord('1'), ord('?')))
  done = won | lost | full
  return Step({'board': both}, *reply, gained, done, ~fine)


ENV = Env(_encode, _reset, _step, '123456789?', moves.STOP, width=8)
