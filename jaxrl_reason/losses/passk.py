"""Advantages that maximise the best of k samples instead of the average one.

Both functions read reward [N] and group [N]. Groups with fewer than k valid
rows get 0, because no unbiased estimate exists for them.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  choose,
  safe_divide,
  safe_sqrt,
)
from jaxrl_reason.losses.baselines import Advantage, positives
from jaxrl_reason.losses.objective_part import part


def choose_ratio(a: jax.Array, n: jax.Array, k: int) -> jax.Array:
  """Computes C(a, k) / C(n, k) = prod_{m<k} (a - m) / (n - m); exactly 0 if a <
  k.
  """
  m = jnp.arange(k)
  top = jnp.maximum(a[..., None] - m, 0.0)
  bottom = jnp.maximum(n[..., None] - m, 1.0)
  return jnp.prod(top / bottom, -1)


def passk(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  pass_k: int = 4,
  threshold: float = 0.0,
) -> jax.Array:
  """Computes the closed form of training on all C(N, k) subgroups of k: pass@k.

  https://arxiv.org/abs/2508.10751. With N samples of which M fail (reward <=
  threshold), R = 1 - C(M, k) / C(N, k), s = sqrt(R (1 - R)):
    A+ = (1 - R) / s
    A- = (1 - R - C(M - 1, k - 1) / C(N - 1, k - 1)) / s
  and 0 where R is 0 or 1.
  """
  g = groups.group_of(reward, group, valid)
  won = positives(reward, valid=valid, threshold=threshold)
  lost = jnp.where(g.valid, 1 - won, 0.0)
  m = groups.over_group(lost, g.segment)
  failed = choose_ratio(m, g.n, pass_k)  # 1 - R
  own = choose_ratio(m - 1, g.n - 1, pass_k - 1)
  adv = failed - lost * own
  adv = safe_divide(adv, safe_sqrt(failed * (1 - failed)))
  return jnp.where(g.valid & (g.n >= pass_k), adv, 0.0)


PassK = part('PassK', passk, Advantage)


# Whether the reward of a row is its increase of the maximum of the others.
PKPO_BASELINES = {'loo_minus_one': True, 'loo': False, 'none': False}


def pkpo(
  reward: Array,
  group: Array,
  *,
  valid: Array | None = None,
  pass_k: int = 4,
  pkpo_baseline: str = 'loo_minus_one',
) -> jax.Array:
  """Computes rewards whose policy gradient is an unbiased gradient of max@k:
  PKPO.

  https://arxiv.org/abs/2505.15201, any real rewards. Over the subsets I of k of
  the group's n samples, with C = C(n, k):
    'none'           s_i = sum_{I with i} max_I g / C                   (eq. 19)
    'loo'            s_i - mean over the other n - 1 samples of the s_j
                     they would get without i; needs n > k              (eq. 29)
    'loo_minus_one'  sum_{I with i} (max_I g - max_{I minus i} g) / C   (eq. 33)
  The estimate of the gradient is sum_i A_i grad log p(x_i), a sum over the
  group. For k = 1 the maximum of an empty set is 0: 'loo_minus_one' is g_i / n.

  With J a random set of k - 1 of the others, s_i = (k/n) E max(g_i, max_J g)
  and the last line is (k/n) E max(0, g_i - max_J g). These are sums of terms of
  one sign; the paper has differences of running sums.
  """
  g = groups.group_of(reward, group, valid)
  value = jnp.where(g.valid, as_float(reward), 0.0)
  place = groups.place_in_group(g, value).astype(value.dtype)
  mine, other, same = place[:, None], place[None, :], groups.same_group(g)
  same = same & (mine != other)
  # Number of other rows below j, without row i.
  below = other - (other > mine)
  k = pass_k
  p = _max_is(below, g.n[:, None] - 1, k - 1, same)
  mine, other = value[:, None], value[None, :]
  excess = choose('pkpo_baseline', pkpo_baseline, PKPO_BASELINES)
  gain = jnp.maximum(mine - other, 0) if excess else jnp.maximum(mine, other)
  adv = (p * gain).sum(1) if k > 1 else value
  adv = safe_divide(k * adv, g.n)
  if pkpo_baseline == 'loo':
    rho = (_max_is(below, g.n[:, None] - 1, k, same) * value[None, :]).sum(1)
    adv = adv - safe_divide(k * rho, jnp.maximum(g.n - 1, 0.0))
  return jnp.where(g.valid & (g.n >= k), adv, 0.0)


PKPO = part('PKPO', pkpo, Advantage)


def _max_is(below, n, k, same):
  """Computes P(j is largest of a random k of n): C(below, k-1) / C(n, k)."""
  if k < 1:
    return jnp.zeros_like(below)
  p = choose_ratio(below, n * jnp.ones_like(below), k - 1)
  return jnp.where(same, safe_divide(k * p, jnp.maximum(n - (k - 1), 0.0)), 0.0)
