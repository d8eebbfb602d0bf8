"""Filters the system calls of a judged program.

The filter denies new processes (threads are allowed), other programs, sockets,
signals to other processes, access to other processes, shared memory that
outlives the program, and administrative calls. It needs no privilege and cannot
be removed. It is classic BPF over `struct seccomp_data`; see seccomp(2). It
denies a list of calls, so calls that are not in the table are allowed. There is
no filter for other architectures than the two below.
"""

import ctypes
import errno
import os
import struct

from jaxrl_reason.verifiers.pool import linux

# name: number on (x86_64, aarch64); None if it does not exist.
DENIED = {
  'fork': (57, None),
  'vfork': (58, None),
  'execve': (59, 221),
  'execveat': (322, 281),
  'socket': (41, 198),
  'ptrace': (101, 117),
  'process_vm_readv': (310, 270),
  'process_vm_writev': (311, 271),
  'tkill': (200, 130),
  'rt_sigqueueinfo': (129, 138),
  'rt_tgsigqueueinfo': (297, 240),
  'pidfd_open': (434, 434),
  'pidfd_getfd': (438, 438),
  'pidfd_send_signal': (424, 424),
  'process_madvise': (440, 440),
  'process_mrelease': (448, 448),
  'kcmp': (312, 272),
  'setpriority': (141, 140),
  'ioprio_set': (251, 30),
  'sched_setscheduler': (144, 119),
  'sched_setparam': (142, 118),
  'sched_setattr': (314, 274),
  'sched_setaffinity': (203, 122),
  'migrate_pages': (256, 238),
  'move_pages': (279, 239),
  'memfd_create': (319, 279),
  'memfd_secret': (447, 447),
  'shmget': (29, 194),
  'shmat': (30, 196),
  'shmctl': (31, 195),
  'msgget': (68, 186),
  'msgsnd': (69, 189),
  'msgrcv': (70, 188),
  'msgctl': (71, 187),
  'semget': (64, 190),
  'semop': (65, 193),
  'semctl': (66, 191),
  'semtimedop': (220, 192),
  'mq_open': (240, 180),
  'mq_unlink': (241, 181),
  'add_key': (248, 217),
  'request_key': (249, 218),
  'keyctl': (250, 219),
  'bpf': (321, 280),
  'perf_event_open': (298, 241),
  'io_uring_setup': (425, 425),
  'userfaultfd': (323, 282),
  'fanotify_init': (300, 262),
  'open_by_handle_at': (304, 265),
  'mount': (165, 40),
  'umount2': (166, 39),
  'pivot_root': (155, 41),
  'chroot': (161, 51),
  'unshare': (272, 97),
  'setns': (308, 268),
  'open_tree': (428, 428),
  'move_mount': (429, 429),
  'fsopen': (430, 430),
  'fsconfig': (431, 431),
  'fsmount': (432, 432),
  'fspick': (433, 433),
  'mount_setattr': (442, 442),
  'quotactl': (179, 60),
  'swapon': (167, 224),
  'swapoff': (168, 225),
  'acct': (163, 89),
  'reboot': (169, 142),
  'kexec_load': (246, 104),
  'kexec_file_load': (320, 294),
  'init_module': (175, 105),
  'finit_module': (313, 273),
  'delete_module': (176, 106),
  'settimeofday': (164, 170),
  'clock_settime': (227, 112),
  'adjtimex': (159, 171),
  'clock_adjtime': (305, 266),
  'syslog': (103, 116),
  'sethostname': (170, 161),
  'setdomainname': (171, 162),
  'personality': (135, 92),
  'modify_ldt': (154, None),
  'iopl': (172, None),
  'ioperm': (173, None),
}
CLONE, CLONE3 = (56, 220), (435, 435)
KILL, TGKILL, PRLIMIT = (62, 129), (234, 131), (302, 261)
PRCTL, FCNTL, IOCTL = (157, 167), (72, 25), (16, 29)
CLONE_THREAD = 0x10000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
F_SETOWN, F_SETOWN_EX = 8, 15  # signals to any process of the same user
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902  # the same through ioctl
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # keystrokes into a terminal

MACHINES = {'x86_64': (0, 0xC000003E), 'aarch64': (1, 0xC00000B7)}
AVAILABLE = linux.AVAILABLE and linux.MACHINE in MACHINES
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# BPF: load a word of the data; compare; return.
LD, JEQ, JGE, JSET, RET = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCH, ARGUMENT = 0, 4, 16  # offsets; low word of the first argument
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
DENY = 0x00050000 | errno.EPERM
MISSING = 0x00050000 | errno.ENOSYS  # libc then uses the older call


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
  return struct.pack('=HBBI', code, yes, no, value)


def _only(number: int, argument: int, values, *, allow: bool) -> list[bytes]:
  """Returns the code that allows (or denies) a call only for some values."""
  tests = [_op(LD, ARGUMENT + 8 * argument)]
  for i, value in enumerate(values):
    tests.append(_op(JEQ, value, len(values) - i))
  hit, miss = (ALLOW, DENY) if allow else (DENY, ALLOW)
  block = [*tests, _op(RET, miss), _op(RET, hit)]
  return [_op(JEQ, number, 0, len(block)), *block]


def program(pid: int) -> bytes:
  """Returns the filter for a process whose own pid is `pid`."""
  column, arch = MACHINES[linux.MACHINE]
  ops = [_op(LD, ARCH), _op(JEQ, arch, 1), _op(RET, KILL_PROCESS)]
  ops.append(_op(LD, NUMBER))
  if linux.MACHINE == 'x86_64':  # x32 has the same calls with other numbers
    ops += [_op(JGE, 0x40000000, 0, 1), _op(RET, DENY)]
  for numbers in DENIED.values():
    if numbers[column] is not None:
      ops += [_op(JEQ, numbers[column], 0, 1), _op(RET, DENY)]
  ops += [_op(JEQ, CLONE3[column], 0, 1), _op(RET, MISSING)]
  ops += [_op(JEQ, CLONE[column], 0, 4), _op(LD, ARGUMENT)]
  ops += [_op(JSET, CLONE_THREAD, 1), _op(RET, DENY), _op(RET, ALLOW)]
  ops += _only(KILL[column], 0, [pid], allow=True)
  ops += _only(TGKILL[column], 0, [pid], allow=True)
  ops += _only(PRLIMIT[column], 0, [0, pid], allow=True)
  ops += _only(
    PRCTL[column], 0, [PR_SET_PDEATHSIG, PR_SET_DUMPABLE], allow=False
  )
  ops += _only(FCNTL[column], 1, [F_SETOWN, F_SETOWN_EX], allow=False)
  commands = [FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX]
  ops += _only(IOCTL[column], 1, commands, allow=False)
  return b''.join([*ops, _op(RET, ALLOW)])


class _Program(ctypes.Structure):
  _fields_ = [('length', ctypes.c_ushort), ('ops', ctypes.c_char_p)]


def install():
  """Installs the filter permanently. Needs no_new_privileges."""
  code = program(os.getpid())
  wanted = _Program(len(code) // 8, code)
  pointer = ctypes.byref(wanted)
  linux.call('prctl', PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pointer, 0, 0)
