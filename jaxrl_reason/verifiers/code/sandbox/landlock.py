"""Restricts access to files by Landlock (Linux 5.13 and later).

Any process can permanently restrict its access to files, here to reading the
libraries and using one folder. Landlock also prevents access to processes with
fewer restrictions (`/proc/PID/mem`). See landlock(7).
"""

import ctypes
import os

from jaxrl_reason.verifiers.pool import linux

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
VERSION_1 = (1 << 13) - 1  # all rights of version 1
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15  # versions 2, 3, 5
READ = EXECUTE | READ_FILE | READ_DIR


class _Rule(ctypes.Structure):
  _pack_ = 1
  _fields_ = [('allowed', ctypes.c_uint64), ('fd', ctypes.c_int32)]


def version() -> int:
  """Returns the version of the system's Landlock, 0 without Landlock."""
  if not linux.AVAILABLE:
    return 0
  try:
    return linux.syscall(CREATE_RULESET, None, 0, ASK_VERSION)
  except OSError:
    return 0


def restrict(read: list[str], write: list[str]):
  """Restricts this process to files and folders. Needs no_new_privileges."""
  found = version()
  rights = (
    VERSION_1 | (REFER if found > 1 else 0) | (TRUNCATE if found > 2 else 0)
  )
  rights |= IOCTL if found > 4 else 0
  handled = ctypes.c_uint64(rights)
  ruleset = linux.syscall(CREATE_RULESET, ctypes.byref(handled), 8, 0)
  for paths, allowed in ((read, READ), (write, rights)):
    for path in paths:
      _allow(ruleset, path, allowed & rights)
  linux.syscall(RESTRICT_SELF, ruleset, 0)
  os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int):
  fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
  if not os.path.isdir(path):
    rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
  rule = _Rule(rights, fd)
  linux.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
  os.close(fd)
