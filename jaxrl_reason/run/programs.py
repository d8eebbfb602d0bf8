"""What is compiled: the programs of a run's stages, under their names in
profiles and in the log of compilations.

  rl_steps        state, prompts [K,B] -> state     a whole step: the fused path
  rl_pool_steps   state, pool [M] -> state          the same, choosing problems
  rl_rollout      params, prompts -> Rollout        host path, a part at a time
  rl_greedy       params, prompts -> Rollout        where the loss reads those
  rl_score        state, Rollouts -> Batch          old and reference log-probs
  rl_learn        state, Batch, rewards -> state    filter and update
  rl_seeds        states [S], prompts [S,K,B] -> states   several runs at once
  rl_round        Rollouts, rewards -> Places       of one of several rounds
  rl_learn_rounds state, Places -> state            refill, replay, update
  rl_learn_hints  state, two rounds -> state        hints, replay, update
  pretrain_steps, sft_steps   state, rows [K,R] -> state

Static records (a Learner, a source, ...) select a program and come first; keys,
sampling settings and stop tokens are arguments. `stages` jits and calls them,
`planning` lowers the same ones from shapes alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import (
  Account,
  Batch,
  Metrics,
  Prompts,
  Reward,
  Rollout,
  TrainState,
  Trajectories,
)
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import fused, hints, progress
from jaxrl_reason.rollouts import groups as groups_lib
from jaxrl_reason.rollouts.fused import FusedSource, Generation
from jaxrl_reason.rollouts.refill import Places, Refill
from jaxrl_reason.rollouts.replay import Replay
from jaxrl_reason.run import asking, chips, heat
from jaxrl_reason.run.asking import Ask
from jaxrl_reason.update import chunked, scoring
from jaxrl_reason.update import step as step_lib
from jaxrl_reason.update.learner import Learner


def fused_step(
  learner: Learner,
  source: FusedSource,
  state: TrainState,
  prompts: Prompts,
  root: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
) -> tuple[TrainState, Metrics]:
  """Generates, verifies and learns from B prompts.

  Args:
    root: the run's key; state.step is folded in.
    stop: int [E] stop tokens.
  """
  if learner.heat is not None:
    sampling = heat.heated(state.control, sampling)
  found = source(
    state.params, state.control, prompts, root, state.step, sampling, stop
  )
  batch = batch_lib.make_batch(found)
  return learn(learner, state, batch, root, sampling, found.account)


def learn(
  learner: Learner,
  state: TrainState,
  batch: Batch,
  root: jax.Array,
  sampling: Sampling,
  account: Account | None = None,
) -> tuple[TrainState, Metrics]:
  """Filters a batch and updates: what follows every source.

  Args:
    root: the run's key; state.step is folded in.
    account: of what was generated, where that is not the batch.
  """
  chosen, names = batch, learner.part_names
  if account is None:
    seen = batch_lib.outcomes(batch)
    metrics = batch_lib.summary(seen, names)
  else:
    metrics = batch_lib.stats_of_rounds(account, names) | account.metrics
    seen = account.seen
    if account.control:
      state = state.replace(control=state.control | account.control)
  metrics |= batch_lib.length_by_verdict(batch) | batch_lib.answer_spread(batch)
  if batch.episode is not None:
    metrics |= batch_lib.turn_stats(batch)
  if isinstance(learner.packing, chunked.Chunked):
    metrics |= batch_lib.chunk_stats(batch)
  if learner.select is not None:
    chosen, more = learner.select(batch)
    metrics |= more
  if learner.shaping is not None:
    control, chosen, more = learner.shaping(state.control, seen, chosen)
    state, metrics = state.replace(control=control), metrics | more
  if learner.archive is not None:
    control, more = learner.archive(state.control, batch)
    state, metrics = state.replace(control=control), metrics | more
  if learner.shown is not None:
    shown = learner.shown(learner, state, batch, chosen, sampling)
    metrics['rollouts'] = shown
  lag = jnp.where(batch.mask, state.step - batch.version, 0)
  metrics['policy_lag'] = lag.sum() / jnp.maximum(batch.mask.sum(), 1)
  if state.control is not None:
    now = progress.of(state.control)
    metrics |= {f'control/{k}': v for k, v in now.items()}
    state = state.replace(control=progress.observe(state.control, seen))
  if learner.observe is not None:
    control, more = learner.observe(state.control, seen, chosen, state.step)
    state, metrics = state.replace(control=control), metrics | more
  order = fused.key_of(root, state.step, 'minibatches')
  state, more = step_lib.update(learner, state, chosen, sampling, order)
  metrics |= more
  if learner.refresh is not None:
    state, more = learner.refresh(learner.tx, learner.trainable, state, metrics)
    metrics |= more
  if learner.heat is not None:
    control, more = learner.heat(state.control, metrics)
    state, metrics = state.replace(control=control), metrics | more
  return state, metrics


def rl_steps(
  learner, source, state, prompts, root, sampling, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps in one dispatch: prompts [K,B,...] -> metrics [K]."""

  def one(state, prompts):
    return fused_step(learner, source, state, prompts, root, sampling, stop)

  return jax.lax.scan(one, state, prompts)


def rl_pool_steps(
  learner, source, ask: Ask, k, state, pool, root, sampling, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps in one dispatch, each on problems that are chosen in it by
  what is known by then.

  Args:
    pool: Prompts [M,...], all problems there are.
  """

  def one(state, _):
    ids = ask.ids(state.control, root, state.step)
    prompts = asking.take(pool, ids)
    return fused_step(learner, source, state, prompts, root, sampling, stop)

  return jax.lax.scan(one, state, length=k)


def each_run(f: Callable, given):
  """Gives f(x) for every x of stacked runs: side by side, [S,...] an array;
  on a CPU, where products of several are no faster, one after another.
  """
  if sharding.platform() == 'cpu':
    return jax.lax.map(f, given)
  return jax.vmap(f)(given)


def rl_seeds(
  made: Callable, states, prompts, roots, values, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps of S runs side by side: states [S,...], prompts [S,K,B,...],
  roots [S], values [S] by name -> metrics [S,K].

  Args:
    made: a run's values -> (learner, source, sampling) of its steps.
  """

  def one(given):
    state, prompts, root, values = given
    learner, source, sampling = made(values)
    return rl_steps(learner, source, state, prompts, root, sampling, stop)

  return each_run(one, (states, prompts, roots, values))


def rl_rollout(
  gen: Generation, params, prompts, root, step, sampling, stop, row_ids, version
) -> Rollout:
  """Samples the completions of a part of a batch (`fused.complete`)."""
  return fused.complete(
    gen, params, prompts, root, step, sampling, stop, row_ids, version
  )


def rl_greedy(gen: Generation, params, prompts, root, step, stop) -> Rollout:
  """Takes the likeliest completion of each prompt."""
  return fused.greedy(gen, params, prompts, root, step, stop)


def rl_score(
  learner: Learner, n_samples: int, n_parts: int, state, prompts, outs, sampling
) -> Batch:
  """Assembles a batch, its rewards still to come, with all else its loss reads.

  Args:
    n_samples: G; n_parts: R, of the reward.
    outs: Rollouts of the batch's parts.
  """
  out = batch_lib.interleaved(outs, n_samples)
  n = out.length.shape[0]
  pending = Reward(jnp.zeros(n), jnp.zeros((n, n_parts)), jnp.zeros(n, bool))
  batch = batch_lib.make_batch(Trajectories(prompts, out, pending))
  if not learner.reads_before:
    return batch
  return scoring.add_arrays(learner, state, batch, sampling)


def rl_learn(
  learner: Learner,
  state: TrainState,
  batch: Batch,
  reward: Reward,
  greedy: Reward | None,
  root: jax.Array,
  sampling: Sampling,
) -> tuple[TrainState, Metrics]:
  """Puts the rewards into a scored batch, and learns from it."""
  batch = batch_lib.with_reward(batch, reward, greedy)
  return learn(learner, state, batch, root, sampling)


def rl_round(
  refill: Refill,
  n_samples: int,
  control: dict | None,
  places: Places | None,
  prompts: Prompts,
  outs: list[Rollout],
  reward: Reward,
  greedy: Reward | None,
) -> tuple[Places, jax.Array]:
  """Puts a verified round's groups to those of the rounds before.

  Args:
    places: None, before the first.
    outs: Rollouts of the round's parts.

  Returns:
    (places, whether groups are missing and a round is left).
  """
  found = _found(n_samples, (prompts, outs, reward, greedy))
  if places is None:
    places = refill.begin(control, found)
  places = refill.add(places, found)
  return places, refill.is_short(places)


def rl_learn_rounds(
  learner: Learner,
  refill: Refill,
  replay: Replay | None,
  state: TrainState,
  places: Places,
  root: jax.Array,
  sampling: Sampling,
) -> tuple[TrainState, Metrics]:
  """Learns from the groups of a step's rounds, and from those replayed."""
  found = refill.finish(places)
  if replay is not None:
    found = replay.mix(found, state.control, root, state.step)
  batch = batch_lib.make_batch(found)
  return learn(learner, state, batch, root, sampling, found.account)


def _found(n_samples: int, given: tuple) -> Trajectories:
  """The trajectories of a verified round of the host path."""
  prompts, outs, reward, greedy = given
  out = batch_lib.interleaved(outs, n_samples)
  return Trajectories(prompts, out, reward, greedy)


def rl_missed(n_samples: int, given: tuple) -> jax.Array:
  """Tells which problems of a round nobody has solved, bool [B]."""
  return hints.failed(_found(n_samples, given))


def rl_learn_hints(
  learner: Learner,
  replay: Replay | None,
  n_samples: int,
  state: TrainState,
  rounds: list[tuple],
  root: jax.Array,
  sampling: Sampling,
) -> tuple[TrainState, Metrics]:
  """Learns from a round without hints, and from one with hints in place of
  what was missed in it.

  Args:
    rounds: (prompts, Rollouts of the parts, reward, greedy) of both; the first
      twice where nothing was missed.
  """
  first, second = (_found(n_samples, given) for given in rounds)
  own, more = groups_lib.of(first), groups_lib.of(second)
  found = hints.both(own, more, hints.failed(first))
  if replay is not None:
    found = replay.mix(found, state.control, root, state.step)
  batch = batch_lib.make_batch(found)
  return learn(learner, state, batch, root, sampling, found.account)


def pretrain_steps(learner: Learner, state, rows, key):
  """Learns every token of rows [K,R,...], K updates."""
  columns = jnp.arange(rows['tokens'].shape[-1])
  return _supervised(
    learner, state, rows | {'mask': rows['valid'] & (columns > 0)}, key
  )


def sft_steps(learner: Learner, state, rows, key):
  """Learns the solution's tokens of rows [K,R,...], K updates."""
  return _supervised(learner, state, rows, key)


def _supervised(learner: Learner, state, rows, key):
  def one(state, row):
    batch = supervised_batch(row)
    return step_lib.update(learner, state, batch, Sampling.fixed(), key)

  return jax.lax.scan(one, state, rows)


def supervised_batch(row: dict[str, jax.Array]) -> Batch:
  """Lays worked solutions (tokens, valid, mask [N,T]) out as a Batch of
  reward 1.
  """
  n = row['tokens'].shape[0]
  ones = jnp.ones(n)
  return Batch(
    tokens=row['tokens'],
    valid=row['valid'],
    mask=row['mask'],
    reward=ones,
    reward_parts=ones[:, None],
    reward_valid=ones > 0,
    group=jnp.arange(n),
    truncated=ones < 0,
    temperature=ones,
    sampler_logp=jnp.zeros(row['tokens'].shape),
  )


def updating(f: Callable, n_static: int, where: Any = None) -> Callable:
  """Jits f(*static, state, ...) -> (state, ...); the state's buffers are
  donated, and its layout stays, whatever the partitioner would prefer.

  Args:
    where: shardings of the state; None: as the compiler chooses.
  """
  laid = {}
  if where is not None:
    mesh = jax.tree.leaves(where)[0].mesh
    laid['out_shardings'] = where, None
    laid['compiler_options'] = chips.compiler_options(mesh)
  return jax.jit(
    f, static_argnums=range(n_static), donate_argnums=n_static, **laid
  )
