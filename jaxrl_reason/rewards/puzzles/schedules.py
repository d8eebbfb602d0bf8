"""Schedules: precedence, time windows and resources."""

from collections.abc import Mapping, Sequence

from jaxrl_reason.rewards.puzzles import answers, instances

MAX_TIME = 10**9
MAX_JOBS = 500


def scheduling(
  text: str,
  *,
  durations,
  precedence=(),
  windows=(),
  resources=(),
  deadline=None,
) -> float | None:
  """Checks a start time for every job that keeps all rules.

  durations: {job: time from 1}. precedence: [a, b] pairs, a ends before b
  starts. windows: {job: [earliest start, latest end]}. resources: {name:
  {'capacity': n, 'use': {job: n}}}; at no time is more in use than there is.
  deadline: no job ends after it. Times are integers from 0. Answers: `A=0,
  B: 3` or JSON. The share is that of the rules that hold: every pair, window,
  resource, and the deadline.
  """
  jobs = instances.table('durations', durations)
  instances.names('durations', list(jobs), at_most=MAX_JOBS)
  lasts = {
    job: instances.integer('durations', time, 1, MAX_TIME)
    for job, time in jobs.items()
  }
  order = instances.pairs('precedence', precedence, list(jobs))
  limits = _windows(windows, lasts)
  shared = [
    _resource(resource, lasts)
    for resource in instances.table('resources', resources or {}).values()
  ]
  if deadline is not None:
    instances.integer('deadline', deadline, 0, MAX_TIME)
  found = answers.assignment(text, list(jobs))
  if found is None or len(found) < len(jobs):
    return None
  start = {job: int(time) for job, time in found.items()}
  end = {job: start[job] + lasts[job] for job in jobs}
  rules = [end[a] <= start[b] for a, b in order]
  rules += [low <= start[j] and end[j] <= top for j, (low, top) in limits]
  rules += [_fits(start, end, *resource) for resource in shared]
  if deadline is not None:
    rules.append(max(end.values()) <= deadline)
  return sum(rules) / len(rules) if rules else 1.0


def _windows(windows, jobs: Mapping) -> list[tuple[str, list[int]]]:
  found = instances.table('windows', windows or {}, list(jobs))
  bounds = dict(at_least=2, at_most=2)
  return [
    (job, instances.integers('windows', window, 0, MAX_TIME, **bounds))
    for job, window in found.items()
  ]


def _resource(resource, jobs: Mapping) -> tuple[int, dict[str, int]]:
  if not isinstance(resource, Mapping) or set(resource) != {'capacity', 'use'}:
    instances.refuse('resources', f"{resource!r:.60}: not 'capacity' and 'use'")
  use = instances.table('resources', resource['use'], list(jobs))
  capacity = instances.integer('resources', resource['capacity'], 0, MAX_TIME)
  return capacity, {
    job: instances.integer('resources', n, 0, MAX_TIME)
    for job, n in use.items()
  }


def _fits(
  start: Mapping, end: Mapping, capacity: int, use: Mapping[str, int]
) -> bool:
  """Whether the use never exceeds the capacity, end times excluded."""
  # At one time what ends is taken off before what starts is added.
  changes: Sequence = sorted(
    [(start[j], n) for j, n in use.items()]
    + [(end[j], -n) for j, n in use.items()]
  )
  used = 0
  for _, change in changes:
    used += change
    if used > capacity:
      return False
  return True
