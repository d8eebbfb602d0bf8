"""Emergency checkpoints: every few steps, on the hosts' own disks.

Each process writes what its devices hold of the state (`pieces`) into a folder
of its host, and a copy into that of a process half the run away, which is on
another slice where there are two. So a kill costs a few steps, and so does the
loss of a host with its disk, or of a slice. They are beside the checkpoints of
the workdir, which outlive the hosts.

  FOLDER/<start>/<step>.<owner>.<of>

A start draws a name of its own, and notes in the workdir up to which step the
files of earlier starts are part of the run (`emergency.json`): what was trained
in a past that the run has turned away from is never taken up. A set is used
when the files of all its owners are somewhere, each with its checksums.

Orbax's emergency manager wants a mesh axis along which whole states are
replicated, and has no checksums; here every parameter may be sharded over all
hosts.
"""

import collections
import functools
import json
import os
import pathlib
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from typing import Any, NamedTuple

import jax
from absl import logging
from etils import epath

from jaxrl_reason import hosts, trees
from jaxrl_reason.checkpoints import described, files, pieces
from jaxrl_reason.checkpoints.described import Damaged
from jaxrl_reason.config.run import Checkpoint
from jaxrl_reason.hosts import parcels

NOTE = 'emergency.json'  # in the workdir
NAME = re.compile(r'[0-9]+\.[0-9]+\.[0-9]+')


def check(c: Checkpoint) -> None:
  """Refuses settings of config.checkpoint that make no sense."""
  if c.emergency_every >= c.every:
    raise ValueError(
      f'checkpoint.emergency_every={c.emergency_every} is not below '
      f'checkpoint.every={c.every}: make it a few steps, or 0'
    )
  if '://' in c.emergency_dir:
    raise ValueError(
      f'checkpoint.emergency_dir={c.emergency_dir!r}: must be a folder on a '
      'disk of each host; the checkpoints of the workdir are the ones that '
      'outlive hosts'
    )


class Kept(NamedTuple):
  """A state that hosts have among them.

  Attributes:
    start: whose; step, of: processes that wrote it.
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
  """The emergency checkpoints of one run; made by all its processes at once.

  Args:
    workdir: of the run.
    every: steps between two of them.
    folder: on a disk of this host; '': the system's temporary one. Variables
      of the environment ($SLURM_TMPDIR) are put in.

  Raises:
    OSError, ValueError: the folder cannot be used.
  """

  def __init__(self, workdir: epath.Path, every: int, folder: str):
    self._workdir, self._every = workdir, every
    self._me, self._n = jax.process_index(), jax.process_count()
    self._folder = _made(folder)
    self._others = parcels.Parcels(self._folder) if self._n > 1 else None
    told = hosts.gather([secrets.token_hex(8), _noted(workdir)])[0]
    self._start, self._valid = told
    self._found = self._inventory()
    # Steps of the newest set of which this process has written its share and
    # its copy, of the last one begun, and from which on one is due.
    self._done, self._last, self._next = -1, -1, every
    self._writing, self._failed = None, ''
    # Metrics: of the last one, to its last byte; of a restore from one.
    self.told, self.restored = {}, {}

  def _home(self, start: str) -> pathlib.Path:
    return self._folder / start

  def _inventory(self) -> list[Kept]:
    """All sets that are part of this run, the newest first."""
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
    """The newest set past a step that is whole, by its checksums; each set is
    looked at once.
    """
    while self._found and self._found[0].step > after:
      kept = self._checked(self._found.pop(0))
      if kept.whole():
        return kept
      lost = next(i for i in range(kept.of) if i not in kept.where)
      self._refuse(kept, f'no host has part {lost} of {kept.of} undamaged')
    return None

  def _refuse(self, kept: Kept, why: str) -> None:
    """Warns that a set is not used, and why."""
    if hosts.is_main():
      logging.warning('%s is not used: %s.', kept.told(), why)

  def _checked(self, kept: Kept) -> Kept:
    """The same with the files alone that have their checksums."""
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
    """A file of a set, from this host's disk or another's."""
    name, held = kept.name(owner), kept.where[owner]
    if self._me in held:
      return pieces.File(pieces.reader(self._home(kept.start) / name))
    name = f'{self._home(kept.start).name}/{name}'
    return pieces.File(functools.partial(self._others.read, held[0], name))

  def latest(self, than: int, check, read) -> tuple[int, Any] | None:
    """Returns (step, read(step, record, restore)) of the newest set past a step
    that can be used, `restore(template, shardings)` giving its state.

    Args:
      check: (checkpoint's name, record), raises where it is of another run.

    Raises:
      What `check` and `read` raise, but Damaged and errors of files.
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
      # One process may have met what the others did not have to read.
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
    """Records the step from which the run goes on; later files are not used."""
    self.passed(step)
    valid = {k: min(last, step) for k, last in self._valid.items()}
    if hosts.is_main():
      text = json.dumps({'starts': valid, 'now': self._start})
      files.write_whole(self._workdir / NOTE, text)
    self._home(self._start).mkdir(exist_ok=True)

  def due(self, step: int) -> bool:
    """Returns True if an emergency checkpoint of a step is due."""
    return step >= self._next

  def passed(self, step: int) -> None:
    """Records that the state of a step is saved, here or in the workdir."""
    self._next = (step // self._every + 1) * self._every

  def save(self, step: int, arrays: dict[str, jax.Array], record: dict) -> None:
    """Copies the state to the host's memory, and begins to write it; the arrays
    may be donated as soon as this returns. What cannot be written is warned of:
    the run does not depend on it.
    """
    begun = time.monotonic()
    self.wait()
    # The newest set that all have finished stays until the next one is.
    done = min(hosts.gather(self._done))
    held, before = pieces.on_host(arrays), self._last
    self._last = step

    def work():
      self._forget(done, before)
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
    self._done = step

  def _forget(self, done: int, before: int) -> None:
    """Removes the files that no start would use.

    Two sets stay: the newest one that all have finished, and the last one that
    was begun, of which only some of the files may be there. So the folder does
    not grow while a disk is full.

    Args:
      done: step of the first; -1: there is none.
      before: step of the second.
    """
    if done >= 0:
      for start in self._valid:
        shutil.rmtree(self._home(start), ignore_errors=True)
    for path in _files(self._home(self._start)):
      if int(path.name.partition('.')[0]) not in (done, before):
        path.unlink(missing_ok=True)

  def wait(self) -> None:
    """Waits until what was begun is written, or has failed."""
    if self._writing is not None:
      self._writing.join()

  def close(self) -> None:
    """Removes all: a checkpoint of the workdir holds the last state."""
    self.wait()
    hosts.gather(None)  # none is still sent
    for start in (*self._valid, self._start):
      shutil.rmtree(self._home(start), ignore_errors=True)
    if self._others:
      self._others.close()


def _files(home: pathlib.Path) -> list[pathlib.Path]:
  """The files of a start; without those that were not finished."""
  found = home.iterdir() if home.is_dir() else ()
  return [p for p in found if NAME.fullmatch(p.name)]


def _noted(workdir: epath.Path) -> dict[str, int]:
  """Returns start -> last step of its files that is part of the run.

  If the note is damaged, there is none: the checkpoints of the workdir are
  used.
  """
  path = workdir / NOTE
  if not hosts.is_main() or not path.exists():
    return {}
  try:
    note = json.loads(path.read_bytes())
    return dict(note['starts']) | {note['now']: sys.maxsize}
  except (ValueError, TypeError, KeyError) as e:
    logging.warning(
      '%s is damaged (%s): emergency checkpoints of earlier starts are not '
      'used.',
      path,
      f'{e!s:.80}',
    )
    return {}


def disown(workdir: epath.Path) -> None:
  """Removes the note, so that no start uses earlier emergency checkpoints."""
  if hosts.is_main():
    (workdir / NOTE).unlink(missing_ok=True)


def _made(folder: str) -> pathlib.Path:
  """The folder for all runs of this user on this host."""
  given = os.path.expandvars(folder)
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
