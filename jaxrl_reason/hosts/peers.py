"""Watches the other processes of a run, beside the devices.

Each process publishes every second, through the coordination service, the step
it is at and what it does, and reads the same of the others, in a thread that
waits for no device. If a process publishes nothing new for `heartbeat_s`, or
publishes that it has ended, the others end, each with one line that names its
index, host and last step. jax would end them later and without a name.

The same messages carry a request to stop. The processes then agree on the
dispatch after which all stop: one past the furthest that any of them has made.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from jaxrl_reason.hosts import last_words, service

BEAT_S = 1.0
# Processes that end because of the same error print it themselves meanwhile.
GRACE_S = 3.0
# A process was stopped if a wait takes so many times as long as it should.
PAUSE = 10
# For each function of `before_end`.
CALL_S = 10.0
BEATS, STOPS = 'jaxrl_reason/beats/', 'jaxrl_reason/stops/'
AGAIN = (
  'All stop. Start the same command on every host again to go on from the last '
  'checkpoint'
)

# The step and activity of this process; changed by `at`.
standing = {'step': 0, 'doing': 'starting'}
# Functions called with the error line before a thread ends this process.
before_end = []
_ending = threading.Lock()


def at(**facts) -> None:
  """Records the `step` that this process is at, or what it is `doing`."""
  standing.update(facts)


def looks(over: threading.Event, every_s: float) -> Iterator[bool]:
  """Waits between two looks at the time of others, until `over` is set.

  Yields:
    True if this process itself was stopped meanwhile (Ctrl-Z, a job that is
    suspended), so that times measured since before are too long.
  """
  last = time.monotonic()
  while not over.wait(every_s):
    now = time.monotonic()
    yield now - last > PAUSE * every_s
    last = now


def claimed() -> bool:
  """Returns True in the first thread that calls it: it prints the error."""
  return _ending.acquire(blocking=False)


def end(line: str) -> None:
  """Ends this process at once, from any thread, with one line."""
  if not claimed():
    return
  last_words.prepare(f'error: {line}.')  # jax may abort before this is done
  for call in before_end:
    _call(call, line)
  if active is not None:
    active.leave(line)
  print(f'error: {line}.', file=sys.stderr, flush=True)
  last_words.cancel()
  os._exit(1)


def _call(call: Callable[[str], None], line: str) -> None:
  """Calls a function of `before_end` for at most `CALL_S`. It writes files, and
  a file system that is full or hangs may be why this process ends.
  """

  def work():
    try:
      call(line)
    except Exception as e:
      print(f'{type(e).__name__}: {e}', file=sys.stderr, flush=True)

  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  thread.join(CALL_S)


class Peers:
  """The last published state of every process.

  Args:
    client: of the coordination service.
    me, n: index of this process, and number of processes.
    heartbeat_s: silence after which a process counts as gone.
  """

  def __init__(self, client, me: int, n: int, heartbeat_s: float):
    self._client, self.me, self.n = client, me, n
    self._heartbeat_s = heartbeat_s
    self._host, self._asked_to_stop = socket.gethostname(), False
    self._ended = ''
    self._beat, self._round_done = 0, time.monotonic()
    nothing = {'host': 'unknown host', 'step': 0, 'doing': 'starting'}
    # By process: its last message, and when that changed on this clock.
    self._latest = {i: (nothing, time.monotonic()) for i in range(n) if i != me}
    self._counting, self._count, self._stop_at = threading.Lock(), 0, None
    self._over = threading.Event()
    self._threads = [
      threading.Thread(target=f, name=name, daemon=True)
      for f, name in ((self._exchange, 'heartbeat'), (self._watch, 'peers'))
    ]

  def start(self) -> None:
    self._publish()
    for thread in self._threads:
      thread.start()

  def ask_to_stop(self) -> None:
    """Asks all processes to stop; safe in a signal handler."""
    self._asked_to_stop = True

  def reached(self) -> bool:
    """Counts a point at which all processes could stop.

    Waits a second or two, once, while the processes agree on a point.

    Returns:
      True if all stop here.
    """
    with self._counting:
      self._count += 1
      return self._stop_at is not None and self._count >= self._stop_at

  def lost(self, silence_s: float) -> str:
    """Names a process that is gone, with host and last step; '' if none is."""
    now = time.monotonic()
    if now - self._round_done > silence_s:
      quiet = f'no answer for {now - self._round_done:.0f} s'
      if self.me == 0:
        return f'its own coordination service gave {quiet}'
      return f'{self._named(0)}, which has the coordinator, gave {quiet}'
    for i, (message, since) in sorted(self._latest.items()):
      if message.get('left'):
        continue
      if message.get('ended') and now - since > GRACE_S:
        return message['ended']
      if not message.get('ended') and now - since > silence_s:
        return f'{self._named(i)} gave no sign of life for {now - since:.0f} s'
    return ''

  def culprit(self) -> str:
    """Names the process that is gone after a collective has failed.

    Waits for at most a heartbeat, in which its silence shows; '' if none is
    silent by then.
    """
    begun, gone = time.monotonic(), ''
    silence_s = max(3 * BEAT_S, self._heartbeat_s / 2)
    while not gone and time.monotonic() - begun < self._heartbeat_s:
      gone = self.lost(silence_s)
      time.sleep(0.1)
    return gone

  def behind(self) -> str:
    """Names the processes at the smallest step."""
    steps = {i: message['step'] for i, (message, _) in self._latest.items()}
    steps[self.me] = standing['step']
    least = min(steps.values())
    if least == max(steps.values()):
      return f'all processes are at step {least}'
    return ', '.join(self._named(i) for i in steps if steps[i] == least)

  def compiling(self) -> bool:
    """Returns True if another process compiles: this one then waits for it."""
    messages = (message for message, _ in self._latest.values())
    return any(m.get('compiling') for m in messages)

  def leave(self, ended: str = '') -> None:
    """Publishes the last message of this process.

    Process 0, which has the coordinator, stays until the others have read it.

    Args:
      ended: the error that ends it; '': it ends well.
    """
    self._over.set()
    self._ended = ended
    # In a thread, because a coordinator that hangs never answers.
    last = threading.Thread(target=self._publish_end, daemon=True)
    last.start()
    last.join(2 * GRACE_S)

  def _publish_end(self) -> None:
    for thread in self._threads:
      if thread.is_alive() and thread is not threading.current_thread():
        thread.join(BEAT_S)
    try:
      self._publish(left=not self._ended)
      while self._ended and self.me == 0 and not self._alone():
        time.sleep(0.2)
        self._read()
    except jax.errors.JaxRuntimeError:
      return  # the coordinator is gone: there is no reader

  def _alone(self) -> bool:
    messages = (message for message, _ in self._latest.values())
    return all(m.get('ended') or m.get('left') for m in messages)

  def myself(self) -> str:
    """Describes this process with host and step, for messages."""
    return self._named(self.me)

  def _named(self, i: int) -> str:
    state = standing | {'host': self._host}
    if i != self.me:
      state = self._latest[i][0]
    return (
      f'process {i} on {state["host"]} (last step {state["step"]}, '
      f'{state["doing"]})'
    )

  def _publish(self, **more) -> None:
    self._beat += 1
    message = standing | more | {'host': self._host, 'beat': self._beat}
    message |= {'stop': self._asked_to_stop, 'ended': self._ended}
    text = json.dumps(message).encode()
    key = f'{BEATS}{self.me}'
    self._client.key_value_set_bytes(key, text, allow_overwrite=True)

  def _read(self) -> None:
    entries = self._client.key_value_dir_get_bytes(BEATS)
    now = time.monotonic()
    for key, text in entries:
      i = int(key.rpartition('/')[2])
      message = json.loads(text)
      if i in self._latest and message != self._latest[i][0]:
        self._latest[i] = message, now
    self._round_done = now

  def _exchange(self) -> None:
    # The service answers n^2 messages a round: fewer rounds for many hosts.
    every_s = BEAT_S * max(1.0, self.n / 64)
    while not self._over.wait(every_s):
      try:
        self._publish()
        self._read()
        if self._stop_at is None and self._stop_asked():
          self._agree_to_stop()
      except jax.errors.JaxRuntimeError:
        continue  # `_watch` ends this process if it lasts
      last_words.prepare(self._line_if_killed())

  def _stop_asked(self) -> bool:
    others = (message.get('stop') for message, _ in self._latest.values())
    return self._asked_to_stop or any(others)

  def _agree_to_stop(self) -> None:
    """Agrees on the point where all stop; `reached` waits meanwhile, since a
    published count must not change.
    """
    with self._counting:
      while self._stop_at is None and not self._over.wait(BEAT_S / 10):
        try:
          counts = self._counts()
        except jax.errors.JaxRuntimeError:
          continue  # another process has not read the request yet
        self._stop_at = 1 + max(counts)

  def _counts(self) -> list[int]:
    """Publishes the count of this process, and returns those of all."""
    self._publish()
    self._read()
    key, mine = f'{STOPS}{self.me}', str(self._count)
    self._client.key_value_set(key, mine, allow_overwrite=True)
    wait_ms = round(1000 * BEAT_S)
    keys = [f'{STOPS}{i}' for i in range(self.n)]
    return [int(self._client.blocking_key_value_get(k, wait_ms)) for k in keys]

  def _watch(self) -> None:
    for paused in looks(self._over, BEAT_S / 2):
      if paused:
        self._excuse()
      if who := self.lost(self._heartbeat_s):
        end(f'process {self.me} of {self.n} lost the others: {who}. {AGAIN}')

  def _excuse(self) -> None:
    """Counts the silence of all processes from now on."""
    now = self._round_done = time.monotonic()
    for i, (message, _) in list(self._latest.items()):
      self._latest[i] = message, now

  def _line_if_killed(self) -> str:
    died = f'{self._named(0)} died, or because ' if self.me else ''
    return (
      f'error: {self._named(self.me)} of {self.n} was ended without a word: '
      f'killed from outside (out of memory?), or aborted because {died}two '
      f'processes were started with one --process_id. {AGAIN}.'
    )


active: Peers | None = None


def begin(heartbeat_s: float) -> None:
  """Starts to publish and to read; called once, after joining."""
  global active
  state = service.state()
  active = Peers(
    service.client(), state.process_id, state.num_processes, heartbeat_s
  )
  active.start()
