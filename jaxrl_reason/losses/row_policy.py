"""Policy losses of whole rows, spread over the tokens: [N, T].

The arguments are those of policy.py. Each docstring names the aggregation that
gives the published sum over rows.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  choose,
  hard_clip,
  importance_ratio,
  keep,
  log_ratio,
  row_count,
  row_mean,
  row_sum,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.objective_part import part
from jaxrl_reason.losses.policy import PolicyLoss, log_likelihood


def _row_advantage(adv, mask):
  """Returns one advantage per row, [N, 1]: the mean of an [N, T] advantage."""
  return stop(row_mean(rows_to_tokens(adv, mask), mask))[:, None]


def gmpo(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  clip_low: float = 0.4,
  clip_high: float = 0.4,
) -> jax.Array:
  """Computes -A (prod_t clipped r_t)^(1 / T): the geometric mean of PPO's
  terms, GMPO.

  https://arxiv.org/abs/2507.20673. The clip range is (e^-low, e^high),
  one-sided by the sign of A as in PPO. `adv` is one number per row; an [N, T]
  array is averaged over each row. Aggregate with `seq_mean_token_mean`.
  """
  adv = _row_advantage(adv, mask)
  low = jnp.where(adv < 0, -clip_low, -jnp.inf)
  high = jnp.where(adv > 0, clip_high, jnp.inf)
  lr = hard_clip(log_ratio(logp, old_logp, mask), low, high)
  return keep(mask, -adv * safe_exp(row_mean(lr, mask))[:, None])


class GMPO(part('GMPO', gmpo, PolicyLoss)):
  """`gmpo` as a part."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    logp, old_logp, adv, mask = self.take(arrays)
    lr, adv = stop(log_ratio(logp, old_logp, mask)), _row_advantage(adv, mask)
    low, high = (lr < -self.low) & (adv < 0), (lr > self.high) & (adv > 0)
    return {'clip_low': low, 'clip_high': high}


def mirror_descent(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  md_tau: float = 0.1,
  md_level: str = 'sequence',
) -> jax.Array:
  """Computes -A log pi + (tau / 2) (log pi / old)^2: the Kimi form of OPMD, and
  DRO.

  k1.5 https://arxiv.org/abs/2501.12599: per row, log pi and the squared log
  ratio are those of the whole sequence; aggregate with `seq_mean_token_sum`.
  DRO https://arxiv.org/abs/2405.19107, (A - tau log(pi / ref))^2 / 2, has tau
  times this gradient: use `ratio_to='ref'`. `md_level='token'` squares the log
  ratio of each token instead.
  """
  lr = log_ratio(logp, old_logp, mask)
  square = jnp.square(lr)
  if choose('md_level', md_level, {'sequence': True, 'token': False}):
    share = safe_divide(jnp.square(row_sum(lr, mask)), row_count(mask))
    square = keep(mask, share[:, None])
  return log_likelihood(logp, adv, mask) + 0.5 * md_tau * square


MirrorDescent = part(
  'MirrorDescent', mirror_descent, PolicyLoss, any_policy=True
)


def _by_sign(adv, pos, neg):
  """Returns the numbers of `pos` where A >= 0, else of `neg`: [N, T] each."""
  return [jnp.where(adv >= 0, p, n) for p, n in zip(pos, neg, strict=True)]


def vespo(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  vespo_pos: Sequence[float] = (2.0, 3.0),
  vespo_neg: Sequence[float] = (3.0, 2.0),
) -> jax.Array:
  """Computes -sg(W^c1 exp(c2 (1 - W))) A log pi, W the whole sequence's ratio:
  VESPO.

  https://arxiv.org/abs/2602.10693, (c1, c2) by the sign of A. The kernel is 1
  at W = 1 and goes to 0 on both sides.
  """
  adv = stop(rows_to_tokens(adv, mask))
  log_w = stop(row_sum(log_ratio(logp, old_logp, mask), mask))[:, None]
  c1, c2 = _by_sign(adv, vespo_pos, vespo_neg)
  kernel = safe_exp(c1 * log_w + c2 * (1 - safe_exp(log_w)))
  return -kernel * adv * keep(mask, logp)


VESPO = part('VESPO', vespo, PolicyLoss)


def topr(
  logp: Array,
  old_logp: Array | None,
  adv: Array,
  mask: Array,
  *,
  topr_pos: Sequence[float] = (1.0, 1.0),
  topr_neg: Sequence[float] = (0.0, 1.0),
) -> jax.Array:
  """Computes -sg(clip(W, a, b)) A log pi, W the whole sequence's ratio: TOPR.

  https://arxiv.org/abs/2503.14286, (a, b) by the sign of A. The canonical form
  weights positives by 1 (1, 1), and negatives by a truncated weight (0, 1),
  which is 0 if the policy no longer samples them.
  """
  adv = stop(rows_to_tokens(adv, mask))
  w = stop(importance_ratio(logp, old_logp, mask, ratio='sequence_product'))
  low, high = _by_sign(adv, topr_pos, topr_neg)
  return -hard_clip(w, low, high) * adv * keep(mask, logp)


class TOPR(part('TOPR', topr, PolicyLoss)):
  """`topr` as a part."""

  def clipped(self, arrays: Arrays) -> dict[str, jax.Array]:
    logp, old_logp, adv, mask = self.take(arrays)
    w = stop(importance_ratio(logp, old_logp, mask, ratio='sequence_product'))
    adv = rows_to_tokens(adv, mask)
    low, high = _by_sign(adv, self.topr_pos, self.topr_neg)
    return {'clip_low': w < low, 'clip_high': w > high}


ROW_POLICIES = {
  'gmpo': GMPO,
  'mirror_descent': MirrorDescent,
  'vespo': VESPO,
  'topr': TOPR,
}
