"""The programs of a run's stages with the shapes they are called with.

  phases(run) -> [Phase]: sft, then generate, score, update (rewards in Python)
  or the whole step as one program (device rewards)

Each lowers the function that the trainer itself dispatches (`jitted`), from
shapes with the trainer's shardings.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxrl_reason import sharding
from jaxrl_reason.base import Prompts
from jaxrl_reason.data import pipeline
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.run import jitted, loop, stages

SUPERVISED = ('pretrain', 'sft')


@dataclasses.dataclass(frozen=True)
class Phase:
  """One program of a step.

  Attributes:
    name: of what it does.
    program: jitted; args: shapes with shardings.
    state: the stage's whole, whether or not the program reads it all.
    calls: how often a step calls it, below 1 where a call holds several steps.
    decode_trips: of its loops over tokens; empty: it has none.
    flops: of all chips, by the model's own formula; remat not counted.
  """

  name: str
  program: Any
  args: tuple
  state: Any
  calls: float
  decode_trips: tuple[int, ...]
  flops: float

  def lower(self, mesh: Mesh) -> jax.stages.Lowered:
    with jax.set_mesh(mesh):
      return self.program.lower(*self.args)


def _lay(tree: Any, where: NamedSharding) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
  )


def _stacked(row: Any, *lead: int) -> Any:
  """Shapes of a batch of what an encoder made one of."""
  row = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, row))
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((*lead, *x.shape), x.dtype), row
  )


def state_of(run, learner) -> Any:
  """Shapes and layout of a stage's state."""
  _, template, where = loop.layout(run, learner, 0)
  put = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  return jax.tree.map(put, template, where)


def phases(run) -> list[Phase]:
  """The programs of every stage, in the order of a run."""
  out = []
  for name in dict.fromkeys(run.config.stages):
    if name != 'rl':
      out.append(_supervised(run, name))
    elif run.config.rl.path == 'host':
      out.extend(_host(run))
    else:
      out.append(_fused(run))
  return out


class _Costs:
  """FLOPs by the model's formula, forward 1 and gradient 2 passes."""

  def __init__(self, run):
    d, c = run.config.data, run.config.rl
    self.length, self.new = d.prompt_len + d.completion_len, d.completion_len
    self.prompts, self.rows = c.prompts, c.prompts * c.samples
    self.prompt_len, self.of = d.prompt_len, run.model.flops_per_token
    self.head = 2 * run.shape.width * run.shape.vocab

  def forward(self, rows: int, n_logits: int) -> float:
    """Of whole rows; the head multiplies n_logits of a row's tokens."""
    whole = self.length * self.of((self.length - 1) / 2)
    return rows * (whole - (self.length - n_logits) * self.head)

  def generate(self, prompts: int, samples: int) -> float:
    p, c = self.prompt_len, self.new
    prefill = p * self.of((p - 1) / 2) - (p - 1) * self.head
    return prompts * (prefill + samples * c * self.of(p + c / 2))


def _passes(learner) -> tuple[int, float]:
  """(scoring passes before the update, passes of it: forward 1, gradient 2)."""
  moves = learner.n_updates > 1 and learner.old_logp == 'trainer'
  early = learner.settings['entropy_alpha'] or 'old_mean_logp' in learner.needs
  networks = 1 + bool(learner.critic)
  scored = learner.reads_reference + bool(moves or early) + networks - 1
  return int(scored), 3.0 * learner.epochs * networks


def _supervised(run, name: str) -> Phase:
  c, d = run.config[name], run.config.data
  learner = stages.learner(run, name)
  k = c.steps_per_dispatch
  row = pipeline.solution_row(
    0, run.problems.train[0], run.tokenizer, d.prompt_len, d.completion_len
  )
  rows = _lay(_stacked(row, k, c.rows), sharding.row_sharding(run.mesh, 1))
  state, costs = state_of(run, learner), _Costs(run)
  return Phase(
    name,
    jitted.supervised(learner, name),
    (state, rows, _lay(run.root, sharding.replicated(run.mesh))),
    state,
    1 / k,
    (),
    3 * costs.forward(c.rows, costs.length - learner.start),
  )


def _token_trips(gen) -> tuple[int, ...]:
  loops = sampler.trips(gen.max_new, gen.segments, gen.n_samples, gen.slots)
  return tuple(most for _, most in loops)


def _prompts(run, encode, *lead: int) -> Prompts:
  row = stages.prompt_encoder(run, encode)(0, run.problems.train[0])
  where = sharding.row_sharding(run.mesh, len(lead) - 1)
  return Prompts(**_lay(_stacked(row, *lead), where))


def _fused(run) -> Phase:
  c = run.config.rl
  learner, (gen, sampling) = stages.learner(run, 'rl'), stages.rl_parts(run)
  encode, reward_fn = stages.device_rewards(run)
  k, costs = c.steps_per_dispatch, _Costs(run)
  rest = _lay((run.root, sampling, run.stop), sharding.replicated(run.mesh))
  scored, passes = _passes(learner)
  one = costs.forward(costs.rows, costs.new)
  state = state_of(run, learner)
  return Phase(
    'step',
    jitted.steps(learner, gen, reward_fn),
    (state, _prompts(run, encode, k, c.prompts), *rest),
    state,
    1 / k,
    _token_trips(gen),
    costs.generate(c.prompts, c.samples) + (scored + passes) * one,
  )


def _host(run) -> list[Phase]:
  c = run.config.rl
  learner, (gen, sampling) = stages.learner(run, 'rl'), stages.rl_parts(run)
  costs, everywhere = _Costs(run), sharding.replicated(run.mesh)
  root, sampling, stop = _lay((run.root, sampling, run.stop), everywhere)
  state, rows = state_of(run, learner), sharding.row_sharding(run.mesh)
  part = _prompts(run, None, c.prompts // c.parts)
  ids = _lay(np.arange(costs.rows // c.parts, dtype=np.int32), rows)
  generate = jitted.generate(learner, gen)
  at = root, state.step
  args = state.params, part, at, sampling, stop, ids
  new = _token_trips(gen)
  flops = costs.generate(c.prompts, c.samples)
  out = [Phase('generate', generate, args, state, c.parts, new, flops)]
  outs = [_lay(jax.eval_shape(generate, *args), rows)] * c.parts
  whole = _prompts(run, None, c.prompts)
  if 'greedy_reward' in learner.needs:
    args = state.params, whole, at, stop
    flops = costs.generate(c.prompts, 1)
    best = jitted.greedy(learner, gen)
    out.append(Phase('greedy', best, args, state, 1, new, flops))
  args = state, whole, outs, sampling
  score = jitted.score(learner, gen)
  batch = _lay(_with_rewards(learner, jax.eval_shape(score, *args)), rows)
  scored, passes = _passes(learner)
  one = costs.forward(costs.rows, costs.new)
  if scored:
    out.append(Phase('score', score, args, state, 1, (), scored * one))
  args = state, batch, sampling, root
  learn = jitted.learn(learner, gen)
  return [*out, Phase('update', learn, args, state, 1, (), passes * one)]


def _with_rewards(learner, batch):
  """Shapes of a scored batch once its rewards have come."""
  greedy = batch.reward if 'greedy_reward' in learner.needs else None
  return batch.replace(greedy_reward=greedy)
