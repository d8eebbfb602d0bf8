"""States of runs: ends, interruptions, and differences."""

import dataclasses
from typing import Any

from jaxrl_reason.reports.workdirs import Run


@dataclasses.dataclass(frozen=True)
class Break:
  """A point at which a run was interrupted and resumed.

  Attributes:
    at: the step from which it continued.
    reached: the last step before; the steps in between were repeated.
    how: 'killed', or the recorded end.
  """

  at: int
  reached: int
  how: str


def breaks(run: Run) -> list[Break]:
  """Returns the points at which a run was resumed."""
  out, how = [], ''
  for event in run.events:
    if event.get('event') == 'end':
      how = str(event.get('how', ''))
    elif event.get('event') == 'start':
      at, reached = event.get('step', 0), event.get('reached', 0)
      if out or at or reached or how:
        out.append(Break(at, reached, how or 'killed'))
      # A start without a recorded end before it means a kill.
      how = ''
  return out


def status(run: Run) -> tuple[str, str]:
  """Returns ('ok', 'bad' or 'open', a text about the state of a run)."""
  step = max((r['step'] for r in run.rows), default=0)
  ends = [e for e in run.events if e.get('event') in ('start', 'end')]
  if not ends:
    return 'open', f'step {step}; no start or end was noted'
  how = str(ends[-1].get('how', ''))
  if ends[-1]['event'] == 'start':
    return 'open', f'step {step}; no end was told: it runs, or was killed'
  if how == 'finished':
    return 'ok', f'finished at step {step}'
  if how == 'signal':
    return 'open', f'stopped by a signal at step {step}, saved'
  return 'bad', f'ended after step {step} by an error: {how}'


def differing(runs: list[Run]) -> list[tuple[str, list[Any]]]:
  """Returns (key, value of each run) of keys in which runs differ."""
  keys = {k: None for run in runs for k in run.config}
  rows = [(k, [run.config.get(k) for run in runs]) for k in keys]
  return [
    (k, values) for k, values in rows if any(v != values[0] for v in values)
  ]


def changed(run: Run, defaults: dict[str, Any]) -> list[tuple[str, Any, Any]]:
  """Returns (key, default, value) of keys that differ from the default."""
  return [
    (k, defaults.get(k), v)
    for k, v in run.config.items()
    if v != defaults.get(k)
  ]


def seeds(runs: list[Run]) -> list[list[Run]]:
  """Groups runs that differ only in their seed. In a study, each seed has a
  warm start of its own, whose name ends with the seed.
  """
  groups: dict[str, list[Run]] = {}
  for run in runs:
    rest = {k: v for k, v in run.config.items() if k != 'seed'}
    if 'init_from' in rest:
      end = f'--s{run.config.get("seed")}'
      rest['init_from'] = str(rest['init_from']).removesuffix(end)
    groups.setdefault(
      repr(sorted(rest.items())) if rest else run.name, []
    ).append(run)
  return [*groups.values()]
