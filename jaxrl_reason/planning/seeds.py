"""Costs of several seeds in one program: `several_runs.rl_seeds`, compiled for
a chip.

A small model does not fill a chip. Its step takes at least the roofline's time
plus the start of every operation. The number of operations is the same for any
number of seeds. START_S is an assumption and not measured here: profiles of
small programs on TPUs show microseconds between the starts of fusions.
"""

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxrl_reason.config.run import NO_ROLLOUTS
from jaxrl_reason.planning import costs, hlo, phases, roofline
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run.prepare import Prepared
from jaxrl_reason.run.rl import programs, several_runs

START_S = 1e-6
# Operations in the program that a device does not start.
FREE = frozenset(
  'parameter constant tuple get-tuple-element bitcast after-all copy-done '
  'slice-done dynamic-slice-done async-done partition-id replica-id '
  'opt-barrier iota'.split()
)
ENOUGH = 1.1  # times of one seed that still count as the time of one seed


def starts(module: hlo.Module, name: str = '') -> float:
  """Counts the operations that a device starts, with iterations of loops."""
  total = 0
  for op in module.computations[name or module.entry].values():
    if op.kind == 'while':
      inside = (op.attr(k).lstrip('%') for k in ('body', 'condition'))
      each = sum(starts(module, computation) for computation in inside)
      total += hlo.trips(module, op) * each
    elif op.kind == 'conditional':
      ways = [starts(module, computation) for computation in op.called]
      shares = hlo.shares(op)
      total += sum(map(operator.mul, shares, ways)) if shares else max(ways)
    elif op.kind == 'call':
      total += starts(module, op.called[0])
    else:
      total += op.kind not in FREE
  return total


def phase(parts: Prepared, n: int) -> phases.Phase:
  """Returns the fused step of n seeds as a phase.

  Raises:
    ValueError: the recipe's step is not one program.
  """
  quiet = parts.config.changed(NO_ROLLOUTS)  # as in a study
  parts = parts._replace(config=quiet)
  one = {p.name: p for p in phases.phases(parts)}.get('step')
  if one is None or len(one.args) != 7:
    raise ValueError(
      "--seeds: only steps that are one program (rl.path='fused', no "
      'data.controller) can have seeds side by side'
    )
  learner, source, state, prompts, root, sampling, stop = one.args

  def stacked(x):
    where = x.sharding
    spec = PartitionSpec(None, *where.spec)
    where = NamedSharding(where.mesh, spec, memory_kind=where.memory_kind)
    return jax.ShapeDtypeStruct((n, *x.shape), x.dtype, sharding=where)

  def made(values):
    """Builds runs that differ only in their seed."""
    del values
    return learner, source, same

  # Concrete arrays, because a static record cannot have shapes. ones_like would
  # place an array on the described chip.
  same = jax.tree.map(lambda x: jax.numpy.ones(x.shape, x.dtype), sampling)
  state, prompts, root = jax.tree.map(stacked, (state, prompts, root))
  shardings = jax.tree.map(operator.attrgetter('sharding'), state)
  return dataclasses.replace(
    one,
    program=programs.updating(several_runs.rl_seeds, 1, shardings),
    args=(made, state, prompts, root, {}, stop),
    state=state,
    flops=n * one.flops,
  )


def facts_of(
  parts: Prepared, counts: Sequence[int], machine: roofline.Machine, say
) -> list[dict[str, Any]]:
  """Returns the facts of each number of seeds that fits, per step of all
  seeds.
  """
  out = []
  for n in counts:
    found = phase(parts, n)
    try:
      compiled = found.lower(parts.mesh).compile()
    except jax.errors.JaxRuntimeError as e:
      if (room := described.out_of_memory(str(e))) is None:
        raise
      say(f'{n} seeds need {room[0] / 2**30:.1f} of {room[1] / 2**30:.1f} GiB')
      break
    text = compiled.as_text()
    least = roofline.seconds(costs.of(text, parts.mesh), machine).total()
    begun = starts(hlo.parse(text))
    k = 1 / found.calls
    memory = compiled.memory_analysis().peak_memory_in_bytes
    out.append({
      'seeds': n,
      'roofline_s': least / k,
      'operations': round(begun / k),
      'seconds': (least + begun * START_S) / k,
      'peak_gib': memory / 2**30,
    })  # fmt: skip
    say(f'{n} seeds compiled: {out[-1]}')
  if not out:
    raise ValueError(f'--seeds: {counts[0]} do not fit the chip')
  return out


def table(found: Sequence[dict[str, Any]]) -> str:
  """Returns the facts as a table, with the number of seeds that are nearly
  free.
  """
  form = '{:>5} {:>11} {:>10} {:>10} {:>9} {:>8}'
  names = 'seeds roofline,s operations seconds,s of alone peak,GiB'
  lines = [form.format(*names.replace('of alone', 'of_alone').split())]
  alone, _ = line(found)
  for f in found:
    lines.append(
      form.format(
        f['seeds'],
        f'{f["roofline_s"]:.3g}',
        f['operations'],
        f'{f["seconds"]:.3g}',
        f'{f["seconds"] / alone:.2f}',
        f'{f["peak_gib"]:.2f}',
      )
    )
  return '\n'.join([*lines, verdict(found)])


def line(found: Sequence[dict[str, Any]]) -> tuple[float, float]:
  """Returns (seconds of one seed, seconds of each further seed), by the line
  through the first and the last number; for a single number its mean.
  """
  first, last = found[0], found[-1]
  more = last['seeds'] - first['seeds']
  if not more:
    each = first['seconds'] / first['seeds']
    return each, each
  each = (last['seconds'] - first['seconds']) / more
  return first['seconds'] - (first['seeds'] - 1) * each, each


def verdict(found: Sequence[dict[str, Any]]) -> str:
  """Describes the number of seeds that take at most `ENOUGH` times as long as
  one, and the gain of the largest number over separate runs.
  """
  alone, each = line(found)
  last = found[-1]
  if last is found[0]:
    return 'two numbers of seeds, as --seeds=1,4, say what a further one costs'
  most = 1 + int((ENOUGH - 1) * alone / each) if each > 0 else last['seeds']
  gain = last['seeds'] * alone / last['seconds']
  return (
    f'{most} for the price of one (within {ENOUGH - 1:.0%}); a further seed '
    f'adds {each:.3g} s to a step of {alone:.3g} s, if every operation takes '
    f'{START_S * 1e6:g} us to start; {last["seeds"]} side by side are done '
    f'{gain:.2f} times as fast as one after another'
  )
