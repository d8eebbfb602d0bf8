"""Games of two players: `Env.players` is 2."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step


def against(game: Env) -> Env:
  """Returns an environment of one player, in which the program plays the second
  player of a game.

  `encode(example, mover=i)` chooses the i-th of the game's movers.
  """

  def encode(example: dict, mover: int = 0) -> dict:
    return {'game': game.encode(example), 'mover': np.int32(mover)}

  def reset(encoded: dict, key: jax.Array) -> dict:
    own, noise = jax.random.split(key)
    start = game.reset(encoded['game'], own)
    return {'game': start, 'mover': encoded['mover'], 'key': noise}

  def step(state: dict, text: jax.Array, length: jax.Array) -> Step:
    noise, key = jax.random.split(state['key'])
    own = game.step(state['game'], text, length)
    replies = [
      _wide(move(own.state, key), game.width) for move in game.movers.values()
    ]
    reply = (jnp.stack(x)[state['mover']] for x in zip(*replies))
    other = game.step(own.state, *reply)
    said = jax.tree.map(
      lambda a, b: jnp.where(own.done, a, b),
      own,
      other._replace(reward=own.reward + other.others_reward),
    )
    after = state | {'game': said.state, 'key': noise}
    return said._replace(state=after, malformed=own.malformed)

  def opening(state: dict, player: jax.Array) -> text_lib.Text:
    return game.opening(state['game'], player)

  return dataclasses.replace(
    game,
    encode=encode,
    reset=reset,
    step=step,
    players=1,
    movers={},
    opening=opening if game.opening else None,
  )


def _wide(text: text_lib.Text, width: int) -> text_lib.Text:
  """Pads a text to the bytes that a step reads."""
  data, length = text
  return jnp.pad(data, (0, max(0, width - len(data))))[:width], length
