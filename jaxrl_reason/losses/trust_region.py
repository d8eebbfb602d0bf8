"""Policy losses inside a trust region of probabilities, not of ratios: [N, T].

The arguments are those of policy.py. A token past the region has no loss; the
distance between the two policies is a divergence of their distributions.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  choose,
  importance_ratio,
  keep,
  rows_to_tokens,
  stop,
)
from jaxrl_reason.losses.distillation import divergence as divergence_of
from jaxrl_reason.losses.objective_part import part_of
from jaxrl_reason.losses.policy import PolicyLoss


def _away(adv):
  return adv < 0, adv > 0


def _both(adv):
  everywhere = jnp.ones(adv.shape, bool)
  return everywhere, everywhere


def _low(adv):
  return jnp.ones(adv.shape, bool), jnp.zeros(adv.shape, bool)


# Advantages -> the tokens that are masked (below, above) the old policy.
MASK_SIDES = {'away': _away, 'both': _both, 'low': _low}
# Names of `divergence`, as a choice of `distillation.divergence` from the old
# policy.
REGIONS = {'tv': 'tv', 'kl': 'forward'}


def _binary_divergence(logp, old_logp, mask, divergence):
  """TV or KL(old || pi) between (sampled token, all others) of two policies."""
  # exp(-1e-7) is the largest probability: log(1 - p) stays finite.
  logp = jnp.minimum(stop(keep(mask, logp, -1.0)), -1e-7)
  old = jnp.minimum(stop(keep(mask, old_logp, -1.0)), -1e-7)
  p, q = jnp.exp(logp), jnp.exp(old)
  if choose('divergence', divergence, REGIONS) == 'tv':
    return jnp.abs(p - q)
  rest = jnp.log(-jnp.expm1(old)) - jnp.log(-jnp.expm1(logp))
  return q * (old - logp) + (1 - q) * rest


def _masked(logp, old_logp, adv, mask, far, mask_sides):
  """Marks tokens past the trust region on a side from which nothing is learnt.

  Args:
    far: bool [N, T], past the region.
  """
  r = stop(importance_ratio(logp, old_logp, mask))
  sides = choose('mask_sides', mask_sides, MASK_SIDES)
  low, high = sides(rows_to_tokens(adv, mask))
  return {'clip_low': far & low & (r < 1), 'clip_high': far & high & (r > 1)}


def _loss(logp, old_logp, adv, mask, masked, ratio_max):
  """Computes -r A without the masked tokens."""
  adv = stop(rows_to_tokens(adv, mask))
  r = importance_ratio(logp, old_logp, mask)
  if ratio_max is not None:
    r = r * stop(jnp.minimum(1.0, ratio_max / jnp.where(r > 0, r, 1.0)))
  return jnp.where(masked['clip_low'] | masked['clip_high'], 0.0, -adv * r)


def dppo(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  divergence: str = 'tv',
  max_divergence: float = 0.15,
  mask_sides: str = 'away',
  ratio_max: float | None = None,
) -> jax.Array:
  """Computes -M r A, M = 0 where a step past the trust region would go further:
  DPPO.

  https://arxiv.org/abs/2602.04879. M = 0 where D(old, pi) > max_divergence and
  either A > 0 and r > 1, or A < 0 and r < 1. D is the binary estimate, between
  the sampled token and all others: total variation |p - q| (threshold 0.15) or
  'kl' (0.05).

  `mask_sides='both'` masks whatever the sign of A: the IPO mask of prime-rl
  (INTELLECT). 'low' masks r < 1 alone, whatever the sign of A: its `ref_kl`.
  `ratio_max` caps r, in value and as the factor on the gradient of log pi,
  which stays; the authors' code has 20.
  """
  old_logp = stop(logp) if old_logp is None else old_logp
  far = _binary_divergence(logp, old_logp, mask, divergence) > max_divergence
  masked = _masked(logp, old_logp, adv, mask, far, mask_sides)
  return _loss(logp, old_logp, adv, mask, masked, ratio_max)


@part_of(dppo)
class DPPO(PolicyLoss):
  """`dppo` as a part."""

  divergence: str = 'tv'
  max_divergence: float = 0.15
  mask_sides: str = 'away'
  ratio_max: float | None = None

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    logp, old_logp, adv, mask = self.take(arrays)
    old_logp = stop(logp) if old_logp is None else old_logp
    distance = _binary_divergence(logp, old_logp, mask, self.divergence)
    far = distance > self.max_divergence
    return _masked(logp, old_logp, adv, mask, far, self.mask_sides)


def dppo_top_k(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  old_divergence: Array,
  *,
  max_divergence: float = 0.15,
  mask_sides: str = 'away',
  ratio_max: float | None = None,
) -> jax.Array:
  """Computes `dppo` with a divergence of distributions, not of one token.

  https://arxiv.org/abs/2602.04879, the top-k form. `old_divergence` [N, T] is
  `DPPOTopK.compare` of the logits of the two policies, in its direction from
  the old policy.
  """
  old_logp = stop(logp) if old_logp is None else old_logp
  far = keep(mask, stop(old_divergence)) > max_divergence
  masked = _masked(logp, old_logp, adv, mask, far, mask_sides)
  return _loss(logp, old_logp, adv, mask, masked, ratio_max)


@dataclasses.dataclass(frozen=True)
class DPPOTopK(PolicyLoss):
  """`dppo_top_k` as a part, and the divergence that it reads.

  Attributes:
    divergence, top_k: of `compare`: the old policy's top_k likeliest tokens,
      and all others as one; 0: the whole vocabulary.
  """

  divergence: str = 'tv'
  max_divergence: float = 0.15
  mask_sides: str = 'away'
  ratio_max: float | None = None
  top_k: int = 20
  reads = ('logp', 'old_logp', 'adv', 'mask', 'old_divergence')
  names = (
    *DPPO.names,
    ('top_k', 'top_k', 'divergence_top_k'),
  )

  def compare(self, logits: Array, old_logits: Array) -> jax.Array:
    """Computes the divergence from the old policy, [.., V] -> [..]."""
    kind = choose('divergence', self.divergence, REGIONS)
    return divergence_of(stop(logits), old_logits, kind=kind, top_k=self.top_k)

  def __call__(self, arrays: Arrays) -> jax.Array:
    region = {k: getattr(self, k) for k in _REGION}
    return dppo_top_k(*self.take(arrays), **region)

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    logp, old_logp, adv, mask, distance = self.take(arrays)
    old_logp = stop(logp) if old_logp is None else old_logp
    far = keep(mask, distance) > self.max_divergence
    return _masked(logp, old_logp, adv, mask, far, self.mask_sides)


_REGION = ('max_divergence', 'mask_sides', 'ratio_max')
TRUST_REGIONS = {'dppo': DPPO, 'dppo_top_k': DPPOTopK}
