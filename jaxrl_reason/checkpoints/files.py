"""Writes files atomically, and repeats reads after temporary errors.

write_whole(path, data)   the file has the old or the new data, never a part
retried(call)             repeats a call after an error of the file system
"""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator

from absl import logging
from etils import epath

# Temporary causes: a server restarts, a handle is stale, memory is short.
WAITS_S = (0.5, 2.0, 8.0)
DAY_S = 86_400.0
# Errors of the file system in messages of tensorstore and orbax.
OF_FILES = re.compile(
  r'RESOURCE_EXHAUSTED: Error|No space left|Disk quota|Input/output error|'
  r'Read-only file system|Stale file handle|Permission denied|OS error|'
  r'Error (opening|writing|reading|creating|renaming|listing|deleting)'
)


def is_remote(path: epath.PathLike) -> bool:
  """Returns True for a path in an object store (gs://...).

  An object is written as a whole; nothing is appended or renamed.
  """
  return '://' in str(path)


def absolute(path: epath.PathLike) -> epath.Path:
  """Returns a path that does not depend on the working folder, as orbax
  needs; ~ is the user's home.
  """
  path = epath.Path(path)
  if is_remote(path):
    return path
  return epath.Path(os.path.abspath(os.path.expanduser(path)))


@contextlib.contextmanager
def new_folder(flag: str, target: str | os.PathLike) -> Iterator[pathlib.Path]:
  """Makes a folder that appears only after the body has filled it.

  The body fills a temporary folder of this process. If a kill leaves that
  folder, a later call removes it.

  Args:
    flag: names the target, for messages.

  Raises:
    ValueError: the target is in an object store.
    FileExistsError: the target is not empty.
  """
  if is_remote(target):
    raise ValueError(f'{flag}={target}: must be a folder on this machine')
  target = pathlib.Path(absolute(target))
  if target.exists() and any(target.iterdir()):
    raise FileExistsError(f'{flag}={target} is not empty')
  prefix, host = f'.{target.name}.unfinished-', socket.gethostname()
  unfinished = target.with_name(f'{prefix}{host}-{os.getpid()}')
  shutil.rmtree(unfinished, ignore_errors=True)
  unfinished.mkdir(parents=True)
  for other in target.parent.iterdir():
    if other.name.startswith(prefix) and _abandoned(other, prefix + host):
      shutil.rmtree(other, ignore_errors=True)
  try:
    yield unfinished
    os.replace(unfinished, target)
  finally:
    shutil.rmtree(unfinished, ignore_errors=True)


def _abandoned(folder: pathlib.Path, prefix: str) -> bool:
  """Returns True if the process that filled a temporary folder has ended. On
  another host, that is assumed a day after the last change.
  """
  name, _, pid = folder.name.rpartition('-')
  try:
    if name != prefix:
      return time.time() - folder.stat().st_mtime > DAY_S
    os.kill(int(pid), 0)
  except (ProcessLookupError, FileNotFoundError, ValueError):
    return True
  except PermissionError:  # of another user, who runs it
    return False
  return False


@contextlib.contextmanager
def explained(path):
  """Raises an error of the file system again, with the path and a remedy."""
  try:
    yield
  except OSError as e:
    raise OSError(
      f'{path} could not be written: {e.strerror or e}. Make room (or mend the '
      'file system) and start the same command again to go on from the last '
      'checkpoint'
    ) from e


@contextlib.contextmanager
def explained_below(folder: epath.PathLike):
  """Raises an error that names the file the file system refused.

  Errors that already have a remedy (ours have no errno) pass as they are.
  """
  try:
    yield
  except OSError as e:
    path = os.fsdecode(e.filename) if _named(e.filename) else ''
    if e.errno is None or not path.startswith(str(absolute(folder))):
      raise
    raise OSError(
      f'{path} could not be used: {e.strerror}. Mend the file system and start '
      'the same command again to go on from the last checkpoint'
    ) from e


def _named(filename) -> bool:
  return isinstance(filename, (str, bytes))


def write_whole(path: epath.PathLike, data: str | bytes) -> None:
  """Replaces a file atomically, as object stores always do."""
  path = epath.Path(path)
  data = data.encode() if isinstance(data, str) else data
  with explained(path):
    if is_remote(path):
      path.write_bytes(data)
    else:
      _replace(path, data)


def _replace(path: epath.Path, data: bytes) -> None:
  aside = path.with_name(f'.{path.name}.{os.getpid()}')
  try:
    with open(aside, 'wb') as f:
      f.write(data)
      f.flush()
      os.fsync(f.fileno())
    os.replace(aside, path)
  except OSError:
    aside.unlink(missing_ok=True)
    raise


def retried(what: str, call: Callable, *args, kinds=(OSError, MemoryError)):
  """Returns `call(*args)`, and repeats it after errors of these kinds, except
  for a missing file.

  Raises:
    The last error, after `WAITS_S`.
  """
  for wait in WAITS_S:
    try:
      return call(*args)
    except FileNotFoundError:
      raise
    except kinds as e:
      kind, reason = type(e).__name__, f'{e!s:.200}'.partition('\n')[0]
      logging.warning(
        '%s: %s (%s); trying again in %g s.', what, reason, kind, wait
      )
      time.sleep(wait)
  return call(*args)


def refusal(e: BaseException | None) -> str | None:
  """Returns why a file system refused an operation; None for other errors."""
  told = None
  while e is not None:
    named = getattr(e, 'errno', None) is not None or OF_FILES.search(str(e))
    if named or (told is None and isinstance(e, OSError)):
      full = re.search('No space left|Disk quota', str(e))
      told = 'no space left' if full else str(e)[:300].partition('\n')[0]
    if named:
      break
    # Orbax waits with a limit, and treats ETIMEDOUT as its own: its message
    # then has no number, and hides the call that failed.
    e = e.__cause__ or e.__context__
  return told and told.rstrip('.')
