"""Sums of compiled phases, as plain data and as a table.

The time of a step is the sum of its phases' roofline times. All completions
have their full length, which is the most work of a step. MFU counts the model's
FLOPs without recomputation.
"""

import collections
import operator
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl_reason import trees
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import phases, roofline, second_models, split_plan
from jaxrl_reason.run.process import chips

GIB = chips.GIB


def phase_facts(m: described.Measured, machine: roofline.Machine, mesh) -> dict:
  """Describes one phase, by default per call and device."""
  total = m.cost.total()
  by = roofline.seconds(m.cost, machine)
  calls = m.phase.calls
  in_order, waited = roofline.ordered(m.cost, machine)
  return {
    'phase': m.phase.name,
    'parameters': trees.n_params(m.phase.state.params),
    'calls_per_step': calls,
    'arguments_gib': m.arguments / GIB,
    'temporaries_gib': m.temporaries / GIB,
    'peak_gib': m.peak / GIB,
    'resident_gib': m.resident / GIB,
    'needs_gib': m.needs / GIB,
    'donated_arrays': m.aliased,
    'donated_gib': m.donated / GIB,
    'state_arrays': len(jax.tree.leaves(m.phase.state)),
    'state_gib': described.on_chip(m.phase.state) / GIB,
    'beside_gib': second_models.gib(m.phase.state),
    'flops': total.flops,
    'model_flops': m.phase.flops / mesh.size / calls,
    'flops_over_model': total.flops * mesh.size * calls / m.phase.flops,
    'bytes': total.bytes,
    'step_seconds': calls * by.total(),
    'serial_seconds': calls * roofline.serial_seconds(m.cost, machine),
    'ordered_seconds': calls * in_order,
    'exposed_seconds': calls * waited,
    'bound_by': by.most_common(1)[0][0],
    'seconds_by_bound': {k: calls * t for k, t in by.items()},
    'collectives': collectives(total),
    'token_loop': token_loop(m),
    'turn_loop': turn_loop(m),
    'compile_s': m.compile_s,
  }


def token_loop(m: described.Measured) -> dict | None:
  """Returns the costs of an iteration of the token loops on one device, as a
  mean over the loops. Copies and collectives are those of the last loop, whose
  cache is longest.
  """
  loops = m.cost.loops_of(m.phase.decode_trips)
  if not loops:
    return None
  totals = [(n, body.total()) for n, body in loops]
  trips, last = sum(n for n, _ in totals), totals[-1][1]

  def mean(of):
    return sum(n * of(t) for n, t in totals) / trips

  return {
    'trips': trips,
    'flops': mean(operator.attrgetter('flops')),
    'bytes': mean(operator.attrgetter('bytes')),
    'largest_copy': max(last.copies, default=0),
    'exchanged': mean(
      lambda t: sum(n * c.bytes for c, n in t.collectives.items())
    ),
    'collectives': collectives(last),
  }


def turn_loop(m: described.Measured) -> dict | None:
  """Returns the costs of a turn on one device, with its token loops: mean
  bytes, and the largest array that is copied.
  """
  totals = [(n, body.total()) for n, body in m.cost.named('turns')]
  if not totals:
    return None
  trips = sum(n for n, _ in totals)
  return {
    'trips': trips,
    'bytes': sum(n * t.bytes for n, t in totals) / trips,
    'largest_copy': max(max(t.copies, default=0) for _, t in totals),
  }


def collectives(total) -> list[dict]:
  """Lists collectives by kind and axis, most bytes first."""
  seen = collections.defaultdict(lambda: [0, 0, 0, ()])
  for c, n in total.collectives.items():
    row = seen[c.kind, '+'.join(c.axes) or 'self']
    row[0] += n
    row[1] += n * c.bytes
    row[2:] = max(row[2:], [c.bytes, c.dims])
  rows = [
    {'kind': k, 'axis': a, 'times': n, 'bytes': b, 'largest': big, 'dims': dims}
    for (k, a), (n, b, big, dims) in seen.items()
  ]
  return sorted(rows, key=operator.itemgetter('bytes'), reverse=True)


def no_room(e: described.DoesNotFit, state) -> dict:
  """Returns the facts of a phase that does not fit.

  Args:
    state: of its stage.
  """
  facts = {'phase': e.phase, 'fits': False, 'needs_gib': e.needs / GIB}
  return facts | {'beside_gib': second_models.gib(state)}


def plan_facts(
  c, mesh, each: Sequence[dict], names: Sequence[str], machine: roofline.Machine
) -> dict[str, Any]:
  """Adds phases up to the whole plan as data (`--json`).

  Args:
    each: `phase_facts` of all or some phases.
    names: of all phases.
  """
  return {
    'fits': all(p['fits'] for p in each),
    'parameters': max((p.get('parameters', 0) for p in each), default=0),
    'mesh': dict(mesh.shape),
    'devices': mesh.size,
    'chip': machine.chip.kinds[0],
    'hbm_gib': machine.chip.hbm / GIB,
    'prompts': c.rl.prompts if 'rl' in c.stages else 0,
    'phases': list(each),
    **_speed(c, mesh, each, names, machine),
  }


def evaluation_facts(c, mesh, each: Sequence[dict] = ()) -> dict[str, Any]:
  """Returns the partition of a split's evaluation into calls of its program,
  and the time of all evaluations of each stage.

  Args:
    each: `phase_facts` of all or some phases.
  """
  grid = phases.evaluation_grid(c.eval, c.eval.rows(c.rl), mesh)
  seconds = {p['phase']: p.get('step_seconds') for p in each}
  of_split = seconds.get(phases.EVALUATE)
  stages = {}
  for kind in dict.fromkeys(c.stages):
    held = seconds.get(phases.HELDOUT + kind, 0.0)
    # The end of a stage is evaluated, and the start of the first one.
    times = -(-c.training(kind).steps // c.eval.every) + (not stages)
    if of_split is not None and held is not None:
      whole = times * (of_split + held)
      stages[kind] = {'times': times, 'heldout': held, 'seconds': whole}
  return {
    'problems': grid.problems,
    'completions': grid.problems * len(grid.samples),
    'at_a_time': grid.b * grid.s,
    'calls': grid.n_units,
    'seconds': of_split,
    'stages': stages,
  }


def _speed(c, mesh, each, names, machine: roofline.Machine) -> dict[str, Any]:
  """Returns seconds, MFU and, if all phases of a step were compiled, tokens/s;
  {} if a phase was not compiled.
  """
  if any('flops' not in p for p in each):
    return {}
  wanted = phases.of_a_step(names)
  inside = [p for p in each if p['phase'] in wanted] or each
  step = sum(p['step_seconds'] for p in inside)
  model = sum(p['model_flops'] * p['calls_per_step'] for p in inside)
  serial = sum(p['serial_seconds'] for p in inside)
  out = {
    'step_seconds': step,
    'ordered_seconds': sum(p['ordered_seconds'] for p in inside),
    'exposed_seconds': sum(p['exposed_seconds'] for p in inside),
    'serial_seconds': serial,
    'mfu': model / step / machine.chip.flops,
    'serial_mfu': model / serial / machine.chip.flops,
  }
  if [p['phase'] for p in inside] != wanted:
    return out
  # In rl the generated tokens; in supervised stages whole rows.
  if 'rl' in c.stages:
    rows = c.rl.sampled_groups * c.rl.samples
    tokens = rows * c.data.completion_len
  else:
    length = c.data.prompt_len + c.data.completion_len
    tokens = c[c.stages[-1]].rows * length
  rate = tokens / step
  return out | {'tokens_per_s': rate, 'tokens_per_s_device': rate / mesh.size}


def human(x: float) -> str:
  """Formats a number with three digits and a letter: 1.23M."""
  for unit in ('', 'k', 'M', 'G', 'T', 'P', 'E'):
    if x < 1000:
      return f'{x:.3g}{unit}'
    x /= 1000
  return f'{x:.3g}Z'


def table(facts: dict) -> str:
  """Returns the plan as text."""
  mesh = ' x '.join(f'{k} {v}' for k, v in facts['mesh'].items())
  lines = [
    f'{facts["parameters"]:,} parameters on {facts["devices"]} x '
    f'{facts["chip"]} of {facts["hbm_gib"]:.2f} GiB, mesh {mesh}',
    '',
    *_phase_lines(facts['phases']),
    '',
    *_exchanges(facts['phases']),
    '',
    *_speed_lines(facts),
    *split_plan.lines(facts),
    *_depth_lines(facts),
  ]
  if found := facts.get('evaluation'):
    lines += _evaluation_lines(found)
  lines += [f'advice: {line}' for line in facts.get('advice', ())]
  return '\n'.join(lines)


def _evaluation_lines(found: dict) -> list[str]:
  out = [
    f'an evaluation of a split: {found["problems"]:,} problems, '
    f'{found["completions"]:,} completions, {found["at_a_time"]:,} at a time '
    f'(eval.batch), {found["calls"]} calls'
  ]
  if found['seconds'] is not None:
    out[0] += f', {found["seconds"]:.3g} s'
  for name, own in found['stages'].items():
    held = f' and {own["heldout"]:.3g} s of held-out rows'
    out.append(
      f'evaluations of {name}: {own["times"]}, each of one split'
      f'{held if own["heldout"] else ""}; at least {own["seconds"]:.3g} s'
    )
  return out


def largest_batch(facts: dict) -> str:
  """Returns the line about the largest batch that fits."""
  return (
    f'largest batch that fits: {facts["largest_prompts"]} prompts '
    f'(the recipe has {facts["prompts"]})'
  )


def _speed_lines(facts: dict) -> list[str]:
  if 'step_seconds' not in facts:
    return []
  low, high = facts['step_seconds'], facts['serial_seconds']
  what = 'a step takes' if 'tokens_per_s' in facts else 'these phases take'
  out = [
    f'{what} {low:.3g} s if all overlaps, {high:.3g} s if nothing does; MFU '
    f'{facts["mfu"]:.2f} and {facts["serial_mfu"]:.2f}'
  ]
  if 'tokens_per_s' in facts:
    out[0] += (
      f'; at most {facts["tokens_per_s"]:,.0f} tokens/s, '
      f'{facts["tokens_per_s_device"]:,.0f} a device'
    )
  if 'split' in facts:
    return out  # both programs run at the same time
  waited, whole = facts['exposed_seconds'], facts['ordered_seconds']
  out.append(
    f'in the order of the compiled program: {whole:.3g} s, {waited:.3g} s of '
    f'them waiting for exchanges ({waited / whole:.1%})'
  )
  return out


def _depth_lines(facts: dict) -> list[str]:
  if 'depths' not in facts:
    return []
  *few, last = facts['depths']
  error = max(p.get('depth_error', 0) for p in facts['phases'])
  return [
    f'from {", ".join(map(str, few))} and {last} of {facts["layers"]} layers; '
    f'off the line by at most {error:.1%}'
  ]


def _phase_lines(each: list[dict]) -> list[str]:
  form = '{:9} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>7} {:>8}  {}'
  names = 'phase args temps peak needs FLOPs /model bytes seconds'.split()
  out = [
    'GiB, FLOPs and bytes of one device and call; seconds of a step, at least',
    form.format(*names, 'bound by'),
  ]
  for p in each:
    if 'flops' not in p:
      out.append(f'{p["phase"]:9} no room: needs {p["needs_gib"]:.2f}')
      continue
    sizes = (
      f'{p[k + "_gib"]:.2f}'
      for k in ('arguments', 'temporaries', 'peak', 'needs')
    )
    work = human(p['flops']), f'{p["flops_over_model"]:.2f}', human(p['bytes'])
    seconds = f'{p["step_seconds"]:.3g}'
    bounds = _bounds(p) + ('' if p['fits'] else '; DOES NOT FIT')
    out.append(form.format(p['phase'], *sizes, *work, seconds, bounds))
  return out


def _bounds(p: dict) -> str:
  total = sum(p['seconds_by_bound'].values())
  parts = sorted(p['seconds_by_bound'].items(), key=lambda i: -i[1])
  return ', '.join(f'{k} {t / total:.0%}' for k, t in parts if t > 0.05 * total)


def _exchanges(each: list[dict]) -> list[str]:
  form = '{:9} {:18} {:12} {:>8} {:>8} {:>8}'
  out = [form.format('phase', 'exchange', 'axis', 'times', 'bytes', 'largest')]
  for p in each:
    out += [
      form.format(
        p['phase'],
        c['kind'],
        c['axis'],
        round(c['times']),
        human(c['bytes']),
        human(c['largest']),
      )
      for c in p.get('collectives', ())
    ]
  return out
