"""Games of two players: the rules, the rows of both players, and devices."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import envs, sharding, trees
from jaxrl_reason.base import Prompts, Reward, TrainState, Trajectories
from jaxrl_reason.batch import make_batch, rows_of
from jaxrl_reason.envs import two_players
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import fused, league, progress, turns
from jaxrl_reason.rollouts.draw import NONE

B, G, P, C, MOST = 4, 8, 4, 18, 7
WORDS = [b'', b'', *[c.encode() for c in [*'0123456789>;', '1;', '2;']]]
STOP = jnp.array([1, -1])
LIMITS = dict(most=MOST, tokens=3, observation=3, chunk=0, weight=1.0)
VALID = np.arange(P) >= P - np.array([[3], [2], [4], [4]])


class Toy:
  """A tokenizer with tokens for the bytes of the game and for two moves."""

  def token_bytes(self):
    return WORDS


def referee(left, most, moves):
  """Plays a subtraction game in Python: [(observation, reward of the mover,
  whether the game is over)] by move.
  """
  out = []
  for move in moves:
    number = int(move.rstrip(';')) if re.fullmatch(r'[0-9]{1,9};?', move) else 0
    fine = 1 <= number <= min(most, left)
    left -= number if fine else 0
    over = not fine or not left
    out.append((f'{left}>', (1.0 if fine else -1.0) if over else 0.0, over))
    if over:
      break
  return out


def test_the_game_equals_a_referee_in_python():
  env = envs.ENVS['subtraction']
  step, rng = jax.jit(env.step), np.random.default_rng(0)
  ends, invalid = set(), ['0;', ';', 'x;', '', '99999;', '+1;', '1;;']
  for _ in range(60):
    left, most = int(rng.integers(3, 20)), int(rng.integers(2, 5))
    moves = [f'{rng.integers(1, most + 1)};' for _ in range(20)]
    if rng.random() < 0.4:
      moves[int(rng.integers(0, 4))] = str(rng.choice(invalid))
    state = env.encode({'meta': {'left': left, 'most': most}})
    state = env.reset(state, jax.random.key(0))
    wanted = referee(left, most, moves)
    for move, want in zip(moves, wanted):
      text = np.frombuffer(move.encode().ljust(env.width, b'\0'), np.uint8)
      said = step(state, jnp.asarray(text), len(move))
      state = said.state
      got = bytes(np.asarray(said.observation)[: int(said.length)]).decode()
      assert (got, float(said.reward), bool(said.done)) == want, (move, left)
      assert bool(said.malformed) == (want[1] < 0)
    ends.add((want[1], len(wanted) % 2))
  assert ends == {(1.0, 0), (1.0, 1), (-1.0, 0), (-1.0, 1)}


def share_of_wins(left, most):
  """Computes the share of games of two random players that the first one wins,
  by the rule of total probability.
  """

  @functools.cache
  def wins(left):
    if not left:
      return 0.0
    moves = range(1, min(most, left) + 1)
    return sum(1 - wins(left - move) for move in moves) / len(moves)

  return wins(left)


def test_a_random_mover_chooses_each_valid_move_as_often():
  env = two_players.against(envs.ENVS['subtraction'])
  step, n = jax.vmap(jax.jit(env.step), in_axes=(0, 0, 0)), 4000
  assert [*envs.ENVS['subtraction'].movers] == ['best', 'random']
  left, most = 7, 3
  example = {'meta': {'left': left, 'most': most}}
  start = env.encode(example, mover=1)
  keys = jax.random.split(jax.random.key(1), n)
  state = jax.vmap(lambda key: env.reset(start, key))(keys)
  rng, over, gained = np.random.default_rng(0), np.zeros(n, bool), np.zeros(n)
  first = None
  for _ in range(left):
    now = np.asarray(state['game']['left'])
    number = rng.integers(1, np.minimum(most, np.maximum(now, 1)) + 1)
    text = np.zeros((n, env.width), np.uint8)
    text[:, 0], text[:, 1] = number + ord('0'), ord(';')
    said = step(state, jnp.asarray(text), jnp.full(n, 2))
    state = said.state
    gained += np.where(over, 0, said.reward)
    over |= np.asarray(said.done)
    if first is None:
      first = now - number - np.asarray(state['game']['left'])
  assert over.all() and set(gained) == {-1, 1}
  for move in range(1, most + 1):  # four standard errors
    assert (first == move).mean() == pytest.approx(1 / most, abs=0.03)
  want = share_of_wins(left, most)
  assert 0.3 < want < 0.7
  assert (gained > 0).mean() == pytest.approx(want, abs=0.032)


def asked():
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 14)
  left, most = jnp.array([5, 9, 12, 4]), jnp.array([2, 3, 4, 3])
  encoded = {turns.PART: {'left': left, 'most': most}}
  return Prompts(tokens, jnp.asarray(VALID), jnp.arange(B), encoded)


def biased(model):
  """Returns the model with likelier moves, so that games go on."""
  bias = np.zeros(16, np.float32)
  bias[14:], bias[WORDS.index(b'3')] = 4.0, 2.0

  def unembed(params, hidden):
    return model.unembed(params, hidden) * 0.3 + bias

  return dataclasses.replace(model, unembed=unembed)


def play(model, params, env=envs.ENVS['subtraction'], **static):
  how, prompts = turns.make(env, Toy(), **LIMITS), asked()

  def f(params):
    return turns.generate(
      how, model, params, prompts.tokens, prompts.valid,
      prompts.answer[turns.PART], jax.random.key(3), Sampling.make(), STOP,
      **dict(n_samples=G, max_new=C) | static,
    )  # fmt: skip

  return jax.jit(f)(params)


@functools.cache
def small(**shape):
  _, model, params = small_model(kv_heads=4, tied=False, **shape)
  return biased(model), params


def texts(out, row, own):
  """Returns {turn: text} of the sampled or the observed tokens of a row."""
  tokens, turn, sampled = (
    np.asarray(x)[row] for x in (out.tokens, out.turn, out.sampled)
  )
  found = {}
  for token, i, is_own in zip(tokens, turn, sampled):
    if i and is_own == own and token < len(WORDS):
      found[i - 1] = found.get(i - 1, '') + WORDS[token].decode()
  return found


def test_rows_are_the_games_of_a_referee():
  """In each game, players alternate, each row has the moves of its player and
  observations of the other player's moves, and rewards sum to zero.
  """
  model, params = small()
  out, prompts = play(model, params), asked()
  reward, ends = np.asarray(out.episode.reward), set()
  for game in range(B * G // 2):
    rows = 2 * game, 2 * game + 1
    own = [texts(out, row, True) for row in rows]
    seen = [texts(out, row, False) for row in rows]
    moves = [own[i % 2].get(i, '') for i in range(MOST)]
    assert all(i % 2 == 0 for i in own[0]) and all(i % 2 for i in own[1])
    encoded = {
      k: int(v[2 * game // G]) for k, v in prompts.answer['env'].items()
    }
    said = referee(encoded['left'], encoded['most'], moves)
    n = int(np.isfinite(reward[rows[0]]).sum())
    said = said[:n]
    done, last = said[-1][2], rows[(n - 1) % 2]
    tokens = np.asarray(out.tokens)[last][np.asarray(out.sampled)[last]]
    end = WORDS[tokens[-1]]  # no limit cut the move
    done &= tokens[-1] == 1 or end.endswith(b';')
    ends.add((n, said[-1][1] if done else None))
    for i, (text, gain, _) in enumerate(said):
      signs = (1, -1) if i % 2 == 0 else (-1, 1)
      for k in (0, 1):
        assert reward[rows[k], i] == signs[k] * gain
      if i + 1 < n:  # the player who moves next reads it, and only he
        assert seen[1 - i % 2][i] == text
        assert i not in seen[i % 2]
      else:
        assert i not in seen[0] and i not in seen[1]
    assert max([*own[0], *own[1]]) == n - 1
    assert [bool(out.episode.done[r]) for r in rows] == [done] * 2
  total = np.nansum(reward, axis=1).reshape(-1, 2)
  np.testing.assert_array_equal(total.sum(1), 0)
  assert len({n for n, _ in ends}) > 3
  assert {1.0, -1.0, None} == {end for _, end in ends}


def test_a_game_may_reward_both_players_for_a_move():
  """Step.other replaces the negative of the mover's reward."""
  game = envs.ENVS['subtraction']

  def step(state, text, length):
    said = game.step(state, text, length)
    return said._replace(other=jnp.where(said.malformed, 0.0, 0.25))

  shared = dataclasses.replace(game, step=step)
  want, got = (
    np.asarray(play(*small(), env=env).episode.reward) for env in (game, shared)
  )
  # The mover of turn i is in row i % 2 of its game.
  moves = np.arange(B * G)[:, None] % 2 == np.arange(MOST) % 2
  np.testing.assert_array_equal(got[moves], want[moves])
  own, other = np.nan_to_num(want[moves]), got[~moves]
  assert {0.0, 0.25} == {*other[np.isfinite(other)]} and -1 in own
  # The program's move in an evaluation rewards the policy.
  alone = two_players.against(shared)
  encoded = alone.encode({'meta': {'left': 7, 'most': 3}}, mover=0)
  state = alone.reset(encoded, jax.random.key(0))
  move = jnp.asarray(np.frombuffer(b'1;'.ljust(game.width, b'\0'), np.uint8))
  assert float(alone.step(state, move, 2).reward) == 0.25


def test_log_probs_equal_the_trainers_and_only_own_moves_are_trained_on():
  model, params = small()
  out, prompts = play(model, params), asked()
  rows, settings = rows_of(prompts, out), Sampling.make()
  logp = logprobs.score(model, params, rows, settings, start=P)[0][:, P:]
  gap = np.abs(np.where(out.sampled, logp - out.logp, 0))
  assert gap.max() < 1e-5 and np.asarray(out.logp).min() < -1
  reward = turns.Judged(None)(out, {})
  batch = make_batch(Trajectories(prompts, out, reward))
  turn, mask = np.asarray(batch.turn), np.asarray(batch.mask)
  role = np.arange(B * G)[:, None] % 2
  assert mask.any(1)[::2].all() and mask.any(1)[1::2].any()
  assert ((turn - 1) % 2 == role)[mask].all()
  observed = np.asarray(batch.observed)
  assert observed.any() and ((turn - 1) % 2 != role)[observed].all()
  # Rows have no gap: only their ends are padding.
  there = turn[:, P:] > 0
  assert (there[:, :-1] >= there[:, 1:]).all()


def test_idle_is_the_share_of_decoded_rows_that_wait():
  """Half of the rows wait for the other player, and more for longer turns."""
  model, params = small()
  seen = []

  def decode(params, tokens, cache, t, column):
    jax.debug.callback(lambda t: seen.append(np.asarray(t) == NONE), t)
    return model.decode(params, tokens, cache, t, column)

  out = play(dataclasses.replace(model, decode=decode), params)
  jax.effects_barrier()
  waits = np.mean(seen)
  assert 0.5 < waits < 1
  assert float(turns.idle(out, MOST)) == pytest.approx(waits, abs=1e-6)


def test_eight_devices_play_as_one_does():
  model, params = small()
  want = play(model, params)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = play(model, params, segments=2)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.turn, want.turn)
  np.testing.assert_array_equal(got.episode.reward, want.episode.reward)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


SPECS = dict(share=0.6, every=1, size=2)


def versions(model, params, n):
  """Returns a league's memory after n steps; each adds to the weights."""
  part = league.League(**SPECS, specs=model.specs)
  memory = part.init(jnp.int32(0))
  for i in range(1, n + 1):
    now = jax.tree.map(lambda x, i=i: x * (1 + 0.5 * i), params)
    state = TrainState(jnp.int32(i), now, None)
    memory, _, _ = part.after(memory, state, {})
  return part, memory


def test_a_league_keeps_the_last_versions():
  model, params = small()
  _, memory = versions(model, params, 3)
  assert int(memory['n']) == 3 and memory['step'].tolist() == [3, 2]
  for k, step in (('0', 3), ('1', 2)):
    want = jax.tree.map(lambda x, s=step: x * (1 + 0.5 * s), params)
    jax.tree.map(np.testing.assert_array_equal, memory['versions'][k], want)


def test_a_version_plays_its_rows_with_its_own_weights():
  """The policy's rows have the trainer's log-probs, and no token of a version
  is trained on. A version that equals the policy plays the same games.
  """
  model, params = small()
  part, memory = versions(model, params, 2)
  n = B * G
  players = part.players(params, memory, jax.random.key(7), n)
  is_past = np.asarray(players['is_past'])
  games = is_past.reshape(-1, 2)
  assert 2 < games.any(1).sum() < n // 2 and not games.all(1).any()
  assert games[:, 0].any() and games[:, 1].any()
  both = league.of_two(model)
  raw = play(both, players)
  out = league.of_policy(raw, players['is_past'])
  mask = np.asarray(out.sampled)
  assert not mask[is_past].any() and mask[~is_past].any()
  np.testing.assert_array_equal(out.length, mask.sum(1))
  for weights, rows in ((params, ~is_past), (players['past'], is_past)):
    logp = logprobs.score(
      model, weights, rows_of(asked(), raw), Sampling.make(), start=P
    )[0][:, P:]
    gap = np.abs(np.where(raw.sampled, logp - raw.logp, 0))[rows]
    other = np.abs(np.where(raw.sampled, logp - raw.logp, 0))[~rows]
    assert gap.max() < 1e-5 < 1e-2 < other.max()
  same = play(both, players | {'past': params})
  want = play(model, params)
  np.testing.assert_array_equal(same.tokens, want.tokens)
  np.testing.assert_allclose(same.logp, want.logp, atol=1e-6)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = play(both, players)
  np.testing.assert_array_equal(got.tokens, raw.tokens)
  np.testing.assert_allclose(got.logp, raw.logp, atol=1e-5)


def test_statistics_of_the_policy_leave_versions_out():
  """The games that a version wins change no solve rate and no mean."""
  model, params = small()
  part, memory = versions(model, params, 2)
  how = turns.make(envs.ENVS['subtraction'], Toy(), **LIMITS)

  def reward(rollout, answers, control=None):
    total = jnp.nansum(rollout.episode.reward, axis=1)
    return Reward(total, total[:, None], total <= 1)

  gen = fused.Generation(league.of_two(model), G, C, turns=how)
  source, key = fused.FusedSource(gen, reward, league=part), jax.random.key(7)

  @jax.jit
  def play(params):
    control = {league.NAME: memory}
    given = asked(), key, jnp.int32(0), Sampling.make(), STOP
    return source(params, control, *given)

  found = play(params)
  seen = found.account.seen
  key = fused.key_of(key, 0, 'league')
  is_past = part.players(params, memory, key, B * G)['is_past']
  np.testing.assert_array_equal(seen.own[0], ~is_past)
  lost = jnp.where(is_past[:, None], -seen.reward_parts, seen.reward_parts)
  before = progress.Progress(False).init()
  rates = [
    progress.observe(before, x)['solve_rate']
    for x in (seen, seen.replace(reward_parts=lost))
  ]
  assert rates[0] == rates[1] > 0
  row = trees.take(seen, 0)
  invalid, cut = row.reward_valid & ~is_past, row.truncated | is_past
  means, others = (
    batch_lib.summary(x, ('env',))
    for x in (row, row.replace(reward_valid=invalid, truncated=cut))
  )
  assert means == others
  length, right = row.length, row.reward_parts[:, 0] > 0.5
  assert means['length_mean'] == pytest.approx(length[~is_past].mean())
  # The rows of a version and the players without a move have no length.
  by_verdict = batch_lib.length_by_verdict(make_batch(found))
  own = row.reward_valid & (length > 0)
  assert by_verdict['length_right'] == pytest.approx(length[own & right].mean())
  assert by_verdict['length_wrong'] == pytest.approx(
    length[own & ~right].mean()
  )


def test_without_a_version_the_policy_plays_alone():
  model, params = small()
  part, memory = versions(model, params, 0)
  players = part.players(params, memory, jax.random.key(7), B * G)
  assert not np.asarray(players['is_past']).any()
  jax.tree.map(np.testing.assert_array_equal, players['past'], params)
