"""Plans a recipe: what it needs and does on chips that nobody has here.

  python -m jaxrl_reason.plan --config=X.py --topology=v5p:4x4x4
    [--num_slices=2] [--model=qwen3-8b] [--search] [--only=generate,update]
    [--json=FILE] [--config.rl.samples=16 ...]

The recipe's own programs (generate, score, update, or the fused step) are
built from shapes alone and compiled by the real TPU compiler for a described
topology: the extra `tpu` gives it, no TPU is needed. One table says whether
they fit, what moves between the chips, and the least time a step can take.
Weights are never read: a model on the Hub has the size that `models/zoo.py`
knows by its name. docs/plan.md works an example.
"""

import json
import operator
import pathlib
import sys

from absl import app, flags, logging

from jaxrl_reason import command, sharding
from jaxrl_reason.planning import (
  abstract,
  advice,
  described,
  phases,
  report,
  roofline,
  search,
)
from jaxrl_reason.run import chips

_CONFIG = command.define_recipe()
_TOPOLOGY = flags.DEFINE_string(
  'topology', None, 'Chip and torus of a slice: v5e:4x4, v5p:4x4x4, ...'
)
_SLICES = flags.DEFINE_integer(
  'num_slices', 1, 'Slices, joined by the data axis of the mesh.'
)
_MODEL = flags.DEFINE_string(
  'model', '', "A name in models/zoo.py, in place of the recipe's model."
)
_SEARCH = flags.DEFINE_bool('search', False, 'Try mesh shapes and rank them.')
_LARGEST = flags.DEFINE_bool(
  'largest', True, 'Look for the largest batch that fits (compiles more).'
)
_ONLY = flags.DEFINE_list(
  'only', [], 'Phases to compile (generate, score, update, ...); all if none.'
)
_JSON = flags.DEFINE_string(
  'json', None, 'File for the same as data; -: print it in place of the table.'
)

# Batches tried, at most this many times the recipe's.
MOST = 16


class Planner:
  """A recipe on a described machine; `say` gets lines about progress."""

  def __init__(
    self, config, topology: str, *, slices: int, model: str, only=(), say=print
  ):
    self.config, self.model, self.say = config, model, say
    self.only = tuple(only)
    self.devices = described.devices(topology, slices)
    self.machine = roofline.Machine(
      chips.chip_of(topology), roofline.torus_of(topology), slices
    )

  def parts(self, config):
    """Makes the abstract `prepare.Prepared` of a recipe on these devices."""
    mesh = sharding.make_mesh(config.mesh, self.devices)
    return abstract.shapes(config, mesh, self.model)

  def compiled(self, config, parts, names: tuple[str, ...] = ()) -> list:
    """Compiles a recipe's phases; only those named, if any.

    Raises:
      DoesNotFit: one of them needs more than the chips have.
    """
    out = []
    made = {p.name: p for p in phases.phases(config, parts)}
    unknown = set(names) - made.keys()
    if unknown:
      raise ValueError(f'--only={sorted(unknown)}: the phases are {[*made]}')
    hbm, experts = self.machine.chip.hbm, parts.shape.experts
    for phase in [made[n] for n in names or made]:
      out.append(described.measure(phase, parts.mesh, hbm, experts))
      self.say(f'{phase.name}: compiled in {out[-1].compile_s:.0f} s')
    return out

  def plan(self, config) -> dict:
    """Returns the facts of a recipe as it is."""
    parts = self.parts(config)
    found = self.compiled(config, parts, self.only)
    return report.plan_facts(config, parts.mesh, found, self.machine)

  def largest(self, facts: dict) -> int:
    """Finds the most prompts that fit, by the phase that needs most."""
    inside = [p for p in facts['phases'] if p['phase'] not in phases.SUPERVISED]
    top = max(inside, key=operator.itemgetter('needs_gib'))
    start, room = facts['prompts'], self.machine.chip.hbm

    def needs(prompts: int) -> float:
      if prompts == start:
        return top['needs_gib'] * chips.GIB
      self.say(f'trying {prompts} prompts')
      config = search.changed(self.config, rl__prompts=prompts)
      try:
        found = self.compiled(config, self.parts(config), (top['phase'],))
        return found[0].needs
      except described.DoesNotFit as e:
        self.say(str(e))
        return e.needs

    shards = facts['mesh']['data'] * facts['mesh']['fsdp']
    unit = search.unit_of_prompts(self.config, shards)
    return search.largest(needs, room, start, unit, MOST * start)

  def search(self) -> list[dict]:
    """Plans the recipe on every mesh shape: the fastest first, then what
    fails.
    """
    kv_heads = self.parts(self.config).shape.kv_heads
    found = []
    for mesh in search.meshes(
      self.config, len(self.devices), kv_heads, self.machine.slices
    ):
      self.say(f'mesh {mesh}')
      try:
        facts = self.plan(search.changed(self.config, mesh=mesh))
      except ValueError as e:  # does not divide, or does not fit
        found.append({'mesh': mesh, 'why': str(e)})
        continue
      found.append({'mesh': mesh, **facts})
    return sorted(found, key=lambda f: -f.get('tokens_per_s', 0))


def ranking(found: list[dict]) -> str:
  """Shows the result of a search as a table."""
  lines = [f'{"data":>5} {"fsdp":>5} {"tensor":>6} {"tokens/s":>10} {"MFU":>5}']
  for f in found:
    mesh = f['mesh'].values() if isinstance(f['mesh'], dict) else f['mesh']
    data, fsdp, tensor = tuple(mesh)[:3]
    said = f.get('why') or f'{f["tokens_per_s"]:10,.0f} {f["mfu"]:5.2f}'
    lines.append(f'{data:5} {fsdp:5} {tensor:6} {said}')
  return '\n'.join(lines)


def run(config, topology: str, *, say, **options) -> tuple[str, dict]:
  """Returns (what to print, the same as data) of a plan.

  Args:
    options: model, slices, only, search, largest, as the flags.

  Raises:
    ValueError, ImportError: in words for the user.
  """
  search_, largest = options.pop('search'), options.pop('largest')
  planner = Planner(config, topology, say=say, **options)
  if search_:
    found = planner.search()
    return ranking(found), {'meshes': found}
  facts = planner.plan(config)
  facts['advice'] = advice.lines(config, facts)
  if largest and facts['prompts']:
    facts['largest_prompts'] = planner.largest(facts)
  return report.table(facts), facts


def main(argv):
  command.no_more(argv)
  logging.set_verbosity(logging.ERROR)

  def say(text):
    return print(text, file=sys.stderr)

  try:
    text, facts = run(
      _CONFIG.value,
      _TOPOLOGY.value,
      say=say,
      slices=_SLICES.value,
      model=_MODEL.value,
      only=_ONLY.value,
      search=_SEARCH.value,
      largest=_LARGEST.value,
    )
    data = json.dumps(facts, indent=1)
    if _JSON.value == '-':
      text = data
    elif _JSON.value:
      pathlib.Path(_JSON.value).write_text(data)
  except (*command.USER_ERRORS, ImportError) as e:
    logging.debug('Traceback:', exc_info=True)
    command.fail(e)
  print(text)


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'topology'])
  app.run(main, flags_parser=command.parse)
