"""Arrays of a few rows of a batch, for `rollouts/*.jsonl`.

Every `every` steps, the program of a step also returns the tokens of some
problems of its batch, and the values of the update for each token. In the other
steps this branch does not run.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step
from jaxrl_reason.update import scoring, trained_rows
from jaxrl_reason.update import step as step_lib


@dataclasses.dataclass(frozen=True, eq=False)
class RolloutDump(Part):
  """Returns arrays of some problems of a batch as the metric `rollouts`;
  static, so it selects a program.

  Attributes:
    every: steps of the run between two dumps.
    problems: problems per dump, spread evenly over the batch, with all samples.
    samples: G.
    own_prompts: whether the prompts of rows are not those of the data, so
      that they are returned too.
  """

  every: int
  problems: int
  samples: int
  own_prompts: bool = False
  name: str = 'rollouts'

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Adds arrays [R] and [R,C] of the step; zeros if no dump is due."""

    groups = step.sampled.reward.shape[0] // self.samples
    chosen = np.arange(self.problems) * groups // self.problems
    rows = (chosen[:, None] * self.samples + np.arange(self.samples)).ravel()

    def arrays():
      found = _arrays(step) | (_prompts(step) if self.own_prompts else {})
      return {k: x[rows] for k, x in found.items()}

    def zeros():
      return jax.tree.map(jnp.zeros_like, jax.eval_shape(arrays))

    due = (step.state.step + 1) % self.every == 0
    with trees.branches((self.every - 1, 1)):
      found = jax.lax.cond(due, arrays, zeros)
    # Replicated, because process 0 writes them.
    return memory, step, {'rollouts': jax.tree.map(sharding.everywhere, found)}


def _prompts(step: Step) -> dict[str, jax.Array]:
  """Returns the prompts of all rows i32 [N,P], -1 at padding."""
  start, sampled = step.learner.start, step.sampled
  there = sampled.valid[:, :start]
  return {'prompt': jnp.where(there, sampled.tokens[:, :start], -1)}


def _arrays(step: Step) -> dict[str, jax.Array]:
  """Returns arrays of all rows, [N] and [N,C]. Log-probs and entropies are
  those of the trainer before the update.
  """
  learner, state, sampled = step.learner, step.state, step.sampled
  batch: Batch = step.batch
  if batch.forced is not None:
    batch = trained_rows.with_forced(batch)
  batch = batch.replace(mask=trained_rows.mask(learner, batch))
  if learner.reads_before:
    batch = scoring.add_arrays(learner, state, batch, step.sampling)
  pieces = learner.minibatches * learner.micro_batches
  given = learner, state.params, sampled, step.sampling, pieces
  logp, entropy = scoring.scores(*given)
  adv = step_lib.advantages(learner, batch)
  by_token = {
    'tokens': sampled.tokens,
    'valid': sampled.valid,
    'sampled': sampled.mask,
    'trained': batch.mask,
    'logp': logp,
    'entropy': entropy,
    'sampler_logp': sampled.sampler_logp,
    'ref_logp': batch.ref_logp,
    'turn': sampled.turn - 1,  # from 0
    'advantage': adv if adv.ndim > 1 else None,
  }
  arrays = {
    k: x[:, learner.start :] for k, x in by_token.items() if x is not None
  }
  arrays |= {'advantage': adv} if adv.ndim == 1 else {}
  arrays |= {} if sampled.row is None else {'row': sampled.row}
  return arrays | {
    'prompt_id': sampled.prompt_id,
    'reward': batch.reward,
    'reward_parts': sampled.reward_parts,
    'reward_valid': sampled.reward_valid,
    'truncated': sampled.truncated,
  }
