"""Compiles a recipe for described chips: memory, traffic and time of a step."""

import functools
import math
import operator
from collections.abc import Sequence

import jax

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding
from jaxrl_reason.models import spec, weights
from jaxrl_reason.planning import (
  abstract,
  advice,
  compiled_buffers,
  depth,
  mesh_search,
  phases,
  plan_table,
  roofline,
  second_models,
  seeds,
  split_plan,
  split_search,
)
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import plan_settings as settings
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.process import chips

# Largest batch to try, as a multiple of the recipe's.
MOST = 16
# Flags without effect on a plan of --seeds, or of --splits.
BESIDE_SEEDS = 'search only by_depth code nolargest splits'.split()
BESIDE_SPLITS = 'search only nolargest'.split()
FEW = 2  # number of fastest meshes for which more settings are tried


class Planner:
  """Plans recipes on a described machine.

  Attributes:
    code: compile programs to the end, not only to their buffers.
    say: prints lines about progress.
  """

  def __init__(
    self,
    config,
    topology: str,
    *,
    slices: int,
    model: str,
    only=(),
    by_depth: bool = False,
    code: bool = False,
    say=print,
  ):
    self.config, self.model, self.say = config, model, say
    self.only, self.by_depth = tuple(only), by_depth
    abstract.zoo_name(config.model_dir, model)  # refuses an unknown name
    self.devices = described.devices(topology, slices)
    self.topology, self.code, self._found = topology, code, {}
    self.machine = roofline.Machine(
      chips.chip_of(topology), chips.torus_of(topology), slices
    )

  def parts(self, config, layers: int = 0):
    """Makes the abstract `prepare.Prepared` of a recipe on these devices.

    Args:
      layers: of the model; 0: all.
    """
    if not config.sampler_mesh:
      mesh = sharding.make_mesh(config.mesh, self.devices)
      return abstract.shapes(config, mesh, self.model, layers)
    shapes = config.mesh, config.sampler_mesh
    mesh, sampler = split_plan.meshes(*shapes, self.topology, self.devices)
    parts = abstract.shapes(config, mesh, self.model, layers)
    return parts._replace(sampler_mesh=sampler)

  def plan(self) -> dict:
    """Returns the facts of the recipe as it is."""
    parts = self.parts(self.config)
    names = [p.name for p in split_plan.all_phases(parts)]
    unknown = set(self.only) - set(names)
    if unknown:
      raise ValueError(f'--only={sorted(unknown)}: the phases are {names}')
    wanted = [n for n in names if n in (self.only or names)]
    each = self.facts_of(parts, wanted)
    facts = plan_table.plan_facts(
      self.config, parts.mesh, each, names, self.machine
    )
    if phases.EVALUATE in wanted:
      given = self.config, parts.mesh, each
      facts['evaluation'] = plan_table.evaluation_facts(*given)
    if parts.sampler_mesh is not None:
      facts |= split_plan.facts(each, parts, self.machine, self.devices)
      facts['one_mesh'] = self.one_mesh(parts)
    at = self._depths(parts.shape)
    if len(at) > 1:
      facts |= {'depths': at, 'layers': parts.shape.layers}
    return facts

  def one_mesh(self, parts) -> dict:
    """Returns the facts of a step of the same recipe on one mesh of all
    devices, whose data axis is longer; {'why'}: it cannot be.
    """
    mesh = (-1, *parts.config.mesh[1:])
    try:
      one = self.parts(parts.config.changed(sampler_mesh=(), mesh=mesh))
      each = self.facts_of(one, (split_plan.WHOLE,))
    except ValueError as e:
      return {'why': str(e)}
    given = one.config, one.mesh, each, (split_plan.WHOLE,), self.machine
    found = plan_table.plan_facts(*given)
    if 'step_seconds' not in found:
      return {'why': f'needs {each[0]["needs_gib"]:.1f} GiB a chip'}
    return {k: found[k] for k in ('mesh', 'step_seconds', 'serial_seconds')}

  def _depths(self, shape) -> tuple[int, ...]:
    """Returns the numbers of layers to compile."""
    return depth.depths(shape) if self.by_depth else (shape.layers,)

  def facts_of(self, parts, names) -> list[dict]:
    """Returns the facts of some phases of a recipe, at its own depth.

    Args:
      parts: of the recipe (`parts`); names: of phases.
    """
    layers, out = parts.shape.layers, []

    @functools.cache
    def made(n: int) -> dict:
      run = parts if n == layers else self.parts(parts.config, n)
      return {p.name: (p, run) for p in split_plan.all_phases(run)}

    at = self._depths(parts.shape)
    for name in names:
      seen = [self._facts(*made(n)[name]) for n in at]
      facts = depth.extended(seen, at, layers)
      needs, has = facts['needs_gib'] * chips.GIB, self.machine.chip.hbm
      facts['fits'] = needs <= has
      if not facts['fits']:
        facts['remedy'] = second_models.remedy(
          parts.config.rl, facts, has / chips.GIB
        )
        wrong = described.DoesNotFit(facts['phase'], needs, has)
        self.say(f'{wrong}{facts["remedy"]}')
      out.append(facts)
    return out

  def _facts(self, phase: phases.Phase, parts) -> dict:
    """Returns the facts of `_compiled`; a search may need them again."""
    key = phase.name, parts.shape.layers, repr(parts.config)
    if key not in self._found:
      self._found[key] = self._compiled(phase, parts)
    return self._found[key]

  def _compiled(self, phase: phases.Phase, parts) -> dict:
    """Returns the facts of a phase at the depth of `parts`."""
    mesh = phase.mesh or parts.mesh
    given = phase, mesh, parts.shape.experts
    try:
      if self.code:
        found = described.measure(*given)
      else:
        args = parts.config.to_dict(), self.topology, self.machine.slices
        args = *args, self.model, parts.shape.layers, phase.name
        found = compiled_buffers.measure(lowered, args, *given)
    except described.DoesNotFit as e:
      return plan_table.no_room(e, phase.state)
    except compiled_buffers.NotBuilt as e:
      self.say(
        'compiling to the end, which takes longer, as another process could '
        f'not build this program: {str(e):.80}'
      )
      self.code = True
      return self._compiled(phase, parts)
    what = f'{phase.name} ({parts.shape.layers} layers)'
    self.say(f'{what}: compiled in {found.compile_s:.0f} s')
    return plan_table.phase_facts(found, self.machine, mesh)

  def largest(self, facts: dict) -> int:
    """Finds the most prompts with which every phase of a step fits.

    Args:
      facts: of the plan; only its phases are tried.
    """
    wanted = phases.of_rl(p['phase'] for p in facts['phases'])
    inside = [p for p in facts['phases'] if p['phase'] in wanted]
    start, room = facts['prompts'], self.machine.chip.hbm

    def needs(prompts: int) -> float:
      found = inside
      if prompts != start:
        self.say(f'trying {prompts} prompts')
        try:
          parts = self.parts(self.config.changed(rl__prompts=prompts))
        except ValueError as e:  # another setting limits the batch
          self.say(str(e))
          return math.inf
        found = self.facts_of(parts, wanted)
      return max(p['needs_gib'] for p in found) * chips.GIB

    parts = self.parts(self.config)
    meshes = [m for m in (parts.mesh, parts.sampler_mesh) if m is not None]
    shards = math.lcm(*map(sharding.row_shards, meshes))
    unit = mesh_search.unit_of_prompts(self.config.rl, shards)
    return mesh_search.largest(needs, room, start, unit, MOST * start)

  def search(self) -> list[dict]:
    """Plans the recipe on every mesh shape, with settings that fit. The fastest
    mesh is first. Meshes that do not fit, or of which generation alone is
    slower than a step of an earlier mesh, come last.
    """
    lean = settings.lean(self.config, self.config.mesh)
    # Refuses --only of other phases.
    settings.asked(self.only, lean.stages[-1], lean.rl.path)
    n_tokens = 0  # read only for the sizes of a recipe
    if not self.model and not lean.model_dir:
      n_tokens = abstract.texts(lean.data, lean.seed)[1].vocab_size
    sizes = lean.model, lean.model_dir, self.model, n_tokens
    shape, n = abstract.shape_of(*sizes), len(self.devices)
    # Weights, moments and gradients, 16 bytes each, take less than a quarter.
    small = 64 * spec.n_params(weights.specs(shape)) < self.machine.chip.hbm
    given = lean, n, shape.kv_heads, self.machine.slices, small
    found, failed = [], []
    # The largest tensor axis first: it reads the fewest weights for a token.
    for mesh in sorted(mesh_search.meshes(*given), key=lambda m: -m[2]):
      self.say(f'mesh {mesh}')
      config = settings.lean(self.config, mesh)
      limit = min((f.seconds for f in found), default=math.inf)
      try:
        made, why = settings.fitting(self, config, limit), 'does not fit'
        made = made and settings.completed(self, made)
      except ValueError as e:  # too slow, does not divide, or does not fit
        made, why = None, str(e)
      if made:
        found.append(made)
      else:
        failed.append({'mesh': mesh, 'why': why})
    if not found and not failed:
      raise ValueError(
        f'--search: the rows of a step divide over no mesh of {n} devices; '
        'change rl.prompts, or rows of a supervised stage'
      )
    found.sort(key=operator.attrgetter('seconds'))
    few = [self._faster(made) for made in found[:FEW]]
    few.sort(key=operator.attrgetter('seconds'))
    return [self.told(f) for f in few + found[FEW:]] + failed

  def _faster(self, made: settings.Found) -> settings.Found:
    """Returns the same settings, or faster ones with which all phases fit."""
    best = settings.faster(self, made)
    if best is made:
      return made
    try:
      best = settings.completed(self, best)
    except described.DoesNotFit:
      return made
    return min(made, best, key=operator.attrgetter('seconds'))

  def told(self, found: settings.Found) -> dict:
    """Returns the facts of the settings that a search found."""
    parts = self.parts(found.config)
    each, names = list(found.phases.values()), list(found.phases)
    facts = plan_table.plan_facts(
      found.config, parts.mesh, each, names, self.machine
    )
    return facts | {'recipe': found.recipe()}


def lowered(
  values: dict, topology: str, slices: int, model: str, layers: int, name: str
) -> jax.stages.Lowered:
  """Lowers a phase of a recipe for described devices, in any process.

  Args:
    values: of the config; layers: of the model; name: of the phase.
  """
  config = config_lib.read_record(values, config_lib.Run)
  planner = Planner(config, topology, slices=slices, model=model)
  parts = planner.parts(config, layers)
  phase = {p.name: p for p in split_plan.all_phases(parts)}[name]
  return phase.lower(phase.mesh or parts.mesh)


def misfits(facts: dict) -> str:
  """Describes the phases that do not fit, with their memory."""
  if 'meshes' in facts:
    return '--search: the recipe fits none of these meshes'
  if 'splits' in facts:
    return '--splits: the recipe fits none of these splits'
  has = facts['hbm_gib']
  return '; '.join(
    f'{p["phase"]} does not fit: needs {p["needs_gib"]:.2f} of {has:.2f} GiB a '
    f'chip{p.get("remedy", "")}'
    for p in facts['phases']
    if not p['fits']
  )


def ranking(found: list[dict]) -> str:
  """Returns the result of a search as a table, and the best as a recipe."""
  lines = [
    f'{"data":>5} {"fsdp":>5} {"tensor":>6} {"seconds":>10} {"alone":>10} '
    f'{"MFU":>5} {"GiB":>6}'
  ]
  for f in found:
    mesh = f['mesh'].values() if isinstance(f['mesh'], dict) else f['mesh']
    data, fsdp, tensor = tuple(mesh)[:3]
    said = f.get('why') or (
      f'{f["step_seconds"]:10.3g} {f["serial_seconds"]:10.3g} {f["mfu"]:5.2f} '
      f'{max(p["needs_gib"] for p in f["phases"]):6.1f}'
    )
    lines.append(f'{data:5} {fsdp:5} {tensor:6} {said}')
  lines.append('seconds if all overlaps, alone if nothing does')
  if 'recipe' in found[0]:
    lines += ['', 'the first, in a recipe:', found[0]['recipe']]
  return '\n'.join(lines)


def _counts(flag: str, texts) -> list[int]:
  """Parses the numbers of a flag, in rising order."""
  if not all(text.isdecimal() and int(text) for text in texts):
    raise ValueError(f'{flag}={",".join(texts)}: whole numbers from 1')
  return sorted({int(text) for text in texts})


def _refuse_beside(flag: str, unread: Sequence[str], **flags) -> None:
  """Refuses the flags that have no effect on a plan of another flag."""
  given = [f'--{name}' for name in unread if flags.get(name)]
  if given:
    raise ValueError(
      f'{", ".join(given)} has no effect with {flag}, which compiles the step '
      'of the recipe as it is; leave one of them out'
    )


def _of_stage(stages: Sequence[staging.Planned], name: str, say):
  """Returns the config of the planned stages: one, or the last of each kind."""
  if name:
    return staging.one(stages, name)
  last = {p.kind: p.name for p in stages}
  others = [p.name for p in stages if p.name != last[p.kind]]
  if others:
    told = ', '.join(last.values())
    say(f'stages {told}; --stage=NAME plans another: {", ".join(others)}')
  return staging.last_of_each_kind(stages)


def run(
  config, topology: str, *, say, show=print, **options
) -> tuple[str, dict]:
  """Returns a plan as (text, data).

  Args:
    show: prints the text that is complete before the search for the largest
      batch, which takes as long again; it is not returned.
    options: model, slices, only, by_depth, code, search, largest, stage,
      seeds, splits: the flags.

  Raises:
    ValueError, ImportError: with a message for the user.
  """
  search_, largest = options.pop('search'), options.pop('largest')
  config = _of_stage(staging.each(config), options.pop('stage', ''), say)
  teacher = abstract.sized_teacher(config.rl.teacher.weights)
  config = config.changed(rl__teacher__weights=teacher)
  counts = _counts('--seeds', options.pop('seeds', ()))
  splits = _counts('--splits', options.pop('splits', ()))
  flags = dict(search=search_, nolargest=not largest, splits=splits, **options)
  if counts:
    _refuse_beside('--seeds', BESIDE_SEEDS, **flags)
  if splits:
    _refuse_beside('--splits', BESIDE_SPLITS, **flags)
  planner = Planner(config, topology, say=say, **options)
  if splits:
    found = split_search.compared(planner, splits)
    return split_search.table(found), found
  if counts:
    parts = planner.parts(config)
    found = seeds.facts_of(parts, counts, planner.machine, say)
    return seeds.table(found), {'seeds': found}
  if search_:
    found = planner.search()
    return ranking(found), {'meshes': found, 'fits': 'why' not in found[0]}
  facts = planner.plan()
  sections = {kind: config.training(kind) for kind in config.stages}
  facts['advice'] = advice.lines(sections, config.model.remat, facts)
  steps = phases.of_rl(p['phase'] for p in facts['phases'])
  text = plan_table.table(facts)
  if largest and facts['prompts'] and steps:
    show(text)
    say('searching for the largest batch that fits; --nolargest leaves it out')
    facts['largest_prompts'] = planner.largest(facts)
    text = plan_table.largest_batch(facts)
  return text, facts
