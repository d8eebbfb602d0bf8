"""The compiled programs of a run's stages, under their names in profiles and in
the log of compilations.

  rl_steps        state, prompts [K,B] -> state     a whole step: the fused path
  rl_pool_steps   state, pool [M] -> state          the same, choosing problems
  rl_rollout      params, prompts -> Rollout        host path, one piece
  rl_greedy       params, prompts -> Rollout        greedy completions
  rl_score        state, Rollouts -> Batch          old and reference log-probs
  rl_learn        state, Batch, rewards -> state    filter and update
  rl_round        Rollouts, rewards -> Trajectories   of one of several rounds
  rl_ask, rl_add, rl_finish                           of a kind of rounds
  rl_learn_rounds state, Trajectories -> state        filter and update
  pretrain_steps, sft_steps   state, rows [K,R] -> state
  preference_steps            state, rows of pairs [K,P,blocks] -> state
                              (also of a stage of kind reward_model)

Static records (a Learner, a source, ...) select a program and come first; keys,
sampling settings and stop tokens are arguments. `stages` jits and calls them,
`planning` lowers the same ones from shapes alone.
"""

import functools
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
  Outcomes,
  Prompts,
  Reward,
  Rollout,
  TrainState,
  Trajectories,
)
from jaxrl_reason.logits import Sampling
from jaxrl_reason.parts import Step
from jaxrl_reason.rollouts import fused, rounds
from jaxrl_reason.rollouts.fused import FusedSource, Generation
from jaxrl_reason.rollouts.rounds import Rounds, Tally
from jaxrl_reason.run.process import chips
from jaxrl_reason.run.rl import problem_pool, teachers
from jaxrl_reason.run.rl.problem_pool import ProblemSampler
from jaxrl_reason.update import chunked, scoring, trained_rows
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
  """Generates and verifies the completions of B prompts, and updates.

  Args:
    root: the run's key; state.step is folded in.
    stop: int [E] stop tokens.
  """
  found, sampling = sampled(
    learner, source, state, prompts, root, sampling, stop
  )
  batch = batch_lib.make_batch(found)
  return learn(learner, state, batch, root, sampling, found.account)


def sampled(
  learner, source, state, prompts, root, sampling, stop
) -> tuple[Trajectories, Sampling]:
  """Generates and verifies the completions of a step; the arguments are those
  of `fused_step`. Returns them with the settings that the parts set.
  """
  sampling = learner.chain.sampling(state.control, sampling)
  control = state.control or None
  if state.reward_params is not None or state.teacher_params is not None:
    control = {**(control or {}), **teachers.read_by_rewards(learner, state)}
  given = control, prompts, root, state.step, sampling, stop
  return source(state.params, *given), sampling


def learn(
  learner: Learner,
  state: TrainState,
  batch: Batch,
  root: jax.Array,
  sampling: Sampling,
  account: Account | None = None,
) -> tuple[TrainState, Metrics]:
  """Applies the parts of the step and updates, after any source.

  Args:
    root: the run's key; state.step is folded in.
    account: statistics of every generated completion, if it is not the batch.
  """
  if account is not None and account.control:
    state = state.replace(control=state.control | account.control)
  outcomes, metrics = _generated(learner, batch, account)
  step = Step(learner, state, sampling, batch, batch, outcomes)
  step, more = learner.chain.before(step)
  metrics |= more
  metrics['policy_lag'] = batch_lib.policy_lag(batch, state.step)
  key = fused.key_of(root, state.step, 'minibatches')
  update = _update_or_wait if learner.waits else step_lib.update
  state, more = update(learner, step.state, step.batch, sampling, key)
  metrics |= more
  state, more = learner.chain.after(state, metrics)
  return state, metrics | more


def _update_or_wait(
  learner: Learner, state: TrainState, batch: Batch, sampling, key
) -> tuple[TrainState, Metrics]:
  """Updates if there is a token to train on. Otherwise only the step is
  counted, and its metrics are 0; parts must not read them as measurements.
  """

  def update(state):
    return step_lib.update(learner, state, batch, sampling, key)

  def wait(state):
    _, metrics = jax.eval_shape(update, state)
    metrics = {k: jnp.zeros(x.shape, x.dtype) for k, x in metrics.items()}
    metrics['nonfinite_leaf_max'] -= 1  # all are finite
    return state.replace(step=state.step + 1), metrics

  trains, _ = trained_rows.has_tokens(learner, batch)
  return jax.lax.cond(trains, update, wait, state)


def _generated(
  learner: Learner, batch: Batch, account: Account | None
) -> tuple[Outcomes, Metrics]:
  """Returns the outcomes of all completions generated, and statistics."""
  if account is None:
    outcomes = batch_lib.outcomes(batch)
    metrics = batch_lib.summary(outcomes, learner.part_names)
  else:
    outcomes = account.seen
    metrics = batch_lib.stats_of_rounds(account, learner.part_names)
    metrics |= account.metrics
  metrics |= batch_lib.length_by_verdict(batch) | batch_lib.answer_spread(batch)
  if batch.reward_parts.shape[1] > 1:
    metrics |= batch_lib.reward_correlation(batch)
  if batch.episode is not None:
    metrics |= batch_lib.turn_stats(batch)
  if isinstance(learner.packing, chunked.Chunked):
    metrics |= batch_lib.chunk_stats(batch)
  return outcomes, metrics


def rl_steps(
  learner, source, state, prompts, root, sampling, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps in one dispatch: prompts [K,B,...] -> metrics [K]."""
  of_step = dict(root=root, sampling=sampling, stop=stop)
  one = functools.partial(fused_step, learner, source, **of_step)
  return jax.lax.scan(one, state, prompts)


def rl_pool_steps(
  learner, source, ask: ProblemSampler, k, state, pool, root, sampling, stop
) -> tuple[TrainState, Metrics]:
  """Makes K steps in one dispatch; each step chooses its problems by the
  statistics so far.

  Args:
    pool: Prompts [M,...], all problems of the pool.
  """

  def one(state, _):
    ids = ask.ids(state.control, root, state.step)
    prompts = problem_pool.take(pool, ids)
    return fused_step(learner, source, state, prompts, root, sampling, stop)

  return jax.lax.scan(one, state, length=k)


def rl_rollout(
  gen: Generation, params, prompts, root, step, sampling, stop, row_ids, version
) -> Rollout:
  """Samples the completions of a piece of a batch (`fused.complete`)."""
  return fused.complete(
    gen, params, prompts, root, step, sampling, stop, row_ids, version
  )


def rl_greedy(
  gen: Generation, params, prompts, root, step, sampling, stop
) -> Rollout:
  """Computes the greedy completion of each prompt."""
  return fused.greedy(gen, params, prompts, root, step, sampling, stop)


def rl_score(
  learner: Learner, n_samples: int, n_parts: int, state, prompts, outs, sampling
) -> Batch:
  """Assembles a batch whose rewards are still to come, with every other array
  that its loss reads.

  Args:
    n_samples: G; n_parts: R, of the reward.
    outs: Rollouts of the batch's pieces.
  """
  out = batch_lib.interleaved(outs, n_samples)
  n = out.length.shape[0]
  pending = Reward(jnp.zeros(n), jnp.zeros((n, n_parts)), jnp.zeros(n, bool))
  batch = batch_lib.make_batch(
    Trajectories(prompts, out, pending, row=jnp.arange(n, dtype=jnp.int32))
  )
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
  """Adds the rewards to a scored batch, and trains on it."""
  batch = batch_lib.with_reward(batch, reward, greedy)
  return learn(learner, state, batch, root, sampling)


def rl_round(
  n_samples: int,
  prompts: Prompts,
  outs: list[Rollout],
  rewards: tuple[Reward, Reward | None, Reward | None],
  first_row: jax.Array,
) -> Trajectories:
  """Assembles the trajectories of a verified round of the host path.

  Args:
    outs: Rollouts of the round's pieces.
    rewards: of the rows, of the greedy completions, of the reference solutions.
    first_row: i32 [], rows of the rounds before it.
  """
  out = batch_lib.interleaved(outs, n_samples)
  reward, greedy, demo = rewards
  row = first_row + jnp.arange(out.length.shape[0], dtype=jnp.int32)
  return Trajectories(prompts, out, reward, greedy, demo, row=row)


def rl_ask(
  kind: Rounds, control: dict | None, carry: Any, prompts: Prompts, i: jax.Array
) -> Prompts:
  """Returns the prompts of round i of a kind."""
  return kind.ask(control, carry, prompts, i)


def rl_dead(kind: Rounds, found: Trajectories) -> jax.Array:
  """Counts the groups for which another round is needed, i32 []."""
  return kind.dead(found).sum()


def rl_add(
  kind: Rounds,
  control: dict | None,
  tally: Tally | None,
  found: Trajectories,
  i: jax.Array,
) -> tuple[Tally, jax.Array]:
  """Adds round i to a step's rounds.

  Args:
    tally: None before the first round.

  Returns:
    (tally, whether another round is needed).
  """
  if tally is None:
    tally = rounds.begin(kind, control, found)
  tally = rounds.add(kind, tally, found, i)
  return tally, rounds.more(kind, tally)


def rl_learn_rounds(
  learner: Learner,
  state: TrainState,
  found: Trajectories,
  root: jax.Array,
  sampling: Sampling,
) -> tuple[TrainState, Metrics]:
  """Trains on the groups of a step's rounds."""
  batch = batch_lib.make_batch(found)
  return learn(learner, state, batch, root, sampling, found.account)


def pretrain_steps(learner: Learner, state, rows, key):
  """Trains on every token of rows [K,R,...] but the first of each sequence,
  which no token precedes; K updates.
  """
  mask = rows['valid'] & (jnp.cumsum(rows['valid'], axis=-1) > 1)
  return _supervised(learner, state, rows | {'mask': mask}, key)


def sft_steps(learner: Learner, state, rows, key):
  """Trains on the solution's tokens of rows [K,R,...], K updates."""
  return _supervised(learner, state, rows, key)


def preference_steps(learner: Learner, state, rows, key):
  """Learns from pairs, rows [K,P,blocks,T]; K updates."""
  return _supervised(learner, state, jax.tree.map(_in_blocks, rows), key)


def _in_blocks(x: jax.Array) -> jax.Array:
  """Rows of pairs [K,P,blocks,T] as blocks of rows [K,blocks*P,T].

  A strided micro-batch, rows i, i + M, ..., then has whole pairs, if M divides
  P.
  """
  k, _, _, t = x.shape
  return sharding.rows(jnp.swapaxes(x, 1, 2).reshape(k, -1, t), axis=1)


def _supervised(learner: Learner, state, rows, key):
  def one(state, row):
    batch = supervised_batch(row)
    if learner.trains_critic_alone:
      return step_lib.update_critic(learner, state, batch)
    order = fused.key_of(key, state.step, 'minibatches')
    return step_lib.update(learner, state, batch, Sampling.fixed(), order)

  return jax.lax.scan(one, state, rows)


# Of a row of a supervised stage.
OPTIONAL_FIELDS = 'sampler_logp', 'token_weight', 'step_label', 'teacher_top'


def supervised_batch(row: dict[str, jax.Array]) -> Batch:
  """Makes a Batch with reward 1 of worked solutions (tokens, valid, mask and
  perhaps token_weight, step_label, teacher_top or sampler_logp [N,T]).
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
    **{k: row.get(k) for k in OPTIONAL_FIELDS},
  )


def updating(f: Callable, n_static: int, where: Any = None) -> Callable:
  """Jits f(*static, state, ...) -> (state, ...). The state's buffers are
  donated, and its layout stays, whatever the partitioner would choose.

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
