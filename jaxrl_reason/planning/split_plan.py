"""A plan for two meshes (`sampler_mesh`): the halves of a step as two programs,
and the transfers between them.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import TrainState
from jaxrl_reason.models import spec
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import phases, roofline
from jaxrl_reason.planning.model_flops import Costs
from jaxrl_reason.planning.phases import Phase
from jaxrl_reason.run import stages, two_meshes
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.process import chips
from jaxrl_reason.run.rl import programs, split_step

SAMPLE, UPDATE, WHOLE = 'sample', 'update', 'step'


def meshes(
  own: tuple[int, ...],
  other: tuple[int, ...],
  topology: str,
  devices: Sequence[Any],
) -> tuple[Mesh, Mesh]:
  """Returns the trainer's and the sampler's mesh, each on a described slice of
  that many chips: the compiler takes whole slices only.

  Args:
    own: shape of the trainer's mesh; other: of the sampler's.

  Raises:
    ValueError: the sizes do not fit the devices, or there is no such slice.
  """
  two_meshes.split(own, other, devices)  # refuses
  n = math.prod(other)
  return tuple(
    sharding.make_mesh(shape, described.devices(box(topology, size)))
    for shape, size in ((own, len(devices) - n), (other, n))
  )


def box(topology: str, n: int) -> str:
  """Returns the most compact slice of n chips inside a topology.

  Raises:
    ValueError: no box of its torus has n chips.
  """
  ranges = [range(1, size + 1) for size in chips.torus_of(topology)]
  boxes = [x for x in itertools.product(*ranges) if math.prod(x) == n]
  if not boxes:
    raise ValueError(
      f'--topology={topology} has no box of {n} chips, the devices of one of '
      'two meshes; change sampler_mesh'
    )
  sizes = min(boxes, key=lambda x: (max(x), x))
  return f'{topology.partition(":")[0]}:{"x".join(map(str, sizes))}'


def all_phases(parts: Prepared) -> list[Phase]:
  """Returns the programs of every stage, with the halves of a step if there
  are two meshes.
  """
  each = phases.phases(parts)
  if parts.sampler_mesh is None:
    return each
  (whole,) = (p for p in each if p.name == WHOLE)
  return [p for p in each if p.name != WHOLE] + _halves(parts, whole)


def _halves(parts: Prepared, whole: Phase) -> list[Phase]:
  """Returns the two programs of a step.

  Args:
    whole: the program of a step on the trainer's mesh alone.
  """
  here = parts._replace(mesh=parts.sampler_mesh)
  (there,) = (p for p in phases.phases(here) if p.name == WHOLE)
  learner, _, state, prompts, *rest = there.args
  c, d = parts.config.rl, parts.config.data
  learner = split_step.sampler_learner(learner, parts.config.sampler_dtype)
  given = parts.problems.kernel, parts.tokenizer
  source, _, _ = stages.fused_source(c, d, learner, *given)
  source, kind = split_step.without_queue(source)
  state = state.replace(params=_weights(learner.model.specs, here.mesh))
  prompts = jax.tree.map(_first, prompts)
  everywhere = sharding.replicated(parts.sampler_mesh)
  root, sampling, stop = rest
  settings = jax.eval_shape(
    lambda *given: split_step.rl_settings(learner, *given), state, sampling
  )
  settings = _laid(settings, everywhere)
  static, given = (source, kind is not None), (state.params, prompts, root)
  given = *given, settings, stop
  costs = Costs(parts)
  flops = costs.sample()
  sample = Phase(
    SAMPLE,
    jax.jit(split_step.rl_sample, static_argnums=(0, 1)),
    (*static, *given),
    _weights_alone(state),
    1,
    there.decode_trips,
    flops,
    parts.sampler_mesh,
    # With a queue, the next version arrives while this one samples.
    state.params if kind is not None else None,
  )
  learner, _, state, _, root, sampling, _ = whole.args
  program, batch = split_step.rl_learn_oldest, ()
  if kind is None:
    found = jax.eval_shape(lambda *x: split_step.rl_sample(*static, *x), *given)
    where = two_meshes.by_rows(parts.mesh)
    program = split_step.rl_learn_now
    batch = (jax.tree.map(lambda x: _laid(x, where('', x)), found),)
  update = Phase(
    UPDATE,
    programs.updating(program, 2, jax.tree.map(lambda x: x.sharding, state)),
    (learner, kind, state, *batch, root, sampling),
    state,
    1,
    (),
    whole.flops - flops,
  )
  return [sample, update]


def _weights(specs: Any, mesh: Mesh) -> Any:
  """Returns the shapes of weights on a mesh."""
  return jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
    spec.abstract(specs),
    sharding.shardings(specs, mesh, sharding.TRAIN_RULES),
  )


def _weights_alone(state: TrainState) -> TrainState:
  """Returns the part of a state that the sampler has."""
  others = [f.name for f in dataclasses.fields(state) if f.name != 'params']
  return state.replace(**dict.fromkeys(others))


def _laid(tree: Any, where: jax.sharding.Sharding) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), tree
  )


def _first(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  """Returns the shape of one step [B,...] of a dispatch [1,B,...]."""
  where = sharding.row_sharding(x.sharding.mesh)
  return jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=where)


def transfer(
  parts: Prepared, machine: roofline.Machine, hosts: int
) -> dict[str, float]:
  """Computes the bytes of all weights, and the seconds of sending them to the
  sampler once.

  Each device of the trainer first gathers its shard, 1/n of the weights, over
  the trainer's links. It then sends copies of it to devices of the sampler,
  which gather them if their mesh has no shards. A copy crosses the links of one
  dimension of the torus.
  """
  model = split_step.sampler_model(parts.model, parts.config.sampler_dtype)
  params = trees.n_bytes(spec.abstract(model.specs))
  a, b = parts.mesh.size, parts.sampler_mesh.size
  n = two_meshes.wires(a, b, hosts)
  one = params / n
  link = machine.chip.ici / len(machine.torus)
  seconds = one / machine.links(a) + one * max(1, b / a) / link
  if n < b or parts.sampler_mesh.shape['fsdp'] < n:
    seconds += params / machine.links(b)
  return {'weights_bytes': params, 'weights_seconds': seconds}


def facts(
  each: list[dict],
  parts: Prepared,
  machine: roofline.Machine,
  devices: Sequence[Any],
) -> dict[str, Any]:
  """Returns the facts of a step on two meshes, which replace those of phases
  one after the other.

  Args:
    each: facts of the phases; devices: of both meshes.
  """
  by = {p['phase']: p for p in each}
  if not all('flops' in by.get(name, {}) for name in (SAMPLE, UPDATE)):
    return {}
  hosts = len({d.process_index for d in devices})
  moved = transfer(parts, machine, hosts)
  c, d = parts.config.rl, parts.config.data
  sizes = {SAMPLE: parts.sampler_mesh.size, UPDATE: parts.mesh.size}
  out = {'devices': sum(sizes.values())}
  for key in ('step_seconds', 'serial_seconds', 'ordered_seconds'):
    halves = [by[name][key] for name in sizes]
    if c.staleness:
      out[key] = max(*halves, halves[0] + moved['weights_seconds'])
    else:
      out[key] = sum(halves) + moved['weights_seconds']
  model = sum(
    by[name]['model_flops'] * by[name]['calls_per_step'] * n
    for name, n in sizes.items()
  )
  peak = machine.chip.flops * out['devices']
  for name in ('', 'serial_'):
    seconds = out['step_seconds' if not name else 'serial_seconds']
    out[f'{name}mfu'] = model / seconds / peak
  tokens = c.sampled_groups * c.samples * d.completion_len
  out['tokens_per_s'] = tokens / out['step_seconds']
  out['tokens_per_s_device'] = out['tokens_per_s'] / out['devices']
  return out | {
    'split': moved
    | {f'{name}_devices': n for name, n in sizes.items()}
    | {f'{name}_seconds': by[name]['step_seconds'] for name in sizes}
    | {f'{name}_serial': by[name]['serial_seconds'] for name in sizes}
    | {'sampler_mesh': dict(parts.sampler_mesh.shape)}
  }


def lines(facts: dict) -> list[str]:
  """Returns the lines of a plan about two meshes."""
  if 'split' not in facts:
    return []
  s = facts['split']
  out = [
    f'two meshes: {s["sample_devices"]} chips sample in '
    f'{s["sample_seconds"]:.3g} to {s["sample_serial"]:.3g} s, '
    f'{s["update_devices"]} train in {s["update_seconds"]:.3g} to '
    f'{s["update_serial"]:.3g} s; weights of '
    f'{s["weights_bytes"] / 2**30:.3g} GiB take {s["weights_seconds"]:.3g} s '
    'a version'
  ]
  one = facts.get('one_mesh')
  if one and 'why' in one:
    out.append(f'one mesh: {one["why"]}')
  elif one:
    low, high = one['step_seconds'], one['serial_seconds']
    ratio = low / facts['step_seconds'], high / facts['serial_seconds']
    mesh = ' x '.join(f'{k} {v}' for k, v in one['mesh'].items())
    out.append(
      f'one mesh, {mesh}: a step takes {low:.3g} to {high:.3g} s; two meshes '
      f'make {ratio[0]:.2f} to {ratio[1]:.2f} times as many steps'
    )
  return out
