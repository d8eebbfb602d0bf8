"""The subtraction game: two players take 1 to k of n counters in turn, and the
player who takes the last one wins.

  17/3>        17 counters are left, and a move takes at most 3 of them
  1;           the first player takes one
  16>          the second player reads how many are left

A player who leaves a multiple of k + 1 can win against all moves of the other
player. The winner has a reward of 1, the loser of -1. A player who makes an
invalid move loses.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step


def _encode(example: dict) -> dict:
  return {name: np.int32(example['meta'][name]) for name in ('left', 'most')}


def _reset(encoded: dict, key):
  del key
  return encoded


def _step(state: dict, text, length) -> Step:
  left, end = state['left'], moves.end_of(text, length)
  number, fine = text_lib.integer(text, 0, end)
  fine &= (number >= 1) & (number <= jnp.minimum(state['most'], left))
  after = left - jnp.where(fine, number, 0)
  reply = text_lib.join(text_lib.number(after), text_lib.constant('>'))
  won = fine & (after == 0)
  reward = jnp.where(won, 1.0, jnp.where(fine, 0.0, -1.0))
  return Step(state | {'left': after}, *reply, reward, won | ~fine, ~fine)


def _best(state: dict, key: jax.Array) -> text_lib.Text:
  """Returns the winning move. If there is none, the move depends on the number
  of counters, so that games differ.
  """
  del key
  most, left = state['most'], state['left']
  over = left % (most + 1)
  other = left // (most + 1) % most + 1
  return _move(jnp.where(over > 0, over, other))


def _random(state: dict, key: jax.Array) -> text_lib.Text:
  """Returns one of the valid moves, each with the same probability."""
  most = jnp.minimum(state['most'], state['left'])
  return _move(jax.random.randint(key, (), 1, most + 1))


def _move(number: jax.Array) -> text_lib.Text:
  return text_lib.join(text_lib.number(number), text_lib.constant(';'))


ENV = Env(
  _encode,
  _reset,
  _step,
  '0123456789>',
  moves.STOP,
  width=8,
  players=2,
  movers={'best': _best, 'random': _random},
)
