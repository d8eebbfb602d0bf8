"""The config of a run's last start: `config.json` of its workdir."""

import json

from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.checkpoints import files
from jaxrl_reason.config import changes

NAME = 'config.json'


def write(values: dict, workdir: epath.Path, resuming: bool) -> None:
  """Writes the config; warns of each key that differs from the last start.

  A file that cannot be read is replaced: the config of this start is known.

  Args:
    values: of the config (`Record.json_values`).
  """
  if not hosts.is_main():
    return
  path = workdir / NAME
  if resuming and path.exists():
    _warn_of_changes(_before(path), _flat(values))
  files.write_whole(path, json.dumps(values, indent=1))


def _before(path: epath.Path) -> dict | None:
  try:
    return _flat(dict(json.loads(path.read_bytes())))
  except (ValueError, TypeError, RecursionError) as e:
    logging.warning(
      '%s is damaged (%s) and is written again: which keys have changed since '
      'the last start is not known.',
      path,
      f'{e!s:.80}',
    )
    return None


def _flat(values: dict) -> dict:
  """Returns the values by path, and the orders of keys (`changes.orders`)."""
  return trees.flatten(values) | changes.orders(values)


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
