"""The compiled programs of a run's stages, from their parts.

  generate   params, prompts -> Rollout        host path, a part at a time
  greedy     params, prompts -> Rollout        where the loss has that baseline
  score      state, Rollouts -> Batch          old and reference log-probs
  learn      state, Batch -> state             filter and update
  steps      state, prompts [K,B] -> state     all of it: the fused path
  supervised state, rows [K,R] -> state        pretrain, sft

Nothing is closed over but what selects a program: keys, sampling settings and
stop tokens are arguments. `stages` and `rollout` call them; `plan` lowers the
same ones from shapes alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Reward
from jaxrl_reason.logits import Sampling
from jaxrl_reason.run import compile_log as programs
from jaxrl_reason.run import fused_step
from jaxrl_reason.update import scoring
from jaxrl_reason.update import step as step_lib
from jaxrl_reason.update.learner import Learner


def _bind(name: str, f: Callable, *static: Any) -> Callable:
  """f of what selects a program, by the program's name."""
  return programs.named(name, lambda *args: f(*static, *args))


def generate(learner: Learner, gen: fused_step.Generation) -> Callable:
  """(params, prompts, (root, step), sampling, stop, row_ids) -> Rollout."""
  return jax.jit(_bind('rl_rollout', _noisy(fused_step.rollout), learner, gen))


def greedy(learner: Learner, gen: fused_step.Generation) -> Callable:
  """(params, prompts, (root, step), stop) -> Rollout of one row a prompt."""
  return jax.jit(_bind('rl_greedy', _noisy(fused_step.greedy), learner, gen))


def _noisy(f: Callable) -> Callable:
  """f(learner, gen, params, prompts, key, ...) of (root, step) for its key,
  derived inside the program: the host need not know the step's number, and so
  not wait for the update that makes it.
  """

  def call(learner, gen, params, prompts, at, *args):
    noise, _ = fused_step.step_keys(*at)
    return f(learner, gen, params, prompts, noise, *args)

  return call


def score(learner: Learner, gen: fused_step.Generation) -> Callable:
  """(state, prompts, parts' Rollouts, sampling) -> Batch: its rewards still to
  come, with all else its loss reads.
  """

  def scored(state, prompts, outs, sampling):
    out = batch_lib.interleaved(outs, gen.n_samples)
    n, parts = out.length.shape[0], len(gen.part_names)
    pending = jnp.zeros(n), jnp.zeros((n, parts)), jnp.zeros(n, bool)
    batch = batch_lib.make_batch(prompts, out, Reward(*pending))
    return scoring.add_arrays(learner, state, batch, sampling)

  return jax.jit(programs.named('rl_score', scored))


def learn(learner: Learner, gen: fused_step.Generation) -> sharding.JitState:
  """(state, batch, sampling, key) -> (state, metrics)."""
  return sharding.JitState(_bind('rl_learn', fused_step.learn, learner, gen))


def steps(
  learner: Learner, gen: fused_step.Generation, reward_fn: Callable
) -> sharding.JitState:
  """(state, prompts [K,B,...], root, sampling, stop) -> (state, metrics)."""
  f = _bind('rl_steps', fused_step.steps, learner, gen, reward_fn)
  return sharding.JitState(f)


def supervised(learner: Learner, stage: str) -> sharding.JitState:
  """(state, rows [K,R,...], key) -> (state, metrics).

  Args:
    stage: pretrain learns every token, sft only the solution's.
  """
  whole = stage == 'pretrain'

  def steps(state, rows, key):
    update = lambda s, row: step_lib.update(
      learner, s, supervised_batch(row, whole), Sampling.make(), key
    )
    return jax.lax.scan(update, state, rows)

  return sharding.JitState(programs.named(f'{stage}_steps', steps))


def supervised_batch(row: dict[str, jax.Array], whole: bool) -> Batch:
  """Worked solutions [N,T] as a Batch of reward 1.

  Args:
    whole: learn every token, not only the solution's.
  """
  n = row['tokens'].shape[0]
  ones, columns = jnp.ones(n), jnp.arange(row['tokens'].shape[1])
  return Batch(
    tokens=row['tokens'],
    valid=row['valid'],
    mask=row['valid'] & (columns > 0) if whole else row['mask'],
    reward=ones,
    reward_parts=ones[:, None],
    reward_valid=ones > 0,
    group=jnp.arange(n),
    truncated=ones < 0,
    temperature=ones,
    sampler_logp=jnp.zeros(row['tokens'].shape),
  )
