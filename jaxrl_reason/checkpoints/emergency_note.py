"""Reads and writes the note about emergency checkpoints in the workdir.

`emergency.json` records for each earlier start the last step that is part of
the run, so that files of an abandoned continuation are never used. It is
written before the first file of a start. Process 0 reads and writes it.
"""

import json
import sys

from absl import logging
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import files

NOTE = 'emergency.json'


def read(workdir: epath.Path) -> dict[str, int]:
  """Returns start -> last step of its files that is part of the run.

  If the file is damaged, the result is empty, and the checkpoints of the
  workdir are used.
  """
  path = workdir / NOTE
  if not hosts.is_main() or not path.exists():
    return {}
  try:
    note = json.loads(path.read_bytes())
    return dict(note['starts']) | {note['now']: sys.maxsize}
  except (ValueError, TypeError, KeyError) as e:
    logging.warning(
      '%s is damaged (%s): emergency checkpoints of earlier starts are not '
      'used.',
      path,
      f'{e!s:.80}',
    )
    return {}


def write(workdir: epath.Path, starts: dict[str, int], now: str) -> None:
  """Writes the last steps of earlier starts, and the name of this one."""
  if hosts.is_main():
    text = json.dumps({'starts': starts, 'now': now})
    files.write_whole(workdir / NOTE, text)


def disown(workdir: epath.Path) -> None:
  """Removes emergency.json, so no start uses earlier emergency checkpoints."""
  if hosts.is_main():
    (workdir / NOTE).unlink(missing_ok=True)
