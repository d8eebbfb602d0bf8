"""Advantages and loss by settings equal the NumPy twin, and satisfy invariants.

Micro-batches, devices and permutations have the same loss, gradient and
metrics. Values outside the mask have no effect and no gradient. Every preset
runs with only the arrays that `needs` names.
"""

import functools

import jax
import jax.numpy as jnp
import losses_twin as twin
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from losses_batch import close, edge_batch, run_in, together

from jaxrl_reason import losses

V = 7


@pytest.fixture(scope='module')
def batch():
  """Returns the edge batch with one more row, and every array of any preset."""
  b = edge_batch(seed=5)
  b = {k: np.concatenate([x, x[:1]]) for k, x in b.items()}
  mask, rng = b['mask'], np.random.default_rng(0)
  n, t = mask.shape
  f32 = np.float32

  def hide(x):
    return np.where(mask, x, np.nan).astype(f32)

  return dict(
    logp=b['logp'].astype(f32),
    old_logp=b['old'].astype(f32),
    ref_logp=b['ref'].astype(f32),
    sampler_logp=hide(b['old'] + 0.3 * rng.normal(size=(n, t))),
    entropy=b['entropy'].astype(f32),
    mask=mask,
    group=b['group'],
    reward=b['reward'].astype(f32),
    reward_valid=b['valid'],
    greedy_reward=np.full(n, 0.5, f32),
    reward_parts=rng.normal(size=(n, 2)).astype(f32),
    values=hide(rng.normal(size=(n, t))),
    process_reward=hide(0.1 * rng.normal(size=(n, t))),
    segment_reward=np.where(rng.random((n, 3)) < 0.3, np.nan, 1.0).astype(f32),
    segment_ids=np.tile(np.array([0, 0, 1, 1, 2]), (n, 1)),
    node_ids=np.arange(n * t).reshape(n, t),
    sft_mask=mask & (rng.random((n, t)) < 0.6),
    is_offpolicy=rng.random((n, t)) < 0.4,
    logits=rng.normal(size=(n, t, V)).astype(f32),
    tokens=rng.integers(V, size=(n, t)),
    old_mean_logp=hide(rng.normal(size=(n, t))),
    sum_p_squared=hide(rng.random((n, t))),
    teacher_logp=hide(b['old'] - 0.2),
    teacher_kl=hide(rng.random((n, t))),
    old_divergence=hide(rng.random((n, t))),
    pass_rate=rng.random(n).astype(f32),
  )


ADVANTAGE_ARRAYS = (
  'reward_parts greedy_reward old_logp ref_logp entropy values process_reward '
  'segment_reward segment_ids node_ids sum_p_squared teacher_logp pass_rate'
).split()
LOSS_ARRAYS = (
  'old_logp ref_logp sampler_logp entropy sft_mask is_offpolicy teacher_logp '
  'teacher_kl old_divergence'
).split()
BELLMAN_ARRAYS = ['ref_logp', 'old_logp', 'old_mean_logp']


def pick(b, names, needed):
  alias = {'entropy': 'entropy_grad'}
  return {k: b[k] for k in names if k in needed or alias.get(k, k) in needed}


def estimate(s, b):
  needed = losses.needs(s)
  return losses.advantages(
    s,
    b['reward'],
    b['group'],
    mask=b['mask'],
    reward_valid=b['reward_valid'],
    **pick(b, ADVANTAGE_ARRAYS, needed),
  )


def loss_of(s, b, adv, x, **more):
  """Returns the loss as a function of its differentiated argument."""
  needed = losses.needs(s)
  if 'full_logits' in needed:
    arrays = pick(b, BELLMAN_ARRAYS, needed)
    return losses.bellman_loss(
      s, x, b['tokens'], adv, b['mask'], **arrays, **more
    )
  arrays = pick(b, LOSS_ARRAYS, needed)
  arrays |= {'group': b['group']} if 'selected' in needed else {}
  return losses.policy_loss(s, x, adv, b['mask'], **arrays, **more)


def variable(s, b):
  return b['logits' if 'full_logits' in losses.needs(s) else 'logp']


def gradient(s, b, adv, x, **more):
  def fn(x):
    return loss_of(s, b, adv, x, **more)

  return jax.value_and_grad(fn, has_aux=True)(x)


@pytest.fixture(scope='module')
def every_preset(batch):
  """Returns {name: (adv, ((loss, metrics), grad))}, computed from the arrays
  in `needs`.
  """

  def run(name, b):
    s = losses.resolve(name)
    drawn = 'key' in losses.needs(s)
    more = {'key': jax.random.key(0)} if drawn else {}
    adv = estimate(s, b)
    return adv, gradient(s, b, adv, variable(s, b), **more)

  fns = {name: functools.partial(run, name) for name in losses.PRESETS}
  return together(fns, batch)


@pytest.mark.parametrize('name', losses.PRESETS)
def test_every_preset_runs_on_the_arrays_it_needs(name, batch, every_preset):
  """Under jit, losses are finite for every edge case, and the gradient outside
  the mask is exactly 0.
  """
  adv, ((loss, metrics), grad) = every_preset[name]
  assert loss.dtype == grad.dtype == adv.dtype == jnp.float32
  for x in (adv, loss, grad, *metrics.values()):
    assert np.isfinite(x).all()
  sft = batch['sft_mask'] & ('sft_mask' in losses.needs(name))
  assert not np.any(grad[~(batch['mask'] | sft)])
  assert np.any(grad) == np.any(adv)
  close(metrics['loss'], loss, 0)


END_TO_END = {
  'grpo': ('seq_mean_token_mean', twin.group_zscore, twin.ppo_clip, 0.04),
  'dr_grpo': ('fixed_length', twin.group_mean, twin.ppo_clip, 0),
  'dapo': (
    'token_mean',
    twin.group_zscore,
    lambda *x: twin.ppo_clip(*x, high=0.28),
    0,
  ),
  'gspo': (
    'seq_mean_token_mean',
    twin.group_zscore,
    lambda *x: twin.ppo_clip(*x, low=3e-4, high=4e-4, ratio='sequence'),
    0,
  ),
  'cispo': ('token_mean', twin.group_zscore, twin.cispo, 0),
  'rloo': ('seq_mean_token_sum', twin.leave_one_out, twin.log_likelihood, 0),
}


def without_kl(name):
  return losses.resolve({'name': name, 'kl_coef': END_TO_END[name][3]})


@pytest.fixture(scope='module', params=[32, 64])
def end_to_end(request, batch):
  """Returns {name: ((loss, metrics), grad)} in float32 and float64, and the
  rtol.
  """

  def run(dtype):
    cast = {
      k: jnp.asarray(x, dtype) if x.dtype == np.float32 else x
      for k, x in batch.items()
    }

    def step(name, b):
      s = without_kl(name)
      return gradient(s, b, estimate(s, b), b['logp'])

    fns = {name: functools.partial(step, name) for name in END_TO_END}
    return together(fns, cast)

  return run_in(request.param, run)


@pytest.mark.parametrize('name', END_TO_END)
def test_end_to_end_against_the_twin(name, end_to_end, batch):
  ours, rtol = end_to_end
  (loss, _), grad = ours[name]
  how, advantage, policy, kl_coef = END_TO_END[name]
  b, mask = batch, batch['mask']
  logp, old, ref, reward = (
    np.float64(b[k]) for k in ('logp', 'old_logp', 'ref_logp', 'reward')
  )
  adv = advantage(reward, b['group'], b['reward_valid'])
  adv = np.broadcast_to(adv[:, None], mask.shape)
  x, J = policy(logp, old, adv, mask)
  kl, kl_J = twin.k3(logp, ref, mask)
  both = x + kl_coef * kl, J + kl_coef * kl_J
  count_empty = without_kl(name)['count_empty']
  w = twin.aggregation_weights(mask, how, count_empty=count_empty)
  want, want_grad = twin.total(both, w)
  # Relative to the size of terms, which have both signs and are up to e^25.
  assert abs(loss - want) <= rtol * (w * np.abs(both[0])).sum()
  close(grad, want_grad, rtol, name)


# Every part of the loss, in few programs.
PARTS = {
  'grpo': {},
  'dr_grpo': {'dual_clip': 3.0},
  'gspo': {},
  'gmpo': {},
  'opmd': {},
  'dro': {},
  'clip_cov': {},
  'kl_cov': {'kl_coef': 0.1, 'kl': 'k3+'},
  'top_entropy': {'entropy_coef': 0.01, 'entropy_bonus_share': 0.5},
  'archer': {},
  'deepseek_v32': {},
  'luffy': {},
  'rl_plus': {},
  'm2po': {'ratio_to': 'old'},
  'tvpo': {},
  'icepop': {'correction_normalise': True, 'reject_high': 1.2, 'veto': 0.01},
  'vapo': {'kl_to': 'old', 'kl_coef': 0.1},
  'rover': {},
  'tbrm': {},
}


def at_rows(tree, rows):
  return jax.tree.map(lambda x: x[rows], tree)


@pytest.fixture(scope='module')
def pieces(batch):
  """Returns {name: (whole, the two halves of the shuffled rows)}, and the
  order.
  """
  order = np.random.default_rng(2).permutation(len(batch['mask']))

  def run(name, b):
    s = losses.resolve({'name': name, **PARTS[name]})
    x, mask, adv = variable(s, b), b['mask'], estimate(s, b)
    arrays = {k: b[k] for k in ('old_logp', 'sampler_logp', 'sft_mask')}
    arrays['is_offpolicy'] = b['is_offpolicy'] if s.offpolicy else None
    divisors = losses.denominators(s, mask, **arrays)
    arrays = pick(b, ['entropy', 'old_logp', 'sampler_logp'], losses.needs(s))
    more = dict(key=jax.random.key(1), group=b['group'])
    chosen = losses.select_tokens(s, b['logp'], adv, mask, **arrays, **more)
    more = {'selected': chosen} if chosen else {}
    whole = gradient(s, b, adv, x, **more)
    halves = []
    for rows in np.split(order, 2):
      part, a, z, some = (at_rows(v, rows) for v in (b, adv, x, more))
      halves.append(gradient(s, part, a, z, denominators=divisors, **some))
    return whole, halves

  fns = {name: functools.partial(run, name) for name in PARTS}
  return together(fns, jax.tree.map(jnp.asarray, batch)), order


@pytest.mark.parametrize('name', PARTS)
def test_micro_batches_and_permutations_add_up(name, pieces):
  """The losses of two halves of shuffled rows, with the divisors of the whole
  batch, sum to the loss of the batch.
  """
  ((loss, metrics), grad), halves = pieces[0][name]
  part_loss = np.array([half[0][0] for half in halves])
  scale = max(1.0, np.abs(part_loss).max())
  close(part_loss.sum() / scale, loss / scale, 1e-5)
  part_grad = np.concatenate([half[1] for half in halves])
  close(part_grad, grad[pieces[1]], 1e-5)
  added = losses.combine(
    jax.tree.map(lambda *v: np.stack(v), *(half[0][1] for half in halves))
  )
  assert set(added) == set(metrics)
  for k in set(metrics) - {'loss', 'pg_loss'}:
    close(added[k], metrics[k], 1e-5, k)


def test_a_sharded_loss_is_that_of_the_whole_batch(batch):
  """Rows are split by shard_map, and divisors summed over the mesh axis."""
  devices = jax.devices()
  if len(devices) < 4:
    pytest.skip('one device: another test module started jax first')
  s = losses.resolve({'name': 'grpo', 'clip_high': 0.3})
  b = {k: batch[k] for k in ('logp', 'old_logp', 'ref_logp', 'mask')}
  b['adv'] = np.asarray(estimate(s, batch))
  rows = PartitionSpec('rows')

  def step(b, axis):
    d = losses.denominators(s, b['mask'], axis_name=axis)
    (loss, _), grad = gradient(s, b, b['adv'], b['logp'], denominators=d)
    return (loss if axis is None else jax.lax.psum(loss, axis)), grad

  sharded = jax.shard_map(
    lambda b: step(b, 'rows'),
    mesh=Mesh(np.array(devices[:4]), ('rows',)),
    in_specs=rows,
    out_specs=(PartitionSpec(), rows),
  )
  (loss, grad), (want, want_grad) = jax.jit(sharded)(b), step(b, None)
  close(loss / want, 1.0, 1e-5)
  close(grad, want_grad, 1e-5)


def test_vmap_over_seeds(batch):
  s = losses.resolve('dapo')
  reward = np.nan_to_num(batch['reward'])
  stack = jnp.stack([reward, reward[::-1]])

  def step(reward):
    adv = losses.advantages(s, reward, batch['group'], mask=batch['mask'])
    return losses.policy_loss(
      s, batch['logp'], adv, batch['mask'], old_logp=batch['old_logp']
    )[0]

  both = jax.jit(jax.vmap(step))(stack)
  for i in range(2):
    close(both[i] / step(stack[i]), 1.0, 1e-5)


def test_bfloat16_inputs_are_computed_in_float32(batch):
  s = losses.resolve('grpo')
  half = {
    k: jnp.asarray(x, jnp.bfloat16) if x.dtype == np.float32 else x
    for k, x in batch.items()
  }
  back = {
    k: x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x
    for k, x in half.items()
  }

  def run(b):
    return loss_of(s, b, estimate(s, b), b['logp'])[0]

  assert run(half).dtype == jnp.float32
  close(run(half) / run(back), 1.0, 1e-6)


@pytest.mark.parametrize('how', losses.AGGREGATIONS)
def test_aggregation_against_the_twin(how):
  mask = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
  x = np.float32([[1, 2, np.nan], [np.inf] * 3, [3, np.nan, 5], [9, 7, 9]])
  for count_empty in (False, True):
    w = twin.aggregation_weights(mask, how, length=4, count_empty=count_empty)
    got = losses.aggregate(x, mask, how, length=4, count_empty=count_empty)
    close(got, (w * np.where(mask, x, 0)).sum(), 1e-6)

  def nothing(x):
    return losses.aggregate(x, np.zeros((4, 3)), how)

  value, grad = jax.value_and_grad(nothing)(x)
  assert value == 0 and not np.any(grad)


def test_aggregation_by_hand():
  """Rows (1, 2), (), (3, 5), (7) have sums 3, 0, 8, 7 of 2, 0, 2, 1 tokens."""
  mask = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
  x = np.float32([[1, 2, 0], [0, 0, 0], [3, 0, 5], [0, 7, 0]])
  want = dict(
    token_mean=18 / 5,
    token_sum=18,
    seq_mean_token_mean=(1.5 + 4 + 7) / 3,
    seq_mean_token_sum=18 / 3,
    fixed_length=18 / 9,
  )
  for how, value in want.items():
    close(losses.aggregate(x, mask, how), value, 1e-6, how)
  # Prompts {0, 2} and {3}: token means 11/4 and 7.
  weight = losses.group_token_weight(mask, np.array([1, 1, 1, 2]))
  got = losses.aggregate(x * weight, mask, 'token_mean')
  close(got, (11 / 4 + 7) / 2, 1e-6)


def test_metrics_by_hand():
  """The ratios are 2, 1/2, 1, with advantages +, -, -."""
  s = losses.resolve({'name': 'dapo', 'correction': 'truncate'})
  ratio = jnp.array([[2.0, 0.5], [1.0, jnp.nan]])
  old = jnp.array([[-1.0, -1.0], [-2.0, jnp.nan]])
  adv = jnp.array([[1.0, -1.0], [-1.0, 0.0]])
  mask = jnp.array([[1, 1], [1, 0]])
  _, m = losses.policy_loss(
    s,
    old + jnp.log(ratio),
    adv,
    mask,
    old_logp=old,
    sampler_logp=old - 0.5,
    entropy=jnp.array([[1.0, 2.0], [3.0, jnp.inf]]),
  )
  m = losses.summarize(m)
  ln2, e = np.log(2), np.exp(0.5)
  want = dict(
    clip_low=1 / 3,
    clip_high=1 / 3,
    ratio_mean=3.5 / 3,
    ratio_max=2.0,
    approx_kl=((1 - ln2) + (ln2 - 0.5)) / 3,
    approx_kl_rev=((2 * ln2 - 1) + (0.5 - ln2 / 2)) / 3,
    ess=(3.5 / 3) ** 2 / (5.25 / 3),
    entropy=2.0,
    gap_mean=0.5,
    gap_max=0.5,
    weight_mean=e,
    weight_max=e,
    weight_ess=1.0,
    ppl=np.exp(4 / 3),
    ppl_sampler=np.exp(4 / 3 + 0.5),
    dead_rows=0.0,
  )
  for k, value in want.items():
    close(m[k], value, 1e-5, k)


def test_on_policy_needs_no_old_logp(batch):
  """old_logp=None is the same as passing the current log-probabilities."""
  s = losses.resolve('dapo')
  adv = estimate(s, batch)

  def run(old):
    return jax.grad(
      lambda x: losses.policy_loss(s, x, adv, batch['mask'], old_logp=old)[0]
    )(batch['logp'])

  close(run(None), run(batch['logp']), 0)


def test_whitened_advantages_keep_dead_groups_at_zero(batch):
  s = losses.resolve({'name': 'reinforce_pp_baseline', 'kl_coef': 0.0})
  reward = np.where(batch['group'] == 9, 0.3, batch['reward'])
  adv = losses.advantages(s, reward, batch['group'], mask=batch['mask'])
  assert not np.any(adv[batch['group'] == 9])
  assert np.any(adv)
  live = np.isfinite(reward)
  centred = twin.group_mean(reward, batch['group'], live)
  want = twin.whiten(centred, live)
  close(adv[batch['group'] == 5], want[batch['group'] == 5], 1e-4)


def test_skip_empty_leaves_rows_without_tokens_out():
  mask = np.array([[1], [1], [0]])
  reward, group = np.float32([1, 0, 5]), np.zeros(3, int)
  s = {'advantage': 'group_mean', 'skip_empty': True}
  close(losses.advantages(s, reward, group, mask=mask), [0.5, -0.5, 0], 1e-6)
  s = {'advantage': 'group_mean'}
  close(losses.advantages(s, reward, group, mask=mask), [-1, -2, 3], 1e-6)


def test_loss_mask():
  mask = np.ones((2, 2), bool)
  off = np.array([[1, 0], [0, 0]])
  s = {'drop_truncated': True, 'offpolicy': 'drop'}
  got = losses.loss_mask(s, mask, truncated=np.array([0, 1]), is_offpolicy=off)
  close(got, [[0, 1], [0, 0]], 0)
  s = losses.resolve('tbrm')
  got = losses.loss_mask(s, mask, reward_valid=np.array([1, 0]))
  close(got, [[1, 1], [0, 0]], 0)


def test_sft_term_and_coefficients():
  """The SFT term has its own divisor, and coefficients may be traced values."""
  s = losses.resolve({'name': 'vapo', 'sft_coef_end': 0.0, 'sft_steps': 2})
  logp = jnp.array([[-1.0, -3.0]])
  mask, sft_mask = jnp.ones((1, 2)), jnp.array([[0, 1]])
  coefs = losses.init_coefs(s)

  def loss(coefs):
    return losses.policy_loss(
      s, logp, jnp.zeros(1), mask, sft_mask=sft_mask, coefs=coefs
    )[0]

  close(loss(coefs), 0.3, 1e-5)
  coefs = losses.next_coefs(s, coefs, {}, rows=1)
  close(jax.jit(loss)(coefs), 0.15, 1e-5)


def test_entropy_target_moves_the_coefficient():
  s = losses.resolve({'entropy_target': 0.5, 'entropy_step': 0.01})
  coefs = losses.init_coefs(s)
  coefs = losses.next_coefs(s, coefs, {'entropy': 0.4}, rows=4)
  close(coefs['entropy_coef'], 0.01, 1e-5)
  entropy, mask = jnp.full((1, 2), 0.4), jnp.ones((1, 2))
  loss, _ = losses.policy_loss(
    s, -mask, jnp.zeros(1), mask, entropy=entropy, coefs=coefs
  )
  close(loss, -0.004, 1e-5)
  # Three steps above the target would be -0.03: the level stays at its floor.
  floor = {
    'entropy_target': 0.5,
    'entropy_step': 0.01,
    'entropy_coef_min': 0.02,
  }
  coefs = losses.init_coefs(floor)
  for entropy in (0.6, 0.6, 0.6, 0.4):
    coefs = losses.next_coefs(floor, coefs, {'entropy': entropy}, rows=4)
  close(coefs['entropy_coef'], 0.03, 1e-5)


def test_an_update_without_a_token_moves_no_controlled_coefficient():
  """Its KL and entropy are 0, but they are no measurements."""
  s = {'entropy_target': 0.5, 'kl_coef': 0.1, 'kl_target': 0.2}
  s = losses.resolve(s)
  before, none = losses.init_coefs(s), {'entropy': 0.0, 'kl': 0.0}
  after = losses.next_coefs(s, before, none, rows=64, trained=False)
  assert after == before | {'step': 1}
  moved = losses.next_coefs(s, before, none, rows=64)
  assert all(moved[k] != before[k] for k in ('kl_coef', 'entropy_coef'))


def test_critic():
  s = losses.resolve({'name': 'vc_ppo', 'value_clip': 0.5})
  mask, values = jnp.array([[1, 1, 0]]), jnp.array([[0.0, 1.0, jnp.nan]])
  targets = losses.critic_targets(s, jnp.array([3.0]), values, mask)
  close(targets, [[3, 3, 0]], 1e-6)
  loss, _ = losses.critic_loss(s, values, targets, mask, old_values=values)
  close(loss, (9 + 4) / 4, 1e-6)


def test_tokens_of_another_policy_have_their_own_loss():
  """The first token is a demonstration: its loss is shaped, and has no ratio
  and no correction.
  """
  logp = jnp.log(jnp.array([[0.4, 0.6]]))
  old = logp - jnp.log(jnp.array([[1.0, 1.1]]))
  off, mask = jnp.array([[1, 0]]), jnp.ones((1, 2))
  run = functools.partial(
    losses.policy_loss,
    logp=logp,
    adv=jnp.array([2.0]),
    mask=mask,
    old_logp=old,
    sampler_logp=old - jnp.log(1.5),
    is_offpolicy=off,
  )
  s = {'aggregation': 'token_mean', 'correction': 'truncate'}
  loss, metrics = run({**s, 'offpolicy': 'luffy'})
  close(loss, (-2 * 0.4 / 0.5 - 2 * 1.1 * 1.5) / 2, 1e-5)
  close(metrics['ratio_mean'], 1.1 / 2, 1e-5)
  loss, _ = run({**s, 'offpolicy': 'rl_plus'})
  close(loss, (-2 * 0.8 / (0.4 + 0.7) * 0.6**0.5 - 2 * 1.1 * 1.5) / 2, 1e-5)
  loss, _ = run({**s, 'offpolicy': 'sft'})
  close(loss, (-np.log(0.4) - 2 * 1.1 * 1.5) / 2, 1e-5)
  loss, _ = run({**s, 'offpolicy': 'sft', 'sft_loss': 'dft'})
  close(loss, (-0.4 * np.log(0.4) - 2 * 1.1 * 1.5) / 2, 1e-5)
