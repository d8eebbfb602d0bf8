"""Records the seconds and memory of compiled programs.

with log: ...        records each program that jax compiles or reads from its
                     cache: the newest executable of the backend
log.table()          shows the programs since the last table
"""

import collections
import dataclasses
import operator
import threading
import time
from collections.abc import Callable

import jax
from jax import monitoring

from jaxrl_reason import hosts

# Events of jax: a program was traced, lowered, compiled.
TRACED = '/jax/core/compile/jaxpr_trace_duration'
LOWERED = '/jax/core/compile/jaxpr_to_mlir_module_duration'
COMPILED = '/jax/core/compile/backend_compile_duration'
MIB = 2**20


def profiled(text: str) -> range:
  """Returns the numbers, from 1, of the steps in profile.steps.

  Raises:
    ValueError: profile.steps has not the form 'first:last'.
  """
  if not text:
    return range(0)
  first, _, last = text.partition(':')
  if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last)):
    raise ValueError(
      f'profile.steps={text!r}: write first:last, two steps from 1 as 10:12'
    )
  return range(int(first), int(last) + 1)


@dataclasses.dataclass(frozen=True)
class Program:
  """Attributes:
  seconds: to compile it, or to read it from the cache.
  arguments, temporaries, peak: bytes on each device; the peak includes all
    arrays that are alive at the same time, also arguments and results.
  """

  name: str
  seconds: float
  arguments: int
  temporaries: int
  peak: int


def _program(name: str, seconds: float, size) -> Program:
  held, made = size.argument_size_in_bytes, size.temp_size_in_bytes
  # XLA's peak on a CPU does not include temporaries.
  peak = max(size.peak_memory_in_bytes, held + made)
  name = name.removeprefix('jit(').removesuffix(')')
  return Program(name, seconds, held, made, peak)


class Log:
  """The programs compiled while it is entered.

  Attributes:
    busy: whether a program is being compiled.
    count: of programs.
  """

  def __init__(self):
    self._new, self._ended = [], collections.deque()
    self._seconds, self._counted = 0.0, []  # of these: (begun, seconds)
    self._lock = threading.Lock()
    self.busy, self.count = False, 0

  def __enter__(self):
    monitoring.register_event_duration_secs_listener(self._note)
    return self

  def __exit__(self, *_):
    monitoring.unregister_event_duration_listener(self._note)

  def _note(self, event: str, seconds: float, **facts):
    if event not in (TRACED, LOWERED, COMPILED):
      return
    self._ended.append((time.monotonic(), seconds))
    self.busy = event == LOWERED
    hosts.at(compiling=self.busy)
    if event != COMPILED:
      return
    self.count += 1
    newest = jax.local_devices()[0].client.live_executables()[0]
    size = newest.get_compiled_memory_stats()
    self._new.append((facts['fun_name'], seconds, size))

  @property
  def seconds(self) -> float:
    """Sums the seconds of tracing, lowering and compiling; nested intervals
    count once.
    """
    with self._lock:
      while self._ended:
        end, seconds = self._ended.popleft()
        begun, within = end - seconds, 0.0
        while self._counted and self._counted[-1][0] >= begun - 1e-3:
          within += self._counted.pop()[1]
        self._counted.append((begun, max(seconds, within)))
        self._seconds += max(0.0, seconds - within)
      return self._seconds

  def take(self) -> list[Program]:
    """Returns the programs since the last call, the largest first."""
    new, self._new = self._new, []
    taken = [_program(*facts) for facts in new]
    return sorted(taken, key=operator.attrgetter('peak'), reverse=True)

  def table(self, shown: int = 6) -> str:
    """Shows the programs since the last call: the `shown` largest, and the
    rest.
    """
    found = self.take()
    head = ('compiled', 'seconds', 'arguments', 'temporaries', 'peak')
    lines = ['{:24}{:>9}{:>12}{:>12}{:>12}'.format(*head) + '  MiB a device']
    lines += [
      f'{p.name:24.24}{p.seconds:9.2f}'
      f'{p.arguments / MIB:12.3f}{p.temporaries / MIB:12.3f}'
      f'{p.peak / MIB:12.3f}'
      for p in found[:shown]
    ]
    if rest := found[shown:]:
      name = f'{len(rest)} smaller ones'
      lines.append(f'{name:24}{sum(p.seconds for p in rest):9.2f}')
    return '\n'.join(lines)


class Waiting:
  """Logs the reason of a wait at a fixed interval, while it is entered.

  Args:
    what: the reason; '': only that of `other` is logged.
    other: returns a text in place of `what`, or ''.
  """

  def __init__(
    self,
    what: str,
    say: Callable[[str], None],
    every_s: float = 10,
    other: Callable[[], str] | None = None,
  ):
    self._what, self._say, self._every_s = what, say, every_s
    self._other = other or str
    self._done = threading.Event()

  def __enter__(self) -> 'Waiting':
    self._begun = time.monotonic()
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._done.set()
    self._thread.join()

  def _run(self) -> None:
    while not self._done.wait(self._every_s):
      since = time.monotonic() - self._begun
      if what := self._other() or self._what:
        self._say(f'{what}, {since:.0f} s so far')


class Profiler:
  """Traces the dispatches that contain a profiled step; process 0 records
  its own devices.
  """

  def __init__(self, steps: str, folder: str):
    """Args: steps: see `profiled`; folder: for the traces."""
    self._wanted, self._folder = set(profiled(steps)), folder
    self._tracing, self._last = False, None

  def before(self, steps: range) -> None:
    """Starts or ends a trace before the dispatch of `steps`."""
    inside = bool(self._wanted & set(steps)) and hosts.is_main()
    if inside and not self._tracing:
      jax.profiler.start_trace(self._folder)
    if self._tracing and not inside:
      self._end()
    self._tracing = inside

  def after(self, result) -> None:
    """Keeps the result of a dispatch, which may still be running."""
    self._last = result

  def close(self) -> None:
    """Ends the trace, if there is one."""
    if self._tracing:
      self._end()
    self._tracing = False

  def _end(self) -> None:
    jax.block_until_ready(self._last)
    jax.profiler.stop_trace()
