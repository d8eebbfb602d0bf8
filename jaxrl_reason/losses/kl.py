"""KL estimators per token, from the log-probabilities of sampled tokens.

With x ~ pi, d = log pi(x) - log ref(x) (http://joschu.net/blog/kl-approx.html):

  k1   d                          unbiased, high variance, gradient mean 0
  k2   d^2 / 2                    biased value, the gradient of KL(pi || ref)
  k3   exp(-d) - 1 + d            unbiased, >= 0, low variance
  abs  |d|
  forward   exp(-d) (-d) - exp(-d) + 1     KL(ref || pi), importance weighted
  k1+, k3+, abs+  the value of k1, k3, abs with the gradient of k2
            (straight-through)

As a *loss* only k2's gradient is that of KL(pi || ref); k1's has mean 0 and
k3's is that of the forward KL (https://arxiv.org/abs/2506.09477). GRPO uses k3
in the loss, so k3 is the default; `k3+` has the same value and the gradient of
KL(pi || ref).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Metrics,
  Sums,
  absolute,
  as_float,
  as_mask,
  choose,
  exp_minus_1_minus,
  hard_clip,
  importance_ratio,
  keep,
  required,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.diagnostics import sampled_share, token_share
from jaxrl_reason.losses.objective_part import Part, flat_names


def _straight_through(value, gradient):
  return gradient + stop(value - gradient)


def _k1(d):
  return d


def _k2(d):
  return 0.5 * jnp.square(d)


def _k3(d):
  return exp_minus_1_minus(-d)


def _forward(d):
  # With y = -d: e^y y - e^y + 1 = e^y (e^-y - 1 + y), no cancellation.
  return safe_exp(-d) * exp_minus_1_minus(d)


KL_ESTIMATORS = {
  'k1': _k1,
  'k2': _k2,
  'k3': _k3,
  'abs': absolute,
  'forward': _forward,
  'k1+': _k1,
  'k3+': _k3,
  'abs+': absolute,
}


def check_same(logp: Array, ref_logp: Array, mask: Array) -> None:
  """Raises ValueError unless all have one shape, any: [N, T], [N] or [V]."""
  for name, x in (('ref_logp', ref_logp), ('mask', mask)):
    if x is not None and jnp.shape(x) != jnp.shape(logp):
      raise ValueError(
        f'losses: {name} has shape {list(jnp.shape(x))} and has to have that '
        f'of logp, {list(jnp.shape(logp))}.'
      )


def kl_penalty(
  logp: Array,
  ref_logp: Array,
  estimator: str = 'k3',
  *,
  mask: Array | None = None,
  kl_max: float | None = None,
) -> jax.Array:
  """Computes KL(pi || ref) per token: [N, T], [N, T] -> [N, T].

  The reference carries no gradient. `kl_max` clamps the value to +-kl_max nats
  (10 is common practice). A clamped token has no gradient, except with 'k1+',
  'k3+' and 'abs+': their gradient is k2's, also where the value is clamped,
  since drift is largest there. With a `mask` the result is 0 outside it,
  for any inputs.
  """
  value = choose('kl', estimator, KL_ESTIMATORS)
  check_same(logp, ref_logp, mask)
  if mask is not None:
    logp, ref_logp = keep(mask, logp), keep(mask, ref_logp)
  d = as_float(logp) - stop(as_float(ref_logp))
  kl = clamp(value(d), kl_max)
  return _straight_through(kl, _k2(d)) if estimator.endswith('+') else kl


def clamp(kl: jax.Array, kl_max: float | None) -> jax.Array:
  """Clamps `kl` to +-kl_max nats; None clamps nothing."""
  return kl if kl_max is None else hard_clip(kl, -kl_max, kl_max)


@dataclasses.dataclass(frozen=True)
class KL(Part):
  """A KL penalty to a policy, in the loss or in the reward.

  Called with the arrays of a loss, it returns the KL per token, [N, T].

  Attributes:
    estimator: a name in `KL_ESTIMATORS`.
    coef: weight per nat.
    to: 'ref', 'sampler', or 'old': the policy at the time of sampling.
    where: 'loss' or 'reward'.
    max: clamp per token, in nats.
    max_on: value that `max` clamps: the 'estimate', or the 'weighted' estimate.
    weighted: whether it is multiplied by pi / old (DeepSeek-V3.2).
    high_entropy: factor on high-entropy tokens (Archer).
    target, horizon: of `adaptive_kl`; None: the coefficient is constant.
  """

  estimator: str = 'k3'
  coef: float = 0.0
  to: str = 'ref'
  where: str = 'loss'
  max: float | None = None
  max_on: str = 'estimate'
  weighted: bool = False
  high_entropy: float = 1.0
  target: float | None = None
  horizon: float = 10000
  names = (
    ('estimator', 'estimator', 'kl'),
    ('where', 'where', 'kl_in'),
    *flat_names(
      'kl', 'coef to max max_on weighted high_entropy target horizon'
    ),
  )

  @property
  def reads(self) -> tuple[str, ...]:
    other = 'at_sampling' if self.to == 'old' else self.to + '_logp'
    first = ('logp', other, 'mask')
    more = (('old_logp', self.weighted), ('high_entropy', self.split))
    return first + tuple(name for name, on in more if on)

  @property
  def split(self) -> bool:
    """Returns whether high-entropy tokens have a coefficient of their own."""
    return self.where == 'loss' and self.high_entropy != 1

  @property
  def keys_read(self) -> set[str]:
    in_reward = {'kl_to', 'kl_weighted', 'kl_high_entropy', 'kl_max_on'}
    in_reward |= {'kl_target', 'kl_horizon'}
    unread = set() if self.where == 'loss' else in_reward
    unread |= {'kl_max_on'} if self.max is None else set()
    unread |= {'kl_horizon'} if self.target is None else set()
    return super().keys_read - unread

  def __call__(self, arrays):
    first = self.max if self.max_on == 'estimate' else None
    logp, other, _ = self.take(arrays)[:3]
    mask = self.compared(arrays)
    return kl_penalty(logp, other, self.estimator, mask=mask, kl_max=first)

  def compared(self, arrays: Arrays) -> Array:
    """Returns the mask of tokens with log-probs of both policies, [N, T]: the
    sampler has none of `is_offpolicy` tokens, whose KL is 0.
    """
    mask, others = arrays['mask'], arrays.get('is_offpolicy')
    if self.to != 'sampler' or others is None:
      return mask
    return as_mask(mask) & ~as_mask(others)

  def weigh(self, kl: jax.Array, arrays: Arrays) -> jax.Array:
    """Computes the weighted KL per token for the loss."""
    if self.weighted:
      logp, old_logp, mask = (arrays[k] for k in ('logp', 'old_logp', 'mask'))
      kl = kl * importance_ratio(logp, old_logp, mask)
    if self.split:
      high = required(arrays, 'high_entropy')
      kl = kl * jnp.where(high, self.high_entropy, 1.0)
    return clamp(kl, self.max) if self.max_on == 'weighted' else kl

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    """Returns {}: no sums over the batch are needed."""
    return {}

  def term(
    self, arrays: Arrays, mean: Callable, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    """Computes the mean penalty, and the mean estimate as a metric."""
    kl, mask = self(arrays), arrays['mask']
    loss = mean(self.weigh(kl, arrays), mask, denominators)
    mean_of = sampled_share if self.to == 'sampler' else token_share
    return loss, {'kl': mean_of(kl, mask, denominators)}

  def cost(self, sampled: Array, ref_logp: Array, mask: Array) -> jax.Array:
    """Computes the KL cost in reward of each token, [N, T]; no gradient."""
    kl = kl_penalty(
      sampled, ref_logp, self.estimator, mask=mask, kl_max=self.max
    )
    return self.coef * stop(kl)


def over_tokens(
  fn: Callable, *arrays: Array, chunk: int | None = None
) -> jax.Array:
  """Applies fn over the last axis of [.., V] arrays, `chunk` tokens at a
  time.
  """
  if chunk is None:
    return fn(*arrays)
  lead = arrays[0].shape[:-1]
  flat = [x.reshape(-1, x.shape[-1]) for x in arrays]

  def step(rows):
    return fn(*rows)

  out = jax.lax.map(jax.checkpoint(step), tuple(flat), batch_size=chunk)
  return out.reshape(lead)


def at_tokens(mask: Array | None, logits: Array) -> jax.Array:
  """Sets the logits [.., V] of masked tokens to 0."""
  if mask is None:
    return logits
  return jnp.where(as_mask(mask)[..., None], logits, 0)


def adaptive_kl(
  coef: Array, kl: Array, *, target: float, horizon: float, rows: int
) -> jax.Array:
  """Computes the next coefficient of a KL that is kept near `target` nats.

  https://arxiv.org/abs/1909.08593: coef (1 + clip(kl / target - 1, +-0.2)
  rows / horizon), `horizon` and `rows` in samples.
  """
  error = jnp.clip(stop(as_float(kl)) / target - 1, -0.2, 0.2)
  return coef * (1 + error * rows / horizon)
