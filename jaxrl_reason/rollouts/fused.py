"""The source inside the compiled step: generate, verify by device kernels.

`complete` is also what the host path runs, as a program of its own.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import (
  Model,
  Prompts,
  Reward,
  Rollout,
  Trajectories,
)
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.chunks import Chunks
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rollouts import chunks as chunks_lib
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts import turns as turns_lib
from jaxrl_reason.rollouts.views import Views

# Fields of a Generation that go by the same name into the sampler.
OF_SAMPLER = 'n_samples max_new slots segments routes'.split()


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
  """The static half of how completions are made: it selects a program.

  Attributes:
    model: the policy's functions.
    n_samples: G per prompt.
    max_new: C, tokens of room for a completion.
    slots: samples of a prompt decoded at a time; 0: all.
    segments: parts in which the cache grows.
    demos: of the G samples of a prompt, how many are its reference solution.
    routes: note the experts used, for the update to replay.
    turns: with an environment, that answers; None: one completion.
    chunks: of a completion, with a carried tail; None: one.
  """

  model: Model
  n_samples: int
  max_new: int
  slots: int = 0
  segments: int = 1
  demos: int = 0
  routes: bool = False
  turns: turns_lib.Turns | None = None
  chunks: Chunks | None = None


def key_of(root: jax.Array, step: jax.Array, use: str) -> jax.Array:
  """Derives the key of one use within a step of the run with key `root`."""
  step = jax.random.fold_in(trees.named_key(root, 'step'), step)
  return trees.named_key(step, use)


def complete(
  gen: Generation,
  params,
  prompts: Prompts,
  root: jax.Array,
  step: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
  row_ids: jax.Array | None = None,
  version: jax.Array | None = None,
) -> Rollout:
  """Samples the completions of one step's prompts.

  Args:
    root: the run's key; step: i32 [], folded in, so that the host need not
      know its value, nor wait for the update that makes it.
    stop, row_ids: see `sampler.generate`.
    version: i32 [], updates behind the weights; None: as many as `step`, that
      is, all before it.
  """
  noise = key_of(root, step, 'sampling')
  how = {name: getattr(gen, name) for name in OF_SAMPLER}
  how['version'] = step if version is None else version
  given = prompts.tokens, prompts.valid, noise, sampling, stop
  if gen.turns is not None:
    return _episodes(gen, params, prompts, given[2:], row_ids, how)
  if gen.chunks is not None:
    out = _in_chunks(gen, params, given, row_ids, how)
  else:
    out = sampler.generate(gen.model, params, *given, row_ids=row_ids, **how)
  return with_demos(out, prompts, gen.demos) if gen.demos else out


def _episodes(gen, params, prompts: Prompts, given, row_ids, how) -> Rollout:
  """Plays the episodes of one step's prompts."""
  del how['slots']  # `config_checks` refuses them
  return turns_lib.generate(
    gen.turns,
    gen.model,
    params,
    prompts.tokens,
    prompts.valid,
    prompts.answer[turns_lib.PART],
    *given,
    row_ids=row_ids,
    **how,
  )


def _in_chunks(gen: Generation, params, given, row_ids, how) -> Rollout:
  """Samples completions chunk by chunk."""
  # `config_checks` refuses the rest.
  how = {k: how[k] for k in ('n_samples', 'max_new', 'version')}
  return chunks_lib.generate(
    gen.chunks, gen.model, params, *given, row_ids=row_ids, **how
  )


def greedy(
  gen: Generation,
  params,
  prompts: Prompts,
  root: jax.Array,
  step: jax.Array,
  stop: jax.Array,
) -> Rollout:
  """Takes the likeliest completion of each prompt: the baseline of ReMax."""
  one = dataclasses.replace(gen, n_samples=1, demos=0)
  settings = Sampling.fixed(temperature=0.0)
  return complete(one, params, prompts, root, step, settings, stop)


def with_demos(rollout: Rollout, prompts: Prompts, n_demos: int) -> Rollout:
  """Replaces the last n_demos samples of every prompt by its reference
  solution: off-policy tokens for losses that know how to learn from them.
  """
  (n, c), b = rollout.tokens.shape, prompts.tokens.shape[0]
  is_demo = jnp.arange(n) % (n // b) >= n // b - n_demos

  def pick(demo, own):
    where = is_demo.reshape(-1, *[1] * (own.ndim - 1))
    return jnp.where(where, demo, own)

  length = pick(batch_lib.per_row(prompts.demo_length, n), rollout.length)
  sampled = pick(jnp.arange(c) < length[:, None], rollout.sampled)
  routes = rollout.routes
  return rollout.replace(
    tokens=pick(batch_lib.per_row(prompts.demo, n), rollout.tokens),
    sampled=sampled,
    turn=sampled.astype(jnp.int32),
    node=sampler.nodes(sampled, n // b),
    length=length,
    logp=pick(0.0, rollout.logp),
    truncated=rollout.truncated & ~is_demo,
    is_demo=is_demo,
    routes=None if routes is None else pick(moe.UNKNOWN, routes),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class FusedSource:
  """Answers prompts and judges the answers, as one pure function.

  Attributes:
    gen: how completions are made.
    reward_fn: (Rollout, answers by name [N,...], control) -> Reward.
    views: adds what the rewards read besides text; None: nothing.
    greedy: judge the likeliest completion of each prompt too (ReMax).
  """

  gen: Generation
  reward_fn: Callable[..., Reward]
  views: Views | None = None
  greedy: bool = False

  def __call__(
    self,
    params,
    control: dict | None,
    prompts: Prompts,
    root: jax.Array,
    step: jax.Array,
    sampling: Sampling,
    stop: jax.Array,
  ) -> Trajectories:
    """Gives one step's trajectories.

    Args:
      control: what the rewards go by, of `TrainState.control`.
      root: the run's key; step: i32 [].
      stop: int [E] stop tokens.
    """
    rollout = complete(self.gen, params, prompts, root, step, sampling, stop)
    noise = root, step, 'views'
    reward = self.judged(params, control, prompts, rollout, noise)
    if not self.greedy:
      return Trajectories(prompts, rollout, reward)
    best = greedy(self.gen, params, prompts, root, step, stop)
    best = self._see(params, prompts, best, (root, step, 'greedy views'))
    best = self.reward_fn(best, prompts.answer, control)
    return Trajectories(prompts, rollout, reward, best)

  def judged(
    self, params, control, prompts: Prompts, rollout: Rollout, noise
  ) -> Reward:
    """Judges a rollout.

    Args:
      noise: arguments of `key_of`.
    """
    n = rollout.tokens.shape[0]
    answers = jax.tree.map(lambda x: batch_lib.per_row(x, n), prompts.answer)
    seen = self._see(params, prompts, rollout, noise)
    return self.reward_fn(seen, answers, control)

  def _see(self, params, prompts, rollout: Rollout, noise) -> Rollout:
    """The rollout with the views its rewards read, if they read any.

    Args:
      noise: arguments of `key_of`.
    """
    if self.views is None:
      return rollout
    return self.views(params, prompts, rollout, key_of(*noise))
