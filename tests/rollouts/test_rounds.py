"""Kinds of rounds can be nested, in the compiled step and on the host."""

import itertools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Outcomes, Reward
from jaxrl_reason.planning import costs
from jaxrl_reason.rollouts import (
  extra,
  filters,
  hints,
  probe,
  progress,
  refill,
  replay,
  rescue,
  rounds,
)
from jaxrl_reason.rollouts.fused import FusedSource

DEAD = filters.drop_dead_groups
CONTROL = {'progress': progress.Progress(True).init()}


def solves(rollout, answers, control=None):
  """Rewards completions that begin with one of three tokens."""
  total = (rollout.tokens[:, 0] % 6 == 1).astype(jnp.float32)
  return Reward(total, total[:, None], total >= 0)


def prompts(rounds=0):
  def one(first):
    p = L.prompts(first)
    b = len(p.tokens)
    demo = np.tile(np.arange(L.C) % 5 + 3, (b, 1)).astype(np.int32)
    return p.replace(demo=demo, demo_length=np.full(b, L.C, np.int32))

  if not rounds:
    return one(0)
  columns = [one(i * L.B) for i in range(rounds)]
  return jax.tree.map(lambda *x: np.stack(x, axis=1), *columns)


def program(kinds, reward=solves, control=CONTROL, **source):
  whole = rounds.nested(FusedSource(L.GEN, reward, **source), kinds)
  params = L.state(L.learner()).params
  return jax.jit(
    lambda p: whole(params, control, p, L.ROOT, 0, L.NEUTRAL, L.STOP)
  )


def run(kinds, asked, reward=solves, control=CONTROL, **source):
  return program(kinds, reward, control, **source)(asked)


def hinting():
  return hints.Hints(4, 'failed', 'step', (0.0,), (0.5,))


def test_rounds_of_nested_kinds_share_no_key():
  kinds = hinting(), extra.Extra(4, 'hard'), refill.Refill(DEAD, 2)
  for inner, outer in itertools.permutations(kinds, 2):
    keys = set()
    for i, j in itertools.product(range(3), repeat=2):
      key = rounds.key_of_round(L.ROOT, outer.name, i)
      key = rounds.key_of_round(key, inner.name, jnp.int32(j))
      keys.add(tuple(jax.random.key_data(key).tolist()))
    assert len(keys) == 9


def test_refill_around_hints_counts_every_round_that_was_run():
  found = run((hinting(), refill.Refill(DEAD, 2)), prompts(3))
  account = found.account
  assert account.ran.shape == (6,) and account.ran[0]
  # A round of hints is only run after a first round that failed a problem.
  # Rounds that were not run have generated no tokens.
  ran = np.asarray(account.ran).reshape(3, 2)
  assert np.all(ran[:, 0] >= ran[:, 1])
  tokens = np.asarray(account.seen.length).sum(axis=1)
  np.testing.assert_array_equal(tokens > 0, ran.ravel())
  assert {'hints/failed', 'refill/rounds'} <= account.metrics.keys()
  used = np.asarray(found.rollout.length).sum() / tokens.sum()
  assert account.metrics['refill/used'] <= used + 1e-6


def test_a_failed_group_gets_the_reward_of_its_demonstration():
  """The reward of a solution is its verified score."""

  def reward(rollout, answers, control=None):
    worth = 0.0 if rollout.is_demo is None else 0.25
    total = jnp.full(rollout.length.shape, worth)
    return Reward(total, total[:, None], total >= 0)

  found = run((rescue.Rescue(2),), prompts(), reward, demos=True)
  total = np.asarray(found.reward.total).reshape(L.B, L.G)
  np.testing.assert_array_equal(total[:, -2:], 0.25)
  np.testing.assert_array_equal(total[:, :-2], 0.0)
  demo = np.asarray(found.rollout.is_demo).reshape(L.B, L.G)
  assert demo[:, -2:].all() and not demo[:, :-2].any()
  np.testing.assert_array_equal(
    np.asarray(found.rollout.tokens)[demo.ravel()],
    np.repeat(prompts().demo, 2, axis=0),
  )
  # Statistics are of the completions alone.
  assert not np.asarray(found.account.seen.reward).any()


def test_replay_behind_extra_samples_keeps_their_shared_baselines():
  kinds = extra.Extra(4, 'hard'), replay.Replay(None, 2, 20, 'recent')
  like = jax.eval_shape(lambda: run(kinds[:1], prompts()))
  ring = kinds[1].memory(jax.eval_shape(rounds.group_arrays.of, like))
  control = CONTROL | {'replay': ring}
  found = run(kinds, prompts(), control=control)
  first = run(kinds[:1], prompts())
  np.testing.assert_array_equal(found.group[: L.B + 4], first.group)
  assert len(set(found.group[L.B + 4 :].tolist())) == 2
  assert min(found.group[L.B + 4 :]) > max(first.group)


@pytest.mark.parametrize('when', hints.WHEN)
def test_hinted_rows_do_not_measure_the_policy(when):
  kind = hints.Hints(4, when, 'step', (0.0,), (0.5,))
  found = run((kind,), prompts())
  if when == 'failed':
    seen = found.account.seen
    own = np.asarray(seen.own)
    assert own[0].all() and not own[1].any() and seen.reward_valid[1].any()
  else:
    seen = rounds.group_arrays.account(found).seen
    assert not np.asarray(seen.own).any()
  before = progress.Progress(True).init()
  after = progress.observe(before, seen)
  right = np.asarray(seen.reward_parts[..., 0] > 0.5)
  hinted = np.asarray(seen.is_hinted & seen.reward_valid)
  np.testing.assert_allclose(
    after['hinted_solve_rate'], right[hinted].mean(), rtol=1e-6
  )
  want = right[0].mean() if when == 'failed' else 0.0
  np.testing.assert_allclose(after['solve_rate'], want, rtol=1e-6)


@pytest.mark.parametrize(
  'when, outer',
  [
    ('failed', ()),
    ('always', (refill.Refill(DEAD, 2),)),
    ('always', (extra.Extra(4, 'hard'),)),
    ('always', (replay.Replay(None, 2, 20, 'recent'),)),
  ],
)
def test_a_batch_knows_its_rows_with_hints(when, outer):
  """Parts that read rows of the batch leave completions after a hint out."""
  hint = hints.Hints(4, when, 'step', (0.0,), (0.5,))
  asked = prompts(3 if outer and outer[0].name == 'refill' else 0)
  like = jax.eval_shape(lambda: run((hint,), prompts()))
  ring = jax.eval_shape(rounds.group_arrays.of, like)
  memory = {k.name: k.memory(ring) for k in outer}
  found = run((hint, *outer), asked, control=CONTROL | memory)
  _, counts = probe.outcome(batch_lib.make_batch(found))
  if when == 'failed':
    again = np.asarray(found.account.seen.reward_parts[0, :, 0] > 0.5)
    solved = again.reshape(L.B, L.G).any(axis=1)
    assert 0 < solved.sum() < L.B
    np.testing.assert_array_equal(counts, np.repeat(solved, L.G))
  else:
    assert not np.any(counts) and np.any(found.reward.valid)


@pytest.mark.parametrize(
  'kinds, alone, columns, times',
  [
    ((refill.Refill(DEAD, 2),), (), 3, 3),
    ((hinting(), refill.Refill(DEAD, 1)), (hinting(),), 2, 2),
  ],
)
def test_a_plan_counts_every_round(kinds, alone, columns, times):
  """The work of the program is that of one round, times the rounds."""
  mesh = sharding.make_mesh((1, 1, 1), jax.devices()[:1])

  def flops(kinds, asked):
    text = program(kinds).lower(asked).compile().as_text()
    return costs.of(text, mesh).total().flops

  one = flops(alone, prompts())
  assert one > 0
  assert flops(kinds, prompts(columns)) == pytest.approx(times * one)


def test_the_first_batch_with_rows_sets_a_mean():
  """A constant rate is its mean, whenever the first row comes."""
  n, step = 4, jax.jit(progress.observe)
  for rate, empty in itertools.product((0.0, 1.0), (0, 2)):
    known = progress.Progress(True).init()
    for i in range(empty + 3):
      valid, hinted = jnp.arange(n) >= (n if i < empty else 0), i % 2 == 1
      seen = Outcomes(
        jnp.full(n, rate), jnp.full((n, 1), rate), valid,
        jnp.arange(n), jnp.zeros(n, bool), jnp.full(n, 5),
        is_hinted=jnp.full(n, hinted),
      )  # fmt: skip
      known = step(known, seen)
      if i < empty:
        assert known['solve_rate'] == known['mean_length'] == 0
    want = {'solve_rate': rate, 'mean_length': 5, 'hinted_solve_rate': rate}
    for name, x in want.items():
      np.testing.assert_allclose(known[name], x, rtol=1e-6)
