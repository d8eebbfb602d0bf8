"""Losses on chosen and rejected answers, per pair [N].

Inputs are log-probabilities of whole answers, `row_sum(logp, mask)`, of the
policy and the reference; those of ORPO are means per token.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import Array, as_float, stop


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
