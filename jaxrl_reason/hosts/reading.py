"""Reads files of other programs; errors name the file."""

import contextlib
import json
import os
from collections.abc import Iterator

from etils import epath


def cache_dir() -> epath.Path:
  """Returns the user's cache folder."""
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return epath.Path(base) / 'jaxrl_reason'


@contextlib.contextmanager
def explained(path: str | os.PathLike) -> Iterator[None]:
  """Adds the file's name to errors that a library raises while it reads.

  Raises:
    ValueError: names the file; ImportError and OSError pass as they are.
  """
  try:
    yield
  except (ImportError, OSError):
    raise
  # The libraries of tokenizers and safetensors raise plain Exceptions.
  except Exception as e:
    why = f'{type(e).__name__}: {e}'.replace('\n', ' ')[:300]
    raise ValueError(
      f'{path} cannot be read ({why}); a file that was cut short must be '
      'fetched again'
    ) from e


def json_object(path: str | os.PathLike) -> dict:
  """Reads the object in a JSON file.

  Raises:
    ValueError: names a file that is no JSON, or has no object.
    FileNotFoundError: the file does not exist.
  """
  path = epath.Path(path)
  with explained(path):
    found = json.loads(path.read_text())
  if not isinstance(found, dict):
    raise ValueError(f'{path} holds no JSON object but {found!r:.60}')
  return found
