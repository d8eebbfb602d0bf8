"""Moves the reference policy: sets it to the policy every n steps or at a
trigger, or makes it a running mean of the policy. Its memory is
`TrainState.control['reference']`.

ProRL (https://arxiv.org/abs/2505.24864) resets the reference, and the
optimizer with it, by hand when the validation score stops rising or the KL term
dominates the loss. Here `patience` uses the solve rate of the steps, and `kl`
the measured divergence.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from jaxrl_reason import trees
from jaxrl_reason.base import Metrics, TrainState
from jaxrl_reason.parts import Part

CONTROL = 'reference'


@dataclasses.dataclass(frozen=True)
class Refresh(Part):
  """Moves the reference of a state; static. The fields are keys of
  `rl.reference`.

  Attributes:
    every: steps between resets; 0 disables these resets.
    kl: nats per token above which the reference is reset; 0 disables it.
    patience: steps without a higher solve rate before a reset; 0 disables it.
    ema: decay of the running mean per step; 0: the reference does not move.
    optimizer: a reset also initializes the optimizer.
    tx: the optimizer.
    trainable: regex over the paths of the trained parameters.
  """

  every: int = 0
  kl: float = 0.0
  patience: int = 0
  ema: float = 0.0
  optimizer: bool = False
  tx: optax.GradientTransformation | None = None
  trainable: str = '.*'
  name: str = CONTROL

  def init(self, total: jax.Array | None = None) -> dict[str, jax.Array]:
    """Returns the memory before the first step, or after a reset."""
    zero = jnp.int32(0)
    return {'age': zero, 'best': jnp.float32(-1), 'since': zero}

  def after(
    self, memory: dict, state: TrainState, metrics: Metrics
  ) -> tuple[dict, TrainState, Metrics]:
    """Moves the reference of the state if that is due.

    Args:
      metrics: of the step, with its kl if `kl` is set.
    """
    known = self._counted(memory, state.control)
    due = self._due(known, metrics)
    now, _ = trees.split(state.params, self.trainable)
    ref, opt = state.ref_params, state.opt_state
    if self.ema:
      ref = jax.tree.map(
        lambda r, p: self.ema * r + (1 - self.ema) * p, ref, now
      )
    if self.every or self.kl or self.patience:
      ref = trees.where(due, now, ref)
      known = trees.where(due, self.init(), known)
    if self.optimizer:
      opt = trees.where(due, self.tx.init(now), opt)
    told = {'reference/age': known['age'], 'reference/reset': due}
    told = {k: v.astype(jnp.float32) for k, v in told.items()}
    return known, state.replace(ref_params=ref, opt_state=opt), told

  def _counted(self, known: dict, control: dict) -> dict[str, jax.Array]:
    """Returns the memory with this step counted."""
    best, since = known['best'], known['since']
    if self.patience:
      rate = control['progress']['solve_rate']
      since = jnp.where(rate > best, 0, since + 1)
      best = jnp.maximum(best, rate)
    return {'age': known['age'] + 1, 'best': best, 'since': since}

  def _due(self, known: dict, metrics: Metrics) -> jax.Array:
    """Returns whether this step ends with a reset, bool []."""
    due = jnp.bool_(False)
    if self.every:
      due |= known['age'] >= self.every
    if self.kl:
      due |= metrics['kl'] > self.kl
    if self.patience:
      due |= known['since'] >= self.patience
    return due
