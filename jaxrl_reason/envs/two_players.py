"""Games of two players: `Env.players` is 2."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step


def against(game: Env, reply: Callable) -> Env:
  """Returns an environment of one player, in which the program plays the second
  player of a game.

  Args:
    reply: function of the game's state that returns the second player's move.
  """

  def step(state, text, length) -> Step:
    own = game.step(state, text, length)
    other = game.step(own.state, *_wide(reply(own.state), game.width))
    said = jax.tree.map(
      lambda a, b: jnp.where(own.done, a, b),
      own,
      other._replace(reward=own.reward - other.reward),
    )
    return said._replace(malformed=own.malformed)

  return dataclasses.replace(game, step=step, players=1)


def _wide(text: text_lib.Text, width: int) -> text_lib.Text:
  """Pads a text to the bytes that a step reads."""
  data, length = text
  return jnp.pad(data, (0, max(0, width - len(data))))[:width], length
