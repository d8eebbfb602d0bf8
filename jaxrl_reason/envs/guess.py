"""Guess the number: the observation of `32;` is `<` (the number is less), `>`,
`=` or `?` (invalid move).

The number has a reward of 1 and ends the episode.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step

_REPLIES = ('<', '>', '=', '?')


def _encode(example: dict) -> dict:
  return {'number': np.int32(example['meta']['number'])}


def _reset(encoded: dict, key):
  del key
  return encoded


def _step(state: dict, text, length) -> Step:
  guess, fine = text_lib.integer(text, 0, moves.end_of(text, length))
  hit = fine & (guess == state['number'])
  order = jnp.where(hit, 2, (guess < state['number']).astype(jnp.int32))
  reply = text_lib.one_of(_REPLIES, jnp.where(fine, order, 3))
  return Step(state, *reply, hit.astype(jnp.float32), hit, ~fine)


ENV = Env(_encode, _reset, _step, ''.join(_REPLIES), moves.STOP, width=16)
