"""Advice about a recipe, from the bounds of its phases and its unused
memory.
"""

import operator
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jaxrl_reason.config import RL
from jaxrl_reason.config.training import Training

# Shares of HBM: below, memory is unused; above, it is short.
ROOMY, TIGHT = 0.5, 0.9
# Share of a step. Advice that saves less is left out.
WORTH = 0.05
# Share of an update that model.remat=full computes a second time: the
# forward pass, of two forward passes and a gradient of two.
AGAIN = 1 / 4


class Advice(NamedTuple):
  """A change of a recipe, and the most seconds of a step that it saves; None:
  not known.
  """

  text: str
  saves: float | None = None


def lines(
  sections: Mapping[str, Training], remat: str, facts: dict
) -> list[str]:
  """Returns a sentence per thing to change.

  Args:
    sections: of the planned stages, by kind.
    remat: `model.remat`; facts: of `plan_table.plan_facts`.
  """
  step, out = facts.get('step_seconds', 0), []
  for text, saves in _all(sections, remat, facts):
    if saves is None:
      out.append(text)
    elif saves > WORTH * step:
      seconds = f'at most {saves:.3g} s less of a step of {step:.3g} s'
      out.append(f'{text}: {seconds}')
  return out


def _all(
  sections: Mapping[str, Training], remat: str, facts: dict
) -> Iterator[Advice]:
  """Yields all advice, also of little worth."""
  hbm = facts['hbm_gib']
  most = max(facts['phases'], key=operator.itemgetter('needs_gib'))
  share = most['needs_gib'] / hbm
  if share > TIGHT:
    yield Advice(
      f'{most["phase"]} takes {share:.0%} of HBM: more micro_batches, '
      'model.remat=full or a larger fsdp axis leave room'
    )
  rl = sections.get('rl')
  parts = rl.parts if isinstance(rl, RL) and rl.path == 'host' else 1
  for p in (p for p in facts['phases'] if 'bound_by' in p):
    kind = 'rl' if p['phase'] in ('update', 'step') else p['phase']
    if kind in sections:
      yield from _room(p, sections[kind], remat, hbm)
    yield from _speed(p, parts, hbm)


def _seconds(p: dict, bound: str) -> float:
  """Counts the seconds of a phase that are bound by links, memory or compute,
  the start of a bound's name.
  """
  by = p['seconds_by_bound'].items()
  return sum(seconds for name, seconds in by if name.startswith(bound))


def _room(
  p: dict, section: Training, remat: str, hbm: float
) -> Iterator[Advice]:
  """Yields advice about an update that leaves memory unused.

  Args:
    hbm: memory of a chip in GiB.
  """
  name, n, share = p['phase'], section.micro_batches, p['needs_gib'] / hbm
  if share > ROOMY:
    return
  yield Advice(
    f'{name} leaves {1 - share:.0%} of HBM: fewer micro_batches than {n} '
    'gather the weights less often',
    (1 - 1 / n) * _seconds(p, 'links'),
  )
  if remat == 'full':
    yield Advice(
      f'{name}: model.remat=dots recomputes less where it still fits, '
      'attention nearly as little of long rows',
      AGAIN * _seconds(p, 'compute'),
    )


def _fewest(p: dict, parts: int, hbm: float) -> int:
  """Returns the fewest parts of a batch with which its generation surely fits:
  if all temporary arrays grow with the rows of a part.
  """
  grows = p['peak_gib'] - p['arguments_gib']
  most = TIGHT * hbm - p['needs_gib']
  divisors = (n for n in range(1, parts) if parts % n == 0)
  return next((n for n in divisors if grows * (parts / n - 1) < most), parts)


def _speed(p: dict, parts: int, hbm: float) -> Iterator[Advice]:
  """Yields advice about what bounds a phase.

  Args:
    parts: in which a batch is generated; hbm: memory of a chip in GiB.
  """
  bound, name = p['bound_by'], p['phase']
  if bound == 'memory' and name in ('generate', 'step'):
    if (n := _fewest(p, parts, hbm)) < parts:
      yield Advice(
        f'{name} reads memory most of the time: rl.parts={n} in place of '
        f'{parts} reads the weights less often',
        (1 - n / parts) * _seconds(p, 'memory'),
      )
    elif parts == 1:
      yield Advice(
        f'{name} reads memory most of the time: more prompts cost little more'
      )
  if bound.startswith('links'):
    yield Advice(
      f'{name} waits for {bound}: make that mesh axis smaller, or give each '
      'device more rows (--search compares mesh shapes)',
      _seconds(p, 'links'),
    )
