"""The stages of a run: each is a function from a state to a state.

  pretrain, sft   next-token loss on all tokens / on the worked solutions
  preference      a loss of pairs of a chosen and a rejected answer
  reward_model    a reward model on pairs or labels of steps, beside the policy
  rl              fused (one program a step) or host (rewards in Python)

`build` makes a Stage; `loop` calls its `dispatch`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_reason import losses, sharding
from jaxrl_reason.base import Model, Prompts
from jaxrl_reason.config import RL, Data, Run
from jaxrl_reason.data import informed_prompts, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.stats import PromptStats
from jaxrl_reason.logits import Sampling
from jaxrl_reason.losses.imitation import REFERENCE
from jaxrl_reason.models import spec
from jaxrl_reason.rewards.kernels import device, token_bytes_table
from jaxrl_reason.rollouts import league as league_lib
from jaxrl_reason.rollouts import rounds
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.rollouts.host import VerifierWait
from jaxrl_reason.rollouts.in_flight import InFlightSource
from jaxrl_reason.rollouts.views import HIDDEN, Views
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run import states, supervised_data
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.process import goodput
from jaxrl_reason.run.records import journal
from jaxrl_reason.run.rl import (
  hidden_settings,
  problem_pool,
  programs,
  proposal_settings,
  reward_models,
  sources,
  split_step,
  verdict_settings,
)
from jaxrl_reason.run.rl import turn_settings as run_turns
from jaxrl_reason.run.rl.generation_settings import (
  generation,
  refuse_chunked_views,
  sampling_of,
)
from jaxrl_reason.run.rl.host_step import HostStep
from jaxrl_reason.run.rl.invalid_rewards import InvalidRewards
from jaxrl_reason.run.rl.learners import learner
from jaxrl_reason.update.learner import Learner


@dataclasses.dataclass
class Stage:
  """One stage of a run.

  Attributes:
    learner: of its updates.
    layout: of its state.
    data: iterator; its state is saved with the run's.
    dispatch: (state, whether another dispatch follows before the state is
      saved) -> (state, device metrics, host metrics); metrics are scalars or
      [K].
    steps_per_dispatch: K.
    stats: statistics of recurring prompts, or None.
    invalid: counts of invalid rewards, or None.
    wait: for the verifier; None: its rewards are computed on the device.
    under_way: whether a batch has been started that no step has trained on; a
      checkpoint does not contain it.
    close: ends processes and files.
    evaluate: state -> further metrics of an evaluation.
  """

  learner: Learner
  layout: states.Layout
  data: goodput.Timed
  dispatch: Callable
  steps_per_dispatch: int
  stats: PromptStats | None = None
  invalid: InvalidRewards | None = None
  wait: VerifierWait | None = None
  under_way: Callable[[], bool] = lambda: False
  close: Callable = lambda: None
  evaluate: Callable[[Any], dict[str, float]] = lambda state: {}


def build(planned: staging.Planned, parts: Prepared) -> Stage:
  """Builds a stage of a run."""
  config, kind = planned.config, planned.kind
  facts = None
  if kind == 'rl':
    facts = problem_pool.first_facts(config.data, parts.problems.train)
  learn = learner(config, parts.model, kind, facts, parts.tokenizer)
  where = layout(kind, config.rl, config.data, learn, parts)
  builder = _host if config.rl.path == 'host' else _fused
  if kind != 'rl':
    builder = _supervised
  return builder(planned, parts, learn, where)


def abstract_learner(
  config: Run, model: Model, name: str, problems: Problems, tokenizer: Any
) -> Learner:
  """Builds the learner of stage `name` for shapes alone, without reading the
  facts of the pool's problems.
  """
  facts = None
  if name == 'rl':
    facts = problem_pool.shapes(config.data, problems.train)
  return learner(config, model, name, facts, tokenizer)


def layout(
  name: str, rl: RL, data: Data, learn: Learner, parts: Prepared
) -> states.Layout:
  """Lays the state of stage `name` out on the mesh."""
  control, mesh = _no_control, parts.mesh
  if name == 'rl':
    gen = generation(rl, data, learn.model, parts.tokenizer)
    columns = data.prompt_len + rl.hints.room
    flight = _flight(rl, data, learn, parts) if rl.in_flight.batches else None
    control = states.first_control(rl, columns, learn, gen, mesh, flight)
  return states.Layout(learn, mesh, control)


def _flight(rl: RL, data: Data, learn: Learner, parts: Prepared) -> Callable:
  """Returns the function that makes the memory of groups in flight."""
  problems, tokenizer = parts.problems, parts.tokenizer
  source, encode, _ = fused_source(rl, data, learn, problems.kernel, tokenizer)
  row = prompt_encoder(rl, data, tokenizer, encode)(0, problems.train[0])
  prompts = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      (rl.prompts, *np.shape(x)), np.asarray(x).dtype
    ),
    row,
  )
  params = spec.abstract(learn.model.specs)
  return functools.partial(source.memory, params, Prompts(**prompts))


def _no_control(total: jax.Array) -> None:
  """Returns the memory of a supervised stage: none."""


def _stacked(tree: Any, k: int) -> Any:
  """Reshapes the rows [K*R,...] of a dispatch to [K,R,...]."""
  return jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), tree)


def _supervised(
  planned: staging.Planned, parts: Prepared, learn: Learner, where
) -> Stage:
  config, name, mesh = planned.config, planned.kind, parts.mesh
  c = config.training(name)
  k, steps = c.steps_per_dispatch, supervised_program(name, where.shardings)
  own, *heldout = supervised_data.examples(c, config.data, parts)
  if heldout:
    evaluate = supervised_data.evaluation(c, learn, *heldout[0], parts)

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    return *steps(learn, state, rows, parts.root), {}

  order = config.seed, *own, c.rows, k, planned.name
  data = sources.batches(*order, mesh)
  stage = Stage(learn, where, data, dispatch, k)
  return dataclasses.replace(stage, evaluate=evaluate) if heldout else stage


def supervised_program(name: str, where=None) -> Callable:
  """Returns the jitted program of a supervised stage."""
  f = {
    'pretrain': programs.pretrain_steps,
    'sft': programs.sft_steps,
    'preference': programs.preference_steps,
    'reward_model': programs.preference_steps,
  }[name]
  return programs.updating(f, 1, where)


def prompt_encoder(
  rl: RL, d: Data, tokenizer, encode_answer
) -> Callable[[int, dict], dict]:
  """Returns a function from (index, example) to the row of a `base.Prompts`."""
  demo_len = d.completion_len if rl.reads_solutions else None
  t = rl.teacher
  rated = 'pass_rate' in losses.needs(rl.objective(d.completion_len))

  def encode(i, example):
    row = pipeline.prompt_row(
      i, example, tokenizer, d.prompt_len, encode_answer, demo_len
    )
    if rated:
      row['pass_rate'] = pipeline.pass_rate(i, example)
    if rl.demos_prompt:
      # Demonstrations are sampled from `tokens`. All rows are trained on with
      # `train_tokens`, the usual prompt.
      row |= {f'train_{k}': row[k] for k in ('tokens', 'valid')}
      own = example, tokenizer, rl.demos_prompt, d.prompt_len
      row |= informed_prompts.explained_row(i, *own)
    if not t.prompt:
      return row
    own = example, tokenizer, t, d.completion_len
    return row | informed_prompts.row(i, *own)

  return encode


def fused_source(
  rl: RL,
  data: Data,
  learn: Learner,
  task_kernel: str | None,
  tokenizer,
  weights=None,
) -> tuple[Callable, Callable, Sampling]:
  """Returns the source inside the graph, the encoder of examples' answers for
  it, and its sampling settings; `weights` of rewards as `device.make` takes
  them.
  """
  rewards = verdict_settings.with_questions(rl)
  encode, reward_fn = device.make(
    rewards, task_kernel, tokenizer, data.completion_len, weights
  )
  gen = generation(rl, data, learn.model, tokenizer)
  sampling = sampling_of(rl, tokenizer)
  if rl.turns.env:
    how = run_turns.of(rl, data, tokenizer, task_kernel)
    gen = dataclasses.replace(gen, turns=how, by_role=rl.role_adapters)
    encode, reward_fn = run_turns.with_env(how, rewards, encode, reward_fn)
  names, views = device.reads(rewards, task_kernel), None
  if names:
    refuse_chunked_views(gen.chunks, names)
    run_turns.refuse_views(rl, names)
    parts = learn.minibatches * learn.micro_batches
    table, _ = token_bytes_table(tokenizer)
    reward = learn.reward_model
    reward = reward and reward_models.scorer(
      reward, rl.reward_model, data.completion_len, tokenizer
    )
    views = Views(
      learn.model, names, learn.start, learn.logprob_chunk, parts, table, reward
    )
    room = data.completion_len
    views = verdict_settings.with_judge(views, rl, learn, tokenizer, room)
    if learn.objective.likelihood_on(REFERENCE):
      views = dataclasses.replace(views, trains_reference=True)
    if HIDDEN in names or gen.hidden is not None:
      states = hidden_settings.states(rl, learn.model)
      views = dataclasses.replace(views, hidden=states)
  kinds = sources.kinds_of_rounds(rl)
  greedy = 'greedy_reward' in learn.needs
  demos = any(kind.reads_demos for kind in kinds)
  league = league_lib.of(learn.chain) if rl.league.share else None
  if league is not None:
    gen = dataclasses.replace(gen, model=league_lib.of_two(learn.model))
  source = FusedSource(gen, reward_fn, views, greedy, demos, league)
  if rl.propose:
    source = proposal_settings.around(
      source, rl.propose, data.name, task_kernel, tokenizer, rl.role_adapters
    )
  if rl.in_flight.batches:
    source = InFlightSource(source, **rl.in_flight.to_dict())
  source = rounds.nested(source, kinds) if kinds else source
  return source, encode, sampling


def _fused(
  planned: staging.Planned, parts: Prepared, learn: Learner, where
) -> Stage:
  c, d = planned.config.rl, planned.config.data
  mesh, problems, tokenizer = parts.mesh, parts.problems, parts.tokenizer
  sampler = learn
  if parts.sampler_mesh is not None:
    sampler = split_step.sampler_learner(learn, parts.config.sampler_dtype)
  given = problems.kernel, tokenizer
  source, encode, sampling = fused_source(c, d, sampler, *given)
  row = prompt_encoder(c, d, tokenizer, encode)
  rest = parts.root, sampling, parts.stop
  if d.has_pool:
    return _of_pool(c, d, learn, where, source, row, mesh, problems, rest)
  k, samples = c.steps_per_dispatch, parts.sampler_mesh or mesh
  order = planned.config.seed, problems.train, row, c.prompts, k, planned.name
  data = sources.batches(*order, samples, c.refill_rounds)
  if samples is not mesh:
    step = split_step.make(learn, source, parts, where.shardings, sampling)
    dispatch = step.dispatches(data)
    return Stage(learn, where, data, dispatch, 1, close=step.close)
  steps = programs.updating(programs.rl_steps, 2, where.shardings)

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    return *steps(learn, source, state, Prompts(**rows), *rest), {}

  return Stage(learn, where, data, dispatch, k)


def _of_pool(
  c: RL,
  d: Data,
  learn: Learner,
  where: states.Layout,
  source,
  encode,
  mesh,
  problems,
  rest,
) -> Stage:
  """The fused stage whose problems are chosen inside the compiled step.

  Args:
    rest: last arguments of `programs.rl_pool_steps`.
  """
  windows = problem_pool.Windows(d, problems.train)
  ask = problem_pool.ProblemSampler(
    problem_pool.chooser(d), c.prompts, c.refill_rounds
  )
  steps = programs.updating(programs.rl_pool_steps, 4, where.shardings)
  k, pool = c.steps_per_dispatch, None

  def dispatch(state, more):
    nonlocal pool
    del more
    if windows.due:
      state, pool = windows.move(state), None
    if pool is None:
      pool = problem_pool.prompts_of(windows.problems, encode, mesh)
    windows.advance(k)
    return *steps(learn, source, ask, k, state, pool, *rest), {}

  return Stage(learn, where, windows, dispatch, k)


def _host(
  planned: staging.Planned, parts: Prepared, learn: Learner, where
) -> Stage:
  c, d = planned.config.rl, planned.config.data
  mesh, train = parts.mesh, parts.problems.train
  row = prompt_encoder(c, d, parts.tokenizer, None)
  data, questions = sources.questions(planned, parts, row)
  pool, close, player, spent = sources.make_verifier(c, d, learn, parts)
  gen = generation(c, d, learn.model, parts.tokenizer)
  made = gen, sampling_of(c, parts.tokenizer)
  kinds = sources.kinds_of_rounds(c)
  source = sources.host_source(c, learn, made, kinds, parts, pool, player)

  def to_device(tree):
    if jax.process_count() > 1:
      tree = jax.tree.map(lambda x: x[sharding.my_rows(mesh, len(x))], tree)
    return sharding.to_global(tree, mesh)

  rest = to_device, where.shardings, c.overlaps
  step = HostStep(source, learn, questions, kinds, *rest)
  every = planned.config.log_every
  invalid = InvalidRewards(c.invalid_limit, every, journal.say)
  stats = PromptStats(len(train)) if len(train) < pipeline.ENDLESS else None

  def dispatch(state, more):
    if isinstance(data, problem_pool.Windows):
      state = data.move(state) if data.due else state
      data.advance(1)
    state, metrics, seconds, answers = step(state, more)
    host = {f'perf/{k}': v for k, v in seconds.items()}
    host |= {f'pool/{k}': float(v) for k, v in pool.stats().items()}
    host |= spent()
    invalid.add(answers)
    if stats is not None:
      for answered in answers:
        ids = np.repeat(sources.everyone(mesh, answered.ids), c.samples)
        reward = answered.reward
        stats.add(ids, reward.parts[:, 0], reward.valid & ~answered.helped)
      host |= stats.metrics()
    if 'rollouts' in metrics and c.rewards:
      metrics['rollouts']['verdicts'] = sources.verdicts_by_row(mesh, answers)
    return state, metrics, host

  def under_way() -> bool:
    return source.started > 0

  return Stage(
    *(learn, where, data, dispatch, 1, stats, invalid),
    *(source.wait, under_way, close),
  )
