"""Removing a folder that a hostile program filled.

`shutil.rmtree` recurses once a level, and a path may be longer than the kernel
takes: 10,000 nested folders end it with a RecursionError. Here every folder is
emptied from one place: what lies in it is moved up to the top, until there is
nothing to move.
"""

import itertools
import os
import secrets
import stat

FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str):
  """Removes a folder and all below it, as far as the system lets us.

  Nobody else may be writing there. What cannot be removed stays.
  """
  try:
    top = os.open(folder, FLAGS)
  except OSError:
    return  # gone already
  try:
    os.fchmod(top, 0o700)
    _empty(top)
    os.rmdir(folder)
  except OSError:
    return  # immutable, or not ours
  finally:
    os.close(top)


def _empty(top: int):
  """Removes what is in the folder `top`, a descriptor."""
  # Names that nothing there can have.
  names = map(f'{secrets.token_hex(8)}_{{}}'.format, itertools.count())
  while folders := [n for n in os.listdir(top) if not _unlinked(n, top)]:
    for name in folders:
      # Else it could be neither listed nor moved.
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
  """Removes a file; False for a folder, which is left."""
  found = os.stat(name, dir_fd=folder, follow_symlinks=False)
  if stat.S_ISDIR(found.st_mode):
    return False
  os.unlink(name, dir_fd=folder)
  return True
