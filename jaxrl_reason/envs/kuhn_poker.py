"""Kuhn poker: two players bet on which of their cards has the higher rank.

  9JK>     the deck: three ranks, the lowest first. Each player has one card
  J>       a player reads its own card before the first turn
  p;       the first player passes, or bets one more chip with `b;`
  b>       the other player reads the move

Each player first puts one chip into the pot. After a bet, `b;` calls it and
`p;` gives up the pot. Otherwise two passes or a call end the game, and the
higher card wins the pot. The reward is the number of chips won, 1 or 2, and the
loser has the negative. A player who makes an invalid move loses 2.

Two optimal players have an expected reward of -1/18 and 1/18 (Kuhn, A
simplified two-person poker, 1950).
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.envs import moves
from jaxrl_reason.envs import row_bytes as text_lib
from jaxrl_reason.envs.env import Env, Step
from jaxrl_reason.verifiers.tasks import games

# The cards of both players in each deal, as indices of the deck.
DEALS = np.int32([[i, j] for i in range(3) for j in range(3) if i != j])
# An optimal second player's probabilities of a bet, [after a bet, its card].
OPTIMAL = np.float32([[1 / 3, 0, 1], [0, 1 / 3, 1]])


def _encode(example: dict) -> dict:
  return {'deck': np.frombuffer(example['meta']['deck'].encode(), np.uint8)}


def _reset(encoded: dict, key: jax.Array) -> dict:
  deal = jax.random.randint(key, (), 0, len(DEALS))
  start = {'turn': jnp.int32(0), 'bet': jnp.bool(False)}
  return encoded | start | {'cards': jnp.asarray(DEALS)[deal]}


def _opening(state: dict, player: jax.Array) -> text_lib.Text:
  card = text_lib.character(state['deck'][state['cards'][player]])
  return text_lib.join(card, text_lib.constant('>'))


def _step(state: dict, text, length) -> Step:
  turn, raised, cards = state['turn'], state['bet'], state['cards']
  bets = text[0] == ord('b')
  fine = bets | (text[0] == ord('p'))
  # Unlike in other games, a stop token does not replace the `;`. Otherwise an
  # entropy bonus would favor random second tokens without bytes.
  fine &= (length == 2) & (text[1] == moves.STOP[0])
  own, other = cards[turn % 2], cards[1 - turn % 2]
  higher = jnp.where(own > other, 1.0, -1.0)
  called, folded = raised & bets, raised & ~bets
  done = ~fine | raised | (~bets & (turn > 0))
  reward = jnp.where(folded, -1.0, jnp.where(called, 2.0, 1.0) * higher)
  reward = jnp.where(fine, reward, -2.0)
  reply = text_lib.character(jnp.where(bets, ord('b'), ord('p')))
  return Step(
    state | {'turn': turn + 1, 'bet': bets},
    *text_lib.join(reply, text_lib.constant('>')),
    jnp.where(done, reward, 0.0),
    done,
    ~fine,
  )


def _optimal(state: dict, key: jax.Array) -> text_lib.Text:
  """Returns the move of a second player whom no first player beats: its
  expected reward is 1/18 or more.
  """
  own = state['cards'][state['turn'] % 2]
  share = jnp.asarray(OPTIMAL)[state['bet'].astype(jnp.int32), own]
  return _move(jax.random.uniform(key) < share)


def _random(state: dict, key: jax.Array) -> text_lib.Text:
  """Returns a bet or a pass, each with the same probability."""
  del state
  return _move(jax.random.bernoulli(key))


def _move(bets: jax.Array) -> text_lib.Text:
  letter = text_lib.character(jnp.where(bets, ord('b'), ord('p')))
  return text_lib.join(letter, text_lib.constant(';'))


ENV = Env(
  _encode,
  _reset,
  _step,
  'pb>' + games.RANKS,
  moves.STOP,
  width=8,
  players=2,
  movers={'optimal': _optimal, 'random': _random},
  opening=_opening,
)
