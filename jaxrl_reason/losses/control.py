"""Coefficients that change during a run, as a small state of its own.

  coefs = init_coefs(settings)
  loss, metrics = policy_loss(settings, .., coefs=coefs)
  coefs = next_coefs(settings, coefs, metrics, rows=N)

The state is a dict of float32 scalars: it goes through jit and checkpoints.
"""

import jax.numpy as jnp

from jaxrl_reason.losses.entropy import adaptive_entropy
from jaxrl_reason.losses.imitation import anneal
from jaxrl_reason.losses.kl import adaptive_kl
from jaxrl_reason.losses.settings import resolve


def init_coefs(settings):
  """{'kl_coef', 'entropy_coef', 'entropy_level', 'sft_coef', 'step'}."""
  s = resolve(settings)
  names = ('kl_coef', 'entropy_coef', 'sft_coef')
  coefs = {name: jnp.float32(s[name]) for name in names}
  # The level moves by steps; the coefficient in force may be 0 meanwhile.
  return {
    **coefs,
    'entropy_level': coefs['entropy_coef'],
    'step': jnp.float32(0),
  }


def next_coefs(settings, coefs, metrics, *, rows):
  """The coefficients of the next update from the metrics of this one."""
  s = resolve(settings)
  out = {**coefs, 'step': coefs['step'] + 1}
  if s['kl_target'] is not None:
    out['kl_coef'] = adaptive_kl(
      coefs['kl_coef'],
      metrics['kl'],
      target=s['kl_target'],
      horizon=s['kl_horizon'],
      rows=rows,
    )
  if s['entropy_target'] is not None:
    out['entropy_level'], out['entropy_coef'] = adaptive_entropy(
      coefs['entropy_level'],
      metrics['entropy'],
      target=s['entropy_target'],
      step=s['entropy_step'],
      high=s['entropy_coef_max'],
    )
  if s['sft_coef_end'] is not None:
    out['sft_coef'] = anneal(
      out['step'],
      start=s['sft_coef'],
      end=s['sft_coef_end'],
      steps=s['sft_steps'],
      shape=s['sft_shape'],
    )
  return out
