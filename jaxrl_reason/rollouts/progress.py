"""What scheduled rewards go by: how far a stage is (of `TrainState.control`).

  step          i32 [], batches learnt from in this stage
  solve_rate    f32 [], mean over batches of the share of rows whose first
                reward part is above 0.5
  mean_length   f32 [], mean over batches of a completion's sampled tokens

Means are exponential, of about the last ten batches; the first batch sets them.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.base import Outcomes

KEEP = 0.9  # of a mean's value, from batch to batch
NAMES = ('step', 'solve_rate', 'mean_length')


def start() -> dict[str, jax.Array]:
  """Gives the numbers as they are before the first batch."""
  zero = jnp.float32(0)
  return {'step': jnp.int32(0), 'solve_rate': zero, 'mean_length': zero}


def of(control: dict | None) -> dict[str, jax.Array]:
  """Gives these numbers out of all that a run remembers; {}: it does not."""
  control = control or {}
  return {name: control[name] for name in NAMES if name in control}


def observe(control: dict, seen: Outcomes) -> dict:
  """Gives what a run remembers after one more batch: rows whose verifier failed
  are left out, and a batch of nothing else changes no mean.

  Args:
    seen: all that was generated, [...,N].
  """
  before = of(control)
  if not before:
    return control
  ok = seen.reward_valid
  n = jnp.maximum(ok.sum(), 1)
  now = {
    'solve_rate': jnp.sum(ok & (seen.reward_parts[..., 0] > 0.5)) / n,
    'mean_length': jnp.sum(jnp.where(ok, seen.length, 0)) / n,
  }
  keep = jnp.where(before['step'] > 0, KEEP, 0.0)
  keep = jnp.where(jnp.any(ok), keep, 1.0)
  after = {k: keep * before[k] + (1 - keep) * x for k, x in now.items()}
  return control | after | {'step': before['step'] + 1}
