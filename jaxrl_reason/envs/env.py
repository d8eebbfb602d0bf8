"""Environments inside the compiled program.

  encode(example) -> dict of arrays          on the host: the data of a problem
  reset(encoded, key) -> state               of one row; used under `vmap`
  step(state, text u8 [W], length) -> Step   a turn of the policy, and the reply

The functions are pure functions of bytes, so they work with any tokenizer. The
source passes the bytes of the sampled tokens of a turn, and writes the
observation with one token per byte. A `length` above W means that the text was
cut. An observation never ends a turn, and is never parsed as a call or graded.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

# The end of an observation that was cut.
CUT = '~'


class Step(NamedTuple):
  """The answer of an environment to one turn."""

  state: Any  # pytree
  observation: jax.Array  # u8 [O]
  length: jax.Array  # i32 [], bytes of it
  reward: jax.Array  # f32 [], of this turn
  done: jax.Array  # bool [], the episode is over
  malformed: jax.Array | bool = False  # bool [], no valid call or move
  # f32 [], of the other player of a game; None: the negative of `reward`.
  other: jax.Array | None = None

  @property
  def others_reward(self) -> jax.Array:
    """Returns the reward of the player who did not move."""
    return -self.reward if self.other is None else self.other


@dataclasses.dataclass(frozen=True)
class Env:
  """An environment, as functions of one row.

  Attributes:
    encode, reset, step: see the module.
    alphabet: every character an observation may have; the tokenizer must have
      a token for each alone.
    stop: the bytes that end a turn, b'' for none; a stop token also ends it.
    width: W, bytes of a turn that `step` sees.
    told: function from states of rows to arrays by name that rewards read, or
      None.
    players: 2 for a game in which two policies move in turn: `reward` is for
      the player who moved, and the other player gets its negative, or `other`.
      The observation has at least one byte, and the other player reads it.
    movers: of a game of two, players for evaluations, by name: functions from
      (state, key) to the bytes of a move and their number. The first one plays
      against the policy in `eval/heldout`, the others in
      `eval/heldout/against_<name>`.
    opening: function from (state, number of the player) to the bytes that this
      player alone reads before the first turn, and their number, at least one;
      None: players read only the prompt.
  """

  encode: Callable[[dict], dict]
  reset: Callable[[dict, jax.Array], Any]
  step: Callable[[Any, jax.Array, jax.Array], Step]
  alphabet: str
  stop: bytes
  width: int = 48
  told: Callable[[Any], dict[str, jax.Array]] | None = None
  players: int = 1
  movers: Mapping[str, Callable] = dataclasses.field(
    default_factory=dict, compare=False
  )
  opening: Callable | None = None
