"""Opens the folder of a run, which all its processes share, for one run.

with opened(start, workdir, fresh=...):   the first statement of a run
may_resume(workdir)                       whether a start resumes
"""

import contextlib
import os
import sys

import jax
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import emergency_note, files, manager, pretrained
from jaxrl_reason.reports import workdirs
from jaxrl_reason.run.process import lock

OLD = 'old-'  # folders that --fresh makes
# A workdir has some of these, also if its only start was refused late.
MARKS = {
  *workdirs.MARKS,
  manager.CHECKPOINTS,
  manager.NOTE,
  pretrained.HF_CONFIG,
}


@contextlib.contextmanager
def opened(start: dict, workdir, *, fresh: bool = False):
  """Opens the workdir for one run, whose processes were all started alike.

  Args:
    start: facts that all processes must agree on (`identity.of_start`).
    fresh: move its files into a folder `old-<n>`, and start again.

  Yields:
    The workdir.

  Raises:
    ValueError: names the fact in which processes differ.
      Or `fresh` is set, and the folder's files are not of a run.
    OSError: it cannot be written to, or another run uses it (`lock.Locked`).
  """
  # Before jax looks for devices: jax waits for the number of processes that
  # this one was told of.
  hosts.refuse_unlike(start)
  hosts.find_devices()
  workdir = files.absolute(workdir)
  is_new = not workdir.exists()
  _make(workdir)
  try:
    _refuse_unshared(workdir)
    with _locked(workdir):
      if fresh:
        with hosts.zero_first():
          if hosts.is_main():
            _move_aside(workdir)
      yield workdir
  finally:
    if is_new and hosts.is_main():
      _remove_empty(workdir)


def may_resume(workdir: epath.Path) -> bool:
  """Returns True if a workdir has, or has had, a checkpoint to resume from."""
  notes = (manager.NOTE, emergency_note.NOTE)
  if any((workdir / name).exists() for name in notes):
    return True
  folder = workdir / manager.CHECKPOINTS
  # Not a glob, which takes a folder that cannot be read for an empty one. The
  # names of unfinished checkpoints have a suffix.
  return folder.exists() and any(not p.suffix for p in folder.iterdir())


@contextlib.contextmanager
def _locked(workdir: epath.Path):
  """Locks the workdir on process 0, for all processes."""
  with contextlib.ExitStack() as stack:
    refusal = ''
    if hosts.is_main():
      try:
        stack.enter_context(lock.held(workdir))
      except lock.Locked as e:
        refusal = str(e)
    if refusal := hosts.gather(refusal)[0]:
      raise lock.Locked(refusal)
    yield


def _make(workdir: epath.Path) -> None:
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    probe = workdir / f'.writable-{jax.process_index()}-{os.getpid()}'
    probe.write_text('')
    probe.unlink()
  except ImportError as e:
    raise ValueError(
      f'--workdir={workdir}: this kind of path needs a package that is not '
      f'installed ({e!s:.120}); for gs:// install the extra gcs (gcsfs), as '
      'JAXRL_EXTRAS=gcs tools/run does'
    ) from e
  except OSError as e:
    raise OSError(f'--workdir={workdir} cannot be written to: {e}') from e


def _remove_empty(workdir: epath.Path) -> None:
  """Removes the folder of a start that was refused."""
  if workdir.exists() and not any(workdir.iterdir()):
    workdir.rmdir()


def _refuse_unshared(workdir: epath.Path) -> None:
  """Refuses a workdir that is not one folder for all processes.

  They write their shards of a checkpoint into it.
  """
  # Another start of the same run may be at this point too.
  marker = workdir / hosts.gather(f'.shared-{os.getpid()}')[0]
  with hosts.zero_first():
    if hosts.is_main():
      marker.write_text('')
    found = marker.exists()
  every = hosts.gather(found)
  if not all(every):
    lacking = [i for i, f in enumerate(every) if not f]
    raise ValueError(
      f'--workdir={workdir} of process 0 is not the same folder on process '
      f'{lacking[0]}: use one that all hosts share (NFS, gs://...)'
    )
  if hosts.is_main():
    marker.unlink()


def _move_aside(workdir: epath.Path) -> None:
  keep = (OLD, lock.PREFIX)
  found = [p for p in workdir.iterdir() if not p.name.startswith(keep)]
  if not found:
    return
  if not MARKS & {p.name for p in found}:
    raise ValueError(
      f'--fresh would move the files of --workdir={workdir}, such as '
      f'{min(p.name for p in found)}, which are not of a run: there is none of '
      f'{", ".join(sorted(MARKS))}. Name another --workdir, or leave out '
      '--fresh'
    )
  n = 1
  while (workdir / f'{OLD}{n}').exists():
    n += 1
  aside = workdir / f'{OLD}{n}'
  aside.mkdir()
  for path in found:
    path.rename(aside / path.name)
  print(
    f'--fresh: {len(found)} files and folders of {workdir} are now in '
    f'{aside.name}; beginning at step 0. Leave out --fresh to go on later.',
    file=sys.stderr,
  )
