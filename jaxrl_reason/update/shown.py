"""What a few rows of a batch look like to their update: `rollouts/*.jsonl`.

Every so many steps the program of a step also gives, for the first rows of its
batch, the tokens and what the update makes of each of them. In all other steps
that branch is not run, and nothing else of the program knows of it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.update import scoring
from jaxrl_reason.update import step as step_lib
from jaxrl_reason.update.learner import Learner


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
  """Chooses what is shown; static, so it selects a program.

  Attributes:
    every: steps of the run between two that are shown.
    rows: R of a batch, the first ones.
  """

  every: int
  rows: int

  def __call__(
    self,
    learner: Learner,
    state: TrainState,
    batch: Batch,
    chosen: Batch,
    sampling: Sampling,
  ) -> dict[str, jax.Array]:
    """Gives arrays [R] and [R,C] of the step about to be made; zeros where it
    is not a step to be shown.

    Args:
      state: before the update.
      batch: all that was sampled; chosen: what of it is learnt from.
    """

    def look():
      found = _arrays(learner, state, batch, chosen, sampling)
      return {k: x[: self.rows] for k, x in found.items()}

    def nothing():
      shapes = jax.eval_shape(look)
      return jax.tree.map(jnp.zeros_like, shapes)

    due = (state.step + 1) % self.every == 0
    found = jax.lax.cond(due, look, nothing)
    # Process 0 writes them, whoever's rows they are.
    return jax.tree.map(sharding.everywhere, found)


def make(
  c: ml_collections.ConfigDict, prompts: int, samples: int
) -> Shown | None:
  """Reads what the section `rollouts` asks for of a batch."""
  rows = min(c.problems, prompts) * samples
  return Shown(c.every, rows) if c.every else None


def _arrays(
  learner: Learner, state, batch: Batch, chosen: Batch, sampling
) -> dict[str, jax.Array]:
  """Arrays of all rows, [N] and [N,C]; log-probs and entropies are those of the
  trainer before the update.
  """
  chosen = chosen.replace(mask=step_lib.trained(learner, chosen))
  if learner.reads_before:
    chosen = scoring.add_arrays(learner, state, chosen, sampling)
  parts = learner.minibatches * learner.micro_batches
  logp, entropy = scoring.scores(learner, state.params, batch, sampling, parts)
  adv = step_lib.advantages(learner, chosen)
  by_token = {
    'tokens': batch.tokens,
    'valid': batch.valid,
    'sampled': batch.mask,
    'trained': chosen.mask,
    'logp': logp,
    'entropy': entropy,
    'sampler_logp': batch.sampler_logp,
    'ref_logp': chosen.ref_logp,
    'turn': batch.turn - 1,  # from 0
    'advantage': adv if adv.ndim > 1 else None,
  }
  found = {
    k: x[:, learner.start :] for k, x in by_token.items() if x is not None
  }
  found |= {'advantage': adv} if adv.ndim == 1 else {}
  return found | {
    'prompt_id': batch.prompt_id,
    'reward': chosen.reward,
    'reward_parts': batch.reward_parts,
    'reward_valid': batch.reward_valid,
    'truncated': batch.truncated,
  }
