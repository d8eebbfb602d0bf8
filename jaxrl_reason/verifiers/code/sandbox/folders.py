"""Removes folders that a hostile program filled.

`shutil.rmtree` recurses at every level, so 10,000 nested folders raise a
RecursionError, and their path is too long for the kernel. Here the contents of
nested folders are moved to the top folder until all are empty.
"""

import itertools
import os
import secrets
import stat

FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str):
  """Removes a folder and its contents, except files that cannot be removed.

  No other process may write there at the same time.
  """
  try:
    top = os.open(folder, FLAGS)
  except OSError:
    return  # already removed
  try:
    os.fchmod(top, 0o700)
    _empty(top)
    os.rmdir(folder)
  except OSError:
    return  # immutable, or of another user
  finally:
    os.close(top)


def _empty(top: int):
  """Removes the contents of the folder with the descriptor `top`."""
  # Random names, which do not exist there.
  names = map(f'{secrets.token_hex(8)}_{{}}'.format, itertools.count())
  while folders := [n for n in os.listdir(top) if not _unlinked(n, top)]:
    for name in folders:
      # Without these rights it can be neither listed nor moved.
      os.chmod(name, 0o700, dir_fd=top)
      inner = os.open(name, FLAGS, dir_fd=top)
      try:
        for child in os.listdir(inner):
          if not _unlinked(child, inner):
            os.chmod(child, 0o700, dir_fd=inner)
            os.rename(child, next(names), src_dir_fd=inner, dst_dir_fd=top)
      finally:
        os.close(inner)
      os.rmdir(name, dir_fd=top)


def _unlinked(name: str, folder: int) -> bool:
  """Removes a file. Returns False for a folder, which is not removed."""
  found = os.stat(name, dir_fd=folder, follow_symlinks=False)
  if stat.S_ISDIR(found.st_mode):
    return False
  os.unlink(name, dir_fd=folder)
  return True
