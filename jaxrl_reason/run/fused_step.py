"""A whole RL step as one program: generate -> verify -> batch -> update.

For rewards that are device kernels. `steps` scans over K prompts batches in
one dispatch; `seeds` runs S independent runs side by side by vmap.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Metrics, Prompts, Rollout, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import scoring
from jaxrl_reason.update import step as step_lib


@dataclasses.dataclass(frozen=True)
class Generation:
  """The static half of how completions are made.

  Attributes:
    n_samples: G per prompt.
    max_new: C, tokens of room for a completion.
    filter: name in `batch.FILTERS`.
    part_names: of the reward's parts, for the metrics.
    slots: samples of a prompt decoded at a time; 0: all.
    segments: parts in which the cache grows.
    demos: of the G samples of a prompt, how many are its reference solution.
    reads: views that the rewards read (`device.reads`, `scoring.views`).
    routes: note the experts used, for the update to replay.
    overlong: tokens over which `batch.overlong_penalty` falls; 0: none.
  """

  n_samples: int
  max_new: int
  filter: str
  part_names: tuple[str, ...]
  slots: int = 0
  segments: int = 1
  demos: int = 0
  reads: tuple[str, ...] = ()
  routes: bool = False
  overlong: int = 0


def rollout(
  learner: learner_lib.Learner,
  gen: Generation,
  params,
  prompts: Prompts,
  key: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
  row_ids: jax.Array | None = None,
) -> Rollout:
  """Completions of one step's prompts; `key` is the run's, folded by step."""
  out = sampler.generate(
    learner.model,
    params,
    prompts.tokens,
    prompts.valid,
    key,
    sampling,
    stop,
    n_samples=gen.n_samples,
    max_new=gen.max_new,
    slots=gen.slots,
    segments=gen.segments,
    row_ids=row_ids,
    routes=gen.routes,
  )
  return batch_lib.with_demos(out, prompts, gen.demos) if gen.demos else out


def greedy(
  learner: learner_lib.Learner,
  gen: Generation,
  params,
  prompts: Prompts,
  key: jax.Array,
  stop: jax.Array,
) -> Rollout:
  """The likeliest completion of each prompt, for the baseline of ReMax."""
  one = dataclasses.replace(gen, n_samples=1, demos=0)
  settings = Sampling.make(temperature=0.0)
  return rollout(learner, one, params, prompts, key, settings, stop)


def step_keys(root: jax.Array, step) -> tuple[jax.Array, jax.Array]:
  """(key of the sampling noise, key of the minibatch order) of a step."""
  key = jax.random.fold_in(root, step)
  return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def learn(
  learner: learner_lib.Learner,
  gen: Generation,
  state: TrainState,
  batch,
  sampling: Sampling,
  key: jax.Array,
) -> tuple[TrainState, Metrics]:
  """Filter and update; shared by the fused step and the host path.

  Filters go by what the verifier said; the length counts after them, so that a
  group that is all wrong is dead however long its samples are.
  """
  metrics = batch_lib.stats(batch, gen.part_names)
  filtered = batch_lib.FILTERS[gen.filter](batch)
  if gen.overlong:
    penalty = batch_lib.overlong_penalty(batch, gen.overlong, gen.max_new)
    metrics['overlong_penalty'] = jnp.mean(penalty)
    filtered = filtered.replace(reward=batch.reward + penalty)
  state, more = step_lib.update(learner, state, filtered, sampling, key)
  return state, metrics | more


def step(
  learner: learner_lib.Learner,
  gen: Generation,
  reward_fn: Callable,
  state: TrainState,
  prompts: Prompts,
  root: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
) -> tuple[TrainState, Metrics]:
  """One step on B prompts.

  Args:
    reward_fn: (Rollout, answers by name [N,...]) -> Reward.
    root: the run's key; state.step is folded in.
    stop: int [E] stop tokens.
  """
  noise, order = step_keys(root, state.step)
  out = rollout(learner, gen, state.params, prompts, noise, sampling, stop)
  n = out.length.shape[0]
  answers = jax.tree.map(lambda x: batch_lib.per_row(x, n), prompts.answer)
  see = lambda out, n: _see(learner, gen, state, prompts, out, (root, n))
  reward = reward_fn(see(out, 2), answers)
  batch = batch_lib.make_batch(prompts, out, reward)
  if 'greedy_reward' in learner.needs:
    best = greedy(learner, gen, state.params, prompts, noise, stop)
    best = see(best, 3)
    batch = batch_lib.with_greedy(batch, reward_fn(best, prompts.answer))
  return learn(learner, gen, state, batch, sampling, order)


def _see(learner, gen: Generation, state, prompts, out, noise) -> Rollout:
  """The rollout with the views its rewards read, if they read any.

  Args:
    noise: (the run's key, the number of its use within the step); 0 and 1 are
      those of `step_keys`.
  """
  if not gen.reads:
    return out
  root, use = noise
  key = jax.random.fold_in(jax.random.fold_in(root, state.step), use)
  return scoring.views(learner, state.params, prompts, out, key, gen.reads)


def steps(
  learner, gen, reward_fn, state, prompts, root, sampling, stop
) -> tuple[TrainState, Metrics]:
  """K steps in one dispatch: prompts [K,B,...] -> metrics [K]."""
  return jax.lax.scan(
    lambda s, p: step(learner, gen, reward_fn, s, p, root, sampling, stop),
    state,
    prompts,
  )


def seeds(
  learner, gen, reward_fn, states, prompts, roots, sampling, stop
) -> tuple[TrainState, Metrics]:
  """S runs of K steps side by side: states [S,...], prompts [S,K,B,...],
  roots [S] -> metrics [S,K].
  """
  one = lambda s, p, r: steps(learner, gen, reward_fn, s, p, r, sampling, stop)
  return jax.vmap(one)(states, prompts, roots)
