"""FrozenLake in text: the observation of `R;` is the cell after the move.

The lake has 4 x 4 cells: S start, F ice, H hole, G goal. L, R, U and D move by
one cell, or not at the edge; the ice is not slippery. The observation of an
invalid move is `?`. The reward at the goal is 1; hole and goal end the episode.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step

SIDE = 4
MOVES = {'L': (0, -1), 'R': (0, 1), 'U': (-1, 0), 'D': (1, 0)}


def _encode(example: dict) -> dict:
  cells = ''.join(example['meta']['lake']).encode()
  return {'lake': np.frombuffer(cells, np.uint8).copy()}  # [16]


def _reset(encoded: dict, key):
  del key
  start = jnp.argmax(encoded['lake'] == ord('S'))
  return encoded | {'at': start.astype(jnp.int32)}


def _step(state: dict, text, length) -> Step:
  which = moves.place_of(''.join(MOVES), text[0])
  fine = (which >= 0) & (moves.end_of(text, length) == 1)
  by = jnp.asarray([*MOVES.values()])[which] * fine
  row, column = state['at'] // SIDE + by[0], state['at'] % SIDE + by[1]
  at = jnp.clip(row, 0, SIDE - 1) * SIDE + jnp.clip(column, 0, SIDE - 1)
  cell = state['lake'][at]
  reply = text_lib.character(jnp.where(fine, cell, ord('?')))
  goal, hole = cell == ord('G'), cell == ord('H')
  gained = goal.astype(jnp.float32)
  return Step(state | {'at': at}, *reply, gained, goal | hole, ~fine)


ENV = Env(_encode, _reset, _step, 'SFHG?', moves.STOP, width=8)
