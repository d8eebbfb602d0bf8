"""Emergency checkpoints of killed processes: the run resumes from its last
steps bit for bit, even if a host has lost its disk. If the copies are damaged,
it resumes from the checkpoint of the workdir. Each process has its own folder
as its host's disk.
"""

import re
import shutil
import types

import pytest
from test_hosts import (
  FUSED,
  assert_same_numbers,
  content,
  env,  # noqa: F401
  finish,
  start_signalled,
  start_worker,
)

NEAR = FUSED | {
  'mesh': (1, -1, 1),  # weights over all processes, however many there are
  'rl.steps': 16,
  'log_every': 4,  # two dispatches: emergency checkpoints lie between as well
  'eval.every': 16,
  'checkpoint.every': 8,
  'checkpoint.emergency_every': 2,
}


def keys(disks, **changes):
  return NEAR | {'checkpoint.emergency_dir': f'{disks}/$DISK'} | changes


def files_of(disk, owner):
  return sorted(disk.rglob(f'*.{owner}.2'))


def cut(paths):
  for path in paths:
    path.write_bytes(path.read_bytes()[: path.stat().st_size - 9])


def resumed(log) -> tuple[int, bool]:
  """Returns (step, whether it is an emergency checkpoint) for each run of one
  process.
  """
  found = re.findall(r'Resuming at step (\d+)(, of an emergency)?', log)
  return [(int(step), bool(near)) for step, near in found]


@pytest.fixture(scope='module')
def pod(env, tmp_path_factory):  # noqa: F811
  """Runs two processes that are killed, and all runs that resume from them."""
  at = tmp_path_factory.mktemp('near')
  first, disks = at / 'killed', at / 'disks'
  killed = start_signalled(env, first, 2, 1, 'SIGKILL@12', keys(disks))
  finish(killed, first, codes=(1, -9))
  kept = {
    (i, owner): files_of(disks / f'disk_{i}', owner)
    for i in (0, 1)
    for owner in (0, 1)
  }
  for name in ('lost', 'mixed', 'torn', 'alone'):
    shutil.copytree(first, at / name)
    shutil.copytree(disks, at / f'disks_{name}')
  shutil.rmtree(at / 'disks_lost' / 'disk_1')
  shutil.rmtree(at / 'disks_alone' / 'disk_1')  # its host is lost too
  # Each of the two processes reads the copy of its state on the other host.
  for i in (0, 1):
    cut(files_of(at / 'disks_mixed' / f'disk_{i}', i))
    cut(files_of(at / 'disks_torn' / f'disk_{i}', 1))
  out = types.SimpleNamespace(at=at, kept=kept)
  runs = [(at / 'whole', keys(at / 'disks_whole')), (first, keys(disks))]
  for name in ('lost', 'mixed', 'torn'):
    runs.append((at / name, keys(at / f'disks_{name}')))
  two = start_worker(env, at / 'two', 2, runs)
  runs = [(at / 'alone', keys(at / 'disks_alone'))]
  one = start_worker(env, at / 'one', 1, runs)
  out.two, out.one = finish(two, at / 'two'), finish(one, at / 'one')
  return out


def test_two_copies_of_the_last_steps_are_on_the_disks(pod):
  assert all(pod.kept.values()), pod.kept
  # A finished run leaves no copies.
  assert not [p for p in (pod.at / 'disks').rglob('*') if p.is_file()]


@pytest.mark.parametrize('name', ['killed', 'lost', 'mixed', 'torn'])
def test_the_restart_is_exact(pod, name):
  assert content(pod.at / name) == content(pod.at / 'whole')


def newest(kept, where) -> tuple[int, bool]:
  """Returns (step, whether it is an emergency checkpoint) of the newest
  complete copy. The process may be killed before it sends a copy of step 12 or
  step 10.

  Args:
    where: for each owner, the disks on which its files are undamaged.
  """
  steps = [
    {int(path.name.split('.')[0]) for i in disks for path in kept[i, owner]}
    for owner, disks in enumerate(where)
  ]
  step = max(set.intersection(*steps), default=8)
  return step, step > 8


def test_a_run_resumes_from_the_newest_complete_copy(pod):
  *near, last = resumed(pod.two[0])
  undamaged = [(0, 1), (0, 1)], [(0,), (0,)], [(1,), (0,)]
  assert near == [newest(pod.kept, where) for where in undamaged]
  assert near[0] in ((10, True), (12, True))
  assert last == (8, False)
  said = 'is not used: no host has part 1 of 2 undamaged'
  assert said in pod.two[0] and 'it has been cut off' in pod.two[0]


def test_remaining_processes_resume_by_the_same_command(pod):
  assert resumed(pod.one[0]) == [newest(pod.kept, [(0,), (0,)])]
  assert_same_numbers(content(pod.at / 'alone'), content(pod.at / 'whole'))


@pytest.mark.slow
def test_a_slice_lost_of_two(env, tmp_path):  # noqa: F811
  """Two processes are two slices: rows and copies of the weights are split over
  slices, the weights within a slice. One slice is lost with its disks.
  """
  disks, workdir = tmp_path / 'disks', tmp_path / 'run'
  changes = keys(disks, mesh=(-1, 2, 1))
  four = start_signalled(env, workdir, 4, 2, 'SIGKILL@12', changes)
  finish(four, workdir, codes=(1, -9))
  for i in (2, 3):
    shutil.rmtree(disks / f'disk_{i}')
  two = start_signalled(env, workdir, 2, 0, 'SIGKILL@-1', changes)
  log = finish(two, workdir)[0]
  ((step, near),) = resumed(log)
  assert step in (10, 12) and near
  whole = tmp_path / 'whole'
  elsewhere = keys(tmp_path / 'others', mesh=(-1, 2, 1))
  four = start_signalled(env, whole, 4, 0, 'SIGKILL@-1', elsewhere)
  finish(four, whole)
  assert_same_numbers(content(workdir), content(whole))
