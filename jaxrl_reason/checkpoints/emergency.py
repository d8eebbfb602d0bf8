"""Emergency checkpoints: every few steps, on the hosts' own disks.

Each process writes the state of its devices (`pieces`) into a folder of its
host. Of n processes, process i sends a copy to process i + n/2, which is on the
other slice if there are two. So a kill, the loss of a host with its disk, or
the loss of a slice costs a few steps. The checkpoints of the workdir are
written as well; they survive the loss of all hosts.

  FOLDER/<start>/<step>.<owner>.<of>

Every start has a random name (`emergency_note`). A set is used if the files of
all its owners exist on some host with correct checksums.

Orbax's emergency manager needs a mesh axis along which whole states are
replicated, and has no checksums. Here every parameter may be sharded over all
hosts.
"""

import collections
import functools
import os
import pathlib
import re
import secrets
import shutil
import tempfile
import threading
import time
from typing import Any, NamedTuple

import jax
from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.checkpoints import described, emergency_note, pieces
from jaxrl_reason.checkpoints.described import Damaged
from jaxrl_reason.hosts import parcels

NAME = re.compile(r'[0-9]+\.[0-9]+\.[0-9]+')


class Kept(NamedTuple):
  """A state whose files are on the disks of several hosts.

  Attributes:
    start: name of the start; step: of the run; of: number of processes.
    where: owner of a file -> processes whose folders have it.
  """

  start: str
  step: int
  of: int
  where: dict[int, list[int]]

  def name(self, owner: int) -> str:
    """Returns the name of a file, in its start's folder."""
    return f'{self.step}.{owner}.{self.of}'

  def whole(self) -> bool:
    return len(self.where) == self.of

  def told(self) -> str:
    return f'The emergency checkpoint of step {self.step}'


class Emergency:
  """The emergency checkpoints of one run. All processes build it at once.

  Args:
    workdir: of the run.
    every: steps between two of them.
    folder: on a disk of this host; '': the system's temporary folder. Variables
      of the environment ($SLURM_TMPDIR) are replaced.

  Raises:
    OSError, ValueError: the folder cannot be used.
  """

  def __init__(self, workdir: epath.Path, every: int, folder: str):
    self._workdir, self._every = workdir, every
    self._me, self._n = jax.process_index(), jax.process_count()
    self._folder = _made(folder)
    self._others = parcels.Parcels(self._folder) if self._n > 1 else None
    told = hosts.gather([secrets.token_hex(8), emergency_note.read(workdir)])[0]
    self._start, self._valid = told
    self._found = self._inventory()
    # _done: steps of sets that this process has written and copied, from the
    # newest that all have. _last: step of the last set begun or restored.
    # _next: step from which the next one is due.
    self._done, self._last, self._next = set(), -1, every
    self._writing, self._failed, self._noted = None, '', False
    # Metrics of the last emergency checkpoint, and of a restore from one.
    self.told, self.restored = {}, {}

  def _home(self, start: str) -> pathlib.Path:
    return self._folder / start

  def _inventory(self) -> list[Kept]:
    """Lists the sets that are part of this run, the newest first."""
    own = []
    for start, last in self._valid.items():
      for path in _files(self._home(start)):
        step, owner, of = map(int, path.name.split('.'))
        own += [[start, step, of, owner]] if step <= last else []
    sets = collections.defaultdict(lambda: collections.defaultdict(list))
    for i, held in enumerate(hosts.gather(own)):
      for start, step, of, owner in held:
        sets[start, step, of][owner].append(i)
    found = [Kept(*key, dict(where)) for key, where in sets.items()]
    return sorted(found, key=lambda kept: (-kept.step, kept.start))

  def _newest(self, after: int) -> Kept | None:
    """Returns the newest set after a step that is complete with correct
    checksums. Each set is checked once.
    """
    while self._found and self._found[0].step > after:
      kept = self._checked(self._found.pop(0))
      if kept.whole():
        return kept
      lost = next(i for i in range(kept.of) if i not in kept.where)
      self._refuse(kept, f'no host has part {lost} of {kept.of} undamaged')
    return None

  def _refuse(self, kept: Kept, why: str) -> None:
    """Warns that a set is not used, with the reason."""
    if hosts.is_main():
      logging.warning('%s is not used: %s.', kept.told(), why)

  def _checked(self, kept: Kept) -> Kept:
    """Returns the set with only the files whose checksums are correct."""
    good, bad = [], []
    for owner, held in kept.where.items():
      if self._me in held:
        path = self._home(kept.start) / kept.name(owner)
        try:
          pieces.File(pieces.reader(path)).check()
          good.append(owner)
        except (Damaged, OSError) as e:
          bad.append(f'{path}: {e}')
    where = collections.defaultdict(list)
    for i, (owners, damaged) in enumerate(hosts.gather([good, bad])):
      for owner in owners:
        where[owner].append(i)
      if damaged and hosts.is_main():
        logging.warning('Process %d: %s; not used.', i, damaged[0])
    return kept._replace(where=dict(where))

  def _file(self, kept: Kept, owner: int) -> pieces.File:
    """Opens a file of a set, from this host's disk or another's."""
    name, held = kept.name(owner), kept.where[owner]
    if self._me in held:
      return pieces.File(pieces.reader(self._home(kept.start) / name))
    name = f'{self._home(kept.start).name}/{name}'
    return pieces.File(functools.partial(self._others.read, held[0], name))

  def latest(self, than: int, check, read) -> tuple[int, Any] | None:
    """Returns (step, read(step, record, restore)) of the newest usable set
    after a step; `restore(template, shardings)` returns its state.

    Args:
      check: (checkpoint's name, record); raises if it is of another run.

    Raises:
      The errors of `check` and `read`, except Damaged and errors of files.
    """
    while kept := self._newest(than):
      found, why = None, ''
      try:
        record = self._file(kept, 0).record
        check(kept.told(), record)
        restore = functools.partial(self._restore, kept, record)
        found = read(kept.step, record, restore)
      except (Damaged, OSError) as e:
        why = str(e)
      # One process may have found damage in a part that the others do not read.
      if not (why := next((w for w in hosts.gather(why) if w), '')):
        return kept.step, found
      self._refuse(kept, why)
    return None

  def _restore(self, kept: Kept, record: dict, template, shardings) -> Any:
    begun, flat = time.monotonic(), trees.flatten(template)
    saved, wanted = record['arrays'], described.shapes(flat)
    described.refuse_other(kept.told(), saved, wanted)

    def near(owner):
      return self._me not in kept.where[owner], owner != self._me

    found = (self._file(kept, i) for i in sorted(kept.where, key=near))
    where = dict(zip(flat, jax.tree.leaves(shardings)))
    arrays = pieces.arrays(found, flat, where)
    took, gb = time.monotonic() - begun, described.gb(arrays)
    self.restored = {'perf/restore_s': took, 'perf/restore_gb': gb}
    return jax.tree.structure(template).unflatten([arrays[k] for k in flat])

  def begin(self, step: int) -> None:
    """Records the step from which the run continues; later files are not
    used.
    """
    self.passed(step)
    self._last = step
    self._valid = {k: min(last, step) for k, last in self._valid.items()}
    # Without a note, a start that fails before its first save leaves no trace.
    if step or self._valid:
      self._note()
    self._forget_earlier(step)

  def _note(self) -> None:
    self._noted = True
    emergency_note.write(self._workdir, self._valid, self._start)

  def _forget_earlier(self, step: int) -> None:
    """Removes the files of earlier starts, also unfinished ones, except for the
    two newest sets: a run that is killed again and again fills no disk.

    Args:
      step: from which the run goes on; later sets are of no use.
    """
    homes = [h for h in map(self._home, self._valid) if h.is_dir()]
    finished = [p for home in homes for p in _files(home)]
    steps = sorted({n for n in map(_step, finished) if n <= step})[-2:]
    kept = {p for p in finished if _step(p) in steps}
    for path in {p for home in homes for p in home.iterdir()} - kept:
      path.unlink(missing_ok=True)

  def due(self, step: int) -> bool:
    """Returns True if an emergency checkpoint of a step is due."""
    return step >= self._next

  def passed(self, step: int) -> None:
    """Records that the state of a step is saved, here or in the workdir."""
    self._next = (step // self._every + 1) * self._every

  def save(self, step: int, arrays: dict[str, jax.Array], record: dict) -> None:
    """Copies the state to the host's memory, and begins to write it; the arrays
    may be donated as soon as this returns. If a file cannot be written, the run
    prints a warning and continues.
    """
    begun = time.monotonic()
    self.wait()
    if not self._noted:
      self._note()  # before any process writes, since all wait in `gather`
    # The newest set that all have finished stays until the next one is.
    finished = map(set, hosts.gather(sorted(self._done)))
    done = max(set.intersection(*finished), default=-1)
    self._done = {n for n in self._done if n >= done}
    held, before = pieces.on_host(arrays), self._last
    self._last = step

    def work():
      self._forget(done, before, step)
      self._write(step, record, held)
      self.told = {'perf/emergency_s': time.monotonic() - begun}

    self.passed(step)
    self._writing = threading.Thread(
      target=self._kept, args=(work,), name='emergency', daemon=True
    )
    self._writing.start()

  def _kept(self, work) -> None:
    try:
      work()
      self._failed = ''
    except OSError as e:
      why, before, self._failed = f'{e!s:.300}', self._failed, f'{e!s:.300}'
      if why != before:
        logging.warning(
          'An emergency checkpoint could not be kept: %s. Training goes on; a '
          'kill would now cost the steps since the last one that was.',
          why,
        )

  def _write(self, step: int, record: dict, held: list) -> None:
    kept = Kept(self._start, step, self._n, {})
    home, name = self._home(self._start), kept.name(self._me)
    pieces.write(home / name, step, record, held)
    if self._others:
      peer = (self._me + self._n // 2) % self._n
      self._others.put(peer, f'{home.name}/{name}')
    self._done.add(step)

  def _forget(self, done: int, before: int, step: int) -> None:
    """Removes the files that no start would use.

    Three sets stay: the newest finished set, the last set that was begun, which
    may be incomplete, and this one, of which a faster process may have sent its
    copy already. So the folder does not grow while a disk is full.

    Args:
      done: step of the finished set; -1: there is none.
      before: step of the last set. step: of the set that is being written.
    """
    if done >= 0:
      for start in self._valid:
        shutil.rmtree(self._home(start), ignore_errors=True)
    for path in _files(self._home(self._start)):
      if _step(path) not in (done, before, step):
        path.unlink(missing_ok=True)

  def wait(self) -> None:
    """Waits until the current write ends or fails."""
    if self._writing is not None:
      self._writing.join()

  def close(self, saved: int) -> None:
    """Removes all files if a checkpoint of the workdir has the last state.

    A signal just after the start may end the run before any save. Then the next
    start needs the files from which this one was restored.

    Args:
      saved: step of the newest checkpoint of the workdir; 0: there is none.
    """
    self.wait()
    saved = hosts.gather(saved)[0]  # no file is still being sent
    removed = (*self._valid, self._start) if saved >= self._last else ()
    for start in removed:
      shutil.rmtree(self._home(start), ignore_errors=True)
    if self._others:
      self._others.close()


def _files(home: pathlib.Path) -> list[pathlib.Path]:
  """Lists the finished files of a start."""
  found = home.iterdir() if home.is_dir() else ()
  return [p for p in found if NAME.fullmatch(p.name)]


def _step(path: pathlib.Path) -> int:
  """Returns the step of a file of `_files`."""
  return int(path.name.partition('.')[0])


def _made(folder: str) -> pathlib.Path:
  """Creates the folder for all runs of this user on this host."""
  given = os.path.expanduser(os.path.expandvars(folder))
  if '$' in given:
    raise ValueError(
      f'checkpoint.emergency_dir={folder!r}: a variable of it is not in the '
      'environment of this process'
    )
  home = f'jaxrl_reason_emergency_{os.getuid()}'
  path = pathlib.Path(given or tempfile.gettempdir()) / home
  try:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid != os.getuid():
      raise PermissionError('it belongs to another user')
  except OSError as e:
    raise OSError(
      f'checkpoint.emergency_dir: {path} cannot be used: {e}. Name a folder on '
      "a disk of each host, or '' for the system's temporary one"
    ) from e
  return path
