"""The filter on both architectures, by an interpreter of its instructions.

seccomp(2): the data is nr (u32), arch (u32), instruction pointer (u64), six
arguments (u64). The kernel can only run the filter of this machine's
architecture: test_code_hostile.py uses it.
"""

import errno
import struct

import pytest

from jaxrl_reason.verifiers.code.sandbox import seccomp
from jaxrl_reason.verifiers.pool import linux

PID = 4321
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
REFUSED, UNKNOWN = 0x50000 + errno.EPERM, 0x50000 + errno.ENOSYS
ARCH = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
# Some numbers from the kernel's tables, independent of the package.
NUMBERS = {
  'x86_64': dict(read=0, write=1, mmap=9, exit=60, futex=202, openat=257),
  'aarch64': dict(read=63, write=64, mmap=222, exit=93, futex=98, openat=56),
}


def verdict(code: bytes, number: int, arch: int, *args: int) -> int:
  """Returns the filter's result; raises an error if the kernel would refuse
  it.
  """
  padded = [*args, *[0] * (6 - len(args))]
  data = struct.pack('=IIQ6Q', number, arch, 0, *padded)
  accumulator, at, steps = 0, 0, 0
  while True:
    op, yes, no, value = struct.unpack_from('=HBBI', code, 8 * at)
    steps, at = steps + 1, at + 1
    if op == 0x06:  # return
      return value
    if op == 0x20:  # load a word
      (accumulator,) = struct.unpack_from('=I', data, value)
      continue
    holds = {
      0x15: accumulator == value,
      0x35: accumulator >= value,
      0x45: bool(accumulator & value),
    }[op]
    at += yes if holds else no
    assert steps < 4096


@pytest.fixture(params=ARCH)
def call(request, monkeypatch):
  monkeypatch.setattr(linux, 'MACHINE', request.param)
  code = seccomp.program(PID)
  column = list(ARCH).index(request.param)

  def ask(name, *args):
    numbers = name if isinstance(name, tuple) else None
    number = (
      numbers[column] if numbers else NUMBERS[request.param].get(name, name)
    )
    return verdict(code, number, ARCH[request.param], *args)

  ask.machine, ask.code = request.param, code
  return ask


def test_calls_of_every_program_are_allowed(call):
  for name in NUMBERS[call.machine]:
    assert call(name, 1, 2, 3) == ALLOWED


def test_denied_calls(call):
  column = list(ARCH).index(call.machine)
  for name, numbers in seccomp.DENIED.items():
    if numbers[column] is not None:
      assert call(numbers[column]) == REFUSED, name


def test_threads_but_no_processes(call):
  sigchld, thread = 17, 0x3D0F00  # glibc's flags for pthread_create
  assert call(seccomp.CLONE, sigchld) == REFUSED
  assert call(seccomp.CLONE, thread) == ALLOWED
  assert call(seccomp.CLONE3, 0) == UNKNOWN  # libc falls back to clone


def test_signals_and_limits_only_for_the_own_process(call):
  others = [0, 1, 2**32 - 1, PID + 1, 2**64 - 1]
  for name in (seccomp.KILL, seccomp.TGKILL):
    assert call(name, PID, 9) == ALLOWED
    assert {call(name, pid, 9) for pid in others} == {REFUSED}
  assert call(seccomp.PRLIMIT, 0) == call(seccomp.PRLIMIT, PID) == ALLOWED
  assert {call(seccomp.PRLIMIT, pid) for pid in others[1:]} == {REFUSED}


def test_single_operations(call):
  assert call(seccomp.PRCTL, 1) == call(seccomp.PRCTL, 4) == REFUSED
  assert call(seccomp.PRCTL, 15) == ALLOWED  # a thread's name
  assert call(seccomp.FCNTL, 1, 8) == call(seccomp.FCNTL, 1, 15) == REFUSED
  assert call(seccomp.FCNTL, 8, 1) == call(seccomp.FCNTL, 0, 4) == ALLOWED
  assert call(seccomp.IOCTL, 0, 0x5412) == call(seccomp.IOCTL, 0, 0x8901)
  assert call(seccomp.IOCTL, 0, 0x5412) == REFUSED
  assert call(seccomp.IOCTL, 0x5412, 0x5401) == ALLOWED


def test_other_call_numbers_are_denied(call):
  for arch in (*ARCH.values(), 0x40000003, 0):
    if arch != ARCH[call.machine]:
      assert verdict(call.code, 0, arch) == KILLED
  if call.machine == 'x86_64':  # x32: the same calls, another number
    assert call(0x40000000 + 57) == call(0x40000000) == REFUSED


def test_the_filter_is_valid_for_the_kernel(call):
  """It has at most 4096 instructions, valid jumps, and a return at the end."""
  count = len(call.code) // 8
  assert count <= 4096 and len(call.code) % 8 == 0
  for at in range(count):
    op, yes, no, _ = struct.unpack_from('=HBBI', call.code, 8 * at)
    assert at + 1 + max(yes, no) < count or op == 0x06
  assert op == 0x06
