"""Kuhn poker: the rules, worked games, and the figures of the tool."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

from jaxrl_reason import envs
from jaxrl_reason.envs import two_players
from jaxrl_reason.verifiers import tasks

ENV = envs.ENVS['kuhn_poker']
DEALS = [*itertools.permutations(range(3), 2)]
# Chips that the first player wins if it has the higher card, and if not.
ENDS = {'pp': (1, -1), 'bb': (2, -2), 'bp': (1, 1), 'pbp': (-1, -1)}
ENDS |= {'pbb': (2, -2)}


def start(deal, deck='9JK'):
  """Returns the first state of a game with these cards."""
  state = ENV.reset(ENV.encode({'meta': {'deck': deck}}), jax.random.key(0))
  return state | {'cards': jnp.int32(deal)}


def text(words):
  data = words.encode().ljust(ENV.width, b'\0')[: ENV.width]
  return jnp.asarray(np.frombuffer(data, np.uint8)), len(words)


def read(data, length):
  return bytes(np.asarray(data)[: int(length)]).decode()


def test_every_deal_and_every_sequence_of_moves_follows_the_rules():
  step, seen = jax.jit(ENV.step), set()
  for deal, moves in itertools.product(
    DEALS, itertools.product('pb', repeat=3)
  ):
    state, gained, played = start(deal), 0.0, ''
    for i, move in enumerate(moves):
      said = step(state, *text(f'{move};'))
      state, played = said.state, played + move
      gained += float(said.reward) * (1, -1)[i % 2]
      assert read(said.observation, said.length) == f'{move}>'
      assert bool(said.done) == (played in ENDS) and not said.malformed
      if said.done:
        break
    assert gained == ENDS[played][deal[0] < deal[1]], (deal, played)
    seen.add((deal, played))
  assert len(seen) == 6 * len(ENDS)


@pytest.mark.parametrize(
  'move', ['', ';', 'x;', 'bb;', 'p', 'bp', 'B;', 'p' * 9]
)
@pytest.mark.parametrize('before', ['', 'b', 'pb'])
def test_an_invalid_move_loses_two(move, before):
  step, state = jax.jit(ENV.step), start((2, 0))
  for own in before:
    state = step(state, *text(f'{own};')).state
  said = step(state, *text(move))
  assert said.done and said.malformed and float(said.reward) == -2


def test_cards_are_dealt_evenly_and_each_player_reads_its_own():
  keys = jax.random.split(jax.random.key(1), 6000)
  encoded = ENV.encode({'meta': {'deck': '9JK'}})
  state = jax.vmap(lambda key: ENV.reset(encoded, key))(keys)
  cards, counts = np.unique(np.asarray(state['cards']), axis=0, return_counts=1)
  assert [*map(tuple, cards.tolist())] == DEALS
  assert abs(counts - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)
  for deal in DEALS:
    for player in (0, 1):
      got = read(*ENV.opening(start(deal), jnp.int32(player)))
      assert got == '9JK'[deal[player]] + '>'
  alone = two_players.against(ENV)
  state = {'game': start((1, 2)), 'mover': 0, 'key': jax.random.key(0)}
  assert read(*alone.opening(state, jnp.int32(0))) == 'J>'


def test_an_optimal_player_bets_with_the_known_probabilities():
  """Kuhn's second player: it bluffs with a third of its lowest cards, and calls
  with a third of its middle cards.
  """
  move = jax.jit(jax.vmap(ENV.movers['optimal'], in_axes=(None, 0)))
  keys = jax.random.split(jax.random.key(2), 3000)
  want = {'p': (1 / 3, 0, 1), 'b': (0, 1 / 3, 1)}
  for first, shares in want.items():
    for card, share in enumerate(shares):
      state = ENV.step(start(((card + 1) % 3, card)), *text(f'{first};')).state
      data, _ = move(state, keys)
      got = np.mean(np.asarray(data)[:, 0] == ord('b'))
      assert abs(got - share) < (0.05 if 0 < share < 1 else 1e-9)


def test_worked_games_are_those_of_one_player():
  """Replays the games of a player: each observation is a move that the rules
  ask for, and no text has the card of the other player.
  """
  seats = set()
  for i in range(80):
    example = tasks.example('kuhn_poker', 0, i, split='train')
    deck, played = example['meta']['deck'], example['answer']
    assert played in ENDS and example['prompt'] == deck + '>'
    (_, first), *rest = example['turns']
    assert first[0] in deck and first[1] == '>'
    told = first[2:] + ''.join(a + b for a, b in rest)
    seat = int(len(first) > 2)
    marks = [';>'[i % 2 != seat] for i in range(len(played))]
    want = ''.join(a + b for a, b in zip(played, marks))
    unread = seat != (len(played) - 1) % 2  # the last move ended the game
    assert told == (want[:-2] if unread else want)
    seats.add((seat, played))
  assert len(seats) == 10


def tool():
  path = ROOT / 'tools' / 'kuhn_poker.py'
  spec = importlib.util.spec_from_file_location('kuhn_poker_tool', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def gain(deal, players):
  """Computes the expected gain of the first player by the rules, move by move.

  Args:
    players: for each seat, the probability of a bet by (after a bet, card).
  """

  def after(played):
    if played in ENDS:
      return ENDS[played][deal[0] < deal[1]]
    seat = len(played) % 2
    bet = players[seat][int(played.endswith('b'))][deal[seat]]
    return bet * after(played + 'b') + (1 - bet) * after(played + 'p')

  return after('')


def test_values_and_exploitability_are_those_of_the_rules():
  """The optimal players of Kuhn's paper have a value of -1/18 and cannot be
  exploited.
  """
  own, rng = tool(), np.random.default_rng(0)
  for _ in range(5):
    players = rng.random((2, 2, 3))
    want = np.mean([gain(deal, players) for deal in DEALS])
    assert own.value(*players) == pytest.approx(want)
    assert own.exploitability(*players) > 0.01
  second = np.array([[1 / 3, 0, 1], [0, 1 / 3, 1]])
  for bluff in (0, 0.1, 1 / 3):
    first = np.array([[bluff, 0, 3 * bluff], [0, bluff + 1 / 3, 1]])
    assert own.value(first, second) == pytest.approx(-1 / 18)
    assert own.exploitability(first, second) == pytest.approx(0, abs=1e-6)
  worse = np.array([[0.5, 0, 1.0], [0, 5 / 6, 1]])  # too many bluffs
  assert own.exploitability(worse, second) > 0.01
  always = np.ones((2, 3))  # folding the lowest card saves a chip in a third
  assert own.exploitability(always, always) == pytest.approx(1 / 3)
