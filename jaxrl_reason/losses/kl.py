"""KL estimators per token, from the log-probabilities of sampled tokens.

With x ~ pi, d = log pi(x) - log ref(x) (http://joschu.net/blog/kl-approx.html):

  k1   d                          unbiased, high variance, gradient mean 0
  k2   d^2 / 2                    biased value, the gradient of KL(pi || ref)
  k3   exp(-d) - 1 + d            unbiased, >= 0, low variance
  abs  |d|
  forward   exp(-d) (-d) - exp(-d) + 1     KL(ref || pi), importance weighted
  k1+, k3+  the value of k1, k3 with the gradient of k2 (straight-through)

As a *loss* only k2's gradient is that of KL(pi || ref); k1's has mean 0 and
k3's is that of the forward KL (https://arxiv.org/abs/2506.09477). GRPO uses k3
in the loss, so that is the default; `k3+` keeps its value and mends the
gradient.
"""

import math

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  MAX_LOG_RATIO,
  as_float,
  as_mask,
  keep,
  safe_exp,
  stop,
)

# exp(x) - 1 - x loses all digits near 0 (x = 1e-3 keeps one in float32), so
# below 1/4 it is x^2 (1/2! + x/3! + .. + x^5/7!), good to 1e-8 there; at 1/4
# the plain form is good to 2e-6 in float32.
_SERIES = tuple(1 / math.factorial(n) for n in range(2, 8))


def exp_minus_1_minus(x):
  """exp(x) - 1 - x >= 0 with full relative precision; x clamped to 40."""
  small = jnp.abs(x) < 0.25
  s = jnp.where(small, x, 0.0)
  poly = jnp.zeros_like(s)
  for c in reversed(_SERIES):
    poly = poly * s + c
  far = jnp.where(small, 1.0, jnp.clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO))
  return jnp.where(small, s * s * poly, jnp.exp(far) - 1 - far)


def _straight_through(value, gradient):
  return gradient + stop(value - gradient)


KL_ESTIMATORS = {
  'k1': lambda d: d,
  'k2': lambda d: 0.5 * jnp.square(d),
  'k3': lambda d: exp_minus_1_minus(-d),
  'abs': jnp.abs,
  # With y = -d: e^y y - e^y + 1 = e^y (e^-y - 1 + y), no cancellation.
  'forward': lambda d: safe_exp(-d) * exp_minus_1_minus(d),
  'k1+': lambda d: _straight_through(d, 0.5 * jnp.square(d)),
  'k3+': lambda d: _straight_through(
    exp_minus_1_minus(-d), 0.5 * jnp.square(d)
  ),
}


def kl_penalty(logp, ref_logp, estimator='k3', *, mask=None, kl_max=None):
  """KL(pi || ref) per token: [N, T], [N, T] -> [N, T].

  The reference carries no gradient. `kl_max` clamps the value to +-kl_max nats
  (10 is common practice); a clamped token has no gradient. With a `mask` the
  result is 0 outside it, whatever the inputs hold there.
  """
  if mask is not None:
    logp, ref_logp = keep(mask, logp), keep(mask, ref_logp)
  d = as_float(logp) - stop(as_float(ref_logp))
  kl = KL_ESTIMATORS[estimator](d)
  return kl if kl_max is None else jnp.clip(kl, -kl_max, kl_max)


def over_tokens(fn, *arrays, chunk=None):
  """fn over the last axis of [.., V] arrays, `chunk` tokens at a time."""
  lead = arrays[0].shape[:-1]
  flat = [x.reshape(-1, x.shape[-1]) for x in arrays]
  if chunk is None:
    return fn(*flat).reshape(lead)

  def step(rows):
    return fn(*rows)

  out = jax.lax.map(jax.checkpoint(step), tuple(flat), batch_size=chunk)
  return out.reshape(lead)


def at_tokens(mask, logits):
  """Logits [.., V] with those of masked tokens set to 0."""
  if mask is None:
    return logits
  return jnp.where(as_mask(mask)[..., None], logits, 0)


def kl_exact(logits, ref_logits, *, mask=None, direction='reverse', chunk=None):
  """KL over the whole vocabulary: [.., V], [.., V] -> [..].

  'reverse' is KL(pi || ref), 'forward' KL(ref || pi), the loss of distillation
  from a teacher's distribution. The reference carries no gradient. With `chunk`
  the arrays go through in pieces of that many tokens, and the backward pass
  recomputes them. 0 outside the `mask`, if one is given.
  """
  logits, ref_logits = at_tokens(mask, logits), at_tokens(mask, ref_logits)

  def one(z, z_ref):
    logp = jax.nn.log_softmax(as_float(z))
    ref = jax.nn.log_softmax(stop(as_float(z_ref)))
    a, b = (logp, ref) if direction == 'reverse' else (ref, logp)
    p = jnp.exp(a)
    # A token masked by -inf logits has p = 0 and contributes 0, not NaN.
    there = p > 0
    gap = jnp.where(there, a, 0.0) - jnp.where(there, b, 0.0)
    return (p * gap).sum(-1)

  return over_tokens(one, logits, ref_logits, chunk=chunk)


def adaptive_kl(coef, kl, *, target, horizon, rows):
  """The next coefficient of a KL held near `target` nats.

  https://arxiv.org/abs/1909.08593: coef (1 + clip(kl / target - 1, +-0.2)
  rows / horizon), `horizon` and `rows` in samples.
  """
  error = jnp.clip(stop(as_float(kl)) / target - 1, -0.2, 0.2)
  return coef * (1 + error * rows / horizon)
