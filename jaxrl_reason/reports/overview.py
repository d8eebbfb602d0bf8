"""The first screen of a report: a verdict on each run, and three samples."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl_reason.reports import line_alarms, metrics_file, signs, state
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.reports.alarms import Alarm, before_and_after
from jaxrl_reason.reports.workdirs import Run, ends, finite

LEARNS = {
  1: 'it learns',
  0: 'no measurable progress',
  -1: 'it gets worse',
  None: 'too early to say whether it learns',
}


class Change(NamedTuple):
  """A change of accuracy or reward.

  Attributes:
    sign: 1, 0 or -1 if it is known to rise, not known to change, or to fall;
      None if there are too few numbers.
    evidence: the numbers, for people.
  """

  sign: int | None
  evidence: str = ''


def verdict(run: Run, found: Sequence[Alarm]) -> tuple[str, str]:
  """Returns ('ok', 'open' or 'bad', a text: is the run healthy, does it
  learn?).
  """
  kind, status = state.status(run)
  on = sum(bool(alarm.on) for alarm in found)
  alarms = f'{on} alarm{"s" if on > 1 else ""}'
  health = 'Failed' if kind == 'bad' else alarms if on else 'Healthy'
  change = _of_evaluations(run) or _of_reward(run)
  if kind == 'bad' or change.sign == -1:
    kind = 'bad'
  else:
    kind = 'ok' if change.sign == 1 and not on else 'open'
  evidence = f' ({change.evidence})' if change.evidence else ''
  return kind, f'{health}; {LEARNS[change.sign]}{evidence}. {status}'


def _of_evaluations(run: Run) -> Change | None:
  """Compares the accuracies before and after the last stage, with two standard
  errors; None without two evaluations of the same problems.
  """
  both = before_and_after(run)
  if both is None or both[1]['stage'] not in [*run.stages][-1:]:
    return None
  for name in both[1]['splits']:
    before, after = (_pass_at_1(e['splits'].get(name)) for e in both)
    if before and len(before) == len(after):
      change, error = passk.paired(before, after)
      ends_at = f'{np.mean(before):.3f} to {np.mean(after):.3f}'
      sign = (change > 2 * error) - (change < -2 * error)
      return Change(sign, f'{name} pass@1 {ends_at}, ± {error:.3f}')
  return None


def _pass_at_1(split: dict | None) -> list[float]:
  """Returns the share of correct samples of each problem of a split."""
  n = split['samples'] if split else 0
  return [right / n for right in split['right']] if n else []


def _of_reward(run: Run) -> Change:
  """Compares the rewards of the first and the last third of the last stage."""
  stage = [*run.stages][-1:]
  rows = [row for row in run.rows if row['stage'] in stage]
  values = metrics_file.series(rows, 'train/reward_mean')[1]
  found = line_alarms.thirds([x for x in values if x is not None])
  if found is None:
    return Change(None)
  rise = found.late - found.early
  sign = (rise > line_alarms.GAIN) - (rise < -line_alarms.GAIN)
  return Change(sign, f'reward {found.early:.3f} to {found.late:.3f}')


def samples(run: Run, worst: dict | None) -> list[dict[str, Any]]:
  """Returns up to three answers: of one problem before the last stage and now,
  and the worst of the last rollouts.

  Args:
    worst: record with the lowest reward.
  """
  notes = [rows for rows in map(_records, run.samples) if rows]
  out = []
  if both := ends(notes, lambda rows: rows[0]['stage']):
    answers = [{r['problem']: r for r in rows} for rows in both]
    shared = sorted(answers[0].keys() & answers[1].keys())
    # A problem that is newly solved, if there is one.
    news = [i for i in shared if _is_news(answers[0][i], answers[1][i])]
    for i in (news or shared)[:1]:
      names = ('before', 'now')
      out += [_card(n, rows[i]) for n, rows in zip(names, answers)]
  return out + ([_card('worst', worst)] if worst else [])


def _records(path) -> list[dict]:
  """Returns the greedy answers of a file of samples."""
  rows = map(finite, metrics_file.lines(path))
  known = ('problem', 'completion', 'stage', 'step')
  return [
    r for r in rows if r.get('sample') == 0 and all(k in r for k in known)
  ]


def _is_news(before: dict, now: dict) -> bool:
  return signs.is_right(now) and not signs.is_right(before)


def _card(name: str, row: dict) -> dict[str, Any]:
  own = [{'role': 'policy', 'content': row['completion']}]
  turns = row.get('conversation') or own
  prompt = {'role': 'prompt', 'content': row.get('prompt', '')}
  return {
    'name': name,
    'step': row.get('step'),
    'right': signs.is_right(row),
    'answer': row.get('answer'),
    'reward': row.get('reward'),
    'turns': [prompt, *turns],
  }
