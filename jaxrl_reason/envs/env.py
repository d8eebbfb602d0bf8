"""Environments inside the compiled program.

  encode(example) -> dict of arrays          host: what of a problem it goes by
  reset(encoded, key) -> state               one row; `vmap` makes rows of it
  step(state, text u8 [W], length) -> Step   a turn of the policy, and the reply

Pure functions of bytes, so that they work with any tokenizer: the source hands
them the bytes of the tokens that the policy drew in this turn, and writes their
observation back a byte a token. A `length` above W says that the text was cut.
Nothing an environment says ends a turn, is parsed as a call, or is graded.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

# What an observation that was too long ends with.
CUT = '~'


class Step(NamedTuple):
  """The answer of an environment to one turn."""

  state: Any  # pytree
  observation: jax.Array  # u8 [O]
  length: jax.Array  # i32 [], bytes of it
  reward: jax.Array  # f32 [], of this turn
  done: jax.Array  # bool [], the episode is over: nothing is said any more
  malformed: jax.Array | bool = False  # bool [], not a call or move; counted


@dataclasses.dataclass(frozen=True)
class Env:
  """An environment, as functions of one row.

  Attributes:
    encode, reset, step: see the module.
    alphabet: every character an observation may have; the tokenizer must have
      a token for each alone.
    stop: the bytes that end a turn, b'' for none; a stop token of the
      tokenizer does too.
    width: W, bytes of a turn that `step` sees.
    told: states of rows -> arrays by name that rewards read; None: none.
  """

  encode: Callable[[dict], dict]
  reset: Callable[[dict, jax.Array], Any]
  step: Callable[[Any, jax.Array, jax.Array], Step]
  alphabet: str
  stop: bytes
  width: int = 48
  told: Callable[[Any], dict[str, jax.Array]] | None = None
