"""What the processes of a run know of each other, beside what they compute.

Every process says each second where it stands, through the coordination
service, and reads what the others said: a thread that waits for no device. One
of which nothing new is heard for `heartbeat_s`, or which says that it has
ended, ends the others, with its index, host and last step in one line. So does
jax, later, without saying who.

The same words tell who was asked to stop, and the processes then agree on the
dispatch after which they do: one past the furthest that any of them has made.
"""

import json
import os
import socket
import sys
import threading
import time

import jax

from jaxrl_reason.hosts import last_words, service

BEAT_S = 1.0
# Those that end of the same error say so themselves meanwhile.
GRACE_S = 3.0
BEATS, STOPS = 'jaxrl_reason/beats/', 'jaxrl_reason/stops/'
AGAIN = (
  'All stop. Start the same command on every host again to go on from the last '
  'checkpoint'
)

# Where this process stands, alone or not; changed by `at`.
standing = {'step': 0, 'doing': 'starting'}
# Called before this process is ended from a thread, with the line it says.
before_end = []
_ending = threading.Lock()


def at(**facts) -> None:
  """Notes the `step` that this process is at, or what it is `doing`."""
  standing.update(facts)


def claimed() -> bool:
  """Tells whether this thread is the one to say why the process ends."""
  return _ending.acquire(blocking=False)


def end(line: str) -> None:
  """Ends this process at once, from whatever thread, with one line."""
  if not claimed():
    return
  last_words.prepare(f'error: {line}.')  # jax may abort before this is done
  for call in before_end:
    call(line)
  if active is not None:
    active.leave(line)
  print(f'error: {line}.', file=sys.stderr, flush=True)
  last_words.none()
  os._exit(1)


class Peers:
  """The other processes, as far as they can be heard.

  Args:
    client: of the coordination service.
    me, n: number of this process, and of all.
    heartbeat_s: silence after which a process counts as gone.
  """

  def __init__(self, client, me: int, n: int, heartbeat_s: float):
    self._client, self.me, self.n = client, me, n
    self._heartbeat_s = heartbeat_s
    self._host, self._told, self._ended = socket.gethostname(), False, ''
    self._beat, self._round_done = 0, time.monotonic()
    nothing = {'host': 'unknown host', 'step': 0, 'doing': 'starting'}
    # Of each: what it said last, and when that changed, on this clock.
    self._heard = {i: (nothing, time.monotonic()) for i in range(n) if i != me}
    self._counting, self._count, self._stop_at = threading.Lock(), 0, None
    self._over = threading.Event()
    self._threads = [
      threading.Thread(target=f, name=name, daemon=True)
      for f, name in ((self._talk, 'heartbeat'), (self._judge, 'peers'))
    ]

  def start(self) -> None:
    self._say()
    for thread in self._threads:
      thread.start()

  def tell(self) -> None:
    """Asks all processes to stop; from a signal handler too."""
    self._told = True

  def reached(self) -> bool:
    """Counts a place at which all processes could stop, and whether they do.

    Waits while they agree on one: a second or two, once.
    """
    with self._counting:
      self._count += 1
      return self._stop_at is not None and self._count >= self._stop_at

  def lost(self, silence_s: float) -> str:
    """Names who is gone, with host and last step; '' while nobody is."""
    now = time.monotonic()
    if now - self._round_done > silence_s:
      quiet = f'no answer for {now - self._round_done:.0f} s'
      if self.me == 0:
        return f'its own coordination service gave {quiet}'
      return f'{self._named(0)}, which has the coordinator, gave {quiet}'
    for i, (told, since) in sorted(self._heard.items()):
      if told.get('left'):
        continue
      if told.get('ended') and now - since > GRACE_S:
        return told['ended']
      if not told.get('ended') and now - since > silence_s:
        return f'{self._named(i)} gave no sign of life for {now - since:.0f} s'
    return ''

  def culprit(self) -> str:
    """Names who is gone, waited for as long as a heartbeat: what the processes
    do together has failed.
    """
    begun, found = time.monotonic(), ''
    silence_s = max(3 * BEAT_S, self._heartbeat_s / 2)
    while not found and time.monotonic() - begun < self._heartbeat_s:
      found = self.lost(silence_s)
      time.sleep(0.1)
    return found

  def behind(self) -> str:
    """Names who has come least far, as text."""
    steps = {i: told['step'] for i, (told, _) in self._heard.items()}
    steps[self.me] = standing['step']
    least = min(steps.values())
    if least == max(steps.values()):
      return f'all processes are at step {least}'
    return ', '.join(self._named(i) for i in steps if steps[i] == least)

  def compiling(self) -> bool:
    """Tells whether another process is: this one then waits for it."""
    told = (told for told, _ in self._heard.values())
    return any(t.get('compiling') for t in told)

  def leave(self, ended: str = '') -> None:
    """Says the last word of this process to the others; `ended`: of an error.

    Process 0 stays until they have heard it: it has the coordinator.
    """
    self._over.set()
    self._ended = ended
    # In a thread: a coordinator that hangs never answers.
    last = threading.Thread(target=self._bid_farewell, daemon=True)
    last.start()
    last.join(2 * GRACE_S)

  def _bid_farewell(self) -> None:
    for thread in self._threads:
      if thread.is_alive() and thread is not threading.current_thread():
        thread.join(BEAT_S)
    try:
      self._say(left=not self._ended)
      while self._ended and self.me == 0 and not self._alone():
        time.sleep(0.2)
        self._listen()
    except jax.errors.JaxRuntimeError:
      return  # nobody to tell

  def _alone(self) -> bool:
    told = (told for told, _ in self._heard.values())
    return all(t.get('ended') or t.get('left') for t in told)

  def myself(self) -> str:
    """Describes this process with host and step, for others to say."""
    return self._named(self.me)

  def _named(self, i: int) -> str:
    told = standing | {'host': self._host}
    if i != self.me:
      told = self._heard[i][0]
    return (
      f'process {i} on {told["host"]} (last step {told["step"]}, '
      f'{told["doing"]})'
    )

  def _say(self, **more) -> None:
    self._beat += 1
    told = standing | more | {'host': self._host, 'beat': self._beat}
    told |= {'told': self._told, 'ended': self._ended}
    text = json.dumps(told).encode()
    key = f'{BEATS}{self.me}'
    self._client.key_value_set_bytes(key, text, allow_overwrite=True)

  def _listen(self) -> None:
    found = self._client.key_value_dir_get_bytes(BEATS)
    now = time.monotonic()
    for key, text in found:
      i = int(key.rpartition('/')[2])
      told = json.loads(text)
      if i in self._heard and told != self._heard[i][0]:
        self._heard[i] = told, now
    self._round_done = now

  def _talk(self) -> None:
    # A service answers n^2 words a round: for many hosts fewer rounds.
    every_s = BEAT_S * max(1.0, self.n / 64)
    while not self._over.wait(every_s):
      try:
        self._say()
        self._listen()
        if self._stop_at is None and self._anyone_told():
          self._agree_to_stop()
      except jax.errors.JaxRuntimeError:
        continue  # silence: `_judge` says so when it has lasted
      last_words.prepare(self._last_words())

  def _anyone_told(self) -> bool:
    others = (told.get('told') for told, _ in self._heard.values())
    return self._told or any(others)

  def _agree_to_stop(self) -> None:
    """Finds where all stop; the main thread waits at the next such place."""
    patience_ms = round(1000 * (self._heartbeat_s + 10))
    with self._counting:
      self._client.key_value_set(f'{STOPS}{self.me}', str(self._count))
      counts = [
        self._client.blocking_key_value_get(f'{STOPS}{i}', patience_ms)
        for i in range(self.n)
      ]
      self._stop_at = 1 + max(map(int, counts))

  def _judge(self) -> None:
    while not self._over.wait(BEAT_S / 2):
      if who := self.lost(self._heartbeat_s):
        end(f'process {self.me} of {self.n} lost the others: {who}. {AGAIN}')

  def _last_words(self) -> str:
    died = f', or aborted because {self._named(0)} died' if self.me else ''
    return (
      f'error: {self._named(self.me)} of {self.n} was ended without a word: '
      f'killed from outside (out of memory?){died}. {AGAIN}.'
    )


active: Peers | None = None


def begin(heartbeat_s: float) -> None:
  """Begins to speak to the other processes; once, after joining them."""
  global active
  state = service.state()
  last_words.begin()
  active = Peers(
    service.client(), state.process_id, state.num_processes, heartbeat_s
  )
  active.start()
