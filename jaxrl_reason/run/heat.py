"""The sampling temperature, steered to an entropy of what is sampled:

  T <- clip(T exp(rate (1 - H / target)), low, high)

after every step, H the mean entropy in nats of the distributions that its
tokens were drawn from. AceReason-Nemotron 1.1 (https://arxiv.org/abs/2506.13284)
sets the temperature of each stage so that this entropy is about 0.3. The
temperature is `TrainState.control['heat']`.
"""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_reason.base import Metrics
from jaxrl_reason.logits import Sampling

CONTROL = 'heat'


@dataclasses.dataclass(frozen=True)
class Heat:
  """Steers the temperature; static. The fields are keys of `rl.heat`.

  Attributes:
    entropy: aimed at, nats a token; 0: the temperature stands still.
    rate: of log T per step, where nothing is left of the entropy.
    low, high: bounds of T.
  """

  entropy: float
  rate: float
  low: float
  high: float

  def __call__(
    self, control: dict, metrics: Metrics
  ) -> tuple[dict, dict[str, jax.Array]]:
    """Gives the control after a step with these metrics, and what to tell."""
    now = control[CONTROL]
    moved = now * jnp.exp(self.rate * (1 - metrics['entropy'] / self.entropy))
    moved = jnp.clip(moved, self.low, self.high)
    return control | {CONTROL: moved}, {'temperature': now}


def make(c: ml_collections.ConfigDict) -> Heat | None:
  """Makes what steers the temperature of an rl section; None: nothing."""
  return Heat(**c.heat.to_dict()) if c.heat.entropy else None


def heated(control: dict, sampling: Sampling) -> Sampling:
  """Gives the settings to sample the next step with."""
  return sampling.replace(temperature=control[CONTROL])
