"""The source inside the compiled step: samples completions and verifies them
with device kernels.

The host path runs `complete` as a program of its own.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import (
  Metrics,
  Model,
  Prompts,
  Reward,
  Rollout,
  Rows,
  Trajectories,
)
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rollouts import chunks as chunks_lib
from jaxrl_reason.rollouts import group_arrays, gumbel_search, sampler
from jaxrl_reason.rollouts import league as league_lib
from jaxrl_reason.rollouts import tree as tree_lib
from jaxrl_reason.rollouts import turns as turns_lib
from jaxrl_reason.rollouts.hidden_states import HIDDEN, HiddenStates
from jaxrl_reason.rollouts.views import Views

# Fields of a Generation that the sampler takes under the same name.
OF_SAMPLER = 'n_samples max_new slots segments routes'.split()


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
  """The static settings of generation: they select a program.

  Attributes:
    model: the policy's functions.
    n_samples: G per prompt.
    max_new: C, the largest number of tokens of a completion.
    slots: samples of a prompt decoded at a time; 0 decodes all.
    segments: parts in which the cache grows.
    demos: the last `demos` of a prompt's G samples are its reference solution.
    routes: record the experts used, so that the update can replay them.
    turns: settings of episodes with an environment; None for one completion.
    chunks: settings of generation in chunks; None for one chunk.
    tree: forks of completions; None for samples that share no tokens.
    by_role: each player of a game has adapters of its own.
    search: the search that chooses the steps of completions; None for samples.
    hidden: hidden states to add to the views, f32 [N,D]; None: none. Only with
      a slot for every row, without turns, chunks, tree, search and demos.
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
  tree: tree_lib.Tree | None = None
  by_role: bool = False
  search: gumbel_search.Search | None = None
  hidden: HiddenStates | None = None

  def metrics(self, rollout: Rollout) -> Metrics:
    """Summarises what the rows of a rollout share, and how long they wait."""
    if self.tree is not None:
      return {'tree/shared': self.tree.shared(rollout)}
    if self.turns is not None:
      return {'turns/idle': turns_lib.idle(rollout, self.turns.most)}
    return {}


def key_of(root: jax.Array, step: jax.Array, use: str) -> jax.Array:
  """Derives the key for one use within a step from the run's key `root`."""
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
    root: the run's key; step: i32 []. The step is folded in on the device, so
      that the host neither needs its value nor waits for the update before it.
    stop, row_ids: see `sampler.generate`.
    version: i32 [], number of updates behind the weights; None uses `step`,
      that is, all updates before it.
  """
  noise = key_of(root, step, 'sampling')
  how = {name: getattr(gen, name) for name in OF_SAMPLER}
  how['version'] = step if version is None else version
  sampling = sampling.of_problems(prompts.prompt_id, gen.n_samples)
  given = prompts.tokens, prompts.valid, noise, sampling, stop
  if gen.turns is not None:
    return _episodes(gen, params, prompts, given[2:], row_ids, how)
  if gen.chunks is not None:
    out = _in_chunks(gen, params, given, row_ids, how)
  elif gen.tree is not None:
    out = _in_tree(gen, params, given, row_ids, how)
  else:
    out = _whole(gen, params, prompts, given, row_ids, how)
  return with_demos(out, prompts, gen.demos) if gen.demos else out


def _whole(gen, params, prompts: Prompts, given, row_ids, how) -> Rollout:
  """Samples completions in one piece, with their hidden states."""
  states = gen.hidden
  of_prompts = states is not None and states.token == 'prompt_last'
  how['states'] = None if of_prompts else states
  out = sampler.generate(gen.model, params, *given, row_ids=row_ids, **how)
  if not of_prompts:
    return out
  views = {HIDDEN: states.of_prompts(params, prompts, len(out.tokens))}
  return out.replace(views=views)


def _episodes(gen, params, prompts: Prompts, given, row_ids, how) -> Rollout:
  """Generates the episodes of one step's prompts."""
  del how['slots']  # `config_checks` refuses slots with episodes.
  return turns_lib.generate(
    gen.turns,
    gen.model,
    params,
    prompts.tokens,
    prompts.valid,
    prompts.answer[turns_lib.PART],
    *given,
    row_ids=row_ids,
    by_role=gen.by_role,
    tree=gen.tree,
    **how,
  )


def _in_chunks(gen: Generation, params, given, row_ids, how) -> Rollout:
  """Samples completions in chunks."""
  # `config_checks` refuses the other settings.
  how = {k: how[k] for k in ('n_samples', 'max_new', 'version')}
  return chunks_lib.generate(
    gen.chunks, gen.model, params, *given, row_ids=row_ids, **how
  )


def _in_tree(gen: Generation, params, given, row_ids, how) -> Rollout:
  """Samples completions that share their beginnings."""
  # `generation_settings` refuses the other settings.
  how = {k: how[k] for k in ('n_samples', 'max_new', 'version')}
  return tree_lib.generate(
    gen.tree, gen.model, params, *given, row_ids=row_ids, **how
  )


def greedy(
  gen: Generation,
  params,
  prompts: Prompts,
  root: jax.Array,
  step: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
) -> Rollout:
  """Generates the greedy completion of each prompt, the baseline of ReMax."""
  one = dataclasses.replace(gen, n_samples=1, demos=0, tree=None, hidden=None)
  zero = jnp.float32(0)
  settings = sampling.replace(temperature=zero, filters=None, by_problem=None)
  return complete(one, params, prompts, root, step, settings, stop)


def with_demos(rollout: Rollout, prompts: Prompts, n_demos: int) -> Rollout:
  """Replaces the last n_demos samples of every prompt by its reference
  solution. They are off-policy tokens, which losses treat by
  `rl.loss.offpolicy`.
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
    turn=pick(sampled.astype(jnp.int32), rollout.turn),
    node=sampler.nodes(sampled, n // b),
    length=length,
    logp=pick(0.0, rollout.logp),
    truncated=rollout.truncated & ~is_demo,
    is_demo=is_demo,
    routes=None if routes is None else pick(moe.UNKNOWN, routes),
  )


def _completions(rows: Rows, c: int) -> Rollout:
  """Returns the last c columns of rows as completions, for their rewards."""
  tokens, there = rows.tokens[:, -c:], rows.valid[:, -c:]
  zero, length = jnp.zeros(tokens.shape), there.sum(axis=1)
  return Rollout(
    tokens=tokens,
    sampled=there,
    length=length,
    logp=zero,
    truncated=length < 0,
    temperature=zero[:, 0],
    version=zero.astype(jnp.int32),
    turn=there.astype(jnp.int32),
    node=there.astype(jnp.int32),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class FusedSource:
  """Samples completions and computes their rewards, as one pure function.

  Attributes:
    gen: the settings of generation.
    reward_fn: (Rollout, answers by name [N,...], control) -> Reward.
    views: adds the arrays that rewards read besides text; None adds none.
    greedy: also verify the greedy completion of each prompt (ReMax).
    demos: also verify the reference solution of each prompt (`rescue`).
    league: past versions that play against the policy, or None; `gen.model`
      is then a `league.of_two`.
  """

  gen: Generation
  reward_fn: Callable[..., Reward]
  views: Views | None = None
  greedy: bool = False
  demos: bool = False
  league: league_lib.League | None = None

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
    """Returns the trajectories of one step.

    Args:
      control: `TrainState.control`, which rewards may read, with the weights
        of a reward model as `views.REWARD`.
      root: the run's key; step: i32 [].
      stop: int [E] stop tokens.
    """
    players, weights = None, params
    if self.league is not None:
      n = prompts.tokens.shape[0] * self.gen.n_samples
      memory, key = control[league_lib.NAME], key_of(root, step, 'league')
      weights = players = self.league.players(params, memory, key, n)
    given = weights, prompts, root, step, sampling, stop
    if self.gen.search is None:
      rollout = complete(self.gen, *given)
      metrics = self.gen.metrics(rollout)
    else:
      rollout, metrics = self._searched(control, *given)
    if players is not None:
      metrics |= league_lib.metrics(players, rollout, step)
      rollout = league_lib.of_policy(rollout, players['is_past'])
    noise = root, step, 'views'
    seen = self._see(params, control, prompts, rollout, noise)
    reward = self._rewarded(control, prompts, seen)
    if self.views is not None and (self.views.kept or self.gen.hidden):
      kept = {name: seen.views[name] for name in self.views.kept}
      rollout = rollout.replace(views=kept or None)
    found = Trajectories(prompts, rollout, reward)
    if metrics:
      account = group_arrays.account(found).replace(metrics=metrics)
      if players is not None:
        account = group_arrays.excluding(account, players['is_past'])
      found = found.replace(account=account)
    if self.demos:
      first = trees.take(rollout, slice(None, None, self.gen.n_samples))
      demo = with_demos(first, prompts, 1)
      noise = root, step, 'greedy views'
      demo = self.judged(params, control, prompts, demo, noise)
      found = found.replace(demo=demo)
    if not self.greedy:
      return found
    best = greedy(self.gen, params, prompts, root, step, sampling, stop)
    noise = root, step, 'greedy views'
    best = self._see(params, control, prompts, best, noise)
    best = self.reward_fn(best, prompts.answer, control)
    return found.replace(greedy=best)

  def _searched(
    self, control, params, prompts: Prompts, root, step, sampling, stop
  ) -> tuple[Rollout, Metrics]:
    """Searches for the completions of one step by their rewards."""
    gen, noise = self.gen, key_of(root, step, 'sampling')
    n = prompts.tokens.shape[0] * gen.n_samples
    answers = jax.tree.map(lambda x: batch_lib.per_row(x, n), prompts.answer)

    def reward(rows: Rows) -> jax.Array:
      found = _completions(rows, gen.max_new)
      return self.reward_fn(found, answers, control).total

    out = gumbel_search.generate(
      gen.search,
      gen.model,
      params,
      prompts.tokens,
      prompts.valid,
      noise,
      sampling.of_problems(prompts.prompt_id, gen.n_samples),
      stop,
      judge=reward,
      n_samples=gen.n_samples,
      max_new=gen.max_new,
      row_ids=jnp.arange(n),
    )
    made = out.views[gumbel_search.GENERATED].astype(jnp.float32)
    out = out.replace(views=None, version=jnp.full_like(out.version, step))
    return out, {'search/generated': made.mean()}

  def judged(
    self, params, control, prompts: Prompts, rollout: Rollout, noise
  ) -> Reward:
    """Computes the rewards of a rollout.

    Args:
      noise: arguments of `key_of`.
    """
    seen = self._see(params, control, prompts, rollout, noise)
    return self._rewarded(control, prompts, seen)

  def _rewarded(self, control, prompts: Prompts, seen: Rollout) -> Reward:
    n = seen.tokens.shape[0]
    answers = jax.tree.map(lambda x: batch_lib.per_row(x, n), prompts.answer)
    return self.reward_fn(seen, answers, control)

  def _see(self, params, control, prompts, rollout: Rollout, noise) -> Rollout:
    """Adds the views that the rewards read, if they read any.

    Args:
      noise: arguments of `key_of`.
    """
    if self.views is None:
      return rollout
    return self.views(params, prompts, rollout, key_of(*noise), control)
