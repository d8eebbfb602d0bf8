"""Hints: prompts with hints, trained tokens, and ratios."""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Reward
from jaxrl_reason.data import pipeline
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import group_arrays, hints, progress
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.rollouts.rounds import RoundsSource

ROOM = 6


def prompts():
  """Returns problems with their reference solutions."""
  source = pipeline.TaskSource('arithmetic', 0, 'train', L.KNOBS)
  rows = [
    pipeline.prompt_row(i, source[i], L.TOKENIZER, L.P, L.ENCODE, 16)
    for i in range(L.B)
  ]
  return L.Prompts(**jax.tree.map(lambda *x: np.stack(x), *rows))


def texts(tokens, valid):
  return [
    L.TOKENIZER.decode(np.asarray(t)[np.asarray(v)].tolist())
    for t, v in zip(tokens, valid)
  ]


def test_a_hint_is_the_beginning_of_the_solution():
  p = jax.tree.map(jnp.asarray, prompts())
  n = jnp.arange(L.B) % (ROOM + 1)
  n = jnp.minimum(n, p.demo_length - 1)
  got = hints.hinted(p, n, ROOM)
  assert got.tokens.shape == (L.B, L.P + ROOM)
  demo = np.asarray(p.demo)
  want = [
    q + L.TOKENIZER.decode(demo[i, : n[i]].tolist())
    for i, q in enumerate(texts(p.tokens, p.valid))
  ]
  assert texts(got.tokens, got.valid) == want and len(set(n.tolist())) > 3
  # Left-padded as any prompt.
  rising = np.diff(np.asarray(got.valid).astype(int), axis=1)
  assert np.all(rising >= 0) and np.all(got.valid[:, -1])


def solves(rollout, answers, control=None):
  """Rewards completions that begin with one of three tokens, so that some
  groups fail.
  """
  first = rollout.tokens[:, 0] % 6 == 1
  total = first.astype(jnp.float32)
  return Reward(total, total[:, None], total >= 0)


def source(when, reward=L.REWARD, values=(0.5,)):
  own = FusedSource(L.GEN, reward)
  return RoundsSource(own, hints.Hints(ROOM, when, 'step', (0.0,), values))


def run(made, p=None):
  state = L.state(L.learner())
  p = prompts() if p is None else p
  return jax.jit(
    lambda p: made(
      state.params, {'progress': progress.Progress().init()}, p, L.ROOT, 0,
      L.NEUTRAL, L.STOP,
    )
  )(p)  # fmt: skip


def test_hints_are_not_sampled_tokens():
  found = run(source('always'))
  batch = batch_lib.make_batch(found)
  width = L.P + ROOM
  assert batch.tokens.shape[1] == width + L.C
  assert not np.any(batch.mask[:, :width])
  assert not np.any(batch.sampler_logp[:, :width])
  p = prompts()
  n = np.minimum(p.hint_limit // 2, ROOM)
  np.testing.assert_array_equal(
    batch.valid[:, :width].sum(axis=1),
    np.repeat(p.valid.sum(axis=1) + n, L.G),
  )


def test_a_share_of_zero_gives_no_hint():
  """The source equals the plain source with wider prompts: there is more
  padding, and the samples are the same.
  """
  alone, plain = (
    run(source('always', values=(0.0,))),
    run(L.SOURCE, L.prompts()),
  )
  np.testing.assert_array_equal(alone.rollout.tokens, plain.rollout.tokens)
  np.testing.assert_allclose(alone.rollout.logp, plain.rollout.logp, atol=1e-5)


def never(rollout, answers, control=None):
  zeros = jnp.zeros(rollout.length.shape)
  return Reward(zeros, zeros[:, None], zeros == 0)


def always(rollout, answers, control=None):
  ones = jnp.ones(rollout.length.shape)
  return Reward(ones, ones[:, None], ones > 0)


def test_only_failed_problems_are_tried_again():
  found, plain = (
    run(source('failed', solves)),
    run(source('always', solves, (0.0,))),
  )
  rows = batch_lib.make_batch(found), batch_lib.make_batch(plain)
  solved = np.asarray(plain.reward.total).reshape(L.B, L.G).any(axis=1)
  assert 0 < solved.sum() < L.B
  kept = np.repeat(solved, L.G)
  a, b = (np.asarray(x.rollout.tokens) for x in (found, plain))
  np.testing.assert_array_equal(a[kept], b[kept])
  assert np.all(np.any(a[~kept] != b[~kept], axis=1).reshape(-1, L.G).any(1))
  # All are trained on as completions of the problem without the hint.
  width = L.P + ROOM
  np.testing.assert_array_equal(
    rows[0].tokens[:, :width], rows[1].tokens[:, :width]
  )
  assert np.isclose(found.account.metrics['hints/failed'], 1 - solved.mean())
  assert found.account.rounds == 2
  # Statistics are of both rounds.
  generated = found.account.seen.length.sum()
  assert generated > np.asarray(found.rollout.length).sum()


def test_solved_problems_are_not_tried_again():
  found = run(source('failed', always))
  assert found.account.rounds == 1
  assert found.account.metrics['hints/failed'] == 0
  assert not np.any(found.account.seen.reward_valid[1])
  again = run(source('failed', never))
  assert again.account.rounds == 2
  assert again.account.metrics['hints/solved'] == 0


def test_a_round_without_verdicts_solves_no_problem():
  kind = source('failed').kind
  groups = group_arrays.of(run(source('failed', always)))
  failed = jnp.ones(L.B, bool)
  for valid in (True, False):
    reward = groups.reward.replace(valid=groups.reward.valid & valid)
    carry = hints.HintedGroups(groups.replace(reward=reward), failed)
    metrics = kind.finish(None, carry, L.ROOT, 0).metrics
    assert metrics['hints/solved'] == valid


def test_the_ratio_is_to_the_policy_that_had_the_hint():
  """The sampler's log-probs are under the hint, the trainer's are not."""
  found = run(source('failed', never))
  p = jax.tree.map(jnp.asarray, prompts())
  n = jnp.clip(p.hint_limit // 2, 0, ROOM)
  helped = hints.hinted(p, n, ROOM)
  state = L.state(L.learner())
  rows = batch_lib.rows_of(
    helped.replace(train_tokens=None, train_valid=None), found.rollout
  )
  logp, _, _ = jax.jit(
    lambda params: logprobs.score(
      L.MODEL, params, rows, L.NEUTRAL, None, start=L.P + ROOM, chunk=0
    )
  )(state.params)
  own = np.asarray(found.rollout.sampled)
  np.testing.assert_allclose(
    np.asarray(logp)[:, -L.C :][own],
    np.asarray(found.rollout.logp)[own],
    atol=1e-4,
  )
