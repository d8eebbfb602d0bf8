"""Losses per token equal the NumPy twin, with gradients and special cases."""

import functools

import jax
import jax.numpy as jnp
import losses_twin as twin
import numpy as np
import pytest
from jax.test_util import check_grads
from losses_batch import close, edge_batch, run_in, together

from jaxrl_reason import losses

# name -> (ours, twin), both (logp, old, adv, mask) -> [N, T]
PAIRS = {
  'log_likelihood': (
    lambda lp, old, a, m: losses.log_likelihood(lp, a, m),
    twin.log_likelihood,
  ),
  'importance_sampling': (losses.importance_sampling, twin.importance_sampling),
  'ppo_clip': (
    lambda *x: losses.ppo_clip(*x, clip_low=0.2, clip_high=0.28),
    lambda *x: twin.ppo_clip(*x, low=0.2, high=0.28),
  ),
  'dual_clip': (
    lambda *x: losses.ppo_clip(*x, dual_clip=3.0),
    lambda *x: twin.ppo_clip(*x, dual=3.0),
  ),
  'gspo': (
    lambda *x: losses.ppo_clip(*x, ratio='sequence_mean'),
    lambda *x: twin.ppo_clip(*x, ratio='sequence'),
  ),
  'cispo': (losses.cispo, twin.cispo),
  'gmpo': (losses.gmpo, twin.gmpo),
  'sapo': (losses.sapo, twin.sapo),
  'cpgd': (lambda *x: losses.cpgd(*x, drift_coef=0.3), twin.cpgd),
  'dppo_tv': (losses.dppo, twin.dppo),
  'dppo_kl': (
    lambda *x: losses.dppo(*x, divergence='kl', max_divergence=0.05),
    lambda *x: twin.dppo(*x, kind='kl', limit=0.05),
  ),
  'opmd': (losses.mirror_descent, twin.mirror_descent),
  'opmd_token': (
    lambda *x: losses.mirror_descent(*x, md_level='token'),
    lambda *x: twin.mirror_descent(*x, level='token'),
  ),
  'vespo': (losses.vespo, twin.vespo),
  'topr': (losses.topr, twin.topr),
}


def batch_with_advantages():
  b = edge_batch(seed=3)
  adv = np.random.default_rng(0).normal(size=b['mask'].shape[0])
  adv[0] = 0.0
  return b, np.float64(np.float32(adv))


@pytest.fixture(scope='module', params=[32, 64])
def ours_by_name(request):
  """Returns every loss and gradient on the edge batch: {name: (grad, x)},
  rtol.
  """
  b, adv = batch_with_advantages()

  def run(dtype):
    old, a = (jnp.asarray(x, dtype) for x in (b['old'], adv))

    def gradient(ours, logp):
      def loss(logp):
        x = ours(logp, old, a, b['mask'])
        return losses.aggregate(x, b['mask'], 'seq_mean_token_mean'), x

      return jax.grad(loss, has_aux=True)(logp)

    fns = {
      name: functools.partial(gradient, ours)
      for name, (ours, _) in PAIRS.items()
    }
    return together(fns, jnp.asarray(b['logp'], dtype))

  return request.param, *run_in(request.param, run)


@pytest.mark.parametrize('name', PAIRS)
def test_value_and_gradient_against_the_twin(name, ours_by_name):
  """The batch has holes, empty rows, NaN outside the mask, and log-ratios of
  +-25.
  """
  bits, ours, rtol = ours_by_name
  grad, x = ours[name]
  assert x.dtype == grad.dtype == f'float{bits}'
  b, adv = batch_with_advantages()
  mask = b['mask']
  per_token = PAIRS[name][1](
    b['logp'], b['old'], np.broadcast_to(adv[:, None], mask.shape), mask
  )
  w = twin.aggregation_weights(mask, 'seq_mean_token_mean')
  close(x, per_token[0], rtol, name)
  close(grad, twin.total(per_token, w)[1], rtol, name)
  assert not np.any(grad[~mask]) and not np.any(x[~mask])


def one(value):
  return jnp.full((1, 1), value)


# (loss, ratio, advantage, value, derivative by logp), for logp = -1
GOLDEN = [
  # slope is the derivative by logp, r = 1.5 or 0.5 away from old.
  ('ppo_clip', 1.5, 2.0, -2.56, 0.0),  # capped at 1.28
  ('ppo_clip', 1.5, -2.0, 3.0, 3.0),
  ('ppo_clip', 0.5, 2.0, -1.0, -1.0),
  ('ppo_clip', 0.5, -2.0, 1.6, 0.0),  # held at 0.8
  ('dual_clip', 4.0, -2.0, 6.0, 0.0),  # 3 * 2
  ('importance_sampling', 1.5, 2.0, -3.0, -3.0),
  ('cispo', 6.0, 1.0, 5.0, -5.0),  # 1 + 4, logp = -1
  ('sapo', 2.0, 1.0, -2.924234, -1.572896),  # 4 s(1); 4 s(1) s(-1) * 2
  ('cpgd', 1.5, 1.0, -0.153961, 0.15),  # -ln 1.2 + .3 (.5 - ln 1.5)
  ('gmpo', 2.0, 1.0, -1.491825, 0.0),  # e^0.4
  ('gmpo', 2.0, -1.0, 2.0, 2.0),
  ('opmd', 2.0, 1.0, 1.024023, -0.930685),  # 1 + .05 ln(2)^2; -1 + .1 ln 2
  ('topr', 2.0, -1.0, -1.0, 1.0),
  ('topr', 0.5, -1.0, -0.5, 0.5),
  ('vespo', 2.0, 1.0, 0.199148, -0.199148),  # 4 e^-3
  ('dppo_tv', 2.0, 1.0, 0.0, 0.0),  # moved by 0.184 > 0.15, further up
  ('dppo_tv', 2.0, -1.0, 2.0, 2.0),
]


def test_golden_tokens():
  """Each case is one token."""

  def one_token(name, ratio, adv, logp):
    old = one(-1.0 - np.log(ratio))
    return PAIRS[name][0](logp, old, one(adv), one(1))[0, 0]

  fns = {
    case: jax.value_and_grad(functools.partial(one_token, *case[:3]))
    for case in GOLDEN
  }
  for case, (value, slope) in together(fns, one(-1.0)).items():
    close(value, case[3], 1e-5, case)
    close(slope, np.full((1, 1), case[4]), 1e-5, case)


def test_a_ratio_on_the_bound_keeps_its_gradient():
  """Ties have the full gradient, since on-policy ratios are on a clip of width
  0.
  """
  at_zero = {
    'ppo_clip': lambda lp: losses.ppo_clip(
      lp, None, one(-2.0), one(1), clip_low=0.0
    ),
    'cpgd': lambda lp: losses.cpgd(lp, None, one(-2.0), one(1), clip_low=0.0),
    'gmpo': lambda lp: losses.gmpo(lp, None, one(-2.0), one(1), clip_low=0.0),
  }
  for name, fn in at_zero.items():
    grad = jax.jit(jax.grad(lambda lp, f=fn: f(lp).sum()))
    close(grad(one(-1.0)), one(2.0), 0, name)


def test_clip_cov_and_kl_cov_by_hand():
  logp, old, mask = one(-1.0), one(-1.5), one(1)
  r = np.exp(0.5)
  for hit in (0, 1):
    where = one(hit)
    close(
      losses.clip_cov(logp, old, one(1.0), mask, where),
      one(-1.2 * (1 - hit)),
      1e-5,
    )
    close(
      losses.kl_cov(logp, old, one(1.0), mask, where, kl_cov_coef=2.0),
      one(-r + 2 * 0.5 * hit),
      1e-5,
    )


def test_all_are_reinforce_at_ratio_one():
  """On-policy, every surrogate has the gradient of -A log pi."""
  b, adv = batch_with_advantages()
  logp, mask = jnp.float32(b['logp']), b['mask']

  def gradient(name, logp):
    def weigh(lp):
      x = PAIRS[name][0](lp, None, adv, mask)
      return losses.aggregate(x, mask, 'seq_mean_token_mean')

    return jax.grad(weigh)(logp)

  names = set(PAIRS) - {'dual_clip', 'dppo_kl', 'opmd_token'}
  fns = {name: functools.partial(gradient, name) for name in sorted(names)}
  grads = together(fns, logp)
  for name in names:
    close(grads[name], grads['log_likelihood'], 1e-6, name)


def test_gspo_is_grpo_at_length_one():
  b, adv = batch_with_advantages()
  logp, old = jnp.float32(b['logp'][:, 1:2]), jnp.float32(b['old'][:, 1:2])
  mask = b['mask'][:, 1:2]
  both = [
    losses.ppo_clip(logp, old, adv, mask, ratio=ratio)
    for ratio in ('token', 'sequence_mean')
  ]
  close(*both, 0)


def test_gspo_token_has_gspo_values_and_gradients():
  """This holds for one advantage per row and a mean over tokens."""
  b, adv = batch_with_advantages()
  mask = b['mask']

  def run(ratio):
    def loss(logp):
      x = losses.ppo_clip(
        logp, jnp.float32(b['old']), adv, mask, ratio=ratio, clip_high=0.3
      )
      return losses.aggregate(x, mask, 'seq_mean_token_mean')

    return jax.jit(jax.value_and_grad(loss))(jnp.float32(b['logp']))

  (v1, g1), (v2, g2) = run('sequence_mean'), run('sequence_mean_token')
  close(v1, v2, 1e-6)
  close(g1, g2, 1e-5)


def test_gradients_against_finite_differences():
  """Uses losses that are smooth and have no stop_gradient."""
  with jax.enable_x64(True):
    rng = np.random.default_rng(0)
    logp = jnp.asarray(-rng.random((2, 3)) - 0.5)
    old, adv = logp + 0.05, jnp.array([1.3, -0.7])
    mask = jnp.array([[1, 1, 0], [1, 1, 1]])

    def surrogates(lp):
      names = ('ppo_clip', 'gspo', 'gmpo', 'sapo', 'cpgd', 'opmd')
      return [PAIRS[name][0](lp, old, adv, mask) for name in names]

    check_grads(jax.jit(surrogates), (logp,), 1, ['rev'])


@pytest.mark.parametrize('gap', [60.0, 1000.0])
def test_beyond_the_clamp_stays_finite(gap):
  b, adv = batch_with_advantages()
  logp = jnp.float32(b['logp'])
  # A squared log-ratio and a KL are not exponentials: they may grow.
  names = set(PAIRS) - {'opmd', 'opmd_token', 'dppo_kl'}
  fns = {
    k: lambda lp, old, f=PAIRS[k][0]: f(lp, old, adv, b['mask'])
    for k in sorted(names)
  }
  for sign in (1, -1):
    for name, x in together(fns, logp, logp + sign * gap).items():
      assert np.isfinite(x).all(), name


def test_sequence_losses_do_not_mix_rows():
  """Changing one row changes no other row's loss."""
  b, adv = batch_with_advantages()
  logp = jnp.float32(b['logp'])
  moved = logp.at[3].add(0.1)
  rest = np.arange(logp.shape[0]) != 3
  for name in ('gspo', 'gmpo', 'opmd', 'vespo', 'topr'):
    old, fn = jnp.float32(b['old']), PAIRS[name][0]
    before, after = (fn(x, old, adv, b['mask']) for x in (logp, moved))
    assert np.array_equal(before[rest], after[rest]), name
