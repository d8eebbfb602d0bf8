"""Describes the arrays of a checkpoint by dtype and shape.

A checkpoint that does not fit the config is refused by the arrays that differ.
"""

from typing import Any


class Incompatible(ValueError):
  """A checkpoint of another model, optimizer or loss than the config's."""


class Damaged(ValueError):
  """A checkpoint whose files are proven to differ from the saved files."""


class Unreadable(OSError):
  """A checkpoint that could not be read, without proven damage; it stays."""


def unreadable(path, e: BaseException) -> Unreadable:
  """Returns the error of a checkpoint that could not be read."""
  reason = f'{type(e).__name__}: {e!s:.300}'.replace('\n', ' ')
  return Unreadable(
    f'{path} could not be read: {reason}. Nothing was changed: start the same '
    'command again when the file system (or the memory) is back. If it never '
    'can be, move that folder away to go on from the checkpoint before'
  )


def shapes(arrays: dict[str, Any]) -> dict[str, str]:
  """Describes arrays by dtype and shape."""
  return {k: f'{v.dtype}{list(v.shape)}' for k, v in arrays.items()}


def gb(arrays: dict[str, Any]) -> float:
  """Counts the GB of arrays; copies on several devices count once."""
  return sum(x.nbytes for x in arrays.values()) / 1e9


def refuse_other(path, saved: dict[str, str], wanted: dict[str, str]) -> None:
  """Refuses a checkpoint with other arrays.

  Args:
    path: of the checkpoint, for the message; saved, wanted: `shapes`.

  Raises:
    Incompatible: names the first arrays that differ.
  """
  if saved == wanted:
    return
  lines = [
    f'{k}: saved {saved.get(k, "nothing")}, config wants '
    f'{wanted.get(k, "nothing")}'
    for k in sorted(saved.keys() | wanted.keys())
    if saved.get(k) != wanted.get(k)
  ]
  more = f' (and {len(lines) - 3} more)' if len(lines) > 3 else ''
  raise Incompatible(
    f'{path} does not fit this config. {"; ".join(lines[:3])}{more}. Use the '
    'config it was made with, or another --workdir.'
  )
