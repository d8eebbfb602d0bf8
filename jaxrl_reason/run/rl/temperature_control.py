"""Controls the sampling temperature to reach a target entropy:

  T <- clip(T exp(rate (1 - H / target)), low, high)

after every step, where H is the mean entropy in nats of the distributions that
the step's tokens were sampled from. AceReason-Nemotron 1.1
(https://arxiv.org/abs/2506.13284) sets the temperature of each stage so that
this entropy is about 0.3.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.base import Metrics, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Part

CONTROL = 'temperature'


@dataclasses.dataclass(frozen=True)
class TemperatureControl(Part):
  """Controls the temperature; static.

  Attributes:
    entropy: target, nats a token.
    rate: of log T per step, at an entropy of 0.
    low, high: bounds of T.
    first: temperature of the first step.
  """

  entropy: float
  rate: float
  low: float
  high: float
  first: float
  name: str = CONTROL

  def init(self, total: jax.Array) -> jax.Array:
    """Returns the temperature of the first step, f32 []."""
    return jnp.float32(self.first)

  def sampling(self, memory: jax.Array, sampling: Sampling) -> Sampling:
    """Sets the temperature of the next step."""
    return sampling.replace(temperature=memory)

  def after(
    self, memory: jax.Array, state: TrainState, metrics: Metrics
  ) -> tuple[jax.Array, TrainState, Metrics]:
    """Moves the temperature by the entropy of the step."""
    change = self.rate * (1 - metrics['entropy'] / self.entropy)
    moved = jnp.clip(memory * jnp.exp(change), self.low, self.high)
    return moved, state, {'temperature': memory}
