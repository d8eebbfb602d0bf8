"""What may happen to an advantage after it has been estimated.

All take and give [N] or [N, T]; none touches rows or tokens outside the mask.
"""

import dataclasses

import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Part,
  as_float,
  as_mask,
  check_shapes,
  choose,
  keep,
  masked_mean,
  masked_var,
  rows_to_tokens,
  safe_divide,
  safe_sqrt,
  stop,
)


def whiten(adv, mask, *, valid=None, by='rows', whiten_ddof=1, whiten_eps=1e-8):
  """(A - mean) / sqrt(var + eps) over the batch's rows or tokens.

  REINFORCE++ (https://arxiv.org/abs/2501.03262) takes the tokens of the batch,
  its baseline form and GDPO (https://arxiv.org/abs/2601.05242) its rows.

  Args:
    adv: [N] for 'rows'; [N] or [N, T] for 'tokens', which gives [N, T].
    mask: [N, T].
    valid: [N], rows that count; the others are 0.
    by: 'rows' or 'tokens'.
  """
  check_shapes(mask=mask, adv=adv, valid=valid)
  adv = as_float(adv)
  where = jnp.ones(adv.shape[0], bool) if valid is None else as_mask(valid)
  if choose('by', by, {'tokens': True, 'rows': False}):
    adv, where = rows_to_tokens(adv, mask), as_mask(mask) & where[:, None]
  var = masked_var(adv, where, ddof=whiten_ddof)
  centred = adv - masked_mean(adv, where)
  return keep(where, safe_divide(centred, safe_sqrt(var + whiten_eps)))


@dataclasses.dataclass(frozen=True)
class Whiten(Part):
  """`whiten` as a part."""

  by: str = 'rows'
  whiten_ddof: int = 1
  whiten_eps: float = 1e-8
  reads = ('adv', 'mask')
  keys = {'by': 'whiten'}

  def __call__(self, arrays):
    adv, mask = self.take(arrays)
    return whiten(
      adv,
      mask,
      valid=arrays['valid'],
      by=self.by,
      whiten_ddof=self.whiten_ddof,
      whiten_eps=self.whiten_eps,
    )


def entropy_shape(adv, entropy, mask, *, entropy_alpha=0.4, entropy_kappa=2.0):
  """A + min(alpha H, |A| / kappa): more credit where the policy hesitated.

  https://arxiv.org/abs/2506.14758 (alpha 0.4 with GRPO, 0.1 with PPO). The
  bonus carries no gradient and, as kappa > 1, never turns a sign; where A is 0
  it stays 0.
  """
  check_shapes(mask=mask, entropy=entropy)
  adv = rows_to_tokens(adv, mask)
  bonus = entropy_alpha * stop(keep(mask, entropy))
  return keep(mask, adv + jnp.minimum(bonus, jnp.abs(adv) / entropy_kappa))


@dataclasses.dataclass(frozen=True)
class EntropyShape(Part):
  """`entropy_shape` as a part."""

  entropy_alpha: float = 0.4
  entropy_kappa: float = 2.0
  fn = staticmethod(entropy_shape)
  reads = ('adv', 'entropy', 'mask')


def weigh_signs(adv, *, pos_weight=1.0, neg_weight=1.0):
  """Weights for positive and negative advantages: PSR / NSR.

  https://arxiv.org/abs/2506.01347: (1, 0) learns from successes only, (0, 1)
  from failures only, (0.1, 1) is its Weighted-REINFORCE.
  """
  return jnp.where(adv > 0, pos_weight, neg_weight) * adv


@dataclasses.dataclass(frozen=True)
class WeighSigns(Part):
  """`weigh_signs` as a part."""

  pos_weight: float = 1.0
  neg_weight: float = 1.0
  fn = staticmethod(weigh_signs)
  reads = ('adv',)


def clip_advantage(adv, *, adv_max):
  """A clipped to +-adv_max."""
  return jnp.clip(adv, -adv_max, adv_max)


@dataclasses.dataclass(frozen=True)
class ClipAdvantage(Part):
  """`clip_advantage` as a part."""

  adv_max: float
  fn = staticmethod(clip_advantage)
  reads = ('adv',)
