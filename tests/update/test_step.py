"""Invariants of the update, and on-policy properties."""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Trajectories
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Chain
from jaxrl_reason.rollouts import filters, fused
from jaxrl_reason.run.rl import programs, several_runs
from jaxrl_reason.update import scoring, trained_rows
from jaxrl_reason.update import step as step_lib

NEUTRAL = Sampling.make()


@pytest.fixture(scope='module')
def batch():
  return L.rollout_batch(L.learner())


@pytest.fixture(scope='module')
def plain():
  """Returns `gradients` of the learner without settings, compiled once."""
  return gradients(L.learner())


def gradients(learner):
  """Returns a function: batch -> (gradient, metrics) at the initial parameters,
  with advantages.
  """

  @jax.jit
  def f(params, batch):
    adv = step_lib.advantages(learner, batch)
    return step_lib.gradients(learner, params, batch, adv, NEUTRAL)

  return lambda batch: f(L.model_and_params()[1], batch)


@pytest.mark.parametrize('how', sorted(losses.AGGREGATIONS))
def test_micro_batches_change_nothing(batch, how):
  settings = {'aggregation': how, 'entropy_coef': 0.01}
  whole = gradients(L.learner(settings))(batch)
  other = gradients(L.learner(settings, micro_batches=4))(batch)
  L.assert_close(whole, other)


def test_chunks_and_row_order_change_nothing(batch, plain):
  whole = plain(batch)
  L.assert_close(whole, gradients(L.learner(logprob_chunk=3))(batch))
  order = jax.random.permutation(jax.random.key(1), L.B * L.G)
  shuffled = jax.tree.map(lambda x: x[order], batch)
  L.assert_close(whole, plain(shuffled))


def test_padding_and_its_contents_change_nothing(batch, plain):
  whole = plain(batch)
  tail = jnp.arange(L.P + L.C) >= L.P
  unused = tail & ~batch.mask
  other = batch.replace(
    tokens=jnp.where(unused, 5, batch.tokens),
    sampler_logp=jnp.where(unused, jnp.nan, batch.sampler_logp),
  )
  L.assert_close(whole, plain(other))


def test_first_on_policy_step_has_ratio_one_and_clips_nothing(batch, plain):
  _, metrics = plain(batch)
  assert metrics['ratio_max'] == 1 and metrics['ratio_mean'] == 1
  assert metrics['clip_low'] == 0 and metrics['clip_high'] == 0
  assert metrics['gap_max'] < 1e-5  # sampler and trainer agree


def test_later_updates_have_ratios_other_than_one(batch):
  learner = L.learner(epochs=2, minibatches=2)
  f = jax.jit(lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT))
  new, metrics = f(L.state(learner), batch)
  assert metrics['ratio_max'] > 1.001
  assert int(new.step) == 1  # one batch, however many updates


def test_minibatches_of_one_epoch_equal_the_updates_by_hand(batch):
  """2 minibatches == two updates on the same rows with fixed old log-probs."""
  learner = L.learner(minibatches=2)
  f = jax.jit(lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT))
  got, _ = f(L.state(learner), batch)

  single = dataclasses.replace(learner, minibatches=1)
  state = L.state(learner)
  f = jax.jit(lambda s, b: scoring.add_arrays(learner, s, b, NEUTRAL))
  full = f(state, batch)
  adv = step_lib.advantages(learner, full)
  key = jax.random.split(L.ROOT, 1)[0]
  order = jax.random.permutation(key, L.B * L.G)
  one = jax.jit(
    lambda s, rows: step_lib._one_update(
      single, NEUTRAL, None, s, ((*rows, None), key)
    )
  )
  for i in range(2):
    rows = jax.tree.map(lambda x: x[order][i::2], (full, adv))  # noqa: B023
    state, _ = one(state, rows)
  L.assert_close(got.params, state.params)


def test_reference_exists_only_for_a_kl(batch):
  without, with_kl = L.learner(), L.learner({'kl_coef': 0.1})
  assert L.state(without).ref_params is None
  state = L.state(with_kl)
  assert state.ref_params is not None

  def f(lr):
    return jax.jit(lambda s, b: step_lib.update(lr, s, b, NEUTRAL, L.ROOT))

  # At the start policy and reference agree: no KL, the same gradient.
  step, bare = f(with_kl), f(without)
  new, metrics = step(state, batch)
  assert abs(float(metrics['kl'])) < 1e-6
  L.assert_close(new.params, bare(L.state(without), batch)[0].params)
  # After a step they differ.
  _, metrics = step(new, batch)
  assert metrics['kl'] > 1e-4
  L.assert_close(new.ref_params, state.ref_params)

  # Without a KL term, the compiled program has no argument for a reference.
  def size(step, state):
    program = step.lower(state, batch).compile()
    return program.memory_analysis().argument_size_in_bytes

  params = sum(x.nbytes for x in jax.tree.leaves(new.params))
  assert size(step, state) - size(bare, L.state(without)) >= params


def test_fused_step_equals_its_parts(batch):
  """Generation inside the program or before it: the same samples, rewards and
  next state.
  """
  learner = L.learner()
  p = L.prompts()
  step = jax.jit(lambda s, p: L.fused(learner, s, p))
  got, metrics = step(L.state(learner), p)

  state = L.state(learner)
  out = L.sample(state.params, p)
  answers = jax.tree.map(lambda x: np.repeat(x, L.G, 0), p.answer)
  found = Trajectories(p, out, L.REWARD(out, answers))
  b = batch_lib.make_batch(found)
  want, more = jax.jit(programs.learn, static_argnums=0)(
    learner, state, b, L.ROOT, NEUTRAL
  )
  L.assert_close(got.params, want.params)
  for name in ('reward_mean', 'loss', 'entropy', 'length_mean', 'tokens'):
    np.testing.assert_allclose(metrics[name], more[name], rtol=1e-4, atol=1e-6)


def test_the_reward_correlates_with_correctness_inside_groups(batch):
  """Compares with numpy. Means of groups and failed rows have no effect."""
  rng, group = np.random.default_rng(0), np.asarray(batch.group)
  right, n = rng.random(len(group)) < 0.5, len(group)
  reward, ok = rng.random(n) + right, rng.random(n) < 0.8
  right[group == group[0]] = True  # no variance: no evidence

  def correlation(reward):
    given = batch.replace(reward=jnp.asarray(reward), reward_valid=ok)
    given = given.replace(reward_parts=jnp.asarray(right)[:, None])
    return batch_lib.reward_correlation(given)['reward_correlation']

  def centred(x):
    x = x.astype(float)
    for i in np.unique(group):
      x[group == i] -= x[(group == i) & ok].mean()
    return x[ok]

  want = np.corrcoef(centred(reward), centred(right))[0, 1]
  np.testing.assert_allclose(correlation(reward), want, rtol=1e-4)
  levels = np.where(ok, reward + 5.0 * group, np.nan)
  np.testing.assert_allclose(correlation(levels), want, rtol=1e-4)
  np.testing.assert_allclose(correlation(right * 3.0), 1, rtol=1e-5)
  assert np.isnan(correlation(0.1 * group))


def test_answer_entropy_is_that_of_the_counts(batch):
  """Counts the answers of each group by hand. Rows without an answer are
  excluded.
  """
  rng = np.random.default_rng(0)
  ids = rng.integers(-1, 3, len(batch.group))
  valid = rng.random(len(ids)) < 0.8
  given = batch.replace(answer_id=jnp.asarray(ids), reward_valid=valid)
  total = n = 0.0
  for group in np.unique(batch.group):
    said = ids[(np.asarray(batch.group) == group) & valid & (ids >= 0)]
    counts = np.unique(said, return_counts=True)[1]
    total -= (counts * np.log(counts / max(len(said), 1))).sum()
    n += len(said)
  got = batch_lib.answer_spread(given)['answer_entropy']
  np.testing.assert_allclose(got, total / n, rtol=1e-5)
  none = given.replace(answer_id=jnp.full(len(ids), -1))
  assert float(batch_lib.answer_spread(none)['answer_entropy']) == 0
  assert batch_lib.answer_spread(batch.replace(answer_id=None)) == {}


def test_k_steps_in_one_dispatch_equal_k_dispatches():
  learner = L.learner()
  args = (L.ROOT, NEUTRAL, L.STOP)
  many = jax.jit(lambda s, p: programs.rl_steps(learner, L.SOURCE, s, p, *args))
  one = jax.jit(lambda s, p: L.fused(learner, s, p))
  p = [L.prompts(i * L.B) for i in range(3)]
  stacked = jax.tree.map(lambda *x: np.stack(x), *p)
  got, metrics = many(L.state(learner), stacked)
  state = L.state(learner)
  for i in range(3):
    state, m = one(state, p[i])
    np.testing.assert_allclose(
      metrics['reward_mean'][i], m['reward_mean'], rtol=1e-6
    )
  L.assert_close(got, state, rtol=1e-3, atol=1e-5)


def side_by_side(f, given):
  return jax.vmap(f)(given)


@pytest.mark.parametrize('how', [jax.lax.map, side_by_side])
def test_seeds_of_one_program_equal_seeds_alone(how, monkeypatch):
  """Tests the methods for a CPU and for a chip."""
  monkeypatch.setattr(several_runs, 'each_run', how)
  learner = L.learner()
  roots = jax.random.split(L.ROOT, 2)
  p = jax.tree.map(lambda *x: np.stack(x)[:, None], L.prompts(0), L.prompts(8))
  states = jax.tree.map(lambda x: jnp.stack([x, x]), L.state(learner))
  both, metrics = jax.jit(
    lambda s, p, r: several_runs.rl_seeds(
      lambda _: (learner, L.SOURCE, NEUTRAL), s, p, r, {}, L.STOP
    )
  )(states, p, roots)
  assert metrics['loss'].shape == (2, 1)
  one = jax.jit(
    lambda s, p, root: programs.rl_steps(
      learner, L.SOURCE, s, p, root, NEUTRAL, L.STOP
    )
  )
  for i in range(2):
    rows = jax.tree.map(lambda x: x[i], p)  # noqa: B023
    alone, _ = one(L.state(learner), rows, roots[i])
    pick = jax.tree.map(lambda x: x[i], both.params)  # noqa: B023
    L.assert_close(pick, alone.params, rtol=1e-3, atol=1e-5)


def test_dead_groups_and_filters(batch, plain):
  """Equal rewards give no gradient, and a filter removes them from the mean."""
  group = np.asarray(batch.group)
  dead = batch.replace(reward=jnp.where(group < 4, 0.1, batch.reward))
  grads, _ = plain(batch.replace(reward=jnp.full(32, 0.1)))
  assert all(not np.any(g) for g in jax.tree.leaves(grads))
  kept = filters.drop_dead_groups(dead)
  assert not np.any(kept.mask[:16]) and np.any(kept.mask[16:])
  half = jax.tree.map(lambda x: x[16:], dead)
  want, _ = plain(half)
  got, _ = plain(kept)
  L.assert_close(want, got)
  whole = filters.drop_truncated(batch)
  np.testing.assert_array_equal(
    np.any(whole.mask, axis=1), ~np.asarray(batch.truncated)
  )


def test_length_counts_after_the_filter(batch):
  """Rewards fall over the last 3 of 8 tokens. A group with zero variance stays
  masked.
  """
  dead = batch.replace(
    reward=jnp.where(jnp.asarray(batch.group) < 4, 0.1, batch.reward)
  )
  length = np.asarray(batch.mask).sum(1)
  taken = np.where(length <= 5, 0, (length - 5) / 3)
  assert len(set(taken[:16])) > 1  # it would have had a signal
  choose = filters.Selection(filters.FILTERS['dead_groups'], 3, L.C)
  learner, shaping = L.learner(), L.learner(chain=Chain((choose,)))
  got, metrics = jax.jit(
    lambda s, b: programs.learn(shaping, s, b, L.ROOT, NEUTRAL)
  )(L.state(learner), dead)
  shaped = filters.drop_dead_groups(dead)
  shaped = shaped.replace(reward=shaped.reward - jnp.float32(taken))
  order = fused.key_of(L.ROOT, 0, 'minibatches')
  want, _ = jax.jit(
    lambda s, b: step_lib.update(learner, s, b, NEUTRAL, order)
  )(L.state(learner), shaped)
  L.assert_close(got.params, want.params)
  np.testing.assert_allclose(metrics['overlong_penalty'], -taken.mean(), 1e-5)
  np.testing.assert_allclose(metrics['reward_mean'], dead.reward.mean(), 1e-5)


def test_a_setting_of_the_loss_can_drop_truncated_rows(batch):
  """`drop_truncated` of the loss is the filter of the same name."""
  assert np.any(batch.truncated) and not np.all(batch.truncated)

  def update(learner, b):
    return jax.jit(
      lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT)
    )(L.state(learner), b)[0]

  got = update(L.learner({'drop_truncated': True}), batch)
  want = update(L.learner(), filters.drop_truncated(batch))
  L.assert_close(got.params, want.params)


def test_invalid_rewards_have_no_advantage(batch):
  """A failed verifier's row has no advantage and moves no baseline."""
  ok = np.arange(32) % 4 != 1
  masked = batch.replace(
    reward=jnp.where(ok, batch.reward, jnp.nan), reward_valid=jnp.asarray(ok)
  )
  adv = step_lib.advantages(L.learner(), masked)
  assert np.all(np.isfinite(adv)) and not np.any(np.asarray(adv)[~ok])
  kept = jax.tree.map(lambda x: x[np.flatnonzero(ok)], masked)
  want = step_lib.advantages(L.learner(), kept)
  np.testing.assert_allclose(np.asarray(adv)[ok], want, rtol=1e-5, atol=1e-6)
  assert np.isfinite(
    batch_lib.summary(batch_lib.outcomes(masked), ('a', 'b'))['reward_mean']
  )


def test_an_update_without_a_token_moves_no_controlled_coefficient(batch):
  learner = L.learner({'entropy_target': 9.0})
  state = L.state(learner)
  for mask, moves in ((batch.mask, True), (batch.mask & False, False)):
    given = learner, state, batch.replace(mask=mask), L.NEUTRAL, L.ROOT
    after, metrics = jax.jit(step_lib.update, static_argnums=0)(*given)
    assert metrics['trained_tokens'] == mask.sum()
    moved = after.coefs['entropy_level'] != state.coefs['entropy_level']
    assert moved == moves


def test_demonstrations_alone_move_no_coefficient_of_the_entropy(batch):
  """The policy sampled none of their tokens, so there is no entropy."""
  learner = L.learner({'entropy_target': 9.0, 'offpolicy': 'sft'})
  state = L.state(learner)
  for others, moves in ((batch.mask & False, True), (batch.mask, False)):
    given = batch.replace(is_offpolicy=others)
    args = learner, state, given, L.NEUTRAL, L.ROOT
    after, _ = jax.jit(step_lib.update, static_argnums=0)(*args)
    moved = after.coefs['entropy_level'] != state.coefs['entropy_level']
    assert moved == moves
    assert trained_rows.has_tokens(learner, given) == (True, moves)


def test_an_update_on_verdicts_alone_counts_for_the_metrics(batch):
  verdicts = jnp.arange(batch.mask.shape[1]) == L.P + L.C - 1
  dead = batch.replace(
    mask=batch.mask & False, observed=batch.mask & False | verdicts
  )
  term = {'sft_on': 'verdict', 'sft_coef': 1.0}
  assert trained_rows.has_tokens(L.learner(term), dead) == (True, False)
  assert trained_rows.has_tokens(L.learner(), dead) == (False, False)


def test_split_and_join_are_inverse_and_strided():
  x = jnp.arange(24).reshape(12, 2)
  parts = batch_lib.split(x, 3)
  np.testing.assert_array_equal(parts[1], x[1::3])
  np.testing.assert_array_equal(batch_lib.join(parts), x)


def test_first_nonfinite_leaf_is_named():
  tree = {'a': jnp.ones(3), 'b': {'c': jnp.array([1.0, jnp.nan])}, 'd': jnp.inf}
  assert int(trees.first_nonfinite(tree)) == 1
  assert int(trees.first_nonfinite({'a': jnp.ones(3)})) == -1


def test_prompts_of_the_train_view_are_trained_on(batch):
  """Rows are sampled with a hint in the prompt and trained without it."""
  p = L.prompts()
  hinted = p.replace(train_tokens=p.tokens[::-1], train_valid=p.valid[::-1])
  out = L.sample(L.model_and_params()[1], hinted)
  b = L.batch_of(hinted, out)
  np.testing.assert_array_equal(b.tokens[0, : L.P], p.tokens[-1])
  np.testing.assert_array_equal(b.tokens[:, L.P :], out.tokens)
