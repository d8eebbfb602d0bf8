"""Private information in a game: each player reads its own opening alone."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import envs, sharding
from jaxrl_reason.base import Prompts, Trajectories
from jaxrl_reason.batch import make_batch, rows_of
from jaxrl_reason.envs import kuhn_poker, two_players
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import turns

GAME = envs.ENVS['kuhn_poker']
B, G, P, C, MOST = 6, 4, 4, 9, 3
DECK = '9JK'
WORDS = [b'', b'', *[x.encode() for x in [*DECK, *'pb>;', 'p;', 'b;']]]
STOP = jnp.array([1, -1])
VALID = np.arange(P) >= P - np.array([[4], [3], [2], [4], [4], [4]])


class Toy:
  """A tokenizer with tokens for the bytes of the game and for both moves."""

  def token_bytes(self):
    return WORDS


@functools.cache
def small():
  """Returns a model for which valid moves are likelier than other tokens."""
  _, model, params = small_model(kv_heads=4, tied=False, layers=2)
  likely = np.zeros(16, np.float32)
  likely[[WORDS.index(b'p;'), WORDS.index(b'b;')]] = 8.0

  def unembed(params, hidden):
    return model.unembed(params, hidden) * 0.8 + likely

  return dataclasses.replace(model, unembed=unembed), params


def asked(deals):
  """Returns prompts with one deal each: the cards of both players, [B,2]."""
  state = GAME.reset(GAME.encode({'meta': {'deck': DECK}}), jax.random.key(0))
  encoded = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * B), state)
  encoded |= {'cards': jnp.asarray(deals, jnp.int32)}
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 9)
  answer = {turns.PART: encoded}
  return Prompts(tokens, jnp.asarray(VALID), jnp.arange(B), answer)


# The deals are those of the prompts.
GIVEN = dataclasses.replace(
  GAME, reset=lambda encoded, key: encoded, alphabet=DECK + 'pb>'
)
ALL = kuhn_poker.DEALS
# Chips of the first player if its card is lower, and if it is higher.
ENDS = {'pp': (-1, 1), 'bb': (-2, 2), 'bp': (1, 1), 'pbp': (-1, -1)}
ENDS |= {'pbb': (-2, 2)}


@functools.cache
def program(env=None, keep=False, **static):
  """Returns a compiled function of (encoded problems, key) to a rollout."""
  model, params = small()
  limits = dict(most=MOST, tokens=2, observation=2, chunk=0, weight=1.0)
  how = turns.make(env or GIVEN, Toy(), **limits)
  prompts, old = asked(ALL), turns.rollout

  def with_cache(play, state, *rest):
    return old(play, state, *rest).replace(views={'cache': state.cache})

  @jax.jit
  def f(encoded, key):
    with pytest.MonkeyPatch.context() as patch:
      if keep:
        patch.setattr(turns, 'rollout', with_cache)
      return turns.generate(
        how, model, params, prompts.tokens, prompts.valid, encoded, key,
        Sampling.make(), STOP, n_samples=G, max_new=C, **static,
      )  # fmt: skip

  return f


def play(deals, seed=5, **static):
  prompts = asked(deals)
  encoded = prompts.answer[turns.PART]
  return program(**static)(encoded, jax.random.key(seed)), prompts


def text_of(out, row):
  """Returns the text of a row, with each observed token in brackets."""
  there = np.asarray(out.turn)[row] > 0
  tokens, own = (np.asarray(x)[row][there] for x in (out.tokens, out.sampled))
  words = [WORDS[t].decode() if t < len(WORDS) else '?' for t in tokens]
  return ''.join(w if o else f'[{w}]' for w, o in zip(words, own))


def test_each_row_reads_its_own_card_and_the_moves_of_the_other_player():
  """Compares the rows with a referee: the moves of valid games, as each player
  reads them.
  """
  out, _ = play(ALL)
  games = set()
  reward = np.asarray(out.episode.reward)
  for row in range(0, B * G, 2):
    cards = [DECK[card] for card in ALL[row // G]]
    rows = [text_of(out, row + k) for k in (0, 1)]
    for text, card in zip(rows, cards):
      assert text.startswith(f'[{card}][>]')
      assert not set(text[6:]) & set(DECK)
    np.testing.assert_array_equal(reward[row], -reward[row + 1])
    played = [re.findall(r'(?:^|[\];])([pb]);', text[6:]) for text in rows]
    moves = ''.join(x for both in itertools.zip_longest(*played, fillvalue='')
                    for x in both)  # fmt: skip
    if moves not in ENDS or '?' in ''.join(rows):
      continue
    for k in (0, 1):
      want = ''.join(
        f'{m};' if i % 2 == k else f'[{m}][>]'
        for i, m in enumerate(moves)
        if i % 2 == k or i + 1 < len(moves)  # the last move ends the game
      )
      assert rows[k][6:] == want
    gain = ENDS[moves][int(cards[0] > cards[1])]  # '9' < 'J' < 'K'
    assert np.nansum(reward[row]) == gain
    games.add(moves)
  assert len(games) > 2, games


def test_log_probs_equal_the_trainers_and_cards_are_not_trained_on():
  model, params = small()
  out, prompts = play(ALL)
  rows, settings = rows_of(prompts, out), Sampling.make()
  logp = logprobs.score(model, params, rows, settings, start=P)[0][:, P:]
  gap = np.abs(np.where(out.sampled, logp - out.logp, 0))
  assert gap.max() < 1e-5 and np.asarray(out.logp).min() < -0.5
  batch = make_batch(Trajectories(prompts, out, turns.Judged(None)(out, {})))
  assert not np.asarray(batch.mask)[:, P : P + 2].any()
  assert np.asarray(batch.observed)[:, P : P + 2].all()


def test_eight_devices_and_growing_caches_play_the_same_games():
  model, params = small()
  want, _ = play(ALL)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got, _ = play(ALL, segments=2)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.turn, want.turn)
  np.testing.assert_array_equal(got.episode.reward, want.episode.reward)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


def test_the_policy_reads_its_card_against_a_player_of_the_program():
  inside = asked(ALL).answer[turns.PART]
  encoded = {'game': inside, 'mover': jnp.zeros(B, jnp.int32)}
  run = program(two_players.against(GIVEN))
  out = run(encoded, jax.random.key(5))
  for row in range(B * G):
    card = DECK[ALL[row // G][0]]
    assert text_of(out, row).startswith(f'[{card}][>]')


def of_row(cache, row):
  """Returns the cached arrays of a row's completion, by index of the token."""
  leaves = [np.asarray(x) for x in jax.tree.leaves(cache.own)]
  leaves = [np.take(x, row, axis=x.ndim - 4) for x in leaves]  # [.,K,R,H]
  at = np.asarray(cache.at)[row] - VALID[row // G].sum()
  return {
    int(t): [x[..., i, :] for x in leaves] for i, t in enumerate(at) if t >= 0
  }


def bits(out, row):
  return [
    np.asarray(x)[row] for x in (out.tokens, out.turn, out.sampled, out.logp)
  ]


@pytest.mark.parametrize('player', [0, 1])
def test_no_number_of_a_player_depends_on_the_card_of_the_other(player):
  """Changes the opponent's card in every game. The player's tokens, their
  log-probs and their cached arrays are equal bit by bit, up to a move of the
  opponent that differs.
  """
  changed = ALL.copy()
  changed[:, 1 - player] = 3 - ALL.sum(axis=1)
  equal = other = compared = 0
  for seed in range(6):
    outs = [play(deals, seed, keep=True)[0] for deals in (ALL, changed)]
    for row in range(player, B * G, 2):
      a, b = (bits(out, row) for out in outs)
      differ = (a[0] != b[0]) | (a[1] != b[1])
      n = int(np.argmax(differ)) if differ.any() else C
      for x, y in zip(a, b):
        np.testing.assert_array_equal(x[:n], y[:n])
      assert n >= 3 - player  # its card, and the first player's first token
      if n < C:  # the player has read something else
        assert not a[2][n] and not b[2][n]
      equal, other = equal + (n == C), other + (n < C)
      mine = [of_row(out.views['cache'], row) for out in outs]
      for t in {*mine[0]} & {*mine[1]} & {*range(n)}:
        for x, y in zip(mine[0][t], mine[1][t]):
          np.testing.assert_array_equal(x, y)
          compared += 1
  assert equal > 2 and other > 2 and compared > 20, (equal, other, compared)
  theirs = [of_row(out.views['cache'], 1 - player) for out in outs]
  assert any((x != y).any() for x, y in zip(theirs[0][0], theirs[1][0]))
