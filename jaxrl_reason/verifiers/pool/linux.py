"""Confines a process by system calls of Linux, through ctypes.

There are namespaces (network, mounts, processes), a private root of read-only
bind mounts, capabilities and process attributes. Every function raises OSError
if the kernel or a surrounding container does not allow it. See namespaces(7),
pivot_root(2), mount_setattr(2), capabilities(7), prctl(2).
"""

import ctypes
import operator
import os
import platform
import signal
import sys

AVAILABLE = sys.platform.startswith('linux')
MACHINE = platform.machine()
# Numbers of system calls without a function in libc.
PIVOT_ROOT = {'x86_64': 155, 'aarch64': 41}.get(MACHINE, -1)
MOUNT_SETATTR = 442  # numbers from 424 on are the same on all architectures

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = (
  2,
  4,
  1 << 12,
  1 << 14,
  1 << 18,
)
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID = 1, 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAP_VERSION_3 = 0x20080522
CAP_DAC_READ_SEARCH, CAP_KILL = 2, 5

_libc = ctypes.CDLL(None, use_errno=True) if AVAILABLE else None


def call(name: str, *args) -> int:
  """Calls a libc function that returns -1 and sets errno if it fails."""
  result = getattr(_libc, name)(*[_argument(a) for a in args])
  if result < 0:
    code = ctypes.get_errno()
    raise OSError(code, f'{name}: {os.strerror(code)}')
  return result


def syscall(number: int, *args) -> int:
  return call('syscall', number, *args)


def _argument(value):
  if isinstance(value, int):
    return ctypes.c_long(value)
  return value.encode() if isinstance(value, str) else value


def die_with_parent():
  """Requests SIGKILL at the parent's end. A change of the uid cancels it."""
  call('prctl', PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans():
  """Makes this process the parent of orphaned descendants."""
  call('prctl', PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def undumpable():
  """Disables core dumps and ptrace. /proc/PID then belongs to root."""
  call('prctl', PR_SET_DUMPABLE, 0, 0, 0, 0)


def no_new_privileges():
  call('prctl', PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


class _CapHeader(ctypes.Structure):
  _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]


def set_capabilities(keep: int = 0):
  """Removes all capabilities of this process that are not in the bit mask."""
  header = _CapHeader(CAP_VERSION_3, 0)
  # (effective, permitted, inheritable): first low words, then high words.
  data = (ctypes.c_uint32 * 6)()
  call('capget', ctypes.byref(header), ctypes.byref(data))
  low, high = data[1] & keep, data[4] & keep >> 32
  data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
  call('capset', ctypes.byref(header), ctypes.byref(data))


def become(uid: int, *, keep: int = 0):
  """Changes root to `uid`, without groups and with the capabilities `keep`."""
  call('prctl', PR_SET_KEEPCAPS, 1, 0, 0, 0)
  os.setgroups([])
  os.setresgid(uid, uid, uid)
  os.setresuid(uid, uid, uid)
  set_capabilities(keep)


def spare_uids() -> tuple[int, int] | None:
  """Returns (first, number) of unused high uids, or None.

  In a container, /proc/self/uid_map has the available uids.
  """
  with open('/proc/self/uid_map') as f:
    rows = [[int(x) for x in line.split()] for line in f]
  first, _, count = max(rows, key=operator.itemgetter(2))
  if count < 1 << 15:
    return None
  # The upper half, without the top, where 65534 (nobody) and -1 are.
  return first + count // 2, min(count // 2 - 16, 1 << 28)


def unshare(flags: int):
  call('unshare', flags)


def enter_namespaces(*, own_user: bool):
  """Enters new namespaces of mounts, network (without lo), IPC and host name.

  `own_user` first creates a user namespace, in which an ordinary user has the
  necessary rights. It maps only this user, to the same number.
  """
  flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
  if not own_user:
    unshare(flags)
    return
  uid, gid = os.getuid(), os.getgid()
  unshare(flags | CLONE_NEWUSER)
  _write('/proc/self/setgroups', 'deny')
  _write('/proc/self/uid_map', f'{uid} {uid} 1')
  _write('/proc/self/gid_map', f'{gid} {gid} 1')


def _write(path: str, text: str):
  with open(path, 'w') as f:
    f.write(text)


def mount(source, target: str, kind, flags: int, data: str | None = None):
  call('mount', source, target, kind, flags, data)


def mount_box(path: str, uid: int, megabytes: int):
  """Mounts an empty folder with limited size and number of files, until this
  process ends.
  """
  options = f'size={megabytes}m,nr_inodes=1024,mode=700,uid={uid},gid={uid}'
  mount('box', path, 'tmpfs', MS_NOSUID | MS_NODEV, options)


class _MountAttributes(ctypes.Structure):
  _fields_ = [
    (name, ctypes.c_uint64) for name in ('set', 'clear', 'propagation', 'fd')
  ]


def _restrict_mount(path: str, attributes: int, flags: int = AT_RECURSIVE):
  """Sets attributes of a mount and all mounts below it. The remount of a bind
  mount would not change those below.
  """
  wanted = _MountAttributes(set=attributes)
  size = ctypes.sizeof(wanted)
  syscall(MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(wanted), size)


def private_root(at: str, shared: list[str], folder: str):
  """Replaces / by an empty root with `shared` (read-only) and `folder`.

  The new root is built on the empty directory `at`. Paths keep their names, so
  that later imports of Python work.
  """
  mount(None, '/', None, MS_REC | MS_PRIVATE)
  mount('root', at, 'tmpfs', MS_NOSUID | MS_NODEV, 'size=1m,mode=755')
  for path in shared:
    target = at + path
    if os.path.isdir(path):
      os.makedirs(target, exist_ok=True)
    else:
      os.makedirs(os.path.dirname(target), exist_ok=True)
      os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(path, target, None, MS_BIND | MS_REC)
    _restrict_mount(target, ATTR_RDONLY | ATTR_NOSUID)
  os.mkdir(at + folder)
  os.chdir(at)
  # Stack the old root on the new one, then unmount it: pivot_root(2), NOTES.
  syscall(PIVOT_ROOT, '.', '.')
  call('umount2', '.', MNT_DETACH)
  os.chdir('/')
  _restrict_mount('/', ATTR_RDONLY, 0)
