"""The stages of a run, each as the same small thing: a state in, a state out.

  pretrain, sft   next-token loss on all tokens / on the worked solutions
  rl              fused (one program a step) or host (rewards in Python)

`build` gives a Stage; `loop` calls its `dispatch`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxrl_reason import sharding
from jaxrl_reason.base import Model, Prompts
from jaxrl_reason.data import controllers, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.stats import PromptStats
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rollouts.fused import FusedSource, Generation
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run import (
  asking,
  goodput,
  memory,
  programs,
  sources,
  staging,
  states,
)
from jaxrl_reason.run import turns as run_turns
from jaxrl_reason.run.hints_step import HintsStep
from jaxrl_reason.run.host_step import HostStep
from jaxrl_reason.run.learners import learner
from jaxrl_reason.run.rounds_step import RoundsStep
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
    stats: of the prompts, where they come back; or None.
    under_way: whether a batch has been started that no step has learnt from,
      which no checkpoint holds.
    close: frees what it holds.
  """

  learner: Learner
  layout: states.Layout
  data: goodput.Timed
  dispatch: Callable
  steps_per_dispatch: int
  stats: PromptStats | None = None
  under_way: Callable[[], bool] = lambda: False
  close: Callable = lambda: None


def build(
  planned: staging.Planned,
  *,
  model: Model,
  mesh: jax.sharding.Mesh,
  problems: Problems,
  tokenizer: Any,
  root: jax.Array,
  stop: jax.Array,
) -> Stage:
  """Builds a stage of a run.

  Args:
    root: the run's key; stop: i32 [E], stop tokens.
  """
  config, kind = planned.config, planned.kind
  learn = learner(config, model, kind)
  common = dict(mesh=mesh, problems=problems, tokenizer=tokenizer, root=root)
  common['order'] = planned.name
  if kind != 'rl':
    return _supervised(config, kind, learn, **common)
  of_path = _host if config.rl.path == 'host' else _fused
  return of_path(config, learn, stop=stop, **common)


def layout(
  config,
  name: str,
  learn: Learner,
  mesh: jax.sharding.Mesh,
  problems: Problems,
  known: asking.Facts | None = None,
) -> states.Layout:
  """Lays the state of stage `name` out on the mesh.

  Args:
    known: of a pool's problems; None: shapes alone are read.
  """
  remembered = _nothing
  if name == 'rl':
    gen, _ = generation(config, learn.model)
    n = len(asking.pool_of(config, problems.train))
    remembered = memory.remembered(config, learn, gen, mesh, n, known)
  return states.Layout(learn, mesh, remembered)


def _nothing(total: jax.Array) -> None:
  """Supervised stages remember nothing."""


def _stacked(tree: Any, k: int) -> Any:
  """Rows [K*R,...] of a dispatch as [K,R,...]."""
  return jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), tree)


def _supervised(
  config, name: str, learn: Learner, *, mesh, problems, tokenizer, root, order
) -> Stage:
  c, d = config[name], config.data
  k, where = c.steps_per_dispatch, layout(config, name, learn, mesh, problems)
  steps = supervised_program(name, where.shardings)

  def encode(i, example):
    return pipeline.solution_row(
      i, example, tokenizer, d.prompt_len, d.completion_len
    )

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    return *steps(learn, state, rows, root), {}

  train = problems.supervised or problems.train
  data = sources.batches(config, train, encode, c.rows, k, order, mesh)
  return Stage(learn, where, data, dispatch, k)


def supervised_program(name: str, where=None) -> Callable:
  """Returns the jitted program of a supervised stage."""
  f = {'pretrain': programs.pretrain_steps, 'sft': programs.sft_steps}[name]
  return programs.updating(f, 1, where)


def generation(
  config: ml_collections.ConfigDict, model: Model
) -> tuple[Generation, Sampling]:
  """Reads how completions are made: what selects a program, and what does
  not.
  """
  c = config.rl
  gen = Generation(
    model=model,
    n_samples=c.samples,
    max_new=config.data.completion_len,
    demos=c.demos if c.demos_when == 'always' else 0,
    slots=c.slots,
    segments=c.cache_segments,
    routes=c.replay_routes,
  )
  return gen, Sampling.fixed(c.temperature, c.top_k, c.top_p, c.min_p)


def prompt_encoder(
  config, tokenizer, encode_answer
) -> Callable[[int, dict], dict]:
  """Gives (index, example) -> the row of a `base.Prompts`."""
  d = config.data
  shows = config.rl.demos or config.rl.hints.room
  demo_len = d.completion_len if shows else None

  def encode(i, example):
    return pipeline.prompt_row(
      i, example, tokenizer, d.prompt_len, encode_answer, demo_len
    )

  return encode


def fused_source(
  config, learn: Learner, task_kernel: str | None, tokenizer, weights=None
) -> tuple[Callable, Callable, Sampling]:
  """Returns the source inside the graph, the encoder of examples' answers for
  it, and its sampling settings; `weights` of rewards as `device.make` takes
  them.
  """
  rewards = config.rl.rewards.to_dict()
  encode, reward_fn = device.make(
    rewards, task_kernel, tokenizer, config.data.completion_len, weights
  )
  gen, sampling = generation(config, learn.model)
  if config.rl.turns.env:
    how = run_turns.of(config, tokenizer)
    gen = dataclasses.replace(gen, turns=how)
    encode, reward_fn = run_turns.with_env(how, rewards, encode, reward_fn)
  names, views = device.reads(rewards, task_kernel), None
  if names:
    parts = learn.minibatches * learn.micro_batches
    views = Views(learn.model, names, learn.start, learn.logprob_chunk, parts)
  greedy = 'greedy_reward' in learn.needs
  source = FusedSource(gen, reward_fn, views, greedy)
  return sources.around(config.rl, source), encode, sampling


def _fused(
  config, learn: Learner, *, mesh, problems, tokenizer, root, stop, order
) -> Stage:
  c, k = config.rl, config.rl.steps_per_dispatch
  source, encode, sampling = fused_source(
    config, learn, problems.kernel, tokenizer
  )
  row = prompt_encoder(config, tokenizer, encode)
  if controllers.is_on(config.data):
    given = row, mesh, problems, (root, sampling, stop)
    return _of_pool(config, learn, source, *given)
  where = layout(config, 'rl', learn, mesh, problems)
  steps = programs.updating(programs.rl_steps, 2, where.shardings)

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    rest = Prompts(**rows), root, sampling, stop
    return *steps(learn, source, state, *rest), {}

  data = sources.batches(
    config, problems.train, row, c.prompts, k, order, mesh, c.refill_rounds
  )
  return Stage(learn, where, data, dispatch, k)


def _of_pool(
  config, learn: Learner, source, encode, mesh, problems, rest
) -> Stage:
  """The fused stage whose problems are chosen inside the compiled step.

  Args:
    rest: last arguments of `programs.rl_pool_steps`.
  """
  c, windows = config.rl, asking.Windows(config, problems.train)
  ask = asking.Ask(asking.chooser(config), c.prompts, c.refill_rounds)
  where = layout(
    config, 'rl', learn, mesh, problems, asking.facts(config, windows.problems)
  )
  steps = programs.updating(programs.rl_pool_steps, 4, where.shardings)
  k, pool = c.steps_per_dispatch, None

  def dispatch(state, more):
    nonlocal pool
    del more
    if windows.due:
      state, pool = windows.move(state), None
    if pool is None:
      pool = asking.prompts_of(windows.problems, encode, mesh)
    windows.advance(k)
    return *steps(learn, source, ask, k, state, pool, *rest), {}

  return Stage(learn, where, windows, dispatch, k)


def _host(
  config, learn: Learner, *, mesh, problems, tokenizer, root, stop, order
) -> Stage:
  c, train = config.rl, problems.train
  encode = prompt_encoder(config, tokenizer, None)

  def row(i, example):
    # The problem itself comes along: its verifier reads it.
    return encode(i, example) | {'example': np.array(example, object)}

  known, ask, spares = None, None, c.refill_rounds
  chosen = controllers.is_on(config.data)
  if chosen:
    data, steps = asking.Windows(config, train), iter(())
    known = asking.facts(config, data.problems)
    rows_of = asking.asker(config, data, row, root, mesh)

    def ask(control, step):
      return sources.questions(rows_of(control, step), mesh, spares)

  else:
    data = sources.batches(
      config, train, row, c.prompts, 1, order, mesh, spares
    )
    steps = (sources.questions(rows, mesh, spares) for rows in data)
  where = layout(config, 'rl', learn, mesh, problems, known)
  pool, close, player, spent = sources.judges(
    config, learn, problems, tokenizer
  )
  first, rest = (rounds[0] for rounds in steps), (tokenizer, root, stop)
  made = generation(config, learn.model)
  source = sources.host_source(
    config, learn, made, mesh, first, pool, *rest, player
  )

  def to_device(tree):
    if jax.process_count() > 1:
      tree = jax.tree.map(lambda x: x[sharding.my_rows(mesh, len(x))], tree)
    return sharding.to_global(tree, mesh)

  plain = sources.is_plain(c)
  if plain:
    ahead = bool(c.staleness)
    rest = learn, to_device, where.shardings, ahead, ask
    step = HostStep(source, *rest, sources.hinted(c))
  else:
    rest = learn, to_device, where.shardings, ask
    again, help_ = sources.replayed(c), sources.hinted(c)
    if help_ is not None and help_.when == 'failed':
      step = HintsStep(help_, source, steps, again, *rest)
    else:
      more = sources.refilled(c), again
      step = RoundsStep(source, steps, *more, *rest, help_)
  stats = PromptStats(len(train)) if len(train) < pipeline.ENDLESS else None

  def dispatch(state, more):
    if chosen:
      state = data.move(state) if data.due else state
      data.advance(1)
    state, metrics, timing, answered = step(state, more)
    host = {f'perf/{k}': v for k, v in timing.items()}
    host |= {f'pool/{k}': float(v) for k, v in pool.stats().items()}
    host |= spent()
    if stats is not None:
      for round_ in [answered] if plain else answered:
        ids = np.repeat(sources.everyone(mesh, round_.questions.ids), c.samples)
        stats.add(ids, round_.reward.parts[:, 0], round_.reward.valid)
      host |= stats.metrics()
    if learn.shown is not None and plain:
      mine = sharding.my_rows(mesh, len(answered.reward.total))
      verdicts = dict(zip(mine.tolist(), answered.verdicts))
      metrics['rollouts']['verdicts'] = verdicts
    return state, metrics, host

  def under_way() -> bool:
    return source.started > 0

  return Stage(learn, where, data, dispatch, 1, stats, under_way, close)
