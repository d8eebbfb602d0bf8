"""Finds memory settings of a recipe by compiling it.

  lean(config, mesh)       -> the recipe on the mesh, without any division
  fitting(planner, config) -> Found: settings that fit the mesh, or None;
                              TooSlow: it is slower than a limit
  completed(planner, found) -> Found: with the other phases of a step
  faster(planner, found)   -> Found: the same, or faster settings
  estimated(config, hbm)   -> settings of GPUs or a CPU, without compiling

The settings are the parts in which a batch is generated, the recomputation
(`model.remat`), the micro-batches, the chunks of logits, and the sharing of
prompts (`rl.padding`). Arithmetic gives the first value to try; memory and
seconds come from the compiled program. Activations in host memory are not
tried: to transfer a layer's products takes longer than to compute them again
(docs/plan.md).
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.config import Run
from jaxrl_reason.config.training import Training
from jaxrl_reason.models import cache, remat
from jaxrl_reason.models.parts import layers
from jaxrl_reason.planning import abstract, phases
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.process import chips

# The least recomputation first. 'none' keeps five times as much as 'dots' and
# saves 2 % of the FLOPs.
POLICIES = tuple(layers.REMAT)
CHUNK = 256  # columns of logits
ROOM = 0.8  # share of a chip's memory for the estimated arrays
# The share of activations that a tensor axis splits: of heads and mlps.
SPLIT = 0.6
TRIES = 3  # compilations of a remat policy, except the last policy
SHARED = 'shared:1'


class TooSlow(ValueError):
  """A mesh cannot be the fastest."""


@dataclasses.dataclass(frozen=True)
class Found:
  """A recipe that fits: its config, and the facts of its phases by name."""

  config: Run
  phases: dict[str, dict]

  @property
  def seconds(self) -> float:
    """Counts the seconds without overlap, which are nearest to real steps."""
    return sum(f['serial_seconds'] for f in self.phases.values())

  def recipe(self) -> str:
    """Returns the settings as lines of a recipe."""
    c, name = self.config, self.config.stages[-1]
    keys = ['micro_batches', 'logprob_chunk']
    keys += ['parts', 'padding'] if name == 'rl' else []
    values = [f'{key}={c[name][key]!r}' for key in keys]
    return '\n'.join(
      [
        f'c.mesh = {tuple(c.mesh)}',
        f'c.model.update(remat={c.model.remat!r})',
        f'c.{name}.update({", ".join(values)})',
      ]
    )


def asked(only: Sequence[str], name: str, path: str) -> list[str]:
  """Returns the phases that are fitted: generation and updates.

  Raises:
    ValueError: --only has none of them.
  """
  in_python = ['generate', 'update'] if path == 'host' else ['step']
  names = in_python if name == 'rl' else [name]
  wanted = [n for n in names if n in (only or names)]
  if not wanted:
    fitted = ' and '.join(names)
    raise ValueError(f'--only={",".join(only)}: --search fits {fitted}')
  return wanted


def lean(config: Run, mesh: Sequence[int]):
  """Returns the recipe on a mesh, undivided, with small chunks of logits."""
  name = config.stages[-1]
  values = {f'{name}__micro_batches': 1, 'mesh': tuple(mesh)}
  values[f'{name}__logprob_chunk'] = config[name].logprob_chunk or CHUNK
  if name == 'rl':
    values['rl__parts'] = 1
  return config.changed(**values)


def _rows(section: Training, shards: int) -> int:
  """Counts the rows of a step on one device."""
  return max(section.rows // shards, 1)


def counts(config: Run, key: str, shards: int) -> list[int]:
  """Lists the values of a key that divides a device's rows, in rising order."""

  def passes(n: int) -> bool:
    try:
      config_checks.check(config.changed(**{key: n}), shards)
    except ValueError:
      return False
    return True

  rows = _rows(config.training(config.stages[-1]), shards)
  return [n for n in range(1, rows + 1) if rows % n == 0 and passes(n)]


def _cache(parts: Prepared) -> float:
  """Counts the bytes of keys and values of all rows of a device. A group's
  samples share the keys of their prompt.
  """
  config, shape, mesh = parts.config, parts.shape, parts.mesh
  d, kept = config.data, 0.0
  dtype = shape.dtype if shape.cache_dtype == 'model' else shape.cache_dtype
  item = jnp.dtype(dtype).itemsize
  scale = 4 * (dtype == 'int8')  # bytes per head and token
  for (stack, _), window in zip(shape.stack_of_layer, shape.layer_windows):
    prompt = cache.within(d.prompt_len, window) / config.rl.samples
    tokens = prompt + cache.within(d.completion_len, window)
    sizes = (n * (width * item + scale) for n, width in shape.cached(stack))
    kept += tokens * sum(sizes)
  rows = _rows(config.rl, sharding.row_shards(mesh))
  return rows * kept / mesh.shape['tensor']


def _activations(parts: Prepared) -> float:
  """Counts the bytes of activations of a device's rows of a minibatch."""
  config, mesh, shape = parts.config, parts.mesh.shape, parts.shape
  length = config.prompt_columns + config.data.completion_len
  shape = dataclasses.replace(shape, remat=config.model.remat)
  kept = remat.kept_bytes(shape, length) / mesh['context']
  kept *= 1 - SPLIT + SPLIT / mesh['tensor']
  name = config.stages[-1]
  rows = _rows(config.training(name), sharding.row_shards(parts.mesh))
  return rows * kept / (config.rl.minibatches if name == 'rl' else 1)


def _least(
  planner, found: Found, key: str, phase: str, *, need, room, tries=None, end=0
) -> Found | None:
  """Finds the least value of a key with which a phase fits.

  Args:
    need: bytes that the value divides; room: available bytes.
    tries: most values to try, from where need fits room; None: all.
    end: the values are below it; 0: all.
  """
  config = found.config
  shards = sharding.row_shards(planner.parts(config).mesh)
  values = counts(config, key, shards)
  begin = next((i for i, v in enumerate(values) if need / v <= room), -1)
  for value in values[begin:][:tries]:
    if end and value >= end:
      return None
    changed = config.changed(**{key: value})
    planner.say(f'{key.replace("__", ".")}={value}')
    (facts,) = planner.facts_of(planner.parts(changed), (phase,))
    if facts['fits']:
      return Found(changed, found.phases | {phase: facts})
  return None


def _room(hbm: float, parts: Prepared) -> tuple[float, float]:
  """Computes the bytes of a device left for (a cache, activations) beside the
  state: without the weights that decoding reads, and without the gradients.

  Args:
    hbm: bytes of a device's memory.
  """
  state = phases.last_state(parts)
  room = hbm - described.on_chip(state)
  trained, _ = trees.split(state.params, parts.config.trained_paths)
  return room - _gathered(parts), room - described.on_chip(trained)


def _gathered(parts: Prepared) -> int:
  """Counts the bytes of a device that `decode_params` adds: weights
  that it casts or gathers. It does neither with experts in the compute dtype,
  and does not cast int8 weights.
  """
  specs, mesh = parts.model.specs, parts.mesh

  def added(spec, own, read) -> int:
    dtype = 'int8' if spec.dtype == 'int8' else parts.shape.dtype
    shape = read.shard_shape(spec.shape)
    same = dtype == spec.dtype and shape == own.shard_shape(spec.shape)
    return 0 if same else math.prod(shape) * jnp.dtype(dtype).itemsize

  rules = sharding.TRAIN_RULES, sharding.DECODE_RULES
  where = (sharding.shardings(specs, mesh, r) for r in rules)
  return sum(jax.tree.leaves(jax.tree.map(added, specs, *where)))


def _trained(planner, found: Found, end=0, **changes) -> Found | None:
  """Returns the settings under which the update fits, with the fewest
  micro-batches, below `end` unless it is 0.
  """
  config = found.config.changed(**changes)
  found = Found(config, found.phases)
  parts, name = planner.parts(config), config.stages[-1]
  phase = asked(planner.only, name, config.rl.path)[-1]
  _, room = _room(ROOM * planner.machine.chip.hbm, parts)
  planner.say(f'model.remat={config.model.remat}')
  how = dict(need=_activations(parts), room=room, end=end)
  if config.model.remat != POLICIES[-1]:
    how['tries'] = TRIES
  return _least(planner, found, f'{name}__micro_batches', phase, **how)


def fitting(planner, config: Run, limit: float = math.inf) -> Found | None:
  """Finds settings with which a recipe fits its mesh; settings with less
  recomputation are tried first.

  Args:
    planner: `plan.Planner`; config: of `lean`.
    limit: seconds of a step.

  Raises:
    TooSlow: generation alone takes longer than the limit.
  """
  made, name = Found(config, {}), config.stages[-1]
  names = asked(planner.only, name, config.rl.path)
  parts = planner.parts(config)
  has = planner.machine.chip.hbm
  of_cache, of_update = _room(has, parts)
  left = [of_cache] * (names[0] in ('generate', 'step'))
  left += [of_update] * (names != ['generate'])
  if min(left) < 0:  # the memory that all settings need does not fit
    return None
  if names != ['generate'] and not _can_train(planner, parts):
    return None
  if 'generate' in names:
    of_cache, _ = _room(ROOM * has, parts)
    how = dict(need=_cache(parts), room=of_cache)
    made = _least(planner, made, 'rl__parts', 'generate', **how)
  if names == ['generate'] or made is None:
    return made
  if made.seconds > limit:
    raise TooSlow(f'generation alone takes {made.seconds:.3g} s')
  for policy in POLICIES:
    if found := _trained(planner, made, model__remat=policy):
      return found
  return None


def _can_train(planner, parts: Prepared) -> bool:
  """Returns whether an update may fit: by arithmetic, or else, because the
  arithmetic is not exact, by compiling the settings that need least memory.
  """
  config, name = parts.config, parts.config.stages[-1]
  key, shards = f'{name}__micro_batches', sharding.row_shards(parts.mesh)
  most = counts(config, key, shards)[-1]
  least = {'model__remat': POLICIES[-1], key: most}
  parts = planner.parts(config.changed(**least))
  _, room = _room(ROOM * planner.machine.chip.hbm, parts)
  if _activations(parts) / most <= room:
    return True
  planner.say(f'model.remat={POLICIES[-1]}, {name}.micro_batches={most}')
  phase = asked(planner.only, name, config.rl.path)[-1]
  (facts,) = planner.facts_of(parts, (phase,))
  return facts['fits']


def completed(planner, found: Found) -> Found:
  """Adds the phases of a step that have no settings of their own, such as
  scoring, or computes them again.

  Raises:
    DoesNotFit: one of them has no room.
  """
  config, has = found.config, planner.machine.chip.hbm
  parts = planner.parts(config)
  names = phases.of_a_step(p.name for p in phases.phases(parts))
  wanted = [n for n in names if n in (planner.only or names)]
  fitted = asked(planner.only, config.stages[-1], config.rl.path)
  each = dict(found.phases)
  for name in wanted:
    if name not in fitted:
      (facts,) = planner.facts_of(parts, (name,))
      if not facts['fits']:
        needs = facts['needs_gib'] * chips.GIB
        raise described.DoesNotFit(name, needs, has)
      each[name] = facts
  return Found(config, {name: each[name] for name in wanted})


def faster(planner, found: Found) -> Found:
  """Tries more recomputation with fewer micro-batches, and then one copy of a
  group's prompt. With as many micro-batches, more recomputation is slower.
  """
  name, best = found.config.stages[-1], found
  if asked(planner.only, name, best.config.rl.path) == ['generate']:
    return found
  whole = {f'{name}__micro_batches': 1}

  def better(**changes) -> Found:
    try:
      new = _trained(planner, best, **whole | changes)
    except jax.errors.JaxRuntimeError as e:  # a defect of the compiler
      planner.say(f'left out, because XLA cannot compile it: {str(e):.120}')
      return best
    return new if new and new.seconds < best.seconds else best

  after = POLICIES.index(found.config.model.remat) + 1
  for policy in POLICIES[after:]:
    batches = best.config[name].micro_batches
    if batches == 1:
      break
    best = better(model__remat=policy, end=batches)
  if name == 'rl' and best.config.rl.padding == 'whole':
    best = better(rl__padding=SHARED)
  return best


def estimated(
  config: Run,
  hbm: float,
  shape: Sequence[int] = (1, 1, 1),
  devices: Sequence[jax.Device] = (),
) -> tuple[Run, float] | None:
  """Chooses settings of a mesh by arithmetic alone, for devices whose compiler
  is not at hand; returns them and the bytes that a device needs, without the
  share that `ROOM` keeps free. None: they do not fit.

  Args:
    hbm: bytes of a device's memory.
    shape: of the mesh; devices: of it, or (): one.
  """
  mesh = sharding.make_mesh(shape, devices or jax.devices()[:1])
  made = lean(config, shape)
  parts, shards = abstract.shapes(made, mesh), sharding.row_shards(mesh)
  of_cache, of_update = _room(ROOM * hbm, parts)
  cached = _cache(parts)
  if config.rl.path == 'host':
    made = _first(made, 'rl__parts', cached, of_cache, shards)
  for policy in POLICIES * (made is not None):
    made = made.changed(model__remat=policy)
    need = _activations(abstract.shapes(made, mesh)) + _logits(parts)
    key = f'{made.stages[-1]}__micro_batches'
    if found := _first(made, key, need, of_update, shards):
      left = min(
        of_cache - cached / found.rl.parts,
        of_update - need / found.rl.micro_batches,
      )
      return found, ROOM * hbm - left
  return None


def _first(
  config: Run, key: str, need: float, room: float, shards: int
) -> Run | None:
  """Returns the recipe with the least value of a key that divides `need` bytes
  to fit the room.
  """
  values = (n for n in counts(config, key, shards) if need / n <= room)
  n = next(values, 0)
  return config.changed(**{key: n}) if n else None


def _logits(parts: Prepared) -> float:
  """Counts the bytes of a chunk of logits of a device's rows, and of its
  gradient, in float32.
  """
  rl = parts.config.rl
  rows = _rows(rl, sharding.row_shards(parts.mesh))
  return rows * rl.logprob_chunk * parts.shape.vocab * 8
