"""When a run began, went on and ended: `events.jsonl` of its workdir.

  {"event": "start", "time": 1.7e9, "step": 0, "reached": 0}
  {"event": "end", "time": 1.7e9, "how": "finished"}

A start without an end before it was preceded by a kill; `reached` is the last
step that the run before it has told metrics of, `step` where this one goes on.
Metrics past `step` are gone then (`metrics`): this file only grows.
"""

import json
import time

from absl import logging
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import files

NAME = 'events.jsonl'


def note(workdir: epath.Path, event: str, **facts) -> None:
  """Adds a line, on process 0."""
  if not hosts.is_main():
    return
  path = workdir / NAME
  before = path.read_text() if path.exists() else ''
  row = {'event': event, 'time': round(time.time(), 3)} | facts
  files.write_whole(path, before + json.dumps(row) + '\n')


def last_end(workdir: epath.Path) -> str:
  """Says how the run in a workdir has ended last; '' where it goes on, or never
  began.
  """
  path = epath.Path(workdir) / NAME
  text = path.read_text() if path.exists() else ''
  row = json.loads(text.splitlines()[-1]) if text.strip() else {}
  return str(row.get('how', '')) if row.get('event') == 'end' else ''


def note_failure(workdir: epath.Path, error: BaseException) -> None:
  """Adds how a run failed, if the disk still takes it: the error that ends the
  run must be told, not one of this file.
  """
  how = f'{type(error).__name__}: {error!s:.500}'.partition('\n')[0]
  try:
    note(workdir, 'end', how=how)
  except OSError as e:
    logging.warning('%s', e)
