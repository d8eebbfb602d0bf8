"""The stages of a run, each as the same small thing: a state in, a state out.

  pretrain, sft   next-token loss on all tokens / on the worked solutions
  rl              fused (one program a step) or host (rewards in Python)

`build` gives a Stage; `loop` calls its `dispatch`.
"""

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxrl_reason import config as config_lib
from jaxrl_reason import hosts, losses, sharding
from jaxrl_reason.base import Model, Prompts
from jaxrl_reason.data import controllers, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.stats import PromptStats
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rewards.pool import VerifierPool
from jaxrl_reason.rollouts.filters import FILTERS, Selection
from jaxrl_reason.rollouts.fused import FusedSource, Generation
from jaxrl_reason.rollouts.host import HostSource, Questions
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run import asking, programs, rewarding, states
from jaxrl_reason.run.host_step import HostStep
from jaxrl_reason.update import critics, optim
from jaxrl_reason.update.learner import Learner
from jaxrl_reason.update.packing import Lengths, Packing

# A supervised step is policy gradient with every advantage 1.
SUPERVISED = {
  'advantage': 'reinforce',
  'policy': 'log_likelihood',
  'aggregation': 'token_mean',
}


@dataclasses.dataclass
class Stage:
  """One stage of a run.

  Attributes:
    learner: of its updates.
    layout: of its state.
    data: grain iterator; its state is saved with the run's.
    dispatch: (state, whether another dispatch follows before the state is
      saved) -> (state, device metrics, host metrics); metrics are scalars or
      [K].
    steps_per_dispatch: K.
    stats: of the prompts, where they come back; or None.
    close: frees what it holds.
  """

  learner: Learner
  layout: states.Layout
  data: Iterator
  dispatch: Callable
  steps_per_dispatch: int
  stats: PromptStats | None = None
  close: Callable = lambda: None


def learner(
  config: ml_collections.ConfigDict, model: Model, name: str
) -> Learner:
  """Puts together what the updates of stage `name` are made of."""
  c, d = config[name], config.data
  common = dict(
    model=model,
    micro_batches=c.micro_batches,
    logprob_chunk=c.logprob_chunk,
    trainable=config_lib.trainable(config),
    balance_coef=c.balance_coef,
  )
  if name != 'rl':
    return Learner(
      objective=losses.resolve(SUPERVISED),
      tx=optim.make(c.optimizer, c.steps),
      start=1 if name == 'pretrain' else d.prompt_len,
      **common,
    )
  objective = config_lib.algorithm(config)
  updates = c.steps * c.epochs * c.minibatches
  return Learner(
    objective=objective,
    tx=optim.make(c.optimizer, updates),
    start=d.prompt_len,
    epochs=c.epochs,
    minibatches=c.minibatches,
    old_logp=c.old_logp,
    reference_memory=c.reference_memory,
    packing=_packing(c, d.prompt_len),
    critic=_critic(config, model, objective, updates),
    select=_selection(config),
    part_names=tuple(c.rewards),
    observe=asking.observer(asking.chooser(config)),
    **common,
  )


def _packing(c, start: int) -> Packing | Lengths | None:
  """How the section of the rl stage asks to save padding."""
  if c.pack_len:
    return Packing(c.pack_len, c.pack_sizes)
  return Lengths(start, c.length_buckets) if c.length_buckets else None


def _critic(config, model: Model, objective, updates: int):
  """The network beside the policy that the loss asks for, if any."""
  output = critics.kind_of(objective.needs)
  if output is None:
    return None
  c = config.rl.critic
  return critics.Critic(
    output,
    model,
    objective,
    optim.make(c.optimizer, updates),
    config.data.prompt_len,
    c.warmup_updates,
    config_lib.trainable(config),
  )


def build(
  config: ml_collections.ConfigDict,
  name: str,
  *,
  model: Model,
  mesh: jax.sharding.Mesh,
  problems: Problems,
  tokenizer: Any,
  root: jax.Array,
  stop: jax.Array,
) -> Stage:
  """Builds stage `name` of a run.

  Args:
    root: the run's key; stop: i32 [E], stop tokens.
  """
  learn = learner(config, model, name)
  common = dict(mesh=mesh, problems=problems, tokenizer=tokenizer, root=root)
  if name != 'rl':
    return _supervised(config, name, learn, **common)
  of_path = _host if config.rl.path == 'host' else _fused
  return of_path(config, learn, stop=stop, **common)


def _batches(
  config, source, encode, rows: int, k: int, name: str, mesh
) -> pipeline.Batches:
  """Dispatches of k steps of `rows` rows each."""
  mine = sharding.my_rows(mesh, rows)
  return pipeline.batches(
    source,
    encode,
    k * rows,
    # No two stages see the same order.
    seed=zlib.crc32(f'{name}/{config.seed}'.encode()),
    mine=np.concatenate([i * rows + mine for i in range(k)]),
  )


def _stacked(tree: Any, k: int) -> Any:
  """Rows [K*R,...] of a dispatch as [K,R,...]."""
  return jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), tree)


def _supervised(
  config, name: str, learn: Learner, *, mesh, problems, tokenizer, root
) -> Stage:
  c, d = config[name], config.data
  k, where = (
    c.steps_per_dispatch,
    states.layout(config, name, learn, mesh, problems),
  )
  steps = supervised_program(name, where.shardings)

  def encode(i, example):
    return pipeline.solution_row(
      i, example, tokenizer, d.prompt_len, d.completion_len
    )

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    return *steps(learn, state, rows, root), {}

  data = _batches(config, problems.train, encode, c.rows, k, name, mesh)
  return Stage(learn, where, data, dispatch, k)


def supervised_program(name: str, where=None) -> Callable:
  """The jitted program of a supervised stage."""
  f = {'pretrain': programs.pretrain_steps, 'sft': programs.sft_steps}[name]
  return programs.updating(f, 1, where)


def generation(
  config: ml_collections.ConfigDict, model: Model
) -> tuple[Generation, Sampling]:
  """How completions are made: what selects a program, and what does not."""
  c = config.rl
  gen = Generation(
    model=model,
    n_samples=c.samples,
    max_new=config.data.completion_len,
    demos=c.demos,
    slots=c.slots,
    segments=c.cache_segments,
    routes=c.replay_routes,
  )
  return gen, Sampling.make(c.temperature, c.top_k, c.top_p, c.min_p)


def _selection(config: ml_collections.ConfigDict) -> Selection | None:
  """What of a batch is learnt from; None: all of it."""
  c, chosen = config.rl, FILTERS[config.rl.filter]
  if chosen is None and not c.overlong:
    return None
  return Selection(chosen, c.overlong, config.data.completion_len)


def prompt_encoder(
  config, tokenizer, encode_answer
) -> Callable[[int, dict], dict]:
  """Gives (index, example) -> the row of a `base.Prompts`."""
  d = config.data
  demo_len = d.completion_len if config.rl.demos else None

  def encode(i, example):
    return pipeline.prompt_row(
      i, example, tokenizer, d.prompt_len, encode_answer, demo_len
    )

  return encode


def fused_source(
  config, learn: Learner, task_kernel: str | None, tokenizer
) -> tuple[FusedSource, Callable, Sampling]:
  """The source inside the graph, the encoder of examples' answers for it, and
  its sampling settings.
  """
  rewards = config.rl.rewards.to_dict()
  encode, reward_fn = device.make(
    rewards, task_kernel, tokenizer, config.data.completion_len
  )
  gen, sampling = generation(config, learn.model)
  names, views = device.reads(rewards, task_kernel), None
  if names:
    parts = learn.minibatches * learn.micro_batches
    views = Views(learn.model, names, learn.start, learn.logprob_chunk, parts)
  greedy = 'greedy_reward' in learn.needs
  return FusedSource(gen, reward_fn, views, greedy), encode, sampling


def _fused(
  config, learn: Learner, *, mesh, problems, tokenizer, root, stop
) -> Stage:
  c = config.rl
  source, encode, sampling = fused_source(
    config, learn, problems.kernel, tokenizer
  )
  row = prompt_encoder(config, tokenizer, encode)
  if controllers.is_on(config.data):
    rest = root, sampling, stop
    return _of_pool(config, learn, source, row, mesh, problems, rest)
  where = states.layout(config, 'rl', learn, mesh, problems)
  steps = programs.updating(programs.rl_steps, 2, where.shardings)
  k = c.steps_per_dispatch

  def dispatch(state, more):
    del more
    rows = sharding.to_global(_stacked(next(data), k), mesh, axis=1)
    rest = Prompts(**rows), root, sampling, stop
    return *steps(learn, source, state, *rest), {}

  data = _batches(config, problems.train, row, c.prompts, k, 'rl', mesh)
  return Stage(learn, where, data, dispatch, k)


def _of_pool(
  config, learn: Learner, source, encode, mesh, problems, rest
) -> Stage:
  """The fused stage whose problems are chosen inside the compiled step.

  Args:
    rest: last arguments of `programs.rl_pool_steps`.
  """
  c, chooser = config.rl, asking.chooser(config)
  asked = asking.pool_of(config, problems.train)
  known = asking.facts(config, asked)
  where = states.layout(config, 'rl', learn, mesh, problems, known)
  steps = programs.updating(programs.rl_pool_steps, 5, where.shardings)
  pool, k = asking.prompts_of(asked, encode, mesh), c.steps_per_dispatch

  def dispatch(state, more):
    del more
    static = learn, source, chooser, k, c.prompts
    return *steps(*static, state, pool, *rest), {}

  return Stage(learn, where, asking.Nothing(), dispatch, k)


def _host(
  config, learn: Learner, *, mesh, problems, tokenizer, root, stop
) -> Stage:
  c, train = config.rl, problems.train
  encode = prompt_encoder(config, tokenizer, None)

  def row(i, example):
    # The problem itself comes along: its verifier reads it.
    return encode(i, example) | {'example': np.array(example, object)}

  chooser, known, choose = asking.chooser(config), None, None
  if chooser is None:
    data = _batches(config, train, row, c.prompts, 1, 'rl', mesh)
    questions = (_questions(rows, mesh) for rows in data)
  else:
    asked = asking.pool_of(config, train)
    known, data, questions = asking.facts(config, asked), asking.Nothing(), ()
    rows = asking.rows_chooser(chooser, asked, row, c.prompts, root, mesh)

    def choose(control, step):
      return _questions(rows(control, step), mesh)

  where = states.layout(config, 'rl', learn, mesh, problems, known)
  pool = VerifierPool(
    rewarding.host_spec(c.rewards.to_dict(), problems.reward),
    workers=c.workers,
    timeout_s=c.timeout_s,
  )
  source = _host_source(
    config, learn, mesh, questions, choose, pool, tokenizer, root, stop
  )

  def to_device(tree):
    own = jax.tree.map(lambda x: x[sharding.my_rows(mesh, len(x))], tree)
    return sharding.to_global(own, mesh)

  ahead = bool(c.staleness)
  step = HostStep(source, learn, to_device, where.shardings, ahead)
  stats = PromptStats(len(train)) if len(train) < pipeline.ENDLESS else None

  def dispatch(state, more):
    state, metrics, timing, answered = step(state, more)
    host = {f'perf/{k}': v for k, v in timing.items()}
    host |= {f'pool/{k}': float(v) for k, v in pool.stats().items()}
    if stats is not None:
      ids = np.repeat(_everyone(mesh, answered.questions.ids), c.samples)
      stats.add(ids, answered.reward.parts[:, 0], answered.reward.valid)
      host |= stats.metrics()
    return state, metrics, host

  return Stage(learn, where, data, dispatch, 1, stats, pool.close)


def _questions(rows: dict, mesh) -> Questions:
  """This process's rows on the mesh, with the problems they are of."""
  examples, ids = rows.pop('example').tolist(), rows['prompt_id']
  prompts = Prompts(**sharding.to_global(rows, mesh))
  return Questions(prompts, ids, examples)


def _host_source(
  config, learn, mesh, questions, choose, pool, tokenizer, root, stop
) -> HostSource:
  c = config.rl
  gen, sampling = generation(config, learn.model)
  rollout = jax.jit(programs.rl_rollout, static_argnums=0)
  greedy = jax.jit(programs.rl_greedy, static_argnums=0)
  reads_greedy = 'greedy_reward' in learn.needs
  return HostSource(
    questions,
    lambda *args: rollout(gen, *args),
    (lambda *args: greedy(gen, *args)) if reads_greedy else None,
    c.samples,
    tuple(c.rewards),
    pool,
    tokenizer,
    c.parts,
    root,
    sampling,
    stop,
    choose,
    to_host=lambda x: sharding.to_local(x, mesh),
    all_rows=lambda tree: _everyone(mesh, tree),
  )


def _everyone(mesh, tree: Any) -> Any:
  """This process's rows [m,...] of a batch as all rows [N,...]."""
  n = sharding.rows_of_all(mesh, len(jax.tree.leaves(tree)[0]))
  return hosts.all_rows(sharding.my_rows(mesh, n), tree)
