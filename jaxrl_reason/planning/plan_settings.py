"""Settings of memory that a recipe need not name, found by compiling it.

  lean(config, mesh)       -> the recipe there, nothing divided
  fitting(planner, config) -> Found: what fits its mesh, or None
  faster(planner, found)   -> Found: the same, or what is faster

Set are the parts that a batch is generated in, what the backward pass computes
again (`model.remat`), the micro-batches, the logits alive at once, and whether
the samples of a problem share one copy of their prompt (`rl.padding`). Where to
begin is by arithmetic; what fits, and its seconds, are of the compiled program.
Not tried: activations in the hosts' memory. A layer's products take longer over
a host's link than to be computed again (docs/plan.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.models import remat
from jaxrl_reason.models.parts import layers
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import phases, search
from jaxrl_reason.run.checks import config_checks

# The least computed again first. 'none' would keep five times what 'dots' does,
# for 2 % of the FLOPs.
POLICIES = tuple(layers.REMAT)
CHUNK = 256  # columns of logits
ROOM = 0.8  # of a chip's memory, for what arithmetic knows of
# Of activations, the share that heads and mlps have, and a tensor axis splits.
SPLIT = 0.6
TRIES = 3  # compilations of one policy but the last, each of fewer rows
SHARED = 'shared:1'


@dataclasses.dataclass(frozen=True)
class Found:
  """A recipe that fits: its config, and the facts of its phases by name."""

  config: ml_collections.ConfigDict
  phases: dict[str, dict]

  @property
  def seconds(self) -> float:
    """Counts a step with nothing overlapping: real steps were nearest to it."""
    return sum(f['serial_seconds'] for f in self.phases.values())

  def recipe(self) -> str:
    """Writes what was set as lines of a recipe."""
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


def asked(planner, config) -> list[str]:
  """Names the phases that are fitted: those that generate, and learn.

  Raises:
    ValueError: --only names none of them.
  """
  name = config.stages[-1]
  in_python = ['generate', 'update'] if config.rl.path == 'host' else ['step']
  names = in_python if name == 'rl' else [name]
  wanted = [n for n in names if n in (planner.only or names)]
  if not wanted:
    only = ','.join(planner.only)
    raise ValueError(f'--only={only}: --search fits {" and ".join(names)}')
  return wanted


def lean(config: ml_collections.ConfigDict, mesh: Sequence[int]):
  """Returns the recipe on a mesh, undivided, with few logits at once."""
  name = config.stages[-1]
  values = {f'{name}__micro_batches': 1, 'mesh': tuple(mesh)}
  values[f'{name}__logprob_chunk'] = config[name].logprob_chunk or CHUNK
  if name == 'rl':
    values['rl__parts'] = 1
  return search.changed(config, **values)


def _rows(config: Any, shards: int) -> int:
  """Those of a step on one device."""
  c = config[config.stages[-1]]
  rows = c.prompts * c.samples if config.stages[-1] == 'rl' else c.rows
  return max(rows // shards, 1)


def counts(config: Any, key: str, shards: int) -> list[int]:
  """Lists the values, rising, of a key that a device's rows are divided by."""

  def passes(n: int) -> bool:
    try:
      config_checks.check(search.changed(config, **{key: n}), shards)
    except ValueError:
      return False
    return True

  rows = _rows(config, shards)
  return [n for n in range(1, rows + 1) if rows % n == 0 and passes(n)]


def _cache(config: Any, run: Any) -> float:
  """Bytes of keys and values of all rows of a device."""
  d, shape, mesh = config.data, run.shape, run.mesh
  numbers = sum(heads * width for heads, width in shape.cached)
  tokens = d.prompt_len / config.rl.samples + d.completion_len
  kept = 2 * tokens * shape.layers * numbers / mesh.shape['tensor']
  return _rows(config, sharding.row_shards(mesh)) * kept


def _activations(config: Any, run: Any) -> float:
  """Bytes that a device's rows keep for the gradient of a minibatch."""
  mesh, shape = run.mesh.shape, run.shape
  length = config_lib.prompt_room(config) + config.data.completion_len
  shape = dataclasses.replace(shape, remat=config.model.remat)
  kept = remat.kept_bytes(shape, length) / mesh['context']
  kept *= 1 - SPLIT + SPLIT / mesh['tensor']
  several = config.rl.minibatches if config.stages[-1] == 'rl' else 1
  return _rows(config, sharding.row_shards(run.mesh)) * kept / several


def _least(
  planner, config, key: str, phase: str, *, need, room, tries=None
) -> Found | None:
  """Finds the least value of a key with which a phase fits.

  Args:
    need: bytes that the value divides; room: for them.
    tries: values, at most, from where need meets room; None: all.
  """
  shards = sharding.row_shards(planner.parts(config).mesh)
  values = counts(config, key, shards)
  begin = next((i for i, v in enumerate(values) if need / v <= room), -1)
  for value in values[begin:][:tries]:
    changed = search.changed(config, **{key: value})
    planner.say(f'{key.replace("__", ".")}={value}')
    (facts,) = planner.facts_of(changed, planner.parts(changed), (phase,))
    if facts['fits']:
      return Found(changed, {phase: facts})
  return None


def _room(planner, config, run) -> tuple[float, float]:
  """Bytes of a device that are left for (a cache, activations), nearly."""
  state = phases.phases(config, run)[-1].state
  room = ROOM * planner.machine.chip.hbm - described.on_chip(state)
  weights = 2 * trees.n_params(state.params) / run.mesh.shape['tensor']
  # Gradients, and their sum over micro-batches.
  return room - weights, room - 2 * described.on_chip(state.params)


def _trained(planner, config, **changes) -> Found | None:
  """Returns the settings under which the update fits, with the fewest
  micro-batches.
  """
  config = search.changed(config, **changes)
  run, name = planner.parts(config), config.stages[-1]
  room, phase = _room(planner, config, run)[1], asked(planner, config)[-1]
  planner.say(f'model.remat={config.model.remat}')
  how = dict(need=_activations(config, run), room=room)
  if config.model.remat != POLICIES[-1]:
    how['tries'] = TRIES
  return _least(planner, config, f'{name}__micro_batches', phase, **how)


def fitting(planner, config) -> Found | None:
  """Finds settings with which a recipe fits its mesh, of those that compute
  less again first.

  Args:
    planner: `plan.Planner`; config: of `lean`.
  """
  made, names = Found(config, {}), asked(planner, config)
  run = planner.parts(config)
  of_cache, of_update = _room(planner, config, run)
  left = of_cache if names == ['generate'] else min(of_cache, of_update)
  if left < 0:  # weights and optimizer alone are too much
    return None
  if 'generate' in names:
    how = dict(need=_cache(config, run), room=of_cache)
    made = _least(planner, config, 'rl__parts', 'generate', **how)
  if names == ['generate'] or made is None:
    return made
  for policy in POLICIES:
    if found := _trained(planner, made.config, model__remat=policy):
      return Found(found.config, made.phases | found.phases)
  return None


def faster(planner, found: Found) -> Found:
  """Tries what computes more again in fewer micro-batches, and then one copy
  of a group's prompt.
  """
  name, best = found.config.stages[-1], found
  if asked(planner, found.config) == ['generate']:
    return found
  whole = {f'{name}__micro_batches': 1}

  def better(**changes) -> Found:
    new = _trained(planner, best.config, **whole | changes)
    new = new and Found(new.config, best.phases | new.phases)
    return new if new and new.seconds < best.seconds else best

  after = POLICIES.index(found.config.model.remat) + 1
  for policy in POLICIES[after:]:
    best = better(model__remat=policy)
  if name == 'rl' and best.config.rl.padding == 'whole':
    best = better(rl__padding=SHARED)
  return best
