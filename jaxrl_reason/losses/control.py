"""Coefficients that change during a run, as a separate state.

  coefs = init_coefs(settings)
  loss, metrics = policy_loss(settings, .., coefs=coefs)
  coefs = next_coefs(settings, coefs, metrics, rows=N)

The state is a dict of float32 scalars, for jit and checkpoints.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.entropy import adaptive_entropy
from jaxrl_reason.losses.imitation import anneal
from jaxrl_reason.losses.kl import adaptive_kl
from jaxrl_reason.losses.objective import Metrics, Settings, objective_of

Coefs = dict[str, jax.Array]


def init_coefs(settings: Settings) -> Coefs:
  """Returns {'kl_coef', 'entropy_coef', 'entropy_level', 'sft_coef',
  'step'}.
  """
  o = objective_of(settings)
  coefs = {name: jnp.float32(x) for name, x in o.coefs.items()}
  # The level moves by steps; the current coefficient may be 0.
  return {
    **coefs,
    'entropy_level': coefs['entropy_coef'],
    'step': jnp.float32(0),
  }


def next_coefs(
  settings: Settings,
  coefs: Coefs,
  metrics: Metrics,
  *,
  rows: int,
  trained: jax.Array | bool = True,
) -> Coefs:
  """Computes the coefficients of the next update from the metrics of this
  one.

  Args:
    trained: bool [], whether the update has a trained token. Otherwise its KL
      and entropy are 0 without a measurement, and move no coefficient.
  """
  o = objective_of(settings)
  out = dict(coefs)
  kl, entropy, sft = o.kl, o.entropy, o.likelihood
  if kl is not None and kl.target is not None:
    out['kl_coef'] = adaptive_kl(
      coefs['kl_coef'],
      metrics['kl'],
      target=kl.target,
      horizon=kl.horizon,
      rows=rows,
    )
  if entropy is not None and entropy.target is not None:
    out['entropy_level'], out['entropy_coef'] = adaptive_entropy(
      coefs['entropy_level'],
      metrics['entropy'],
      target=entropy.target,
      step=entropy.step,
      low=entropy.coef_min,
      high=entropy.coef_max,
    )
  out = {k: jnp.where(trained, x, coefs[k]) for k, x in out.items()}
  out['step'] = coefs['step'] + 1
  if sft is not None and sft.end is not None:
    out['sft_coef'] = anneal(
      out['step'],
      start=sft.coef,
      end=sft.end,
      steps=sft.steps,
      shape=sft.shape,
    )
  return out
