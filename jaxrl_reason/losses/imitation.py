"""Losses of tokens of another policy: demonstrations.

The result is per token, [N, T], 0 outside the mask. Pass it to `aggregate` with
the mask of the demonstration tokens.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Metrics,
  Sums,
  as_float,
  as_mask,
  check_shapes,
  choose,
  keep,
  required,
  row_count,
  rows_to_tokens,
  safe_divide,
  safe_exp,
  stop,
)
from jaxrl_reason.losses.distillation import Distill, Stored
from jaxrl_reason.losses.entropy import EntropyBonus
from jaxrl_reason.losses.objective_part import Part, flat_names, part, part_of
from jaxrl_reason.losses.policy import PPOClip
from jaxrl_reason.losses.selection import LeftOut, Moved, Uncertain


def sft(logp: Array, mask: Array) -> jax.Array:
  """Computes -log pi(y_t), the negative log-likelihood."""
  check_shapes(mask=mask, logp=logp)
  return -keep(mask, logp)


def dft(logp: Array, mask: Array) -> jax.Array:
  """Computes -sg(pi) log pi: DFT, https://arxiv.org/abs/2508.05629.

  Weighting by the probability undoes the 1 / pi that makes plain SFT a policy
  gradient with a badly behaved implicit reward.
  """
  check_shapes(mask=mask, logp=logp)
  logp = keep(mask, logp)
  return -stop(safe_exp(logp)) * logp


def pear(
  logp: Array,
  sampler_logp: Array,
  mask: Array,
  *,
  pear_gamma: float = 0.999,
  pear_block: int = 1,
) -> jax.Array:
  """Computes -sg(G_t) log pi(y_t), G_t a ratio of the policy to the author of
  the data: PEAR, https://arxiv.org/abs/2602.01058.

    tokens (pear_block=1)   G_t = gamma^(T - t) prod_{j > t} pi(y_j) / mu(y_j)
    blocks of B tokens      G_t = G_e, e the last token of the block of t
    rows (pear_block=0)     G_t = prod_j pi(y_j) / mu(y_j)

  T is the last token of the row. The logarithm of a token's ratio is clipped to
  PEAR_RATIO, and that of G_t to PEAR_WEIGHT.

  Args:
    sampler_logp: [N, T], log mu(y_t).
  """
  check_shapes(mask=mask, logp=logp, sampler_logp=sampler_logp)
  logp = keep(mask, logp)
  ratio = jnp.clip(stop(logp) - keep(mask, sampler_logp), *PEAR_RATIO)
  if pear_block:
    ratio = keep(mask, ratio + math.log(pear_gamma))
    after = jnp.cumsum(ratio[:, ::-1], axis=1)[:, ::-1] - ratio
    weight = _at_block_ends(after, as_mask(mask), pear_block)
  else:
    weight = keep(mask, ratio).sum(1, keepdims=True)
  return -jnp.exp(jnp.clip(weight, *PEAR_WEIGHT)) * logp


def _at_block_ends(x: Array, mask: Array, size: int) -> jax.Array:
  """Copies the value [N, T] of the last token of a block to all its tokens.

  An incomplete last block of a row has the value 0.
  """
  place = jnp.cumsum(mask, axis=1) - 1
  block = jnp.maximum(place, 0) // size
  ends = jnp.where(mask & (place % size == size - 1), x, 0.0)
  rows = jnp.arange(len(x))[:, None]
  return jnp.zeros_like(x).at[rows, block].add(ends)[rows, block]


def luffy(
  logp: Array, adv: Array, mask: Array, *, luffy_gamma: float = 0.1
) -> jax.Array:
  """Computes -f(pi) A, f(p) = p / (p + gamma): policy shaping for off-policy
  tokens.

  LUFFY, https://arxiv.org/abs/2504.14945, with its behaviour probability of 1.
  The gradient gamma p / (p + gamma)^2 grad log pi is largest at p = gamma, so
  rare but decisive tokens get the largest gradient. There is no clipping.
  """
  check_shapes(mask=mask, logp=logp)
  p = safe_exp(keep(mask, logp))
  return -stop(rows_to_tokens(adv, mask)) * p / (p + luffy_gamma)


@part_of(luffy, reads={'mask': 'is_offpolicy'})
class Luffy(Part):
  """`luffy` as a part."""

  luffy_gamma: float = 0.1


def rl_plus(
  logp: Array,
  old_logp: Array,
  adv: Array,
  mask: Array,
  *,
  rl_plus_gamma: float = 0.5,
) -> jax.Array:
  """Computes -r (1 - sg(pi))^gamma A: importance sampling of demonstrations by
  a mixture of two policies, and larger advantages of unlikely tokens.

    r = 2 pi / (pi_old + w),  w = (1 + pi_old) / 2

  RL-PLUS, https://arxiv.org/abs/2508.00222, with the estimate w of the author's
  probability, and the exponent, of the authors' code. If pi equals pi_old, an
  unlikely token has r = 4 pi, and a certain one r = 1.

  Args:
    old_logp: [N, T], of the policy before the updates of the batch.
  """
  check_shapes(mask=mask, logp=logp, old_logp=old_logp)
  p, old = safe_exp(keep(mask, logp)), safe_exp(keep(mask, old_logp))
  ratio = 2 * p / (old + (1 + old) / 2)
  unlikely = jnp.maximum(1 - stop(p), 0) ** rl_plus_gamma
  return -keep(mask, ratio * unlikely * stop(rows_to_tokens(adv, mask)))


@part_of(rl_plus, reads={'mask': 'is_offpolicy', 'old_logp': 'at_sampling'})
class RLPlus(Part):
  """`rl_plus` as a part."""

  rl_plus_gamma: float = 0.5


# Limits of the log-ratio of a token, and of the logarithm of a weight.
PEAR_RATIO, PEAR_WEIGHT = (-0.08, 0.3), (-10.0, 5.0)
SFT_LOSSES = {'sft': sft, 'dft': dft}
VERDICT, REFERENCE = 'verdict', 'reference'
# Tokens of the likelihood -> whether they are those of right rows (VAPO).
# Otherwise they are the answers of an environment (ECHO), the verdict on a
# completion (RL^V), or the reference answer after the sampled reasoning
# (JEPO).
SFT_ON = {
  'right': True,
  'observations': False,
  VERDICT: False,
  REFERENCE: False,
}
SFT, DFT, PEAR = part('SFT', sft), part('DFT', dft), part('PEAR', pear)


def _eksft(c: Any) -> dict[str, Any]:
  """Returns the parts of EKSFT, https://arxiv.org/abs/2605.29303.

  Its terms are means over the tokens that they are computed on. Terms of an
  objective are divided by all tokens, hence the division by the share.
  """
  share = c.left_out or 1.0
  select = {
    'entropy_bonus': Uncertain(left_out=c.left_out),
    'moved': Moved(left_out=c.left_out),
  }
  bonus = EntropyBonus(coef=c.entropy_coef / share)
  near = Distill(coef=c.kl_coef / share, on='moved')
  return dict(
    policy=SFT(),
    select=select,
    weights=(LeftOut(chosen=tuple(select)),),
    entropy=bonus if c.entropy_coef else None,
    distill=near if c.kl_coef else None,
  )


# Losses of a supervised stage, by name: its settings -> fields of an objective
# in which every advantage is 1. PSFT, https://arxiv.org/abs/2508.17784, clips
# the ratio to the policy before the updates of a batch.
SUPERVISED: dict[str, Callable[[Any], dict[str, Any]]] = {
  'sft': lambda c: dict(policy=SFT()),
  'dft': lambda c: dict(policy=DFT()),
  'psft': lambda c: dict(policy=PPOClip(high=c.clip_high)),
  'eksft': _eksft,
  'pear': lambda c: dict(policy=PEAR(pear_gamma=c.gamma, pear_block=c.block)),
  'topk': lambda c: dict(policy=Stored(kind=c.divergence)),
}


@dataclasses.dataclass(frozen=True)
class Imitate(Part):
  """`sft` or `dft` as the loss of tokens of another policy."""

  sft_loss: str = 'sft'
  reads = ('logp', 'is_offpolicy')
  names = (('sft_loss', 'sft_loss', 'sft_loss'),)

  def __call__(self, arrays):
    return choose('sft_loss', self.sft_loss, SFT_LOSSES)(*self.take(arrays))


@dataclasses.dataclass(frozen=True)
class Likelihood(Imitate):
  """A separate term: the likelihood of the `sft_mask` tokens.

  Attributes:
    coef: its weight.
    on: in SFT_ON, the tokens of `tokens`.
    threshold: a row is right if its reward is above this.
    end, steps, shape: of `anneal`; None: the coefficient is constant.
  """

  coef: float = 0.1
  on: str = 'right'
  threshold: float = 0.0
  end: float | None = None
  steps: int = 1
  shape: str = 'linear'
  reads = ('logp', 'sft_mask')
  names = (
    ('sft_loss', 'sft_loss', 'sft_loss'),
    ('end', 'end', 'sft_coef_end'),
    ('threshold', 'threshold', 'threshold'),
    *flat_names('sft', 'coef on steps shape'),
  )

  def tokens(
    self, mask: Array, reward: Array, valid: Array, observed: Array
  ) -> jax.Array:
    """Chooses the `sft_mask` of a batch, bool [N, T].

    Args:
      mask: [N, T], the policy's own tokens that are trained on.
      reward, valid: [N].
      observed: [N, T], tokens that an environment wrote, verdicts or reference
        answers; not read with on='right'. Verdicts count in rows without
        trained tokens too.
    """
    mask = as_mask(mask)
    if choose('sft_on', self.on, SFT_ON):
      return mask & (as_mask(valid) & (reward > self.threshold))[:, None]
    observed = as_mask(observed)
    return observed if self.on == VERDICT else observed & mask.any(1)[:, None]

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    return {'sft_tokens': row_count(required(arrays, 'sft_mask')).sum()}

  def term(
    self, arrays: Arrays, mean: Callable, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    """Computes the mean over the `sft_mask` tokens, which have their own
    divisor.
    """
    nll = safe_divide(self(arrays).sum(), denominators['sft_tokens'])
    return nll, {'sft_loss': stop(nll)}

  @property
  def keys_read(self) -> set[str]:
    unread = {'sft_steps', 'sft_shape'} if self.end is None else set()
    unread |= set() if self.on == 'right' else {'threshold'}
    return super().keys_read - unread


def anneal(
  step: Array, *, start: float, end: float, steps: int, shape: str = 'linear'
) -> jax.Array:
  """Computes a coefficient that goes from `start` to `end` over `steps`, and
  stays there.
  """
  t = jnp.clip(as_float(step) / steps, 0.0, 1.0)
  if choose('shape', shape, {'cosine': True, 'linear': False}):
    t = 0.5 * (1 - jnp.cos(math.pi * t))
  return start + (end - start) * t
