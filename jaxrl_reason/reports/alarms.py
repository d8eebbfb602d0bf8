"""Alarms of a report, such as rewards that rise for the wrong reason.

Each alarm compares the first third of a stage with its last third, and states
its evidence. An alarm proves nothing.
"""

import dataclasses

import numpy as np

from jaxrl_reason.reports import line_alarms
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.reports.answer_pages import Step, thirds
from jaxrl_reason.reports.workdirs import Run

RISE, SHARE = 0.1, 0.2  # of shares: a rise, and a level, that raise an alarm
GAIN = 0.02  # of accuracy: smaller changes do not count
LONGER = 1.3  # factor of the length


@dataclasses.dataclass(frozen=True)
class Alarm:
  """The result of one check; `on` is None if the data are missing."""

  name: str
  on: bool | None
  evidence: str


def of(run: Run, steps: list[Step]) -> list[Alarm]:
  """Returns all alarms of a run; active alarms come first."""
  early, late = thirds(steps)
  found = [
    *_of_lines(run),
    _risen('format passes while answers fail', 'format_only', early, late),
    _risen('the answer stands before the reasoning', 'early', early, late),
    _risen('verifiers disagree', 'disagree', early, late),
    _risen('repetition', 'repeats', early, late),
    _longer(run),
    _held_out_falls(run),
    _fewer_solvable(run),
  ]
  return sorted(found, key=lambda alarm: not alarm.on)


def _risen(name: str, sign: str, early: list[Step], late: list[Step]) -> Alarm:
  """Checks whether a sign in answers became more frequent during training."""
  if not early:
    return Alarm(name, None, 'fewer than three steps of rollouts on disk')
  before = float(np.mean([s.signs[sign] for s in early]))
  after = float(np.mean([s.signs[sign] for s in late]))
  on = after >= SHARE and after - before >= RISE
  return Alarm(
    name, on, f'{before:.0%} of answers at first, {after:.0%} at last'
  )


def _ends(run: Run, name: str) -> tuple[float, float] | None:
  """Returns the means of a metric over the first and last third of the
  stage.
  """
  start = [*run.stages.values()][-1:] or [0]
  found = zip(*run.series(name))
  values = [v for s, v in found if s >= start[0] and v is not None]
  n = len(values) // 3
  return (np.mean(values[:n]), np.mean(values[-n:])) if n else None


def _of_lines(run: Run) -> list[Alarm]:
  """Returns the line alarms that are active at the end of the last stage."""
  start = [*run.stages.values()][-1:] or [0]
  watch = line_alarms.LineAlarms()
  for row in run.rows:
    if row['step'] >= start[0] and 'train/reward_mean' in row:
      watch.add(row)
  quiet = 'not at the end of the last stage'
  return [
    Alarm(rule.name, rule.name in watch.on, watch.on.get(rule.name, quiet))
    for rule in line_alarms.RULES
  ]


def _longer(run: Run) -> Alarm:
  name = 'longer answers, not better ones'
  length = _ends(run, 'train/length_mean')
  right = _ends(run, 'train/reward_mean')
  if length is None or right is None:
    return Alarm(name, None, 'fewer than three lines of metrics')
  on = length[1] > LONGER * length[0] and right[1] - right[0] < GAIN
  return Alarm(
    name,
    bool(on),
    f'length {length[0]:.3g} to {length[1]:.3g} tokens, reward '
    f'{right[0]:.3f} to {right[1]:.3f}',
  )


def _held_out_falls(run: Run) -> Alarm:
  name = 'reward rises, held-out accuracy falls'
  reward, held = (
    _ends(run, n) for n in ('train/reward_mean', 'eval/heldout/pass@1')
  )
  if reward is None or held is None:
    return Alarm(name, None, 'fewer than three evaluations of the last stage')
  on = reward[1] - reward[0] > GAIN and held[0] - held[1] > GAIN
  return Alarm(
    name,
    bool(on),
    f'reward {reward[0]:.3f} to {reward[1]:.3f}, held out {held[0]:.3f} to '
    f'{held[1]:.3f}',
  )


def before_and_after(run: Run) -> tuple[dict, dict] | None:
  """Returns the evaluations at the start of the last stage and at its end."""
  found = run.evaluations
  if len(found) < 2:
    return None
  last = found[-1]['stage']
  earlier = [e for e in found[:-1] if e['stage'] != last] or found[:1]
  return earlier[-1], found[-1]


def _fewer_solvable(run: Run) -> Alarm:
  """Returns whether pass@k at the largest k falls by more than two standard
  errors of the paired difference.
  """
  name = 'fewer problems can be solved at all (pass@k falls)'
  both = before_and_after(run)
  if both is None:
    return Alarm(name, None, 'fewer than two evaluations on disk')
  found, on = [], False
  for split, after in both[1]['splits'].items():
    before = both[0]['splits'].get(split)
    if not before or len(before['right']) != len(after['right']):
      continue
    n = min(before['samples'], after['samples'])
    change = passk.pass_at_k(after['right'], after['samples'], n)
    change = change - passk.pass_at_k(before['right'], before['samples'], n)
    error = change.std() / np.sqrt(len(change))
    on |= bool(change.mean() < -2 * error)
    found.append(f'{split} pass@{n} {change.mean():+.3f} ± {error:.3f}')
  return Alarm(name, on if found else None, ', '.join(found) or 'no same split')
