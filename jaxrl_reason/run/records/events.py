"""Starts and ends of a run: `events.jsonl` and `config.json` of its workdir.

  {"event": "start", "time": 1.7e9, "step": 0, "reached": 0}
  {"event": "end", "time": 1.7e9, "how": "finished"}

If a start follows a start, the run was killed in between. `reached` is the last
step with metrics of the previous run, and `step` is the step from which this
run resumes. Metrics after `step` are removed (`metrics`); this file only grows.
`config.json` has the config of the last start.
"""

import json
import time

from absl import logging
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import files
from jaxrl_reason.config import changes
from jaxrl_reason.reports import metrics_file

NAME, CONFIG = 'events.jsonl', 'config.json'


def read(workdir: epath.PathLike) -> list[dict]:
  """Returns the events of a workdir; leaves damaged lines out, with a warning.

  No other file of a run depends on this file, so a line may be lost.
  """
  return metrics_file.lines(epath.Path(workdir) / NAME)


def note(workdir: epath.Path, event: str, **facts) -> None:
  """Adds an event, on process 0."""
  if not hosts.is_main():
    return
  row = {'event': event, 'time': round(time.time(), 3)} | facts
  lines = [json.dumps(e) + '\n' for e in [*read(workdir), row]]
  files.write_whole(workdir / NAME, ''.join(lines))


def last_end(workdir: epath.Path) -> str:
  """Returns how the last run in a workdir ended; '' if it has not ended."""
  last = (read(workdir) or [{}])[-1]
  return str(last.get('how', '')) if last.get('event') == 'end' else ''


def note_failure(workdir: epath.Path, error: BaseException) -> None:
  """Adds the failure of a run, if the file can be written.

  An error of this file must not hide the error that ends the run.
  """
  how = f'{type(error).__name__}: {error!s:.500}'.partition('\n')[0]
  try:
    note(workdir, 'end', how=how)
  except OSError as e:
    logging.warning('%s', e)


def write_config(values: dict, workdir: epath.Path, resuming: bool) -> None:
  """Writes the config; warns of each key that differs from the last start.

  A file that cannot be read is replaced: the config of this start is known.

  Args:
    values: of the config (`Record.json_values`).
  """
  if not hosts.is_main():
    return
  path = workdir / CONFIG
  if resuming and path.exists():
    _warn_of_changes(_before(path), changes.flat(values))
  files.write_whole(path, json.dumps(values, indent=1))


def _before(path: epath.Path) -> dict | None:
  try:
    return changes.flat(dict(json.loads(path.read_bytes())))
  except (ValueError, TypeError, RecursionError) as e:
    logging.warning(
      '%s is damaged (%s) and is written again: which keys have changed since '
      'the last start is not known.',
      path,
      f'{e!s:.80}',
    )
    return None


def _warn_of_changes(before: dict | None, after: dict) -> None:
  if before is None:
    return
  for key in sorted(before.keys() | after.keys()):
    if before.get(key) != after.get(key):
      logging.warning(
        'config.%s was %s when this run began and is %s now.',
        key.replace('/', '.'),
        before.get(key),
        after.get(key),
      )
