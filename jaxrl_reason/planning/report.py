"""What compiled phases add up to, as plain data and as a table.

A step's time is the sum of its phases' roofline times; its tokens are those of
completions that all take their whole room, which is the most work a step can
be. MFU counts the model's own FLOPs, without what is recomputed.
"""

import collections
from collections.abc import Sequence
from typing import Any

import jax

from jaxrl_reason import trees
from jaxrl_reason.planning import described, phases, roofline
from jaxrl_reason.run import chips

GIB = chips.GIB


def phase_facts(m: described.Measured, machine: roofline.Machine, mesh) -> dict:
  """One phase, of one call and one device where not said otherwise."""
  total = m.cost.total()
  by = roofline.seconds(m.cost, machine)
  calls = m.phase.calls
  return {
    'phase': m.phase.name,
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
    'flops': total.flops,
    'model_flops': m.phase.flops / mesh.size / calls,
    'flops_over_model': total.flops * mesh.size * calls / m.phase.flops,
    'bytes': total.bytes,
    'step_seconds': calls * by.total(),
    'bound_by': by.most_common(1)[0][0],
    'seconds_by_bound': {k: calls * t for k, t in by.items()},
    'collectives': collectives(total),
    'token_loop': token_loop(m),
    'compile_s': m.compile_s,
  }


def token_loop(m: described.Measured) -> dict | None:
  """What a trip of the loops over tokens does on one device, in the mean over
  them; copies and collectives are those of the last, whose cache is longest.
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
    'flops': mean(lambda t: t.flops),
    'bytes': mean(lambda t: t.bytes),
    'largest_copy': max(last.copies, default=0),
    'exchanged': mean(
      lambda t: sum(n * c.bytes for c, n in t.collectives.items())
    ),
    'collectives': collectives(last),
  }


def collectives(total) -> list[dict]:
  """By kind and axis, most bytes first."""
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
  return sorted(rows, key=lambda row: -row['bytes'])


def plan_facts(
  c, mesh, measured: Sequence[described.Measured], machine: roofline.Machine
) -> dict[str, Any]:
  """The whole plan as data (`--json`)."""
  each = [phase_facts(m, machine, mesh) for m in measured]
  # Supervised stages come before the rl steps, not within them.
  inside = [p for p in each if p['phase'] not in phases.SUPERVISED] or each
  step = sum(p['step_seconds'] for p in inside)
  rl = 'rl' in c.stages
  rows = c.rl.prompts * c.rl.samples if rl else c[c.stages[-1]].rows
  tokens = rows * c.data.completion_len
  model = sum(p['model_flops'] * p['calls_per_step'] for p in inside)
  return {
    'parameters': trees.n_params(measured[0].phase.state.params),
    'mesh': dict(mesh.shape),
    'devices': mesh.size,
    'chip': machine.chip.kinds[0],
    'hbm_gib': machine.chip.hbm / GIB,
    'prompts': c.rl.prompts if rl else 0,
    'phases': each,
    'step_seconds': step,
    'tokens_per_s': tokens / step,
    'tokens_per_s_device': tokens / step / mesh.size,
    'mfu': model / step / machine.chip.flops,
  }


def human(x: float) -> str:
  """Three digits and a letter: 1.23M."""
  for unit in ('', 'k', 'M', 'G', 'T', 'P', 'E'):
    if x < 1000:
      return f'{x:.3g}{unit}'
    x /= 1000
  return f'{x:.3g}Z'


def table(facts: dict) -> str:
  """The plan for people."""
  mesh = ' x '.join(f'{k} {v}' for k, v in facts['mesh'].items())
  lines = [
    f'{facts["parameters"]:,} parameters on {facts["devices"]} x '
    f'{facts["chip"]} of {facts["hbm_gib"]:.0f} GiB, mesh {mesh}',
    '',
    *_phase_lines(facts['phases']),
    '',
    *_exchanges(facts['phases']),
    '',
    f'a step takes at least {facts["step_seconds"]:.3g} s: '
    f'{facts["tokens_per_s"]:,.0f} tokens/s, '
    f'{facts["tokens_per_s_device"]:,.0f} a device, MFU {facts["mfu"]:.2f}',
  ]
  if 'largest_prompts' in facts:
    lines.append(
      f'largest batch that fits: {facts["largest_prompts"]} prompts '
      f'(the recipe has {facts["prompts"]})'
    )
  lines += [f'advice: {line}' for line in facts.get('advice', ())]
  return '\n'.join(lines)


def _phase_lines(each: list[dict]) -> list[str]:
  form = '{:9} {:>6} {:>6} {:>6} {:>6} {:>6} {:>7} {:>7} {:>8}  {}'
  names = 'phase args temps peak needs FLOPs /model bytes seconds'.split()
  out = [
    'GiB, FLOPs and bytes of one device and call; seconds of a step, at least',
    form.format(*names, 'bound by'),
  ]
  for p in each:
    sizes = (
      f'{p[k + "_gib"]:.2f}'
      for k in ('arguments', 'temporaries', 'peak', 'needs')
    )
    work = human(p['flops']), f'{p["flops_over_model"]:.2f}', human(p['bytes'])
    seconds = f'{p["step_seconds"]:.3g}'
    out.append(form.format(p['phase'], *sizes, *work, seconds, _bounds(p)))
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
        c['times'],
        human(c['bytes']),
        human(c['largest']),
      )
      for c in p['collectives']
    ]
  return out
