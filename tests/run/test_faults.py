"""Faults at random points of real runs: killed, terminated, a file system that
fails at its n-th call, flipped bits, files cut or lost, full disks, two starts.

After every fault, a run ends with the metrics of the untouched run, bit for
bit, or with an error of one line that names a remedy, without losing data.
Faults are drawn from a seed: 10 by default, and 200 with `-m slow`.
"""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time

import pytest
from paths import ROOT
from test_resume import content

from jaxrl_reason.run.process import signals

FLAGS = [
  f'--config={ROOT}/tests/tiny_recipe.py',
  '--config.rl.steps=12',
  '--config.log_every=4',  # two dispatches: a signal may come between
  '--config.rl.rewards.answer.reward=random',  # for a gradient
  '--config.eval.every=12',
  '--config.eval.harder=False',
]
STAGES = "--config.stages=('rl',)"  # a second one would be added to it
ERRORS = ('ESTALE', 'EIO', 'ENOSPC', 'EMFILE', 'ETIMEDOUT')
SIGNALS = ('SIGKILL', 'SIGKILL', 'SIGTERM', 'SIGHUP')
# Empty files by which orbax marks a complete folder.
MARKS = ('commit_success.txt', '_CHECKPOINT_METADATA')


class Runs:
  """Starts runs from a process that has imported everything once."""

  def __init__(self, env, logs):
    self._log = logs / 'run.log'
    self.env = env
    self._server = subprocess.Popen(
      [sys.executable, str(ROOT / 'tests' / 'run' / 'faulty_run.py')],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=env,
      cwd=ROOT,
    )

  def __call__(
    self,
    workdir,
    n=0,
    what='',
    flags=(),
    stages=STAGES,
    hang=0,
    where='dispatch',
    of='',
    command='main',
  ):
    """Returns (exit code, output, calls of the file system) of one run."""
    log = self._log
    job = {'workdir': str(workdir), 'n': n, 'what': what, 'log': str(log)}
    job |= {'hang': hang, 'where': where, 'of': of, 'command': command}
    own = [*FLAGS, f'--workdir={workdir}', stages]
    own = own if command == 'main' else [f'--out={workdir}']
    job['args'] = [*own, *flags]
    count = log.with_name(log.name + '.count')
    count.unlink(missing_ok=True)
    self._server.stdin.write(json.dumps(job) + '\n')
    self._server.stdin.flush()
    code = json.loads(self._server.stdout.readline())
    calls = int(count.read_text()) if count.exists() else None
    return code, log.read_text(errors='replace'), calls

  def close(self):
    self._server.stdin.close()
    self._server.wait()


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  env = os.environ | {'XDG_CACHE_HOME': str(cache), 'PYTHONPATH': str(ROOT)}
  env['XLA_FLAGS'] = env['XLA_FLAGS'].replace('count=8', 'count=1')
  out = Runs(env, cache)
  yield out
  out.close()


@pytest.fixture(scope='module')
def untouched(runs, tmp_path_factory):
  """Returns (metrics, calls of the file system, workdir) of a run without
  faults.
  """
  workdir = tmp_path_factory.mktemp('untouched') / 'run'
  code, log, calls = runs(workdir)
  assert code == 0, log[-3000:]
  rows = content(workdir)
  assert any(r.get('train/grad_norm', 0) > 0 for r in rows)
  assert calls > 100
  return rows, calls, workdir


@pytest.fixture
def finished(untouched, tmp_path):
  """Returns a copy of the workdir without faults."""
  return shutil.copytree(untouched[2], tmp_path / 'finished')


def check_message(code, log):
  """Checks that a run that was not killed succeeds, or ends with one line that
  has a remedy.
  """
  if code == -9:
    return
  assert code in (0, 1, signals.SAVED), log[-3000:]
  if code == 1:
    last = log.strip().splitlines()[-1]
    assert last.startswith('error: ') and len(last) > 60, log[-3000:]
    assert 'Traceback' not in log, log[-5000:]


def data_files(workdir):
  found = (workdir / 'checkpoints').rglob('*')
  return sorted(
    p
    for p in found
    if p.is_file()
    and p.name not in MARKS
    and p.relative_to(workdir / 'checkpoints').parts[0].isdigit()
  )


def flip(rng, workdir):
  if paths := data_files(workdir):
    path = rng.choice(paths)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(rng, workdir):
  if paths := data_files(workdir):
    path = rng.choice(paths)
    os.truncate(path, rng.randrange(path.stat().st_size))


def lose(rng, workdir):
  if paths := data_files(workdir):
    rng.choice(paths).unlink()


def tear_metrics(rng, workdir):
  """Cuts the last line, as after a power cut."""
  path = workdir / 'metrics.jsonl'
  if path.exists() and path.stat().st_size:
    last = len(path.read_bytes().splitlines(keepends=True)[-1])
    os.truncate(path, path.stat().st_size - rng.randint(1, last))
    with path.open('ab') as f:
      f.write(b'\0' * rng.randrange(20))


ON_DISK = (flip, flip, cut, lose)


def apply_faults(runs, untouched, workdir, seed, n):
  """Applies n faults one after the other. The run must then finish as without
  faults.
  """
  want, calls, _ = untouched
  rng, kinds = random.Random(seed), []
  for _ in range(n):
    kind = rng.choice(('error', 'signal', 'disk'))
    kinds.append(kind)
    if kind == 'disk':
      rng.choice(ON_DISK)(rng, workdir)
      what, at = rng.choice(SIGNALS), rng.randint(1, calls)
    else:
      what = rng.choice(ERRORS if kind == 'error' else SIGNALS)
      at = rng.randint(1, calls)
    code, log, _ = runs(workdir, at, what)
    check_message(code, log)
    if 'holds no checkpoint that can be used' in log:
      # All checkpoints are damaged: reported, and none is removed.
      runs(workdir, flags=['--fresh'])
      assert list((workdir / 'old-1').glob('checkpoints/damaged-*'))
      break
  code, log, _ = runs(workdir)
  if code and 'holds no checkpoint that can be used' in log:
    code, log, _ = runs(workdir, flags=['--fresh'])
  assert code == 0, f'seed {seed}: {log[-3000:]}'
  assert content(workdir) == want, f'seed {seed}: {kinds}'


@pytest.fixture
def small_disk(tmp_path):
  """Returns a disk of 1 MB."""
  folder = tmp_path / 'disk'
  folder.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
  done = subprocess.run(mount, capture_output=True, text=True)
  if done.returncode:
    pytest.skip(f'no file system can be mounted here: {done.stderr}')
  yield folder
  subprocess.run(['umount', '-l', str(folder)], check=True)


def test_a_full_disk_ends_in_one_line(runs, untouched, small_disk):
  """The disk is full for the config, metrics, events or a checkpoint, one start
  after the other.
  """
  filler, workdir = small_disk / 'filler', small_disk / 'run'
  workdir.mkdir()
  for room in (0, 20_000, 60_000, 150_000):
    free = shutil.disk_usage(small_disk).free
    filler.write_bytes(b'x' * (free - room))
    code, log, _ = runs(workdir)
    check_message(code, log)
    last = log.strip().splitlines()[-1]
    assert code == 1 and 'o space left' in last, f'{room}: {log}'
    filler.unlink()
  code, log, _ = runs(workdir)
  assert code == 0, log[-3000:]
  assert content(workdir) == untouched[0]


@pytest.mark.parametrize(
  'of, error', [('4.orbax', 'EIO'), ('state.orbax', 'ETIMEDOUT')]
)
def test_a_checkpoint_without_its_folder_ends_at_once(
  runs, untouched, tmp_path, of, error
):
  """No thread waits for the folder, the process does not wait for the thread,
  and nothing is printed after the last line.
  """
  code, log, _ = runs(tmp_path / 'run', 1, error, of=of)
  check_message(code, log)
  last = log.strip().splitlines()[-1]
  number = getattr(errno, error)
  assert code == 1 and 'a checkpoint could not be written' in last, log
  assert f'[Errno {number}]' in last, log


@pytest.mark.parametrize('of', ['.shared', 'checkpoints', 'logs', 'lock-'])
def test_every_refusal_has_a_remedy(runs, untouched, tmp_path, of):
  code, log, _ = runs(tmp_path / 'run', 1, 'EIO', of=of)
  check_message(code, log)
  last = log.strip().splitlines()[-1]
  assert code == 1 and of in last and 'start the same command again' in last


def test_a_second_start_of_a_running_run_is_refused(runs, untouched, tmp_path):
  workdir = tmp_path / 'run'
  first = subprocess.Popen(
    [
      *(sys.executable, '-m', 'jaxrl_reason.main', f'--workdir={workdir}'),
      *(*FLAGS, STAGES),
    ],
    env=runs.env,
    cwd=ROOT,
    stderr=subprocess.PIPE,
  )
  try:
    while not list(workdir.glob('metrics.jsonl')):
      assert first.poll() is None, first.stderr.read().decode()[-3000:]
      time.sleep(0.05)
    code, log, _ = runs(workdir)
    assert code == 1 and f'is in use by process {first.pid} on' in log, log
    check_message(code, log)
    log = first.communicate()[1].decode()
    assert first.returncode == 0, log[-3000:]
  finally:
    first.kill()
  assert content(workdir) == untouched[0]
  assert not list(workdir.glob('lock-*'))


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--config.mesh=(1,1,3)'], 'needs 3 devices'),
    (['--config.seed=3'], 'other data (train, heldout'),
    (['--config.data.knobs.max_ops=2'], 'other data (train'),
    (['--config.rl.optimizer.name=sgd'], 'does not fit this config'),
  ],
)
def test_an_incompatible_start_changes_nothing(
  runs, untouched, finished, flags, words
):
  before = {p: p.stat().st_mtime_ns for p in finished.rglob('*')}
  code, log, _ = runs(finished, flags=flags)
  check_message(code, log)
  assert code == 1 and words in log.strip().splitlines()[-1], log
  after = {p: p.stat().st_mtime_ns for p in finished.rglob('*')}
  assert {p: after.get(p) for p in before} == before
  assert content(finished) == untouched[0]


def test_other_stages_change_nothing(runs, untouched, finished):
  before = sorted(finished.rglob('*'))
  stages = "--config.stages=('sft','rl')"
  code, log, _ = runs(finished, stages=stages)
  check_message(code, log)
  assert code == 1 and "stage 1 of ('rl',)" in log.strip().splitlines()[-1]
  assert sorted(finished.rglob('*')) == before
  assert content(finished) == untouched[0]


def test_fresh_keeps_the_old_files(runs, untouched, finished):
  code, log, _ = runs(finished, flags=['--fresh'])
  assert code == 0 and 'are now in old-1; beginning at step 0' in log, log
  assert content(finished) == content(finished / 'old-1') == untouched[0]
  assert (finished / 'old-1' / 'checkpoints' / '12' / 'state').is_dir()


# (where, step, watchdog.first_s, words of the error) of successive starts.
HANGS = (
  # In the middle of an interval, with a checkpoint before.
  ('dispatch', 6, 3600, 'the steps after step 6 have taken'),
  # The first without compilation in their starts: there is no median yet.
  ('evaluation', 12, 25, 'the evaluation at step 12 has taken'),
  ('save', 12, 25, 'the save at step 12 has taken'),
)


def test_a_hanging_run_ends_with_stacks_and_resumes(runs, untouched, tmp_path):
  """Each start goes on from the last checkpoint, and hangs at another point."""
  run = tmp_path / 'run'
  for where, step, first_s, words in HANGS:
    limits = dict(floor_s=8, times=5, first_s=first_s)
    limits = [f'--config.watchdog.{k}={v}' for k, v in limits.items()]
    code, log, _ = runs(run, flags=limits, hang=step, where=where)
    check_message(code, log)
    last = log.strip().splitlines()[-1]
    assert code == 1 and words in last, log
    stacks = (run / 'logs' / 'stacks_0000.txt').read_text()
    assert 'in hangs_here' in stacks
    assert last.removeprefix('error: ')[:60] in stacks
    log = (run / 'logs' / 'process_0000.log').read_text()
    assert f'process 0 step {step}: error: {words}' in log
  code, log, _ = runs(run)
  assert code == 0, log[-3000:]
  assert content(run) == untouched[0]


def test_goodput_counts_lost_steps(runs, untouched, tmp_path):
  workdir = tmp_path / 'run'
  code, _, _ = runs(workdir, untouched[1] * 2 // 3, 'SIGKILL')
  assert code == -9
  code, log, _ = runs(workdir)
  assert code == 0 and 'Goodput ' in log
  rows = [json.loads(x) for x in (workdir / 'metrics.jsonl').open()]
  told = [r for r in rows if 'perf/goodput' in r]
  assert told and all(0 <= r['perf/goodput'] <= 1 for r in told)
  assert any(r.get('perf/restore_gb', 0) > 0 for r in told)
  assert '"perf/save_gb": ' in (untouched[2] / 'metrics.jsonl').read_text()
  last = told[-1]
  spent = [v for k, v in last.items() if k.startswith('perf/spent/')]
  assert len(spent) == 7 and min(spent) >= 0


def test_a_signal_at_the_start_ends_well_too(runs, untouched, tmp_path):
  for at, signum in ((1, 'SIGTERM'), (20, 'SIGHUP'), (60, 'SIGINT')):
    code, log, _ = runs(tmp_path / 'run', at, signum)
    assert code == signals.SAVED and 'Stopped by a signal' in log, log[-3000:]
  code, log, _ = runs(tmp_path / 'run')
  assert code == 0, log[-3000:]
  assert content(tmp_path / 'run') == untouched[0]


@pytest.mark.parametrize('seed', range(2))
def test_five_faults_in_a_row(runs, untouched, tmp_path, seed):
  apply_faults(runs, untouched, tmp_path / 'run', seed, 5)


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(100, 140))
def test_two_hundred_faults(runs, untouched, tmp_path, seed):
  apply_faults(runs, untouched, tmp_path / 'run', seed, 5)
