"""Alarms of a report: those of lines, and of pass@k before and after."""

import dataclasses

from jaxrl_reason.reports import line_alarms, state
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.reports.answer_pages import Step
from jaxrl_reason.reports.workdirs import Run, ends

REWARDS = 'rewards that fail'
STOPPED = 'RewardFailed'  # the error of a run that too many of them stop


@dataclasses.dataclass(frozen=True)
class Alarm:
  """The result of one check of the last stage.

  Attributes:
    on: whether it is raised at the end; None if the data are missing.
    since, until: steps at which it began and ended, or None.
  """

  name: str
  on: bool | None
  evidence: str
  advice: str
  since: int | None = None
  until: int | None = None

  @property
  def when(self) -> str:
    """Returns when it was raised, for people."""
    if self.since is None:
      return ''
    end = '' if self.until is None else f' to {self.until}'
    return f'from step {self.since}{end}'


def of(run: Run, steps: list[Step]) -> list[Alarm]:
  """Returns all alarms of a run: the raised ones, latest first, then those that
  have ended, then the others.
  """
  found = [*_of_lines(run, steps), _fewer_solvable(run)]
  return sorted(found, key=lambda a: (not a.on, -(a.since or 0)))


def _of_lines(run: Run, steps: list[Step]) -> list[Alarm]:
  """Returns the alarms of the last stage's lines, and of its rollouts."""
  stage = [*run.stages][-1:]
  rows = [(r['step'], r) for r in run.rows if r['stage'] in stage]
  last = max((step for step, _ in rows), default=0)
  if rows:
    rows += [(s.step, s.signs) for s in steps if s.step >= rows[0][0]]
  stopped = state.status(run)[1].partition(f'{STOPPED}: ')[2]
  watch = line_alarms.LineAlarms()
  for step, row in sorted(rows, key=lambda row: row[0]):
    watch.add(step, row)
  out = []
  for rule in line_alarms.RULES:
    alarm, missing = watch.raised.get(rule.name), watch.missing(rule)
    if stopped and rule.name == REWARDS:
      # The run ends before the line of the interval is written.
      out.append(Alarm(rule.name, True, stopped, rule.advice, last))
    elif alarm:
      on = alarm.until is None
      out.append(Alarm(rule.name, on, alarm.evidence, rule.advice, *alarm[1:]))
    else:
      text = f'no line has {", ".join(missing)}' if missing else 'not raised'
      out.append(Alarm(rule.name, None if missing else False, text, ''))
  return out


def before_and_after(run: Run) -> tuple[dict, dict] | None:
  """Returns the evaluations at the start of the last stage and at its end."""
  return ends(run.evaluations, lambda row: row['stage'])


def _fewer_solvable(run: Run) -> Alarm:
  """Returns whether pass@k at the largest k falls by more than two standard
  errors of the paired difference.
  """
  name = 'fewer problems can be solved at all (pass@k falls)'
  advice = 'raise rl.temperature or rl.loss.kl_coef, or train for fewer steps'
  both = before_and_after(run)
  if both is None:
    return Alarm(name, None, 'fewer than two evaluations on disk', advice)
  found, on = [], False
  for split, after in both[1]['splits'].items():
    before = both[0]['splits'].get(split)
    if not before or len(before['right']) != len(after['right']):
      continue
    n = min(before['samples'], after['samples'])
    change, error = passk.paired(
      *(
        passk.pass_at_k(side['right'], side['samples'], n)
        for side in (before, after)
      )
    )
    # One problem has no error.
    on |= len(after['right']) > 1 and change < -2 * error
    found.append(f'{split} pass@{n} {change:+.3f} ± {error:.3f}')
  text = ', '.join(found) or 'no same split'
  since = both[0]['step'] if on else None
  return Alarm(name, on if found else None, text, advice, since)
