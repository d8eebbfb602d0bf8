"""Progress of a stage, an input of scheduled rewards, hints and resets.

`TrainState.control['progress']` contains

  step                i32 [], batches trained on in this stage
  solve_rate          f32 [], mean over batches of the share of rows whose first
                      reward part is above 0.5
  mean_length         f32 [], mean over batches of a completion's sampled tokens
  hinted_solve_rate   f32 [], the solve rate of rows that begin with a hint, in
                      stages with hints

Means are exponential, over about the last ten batches; the first batch with a
row to count sets each of them. Before it, a mean is -0.0: rewards and hints
read 0, and the sign distinguishes it from a mean of 0. Rows that begin with a
hint, demonstrations, and rows of past versions (a league) are excluded from
solve_rate and mean_length, because they do not measure the policy alone.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.base import Metrics, Outcomes
from jaxrl_reason.parts import Part, Step

KEEP = 0.9  # decay of a mean per batch
NONE = -0.0  # of a mean without a row; a mean of rows is never negative
CONTROL = 'progress'
NAMES = ('step', 'solve_rate', 'mean_length')
HINTED = 'hinted_solve_rate'


def of(control: dict | None) -> dict[str, jax.Array]:
  """Returns the progress in `TrainState.control`; {} if the stage has none."""
  return (control or {}).get(CONTROL, {})


@dataclasses.dataclass(frozen=True)
class Progress(Part):
  """Measures the progress of a stage; static.

  Attributes:
    hinted: measure rows with hints too.
  """

  hinted: bool = False
  name: str = CONTROL

  def init(self, total: jax.Array | None = None) -> dict[str, jax.Array]:
    """Returns the progress before the first batch."""
    means = dict.fromkeys(NAMES, jnp.float32(NONE)) | {'step': jnp.int32(0)}
    return means | ({HINTED: jnp.float32(NONE)} if self.hinted else {})

  def before(self, memory: dict, step: Step) -> tuple[dict, Step, Metrics]:
    """Adds a step's outcomes to the means."""
    metrics = {f'control/{k}': v for k, v in memory.items()}
    return observe(memory, step.outcomes), step, metrics


def observe(before: dict, seen: Outcomes) -> dict[str, jax.Array]:
  """Returns the progress after one more batch. Rows whose verifier failed are
  left out, and a batch without rows to count changes no mean.

  Args:
    seen: every completion that was generated, [...,N].
  """
  right, own = seen.reward_parts[..., 0] > 0.5, seen.own
  after = {'step': before['step'] + 1}
  counted = {'solve_rate': (right, own), 'mean_length': (seen.length, own)}
  if HINTED in before:
    hinted = seen.is_hinted
    hinted = jnp.zeros_like(own) if hinted is None else hinted
    counted[HINTED] = right, hinted & seen.reward_valid
  for name, (x, rows) in counted.items():
    now = jnp.sum(jnp.where(rows, x, 0)) / jnp.maximum(rows.sum(), 1)
    old = before[name]
    mean = jnp.where(jnp.signbit(old), now, KEEP * old + (1 - KEEP) * now)
    # A select keeps the sign of zero, a product by 1 might not.
    after[name] = jnp.where(jnp.any(rows), mean, old)
  return after
