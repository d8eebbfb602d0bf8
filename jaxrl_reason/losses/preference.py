"""Losses on chosen and rejected answers, per pair [N].

Inputs are log-probabilities of whole answers, `row_sum(logp, mask)`, of the
policy and the reference; those of ORPO and SimPO are means per token. The parts
at the end take rows [N,T] of a stage of kind `preference`.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Metrics,
  Sums,
  as_float,
  required,
  row_mean,
  row_sum,
  safe_divide,
  stop,
)
from jaxrl_reason.losses.objective_part import Part


def _margin(chosen, rejected, ref_chosen, ref_rejected):
  """log (pi / ref)(chosen) - log (pi / ref)(rejected)."""
  policy = as_float(chosen) - as_float(rejected)
  return policy - stop(as_float(ref_chosen) - as_float(ref_rejected))


def dpo(
  chosen: Array,
  rejected: Array,
  ref_chosen: Array,
  ref_rejected: Array,
  *,
  beta: float = 0.1,
  label_smoothing: float = 0.0,
) -> jax.Array:
  """Computes -log sigmoid(beta margin): DPO, https://arxiv.org/abs/2305.18290.

  With `label_smoothing` e: (1 - e) times that plus e times its mirror image.
  """
  h = beta * _margin(chosen, rejected, ref_chosen, ref_rejected)
  e = label_smoothing
  return -(1 - e) * jax.nn.log_sigmoid(h) - e * jax.nn.log_sigmoid(-h)


def ipo(
  chosen: Array,
  rejected: Array,
  ref_chosen: Array,
  ref_rejected: Array,
  *,
  tau: float = 0.1,
) -> jax.Array:
  """Computes (margin - 1 / (2 tau))^2: IPO, https://arxiv.org/abs/2310.12036.

  On sums of log-probabilities, as printed; some trainers use means per token.
  """
  h = _margin(chosen, rejected, ref_chosen, ref_rejected)
  return jnp.square(h - 1 / (2 * tau))


def kto(
  logp: Array,
  ref_logp: Array,
  desirable: Array,
  kl: Array,
  *,
  beta: float = 0.1,
  weight_good: float = 1.0,
  weight_bad: float = 1.0,
) -> jax.Array:
  """Computes KTO, of single answers labelled good or bad,
  https://arxiv.org/abs/2402.01306.

    lambda_d (1 - sigmoid(beta (log pi / ref - z)))   desirable [N]
    lambda_u (1 - sigmoid(beta (z - log pi / ref)))   undesirable

  z = max(0, kl), without gradient: `kl` is the batch's estimate of KL(pi ||
  ref) from mismatched answers, a scalar.
  """
  z = stop(jnp.maximum(as_float(kl), 0.0))
  gain = beta * (as_float(logp) - stop(as_float(ref_logp)) - z)
  good = weight_good * jax.nn.sigmoid(-gain)
  bad = weight_bad * jax.nn.sigmoid(gain)
  return jnp.where(jnp.asarray(desirable) != 0, good, bad)


def orpo(
  chosen: Array, rejected: Array, *, orpo_lambda: float = 0.1
) -> jax.Array:
  """Computes -log pi(chosen) - lambda log sigmoid(log odds ratio): ORPO.

  https://arxiv.org/abs/2403.07691, odds = p / (1 - p), log p the mean per
  token. No reference.
  """
  chosen, rejected = as_float(chosen), as_float(rejected)
  odds = (chosen - rejected) - (_log1mexp(chosen) - _log1mexp(rejected))
  return -chosen - orpo_lambda * jax.nn.log_sigmoid(odds)


def _log1mexp(x):
  """log(1 - exp(x)) for x < 0; x is kept below -1e-7."""
  x = jnp.minimum(x, -1e-7)
  return jnp.where(
    x > -0.693,
    jnp.log(-jnp.expm1(jnp.maximum(x, -1.0))),
    jnp.log1p(-jnp.exp(jnp.minimum(x, -0.5))),
  )


def simpo(
  chosen: Array, rejected: Array, *, beta: float = 2.0, margin: float = 1.0
) -> jax.Array:
  """Computes -log sigmoid(beta (chosen - rejected) - margin): SimPO.

  https://arxiv.org/abs/2405.14734, of log-probabilities per token, with gamma
  as `margin`. No reference.
  """
  gain = as_float(chosen) - as_float(rejected)
  return -jax.nn.log_sigmoid(beta * gain - margin)


def bradley_terry(chosen: Array, rejected: Array) -> jax.Array:
  """Computes -log sigmoid(chosen - rejected), of rewards of answers: the loss
  of a reward model, https://arxiv.org/abs/2203.02155.
  """
  return -jax.nn.log_sigmoid(as_float(chosen) - as_float(rejected))


@dataclasses.dataclass(frozen=True)
class Pairs(Part):
  """A loss of P pairs as a policy's loss of rows, [N].

  The N rows are `blocks` blocks of P rows each: the chosen answers, then the
  rejected answers in the same order. A row gets the loss of its pair, so that
  the mean over rows is the mean over pairs.

  Attributes:
    blocks: blocks of rows.
    reduce: row_sum or row_mean, from log-probs [N,T] to those of answers [N].
    beta: scale of the log-probs in the loss; the lambda of ORPO.
  """

  beta: float = 0.1

  reads = ('logp', 'mask')
  per_row = True
  any_policy = True
  blocks: ClassVar[int] = 2
  reduce: ClassVar[Callable[[Array, Array], jax.Array]] = staticmethod(row_mean)

  def of_pairs(self, chosen: jax.Array, rejected: jax.Array) -> jax.Array:
    """Computes the loss of each pair, [P], from log-probs of its answers."""
    raise TypeError(f'{type(self).__name__} has no loss of pairs')

  def answers(self, arrays: Arrays, name: str) -> jax.Array:
    """Returns the log-probs of the answers, [blocks, P]."""
    x = self.reduce(required(arrays, name), required(arrays, 'mask'))
    return x.reshape(self.blocks, -1)

  def score(self, arrays: Arrays) -> jax.Array:
    """Returns the implicit reward of each answer, [blocks, P]."""
    return self.beta * self.answers(arrays, 'logp')

  def __call__(self, arrays: Arrays) -> jax.Array:
    """Computes the loss of the pair of each row, [N]."""
    return jnp.tile(self.of_pairs(*self.answers(arrays, 'logp')), self.blocks)

  def metrics(self, arrays: Arrays, denominators: Sums) -> Metrics:
    """Computes the share of pairs in which the chosen answer has the higher
    implicit reward, and the mean difference.
    """
    chosen, rejected = stop(self.score(arrays))[:2]
    pairs = denominators['rows'] / self.blocks
    return {
      'preferred': safe_divide((chosen > rejected).sum(), pairs),
      'preference_margin': safe_divide((chosen - rejected).sum(), pairs),
    }


@dataclasses.dataclass(frozen=True)
class ORPO(Pairs):
  """`orpo` of pairs."""

  def of_pairs(self, chosen, rejected):
    return orpo(chosen, rejected, orpo_lambda=self.beta)


@dataclasses.dataclass(frozen=True)
class SimPO(Pairs):
  """`simpo` of pairs."""

  margin: float = 1.0

  def of_pairs(self, chosen, rejected):
    return simpo(chosen, rejected, beta=self.beta, margin=self.margin)


@dataclasses.dataclass(frozen=True)
class Referenced(Pairs):
  """A loss of log (policy / reference) of whole answers."""

  reads = ('logp', 'ref_logp', 'mask')
  reduce = staticmethod(row_sum)

  def score(self, arrays):
    gain = self.answers(arrays, 'logp') - self.answers(arrays, 'ref_logp')
    return self.beta * gain

  def __call__(self, arrays):
    given = self.answers(arrays, 'logp'), self.answers(arrays, 'ref_logp')
    pairs = self.of_pairs(*given[0][:2], *given[1][:2])
    return jnp.tile(pairs, self.blocks)


@dataclasses.dataclass(frozen=True)
class DPO(Referenced):
  """`dpo` of pairs."""

  label_smoothing: float = 0.0

  def of_pairs(self, *answers):
    e = self.label_smoothing
    return dpo(*answers, beta=self.beta, label_smoothing=e)


@dataclasses.dataclass(frozen=True)
class IPO(Referenced):
  """`ipo` of pairs, with beta as its tau."""

  def of_pairs(self, *answers):
    return ipo(*answers, tau=self.beta)


@dataclasses.dataclass(frozen=True)
class KTO(Referenced):
  """`kto` of pairs: the mean of a desirable and of an undesirable answer.

  A third block has the chosen answers of other pairs. The mean of
  log (policy / reference) over the rows of this block estimates the KL
  divergence, as in the published code.
  """

  blocks: ClassVar[int] = 3

  def __call__(self, arrays):
    logp, ref = self.answers(arrays, 'logp'), self.answers(arrays, 'ref_logp')
    kl = stop(logp[2] - ref[2]).mean()
    good, bad = (
      kto(logp[i], ref[i], 1 - i * jnp.ones_like(kl), kl, beta=self.beta)
      for i in (0, 1)
    )
    return jnp.tile((good + bad) / 2, self.blocks)


# By the name in `preference.loss`.
PREFERENCES = {
  'dpo': DPO,
  'ipo': IPO,
  'kto': KTO,
  'orpo': ORPO,
  'simpo': SimPO,
}
