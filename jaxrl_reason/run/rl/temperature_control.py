"""Controls the sampling temperature: of all problems by the entropy, and of
each problem by its last outcomes.

  T <- clip(T exp(rate (1 - H / target)), low, high)       after every step
  T_i = min(T + residual n_i, high)                        n_i >= 0

n_i rises by 1 if the group of problem i is residual (`residual_of`), and falls
by 1 otherwise.

H is the mean entropy in nats of the distributions that the step's tokens were
sampled from. AceReason-Nemotron 1.1 (https://arxiv.org/abs/2506.13284) sets the
temperature of each stage so that this entropy is about 0.3.

A problem whose samples have equal rewards is a residual prompt: it has no
gradient. ERPO (https://arxiv.org/abs/2511.04800) counts how often the samples
of each prompt were all correct, and raises the temperature of the prompt with
this history. The rule here also lowers the temperature: n_i falls when the
samples differ, so the temperature stays near the value at which they begin to
differ.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.base import Metrics, Outcomes, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Part, Step

CONTROL = 'temperature'
# Groups that raise the temperature of their problem: (correct, wrong).
RESIDUAL = {
  'solved': (True, False),
  'failed': (False, True),
  'both': (True, True),
}


@dataclasses.dataclass(frozen=True)
class TemperatureControl(Part):
  """Controls the temperature; static.

  Attributes:
    entropy: target, nats a token; 0: the common temperature is constant.
    rate: of log T per step, at an entropy of 0.
    residual: added to the temperature of a problem per residual group; 0: all
      problems have the common temperature.
    residual_of: in RESIDUAL.
    low: of the common temperature; high: of all.
    first: temperature of the first step.
    n_problems: M, problems of the pool.
  """

  entropy: float
  rate: float
  residual: float
  residual_of: str
  low: float
  high: float
  first: float
  n_problems: int
  name: str = CONTROL

  def init(self, total: jax.Array) -> dict[str, jax.Array]:
    """Returns the common temperature of the first step, f32 [], and the numbers
    n_i of the problems, i32 [M], if they are used.
    """
    memory = {'common': jnp.float32(self.first)}
    if self.residual:
      memory['raised'] = jnp.zeros(self.n_problems, jnp.int32)
    return memory

  def sampling(self, memory: dict, sampling: Sampling) -> Sampling:
    """Sets the temperatures of the next step."""
    common, by_problem = memory['common'], None
    if self.residual:
      by_problem = common + self.residual * memory['raised']
      by_problem = jnp.minimum(by_problem, self.high)
    return sampling.replace(temperature=common, by_problem=by_problem)

  def before(self, memory: dict, step: Step) -> tuple[dict, Step, Metrics]:
    """Counts the residual groups of the step's problems."""
    if not self.residual:
      return memory, step, {}
    # More would not raise the temperature, and delay its fall.
    lowest = self.low if self.entropy else self.first
    # In floats, (1.3 - 1.0) / 0.1 is more than 3.
    most = math.ceil((self.high - lowest) / self.residual - 1e-6)
    change = self._change(step.outcomes)
    raised = jnp.clip(memory['raised'] + change, 0, most)
    drawn = step.sampled.temperature
    metrics = {
      'temperature_mean': drawn.mean(),
      'temperature_max': drawn.max(),
    }
    return memory | {'raised': raised}, step, metrics

  def _change(self, seen: Outcomes) -> jax.Array:
    """Returns the change of n_i by the outcomes of a step, i32 [M]; 0 for
    problems with fewer than two verified samples of the policy alone.
    """
    solved = seen.own & (seen.reward_parts[..., 0] > 0.5)
    ids, own, solved = jax.tree.map(
      lambda x: sharding.everywhere(x.reshape(-1)).astype(jnp.int32),
      (seen.prompt_id, seen.own, solved),
    )

    def by_problem(x):
      return jax.ops.segment_sum(x, ids, self.n_problems)

    n, right = by_problem(own), by_problem(solved)
    of_solved, of_failed = RESIDUAL[self.residual_of]
    residual = (of_solved & (right == n)) | (of_failed & (right == 0))
    return jnp.where(n < 2, 0, jnp.where(residual, 1, -1))

  def after(
    self, memory: dict, state: TrainState, metrics: Metrics
  ) -> tuple[dict, TrainState, Metrics]:
    """Moves the common temperature by the entropy of the step."""
    common = memory['common']
    if not self.entropy:
      return memory, state, {'temperature': common}
    change = self.rate * (1 - metrics['entropy'] / self.entropy)
    # Without a trained token, the entropy is 0 and not a measurement.
    change = jnp.where(metrics['trained_tokens'] > 0, change, 0.0)
    moved = jnp.clip(common * jnp.exp(change), self.low, self.high)
    return memory | {'common': moved}, state, {'temperature': common}
