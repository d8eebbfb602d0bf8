"""The programs of a run's stages with the shapes they are called with.

  phases(parts) -> [Phase]: evaluate, sft, then generate, score, update
  (rewards in Python) or the whole step as one program (device rewards)

Each lowers the function that the trainer itself dispatches (`run.rl.programs`),
from shapes with the trainer's shardings.
"""

import dataclasses
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxrl_reason import sharding
from jaxrl_reason.base import Prompts, Reward
from jaxrl_reason.config import Eval
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.evals import answer_programs
from jaxrl_reason.evals import sampled_answers as answers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.planning.model_flops import Costs, passes_of
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.run import stages, states, supervised_data
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import (
  hidden_settings,
  problem_pool,
  programs,
  verdict_settings,
)
from jaxrl_reason.run.rl import turn_settings as turns
from jaxrl_reason.run.rl.generation_settings import generation, sampling_of
from jaxrl_reason.update.learner import Learner

SUPERVISED = ('pretrain', 'sft', 'preference', 'reward_model')
EVALUATE, HELDOUT = 'evaluate', 'heldout_'  # the latter before a stage


@dataclasses.dataclass(frozen=True)
class Phase:
  """One program of a step.

  Attributes:
    name: of what it does.
    program: jitted; args: static records, and shapes with shardings.
    state: the whole state of the stage.
    calls: calls per step; below 1 if a call has several steps.
    decode_trips: iterations of its loops over tokens; empty: it has none.
    flops: of all chips, by the model's formula, without remat.
    mesh: if it is not that of the run.
    beside: shapes with shardings of further arrays that stay on the chips of
      the program; or None.
  """

  name: str
  program: Any
  args: tuple
  state: Any
  calls: float
  decode_trips: tuple[int, ...]
  flops: float
  mesh: Mesh | None = None
  beside: Any = None

  def lower(self, mesh: Mesh) -> jax.stages.Lowered:
    with jax.set_mesh(mesh):
      return self.program.lower(*self.args)


def _lay(tree: Any, where: NamedSharding) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
  )


def _stacked(row: Any, *lead: int) -> Any:
  """Returns the shapes of a batch from one encoded row."""
  row = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, row))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), row
  )


def state_of(layout) -> Any:
  """Returns the shapes and shardings of a stage's state."""

  def put(x, s):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)

  return jax.tree.map(put, layout.template, layout.shardings)


def last_state(parts: Prepared) -> Any:
  """Returns the shapes and shardings of the last stage's state."""
  return state_of(_learner(parts, parts.config.stages[-1])[1])


def of_a_step(names: Iterable[str]) -> list[str]:
  """Selects the phases of a step of the last stage, without evaluations and
  supervised stages before RL.
  """
  trained = [n for n in names if n != EVALUATE and HELDOUT not in n]
  return [n for n in trained if n not in SUPERVISED] or trained[-1:]


def of_rl(names: Iterable[str]) -> list[str]:
  """Selects the phases of a step of RL, which depend on `rl.prompts`."""
  return [n for n in of_a_step(names) if n not in SUPERVISED]


def phases(parts: Prepared) -> list[Phase]:
  """Returns the programs of every stage, in the order of a run."""
  config, out = parts.config, []
  if 'rl' in config.stages:
    _refuse_parts(config.rl)
  for name in dict.fromkeys(config.stages):
    if name != 'rl':
      out.append(_supervised(parts, name))
      if getattr(config[name], 'heldout', 0):
        out.append(_heldout(parts, name))
    elif config.rl.path == 'host':
      out.extend(_host(parts))
    else:
      out.append(_fused(parts))
  # The first program to run. Tools in Python play outside the program.
  return out if config.rl.plays_on_host else [evaluation(parts), *out]


def _env(parts: Prepared, make):
  """Returns the turns of the environment in the program, or None."""
  c, kernel = parts.config, parts.problems.kernel
  given = c.rl, c.data, parts.tokenizer, kernel
  return make(*given) if c.rl.turns.env else None


def evaluation_grid(c: Eval, rows: int, mesh: Mesh) -> answers.Grid:
  """Returns the partition of a split's evaluation into calls.

  Args:
    rows: that are generated at a time.
  """
  shards = sharding.row_shards(mesh)
  return answers.Grid.make(c.problems, range(1 + c.samples), rows, shards)


def evaluation(parts: Prepared) -> Phase:
  """Returns the program of one split's evaluation, beside the state of the last
  stage.
  """
  config, mesh = parts.config, parts.mesh
  d, rows = config.data, config.eval.rows(config.rl)
  grid = evaluation_grid(config.eval, rows, mesh)
  name = config.stages[-1]
  learner, layout = _learner(parts, name)
  state = state_of(layout)
  of, i32 = jax.ShapeDtypeStruct, jnp.int32
  n, where = grid.b * grid.s, sharding.row_sharding(mesh)
  prompt = of((grid.b, d.prompt_len), i32), of((grid.b, d.prompt_len), bool)
  ids, temperature = of((n,), i32), of((n,), jnp.float32)
  sampling = jax.eval_shape(Sampling.fixed)
  rest = _lay((sampling, parts.root, parts.stop), sharding.replicated(mesh))
  sampling = rest[0].replace(temperature=_lay(temperature, where))
  args = state.params, *_lay((*prompt, ids), where), sampling, *rest[1:]
  calls = grid.n_units
  flops = calls * Costs(parts).generate(grid.b, grid.s)
  loops = sampler.trips(d.completion_len, 0, grid.s)
  trips = tuple(most for _, most in loops)
  how = _env(parts, turns.scored)
  if how is not None:
    row = how.env.encode(parts.problems.train[0])
    args, trips = (*args, _lay(_stacked(row, grid.b), where)), (how.tokens - 1,)
  program = answer_programs.make_generate(
    parts.evaluated, grid.s, d.completion_len, how=how
  )
  return Phase(EVALUATE, program, args, state, calls, trips, flops)


def _learner(parts: Prepared, name: str) -> tuple[Learner, states.Layout]:
  """Returns the learner of a stage and the layout of its state."""
  config, model = parts.config, parts.model
  given = parts.problems, parts.tokenizer
  learner = stages.abstract_learner(config, model, name, *given)
  # The steps that train: costs of a conditional are not counted.
  learner = dataclasses.replace(learner, waits=False)
  where = stages.layout(name, config.rl, config.data, learner, parts)
  return learner, where


def _supervised(parts: Prepared, name: str) -> Phase:
  """Returns the program of a supervised stage's step."""
  c = parts.config[name]
  args, passes, one = _of_rows(parts, name, c.steps_per_dispatch)
  where = _learner(parts, name)[1].shardings
  program = stages.supervised_program(name, where)
  calls = 1 / c.steps_per_dispatch
  return Phase(name, program, args, args[1], calls, (), (2 + passes) * one)


def _heldout(parts: Prepared, name: str) -> Phase:
  """Returns the program of one evaluation of a stage's held-out rows."""
  c = parts.config[name]
  n = c.heldout // c.rows
  args, passes, one = _of_rows(parts, name, n)
  program = jax.jit(supervised_data.metrics, static_argnums=0)
  return Phase(HELDOUT + name, program, args, args[1], 1, (), n * passes * one)


def _of_rows(parts: Prepared, name: str, k: int) -> tuple[tuple, int, float]:
  """Returns the arguments (learner, state, rows [K,R,...], key) of a program of
  a supervised stage, its forward passes, and the FLOPs of one pass over R rows.
  """
  c = parts.config[name]
  learner, layout = _learner(parts, name)
  # The two pairs of a plan cannot be divided.
  whole = c.changed({'heldout': 0}) if getattr(c, 'heldout', 0) else c
  ((examples, encode),) = supervised_data.examples(
    whole, parts.config.data, parts
  )
  row = encode(0, examples[0])
  rows = _lay(_stacked(row, k, c.rows), sharding.row_sharding(parts.mesh, 1))
  state, costs = state_of(layout), Costs(parts)
  key = _lay(parts.root, sharding.replicated(parts.mesh))
  scored = learner.reads_reference + bool(learner.teacher) + learner.moves
  n_logits = costs.length - learner.start
  n_logits = 0 if learner.trains_critic_alone else n_logits
  n = c.micro_batch() * c.micro_batches * c.minibatches
  one = costs.forward(n, n_logits)
  return (learner, state, rows, key), 1 + scored, one


def _token_trips(gen) -> tuple[int, ...]:
  if gen.turns is not None:
    return (gen.turns.tokens - 1,)
  loops = sampler.trips(gen.max_new, gen.segments, gen.n_samples, gen.slots)
  return tuple(most for _, most in loops)


def _prompts(parts: Prepared, encode, *lead: int, axis=0) -> Prompts:
  """Args: axis: of `lead`, that of the rows."""
  c = parts.config
  encoder = stages.prompt_encoder(c.rl, c.data, parts.tokenizer, encode)
  row = encoder(0, parts.problems.train[0])
  where = sharding.row_sharding(parts.mesh, axis)
  return Prompts(**_lay(_stacked(row, *lead), where))


def _refuse_parts(c) -> None:
  """Refuses completions whose token loops are not counted, and further rounds
  on the host, which have other programs.
  """
  if c.path == 'host':
    for key, value in (
      ('rl.refill_rounds', c.refill_rounds),
      ('rl.extra.groups', c.extra.groups),
      ('rl.hints.room', c.hints.room),
      ('rl.replay.rows', c.replay.rows),
      ('rl.demos', c.demos_after and c.demos),
    ):
      if value:
        raise ValueError(
          f"{key}={value}: a plan with rl.path='host' has the programs of one "
          f"round of the step's own problems; set {key}=0, or rl.path='fused'"
        )
  for key, value, none in (
    ('rl.turns.env', c.plays_on_host and c.turns.env, ''),
    ('rl.chunks.tokens', c.chunks.tokens, 0),
    ('rl.in_flight.batches', c.in_flight.batches, 0),
    ('rl.tree.width', c.tree.width, 0),
    ('rl.search.simulations', c.search.simulations, 0),
  ):
    if value:
      raise ValueError(
        f'{key}={value!r}: a plan counts the tokens of one completion, or of '
        'turns with an environment inside the program (rl.path="fused"); set '
        f'it to {none!r} for the plan of that'
      )


def _fused(parts: Prepared) -> Phase:
  c, d = parts.config.rl, parts.config.data
  learner, layout = _learner(parts, 'rl')
  source, encode, sampling = stages.fused_source(
    c, d, learner, parts.problems.kernel, parts.tokenizer
  )
  gen = generation(c, d, parts.model, parts.tokenizer)
  everywhere = sharding.replicated(parts.mesh)
  rest = _lay((parts.root, sampling, parts.stop), everywhere)
  k, costs = c.steps_per_dispatch, Costs(parts, learner.chain.columns)
  scored, passes = passes_of(learner)
  names = device.reads(c.rewards, parts.problems.kernel)
  share = _hidden_share(parts)
  read = 0.0 if hidden_settings.without_pass(c) else share
  one = costs.forward(costs.rows, costs.new + costs.added)
  judges = verdict_settings.judges(
    c, learner, parts.tokenizer, d.completion_len
  )
  state = state_of(layout)
  if not d.has_pool:
    program, n_static = programs.rl_steps, 2
    spares = (1 + c.refill_rounds,) if c.refill_rounds else ()
    prompts = _prompts(parts, encode, k, c.prompts, *spares, axis=1)
    args = learner, source, state, prompts
  else:
    program, n_static = programs.rl_pool_steps, 4
    chooser = problem_pool.chooser(d)
    ask = problem_pool.ProblemSampler(chooser, c.prompts, c.refill_rounds)
    m = len(problem_pool.pool_of(d, parts.problems.train))
    pool = _lay(_prompts(parts, encode, m), everywhere)
    args = learner, source, ask, k, state, pool
  return Phase(
    'step',
    programs.updating(program, n_static, layout.shardings),
    (*args, *rest),
    state,
    1 / k,
    _token_trips(dataclasses.replace(gen, turns=_env(parts, turns.of))),
    costs.sample()
    + costs.views(names, read, learner, judges.values())
    + (scored + passes) * one
    + sum(costs.teacher(learner))
    + costs.parts(c, share),
  )


def _hidden_share(parts: Prepared) -> float:
  """Returns the share of the layers in the passes to `rl.views.hidden`."""
  layers, n = parts.config.rl.views.hidden.layers, parts.shape.layers
  return sum(layer % n + 1 for layer in layers) / n


def _host(parts: Prepared) -> list[Phase]:
  config, c = parts.config, parts.config.rl
  learner, layout = _learner(parts, 'rl')
  gen = generation(c, config.data, parts.model, parts.tokenizer)
  sampling = sampling_of(c, parts.tokenizer)
  costs, mesh = Costs(parts, learner.chain.columns), parts.mesh
  everywhere, rows = sharding.replicated(mesh), sharding.row_sharding(mesh)
  root, sampling, stop = _lay((parts.root, sampling, parts.stop), everywhere)
  state = state_of(layout)
  part = _prompts(parts, None, c.prompts // c.parts)
  ids = _lay(np.arange(costs.rows // c.parts, dtype=np.int32), rows)
  args = gen, state.params, part, root, state.step, sampling, stop, ids
  args = *args, state.step
  generate = jax.jit(programs.rl_rollout, static_argnums=0)
  new, flops = _token_trips(gen), costs.sample()
  out = [Phase('generate', generate, args, state, c.parts, new, flops)]
  # On the mesh of a TPU, decoding is traced as a loop over layers. Unrolled
  # layers take seconds to trace.
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    rollout = jax.eval_shape(partial(programs.rl_rollout, gen), *args[1:])
  whole, best = _prompts(parts, None, c.prompts), None
  if 'greedy_reward' in learner.needs:
    args = gen, state.params, whole, root, state.step, sampling, stop
    best = jax.jit(programs.rl_greedy, static_argnums=0)
    flops = costs.generate(c.prompts, 1)
    out.append(Phase('greedy', best, args, state, 1, new, flops))
  sizes = learner, c.samples, len(c.rewards)
  args = state, whole, [_lay(rollout, rows)] * c.parts, sampling
  batch = jax.eval_shape(lambda *a: programs.rl_score(*sizes, *a), *args)
  scored, passes = passes_of(learner)
  one = costs.forward(costs.rows, costs.new + costs.added)
  before, inside = costs.teacher(learner)
  if informed_prompts.fields(c.teacher.prompt):  # scored after the verdicts
    before, inside = 0.0, before + inside
  if scored or before:
    score = jax.jit(programs.rl_score, static_argnums=(0, 1, 2))
    args, flops = (*sizes, *args), scored * one + before
    out.append(Phase('score', score, args, state, 1, (), flops))
  of_row = c.prompts * c.samples, len(c.rewards), c.teacher.detail_len
  reward = jax.eval_shape(lambda: states.no_reward(*of_row))
  reward = _lay(reward, rows)
  greedy = _lay(_of_prompts(reward, c.samples), rows) if best else None
  args = learner, state, _lay(batch, rows)
  args = *args, reward, greedy, root, sampling
  learn = programs.updating(programs.rl_learn, 1, layout.shardings)
  flops = passes * one + inside + costs.parts(c, _hidden_share(parts))
  return [*out, Phase('update', learn, args, state, 1, (), flops)]


def _of_prompts(reward: Reward, n_samples: int) -> Reward:
  """Converts shapes [N,...] to shapes of one row per prompt [B,...]."""

  def fewer(x):
    n, *rest = x.shape
    return jax.ShapeDtypeStruct((n // n_samples, *rest), x.dtype)

  return jax.tree.map(fewer, reward)
