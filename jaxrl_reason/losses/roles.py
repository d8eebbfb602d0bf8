"""Baselines that run on from step to step, one for each role: SPIRAL."""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import Array, as_float


def role_baseline(
  reward: Array,
  role: Array,
  baseline: Array,
  *,
  decay: float = 0.95,
) -> tuple[jax.Array, jax.Array]:
  """Subtracts a running baseline of each role from its rewards: SPIRAL's RAE.

  https://arxiv.org/abs/2506.24119, in the order of prime-rl: a reward is
  compared with the baseline before it, then b = decay b + (1 - decay) r.

  Args:
    reward: [M], in the order in which they count; one that is not finite gives
      0 and moves no baseline.
    role: int [M], of each reward.
    baseline: [K], of each role before.

  Returns:
    (advantages [M], baselines [K] after).
  """

  def one(baseline, now):
    r, k = now
    ok = jnp.isfinite(r)
    adv = jnp.where(ok, r - baseline[k], 0.0)
    return baseline.at[k].add((1 - decay) * adv), adv

  rows = as_float(reward), jnp.asarray(role)
  baseline, adv = jax.lax.scan(one, as_float(baseline), rows)
  return adv, baseline
