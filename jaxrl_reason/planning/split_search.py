"""Compares splits of the chips between the sampler and the trainer."""

import math
import operator
from collections.abc import Sequence
from typing import Any

from jaxrl_reason.planning import split_plan
from jaxrl_reason.planning.split_plan import SAMPLE, UPDATE


def resized(mesh: Sequence[int], n: int) -> tuple[int, ...]:
  """Returns a mesh of n chips whose data axis has another size.

  Raises:
    ValueError: n is no multiple of the other axes.
  """
  others = math.prod(mesh[1:])
  if n % others:
    raise ValueError(
      f'{n} chips are no multiple of the axes {tuple(mesh[1:])} after data'
    )
  return n // others, *mesh[1:]


def compared(planner: Any, counts: Sequence[int]) -> dict[str, Any]:
  """Plans both halves of a step for several splits, and one mesh.

  Args:
    planner: a `planner.Planner` whose recipe has a `sampler_mesh`.
    counts: numbers of chips of the sampler.

  Returns:
    {'splits': the fastest first; those that cannot be, with `why`, are last;
    'one_mesh': `Planner.one_mesh`; 'fits': whether a split can be}.

  Raises:
    ValueError: the recipe has one mesh.
  """
  config = planner.config
  if not config.sampler_mesh:
    raise ValueError(
      '--splits compares sizes of sampler_mesh, which the recipe lacks; set it '
      'to the axes that the sampler shall have, such as 1,4,1'
    )
  found, failed = [], []
  for n in counts:
    try:
      found.append(_split(planner, n))
    except ValueError as e:
      failed.append({'sampler': n, 'why': str(e)})
  found.sort(key=operator.itemgetter('step_seconds'))
  one = planner.one_mesh(planner.parts(config))
  return {'splits': found + failed, 'one_mesh': one, 'fits': bool(found)}


def _split(planner: Any, n: int) -> dict[str, Any]:
  """Returns the facts of a split with n chips for the sampler.

  Raises:
    ValueError: the recipe does not divide over it, or does not fit.
  """
  config, trained = planner.config, len(planner.devices) - n
  sampler = resized(config.sampler_mesh, n)
  mesh = (-1, *config.mesh[1:])
  parts = planner.parts(config.changed(sampler_mesh=sampler, mesh=mesh))
  each = planner.facts_of(parts, (SAMPLE, UPDATE))
  most = [p['phase'] for p in each if not p['fits']]
  if most:
    raise ValueError(f'{" and ".join(most)}: more memory than a chip has')
  facts = split_plan.facts(each, parts, planner.machine, planner.devices)
  needs = {p['phase']: p['needs_gib'] for p in each}
  own = {k: facts[k] for k in ('step_seconds', 'serial_seconds', 'split')}
  own |= {'sampler_mesh': sampler, 'needs_gib': needs}
  return {'sampler': n, 'trainer': trained} | own


def table(found: dict[str, Any]) -> str:
  """Returns compared splits as text."""
  out = ['sampler trainer   samples    trains      step     alone  GiB']
  for x in found['splits']:
    if 'why' in x:
      out.append(f'{x["sampler"]:7} {x["why"]}')
      continue
    s, needs = x['split'], x['needs_gib'].values()
    times = s['sample_seconds'], s['update_seconds'], x['step_seconds']
    each = (f'{t:9.3g}' for t in (*times, x['serial_seconds']))
    gib = ', '.join(f'{n:.2f}' for n in needs)
    out.append(f'{x["sampler"]:7} {x["trainer"]:7} {" ".join(each)}  {gib}')
  one = found['one_mesh']
  if 'why' in one:
    return '\n'.join([*out, f'one mesh: {one["why"]}'])
  times = f'{one["step_seconds"]:9.3g} {one["serial_seconds"]:9.3g}'
  out += [f'one mesh{times:>47}', 'seconds if all overlaps; alone: if nothing']
  return '\n'.join(out)
