"""Look-up in a table of the problem: the observation of `?3;` is entry 3 of the
table, or `?` for an invalid query.

A toy search: the prompt does not contain the table. A turn without `;` ends the
episode, and the problem's verifier verifies its answer.
"""

import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step


def _encode(example: dict) -> dict:
  return {'table': np.int32(example['meta']['table'])}  # [10]


def _reset(encoded: dict, key):
  del key
  return encoded


def _step(state: dict, text, length) -> Step:
  asked = text_lib.byte(text, length - 1) == moves.STOP[0]
  asked |= length > text.shape[0]
  low = length - 3
  key, fine = text_lib.integer(text, low + 1, moves.end_of(text, length))
  fine &= text_lib.byte(text, low) == ord('?')
  value = state['table'][jnp.clip(key, 0, 9)] + ord('0')
  reply = text_lib.character(jnp.where(fine, value, ord('?')))
  return Step(state, *reply, jnp.float32(0), ~asked, asked & ~fine)


ENV = Env(_encode, _reset, _step, '0123456789?', moves.STOP, width=16)
