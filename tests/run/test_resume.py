"""Killed processes: the resumed run equals the uninterrupted one bit by bit.

Lines of metrics.jsonl are compared as text, timings left out.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason import main
from jaxrl_reason.reports import state, workdirs
from jaxrl_reason.run import train
from jaxrl_reason.run.process import signals

HOST = (
  '--config.rl.path=host',
  '--config.rl.steps_per_dispatch=1',
  '--config.rl.workers=1',
  # Every second step is then sampled before the update before it.
  '--config.rl.staleness=1',
  '--config.rl.old_logp=sampler',
)

pytestmark = pytest.mark.one_device
TINY = ROOT / 'tests' / 'tiny_recipe.py'
GSM8K = ROOT / 'configs' / 'gsm8k_small.py'


def command(workdir, *flags, recipe=TINY):
  return [
    sys.executable,
    '-m',
    'jaxrl_reason.main',
    f'--config={recipe}',
    f'--workdir={workdir}',
    '--config.rollouts.every=10',
    *flags,
  ]


@pytest.fixture(scope='module')
def env(tmp_path_factory):
  """Returns an environment with one device and a shared compilation cache."""
  cache = tmp_path_factory.mktemp('cache')
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  return os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}


def run(env, workdir, *flags, code=0, recipe=TINY):
  given = command(workdir, *flags, recipe=recipe)
  done = subprocess.run(
    given, env=env, capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == code, done.stderr[-3000:]
  return done.stderr


def start(env, workdir, *flags, recipe=TINY):
  given = command(workdir, *flags, recipe=recipe)
  return subprocess.Popen(given, env=env, stderr=subprocess.PIPE, cwd=ROOT)


def lines(workdir):
  try:
    return (workdir / 'metrics.jsonl').read_text().splitlines()
  except FileNotFoundError:  # not begun, or just moved aside by a start
    return []


def content(workdir):
  """Returns the rows without timings."""
  rows = [json.loads(line) for line in lines(workdir)]
  timing = ('perf/', 'pool/', 'tools/')
  return [
    {k: v for k, v in row.items() if not k.startswith(timing)} for row in rows
  ]


def rollouts(workdir):
  """Returns the files of rollouts as bytes."""
  return {p.name: p.read_bytes() for p in (workdir / 'rollouts').iterdir()}


def kill_when(process, condition, sig=signal.SIGKILL):
  """Sends the signal when the condition holds; returns the exit code."""
  deadline = time.monotonic() + 240
  while not condition():
    assert process.poll() is None, process.stderr.read().decode()[-3000:]
    assert time.monotonic() < deadline, 'the run never got there'
    time.sleep(0.002)
  process.send_signal(sig)
  code = process.wait()
  process.stderr.close()
  return code


def reached(workdir, stage, step):
  def check():
    rows = [json.loads(x) for x in lines(workdir)[:-1]]  # the last may be cut
    return any(r['stage'] == stage and r['step'] >= step for r in rows)

  return check


def saved(workdir, step):
  """Returns whether a checkpoint of the step or a later one is complete.
  Metrics do not show this, because saves overlap with steps.
  """

  def check():
    found = (workdir / 'checkpoints').glob('[0-9]*')
    return any(p.name.isdigit() and int(p.name) >= step for p in found)

  return check


def check_a_killed_run(env, tmp_path, given):
  """Checks that a run that is killed at its fourth step, and started again,
  ends like one that is not killed.

  Args:
    given: changes of the recipe by key.
  """
  flags = [f'--config.{k}={v}' for k, v in given.items()]
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  run(env, whole, *flags)
  process = start(env, killed, *flags)
  assert kill_when(process, saved(killed, 4)) == -signal.SIGKILL
  assert 'Resuming at step' in run(env, killed, *flags)
  assert content(killed) == content(whole)


@pytest.fixture(scope='module')
def uninterrupted(env, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('whole run')  # with a space in it
  log = run(env, workdir)
  for name in ('curves.png', 'samples.txt', 'config.json', 'tensorboard'):
    assert (workdir / name).exists(), name
  assert 'Curves' in log and 'greedy' in log
  return workdir


def test_metrics_have_step_and_stage_first_and_the_documented_names(
  uninterrupted,
):
  named = (ROOT / 'docs' / 'metrics.md').read_text()
  for line in lines(uninterrupted):
    row = json.loads(line)
    assert list(row)[:2] == ['step', 'stage']
    for key in list(row)[2:]:
      generic = key
      for split in ('heldout', 'harder'):
        generic = generic.replace(f'/{split}/', '/<split>/')
      head, _, k = generic.partition('@')
      generic = f'{head}@k' if k else generic
      if generic.startswith('train/reward/'):
        generic = 'train/reward/<part>'
      assert f'`{generic}`' in named, f'{key} is not in docs/metrics.md'


def test_a_run_killed_anywhere_resumes_bit_for_bit(
  uninterrupted, env, tmp_path
):
  points = [('pretrain', 2), ('sft', 12), ('rl', 26)]
  for stage, step in points:
    process = start(env, tmp_path)
    code = kill_when(process, reached(tmp_path, stage, step))
    assert code == -signal.SIGKILL
  log = run(env, tmp_path)
  assert 'Resuming at step' in log
  told = workdirs.read(tmp_path)
  assert [b.how for b in state.breaks(told)] == ['killed'] * len(points)
  reached_all = [b.reached for b in state.breaks(told)]
  assert all(r >= step for r, (_, step) in zip(reached_all, points))
  assert state.status(told) == ('ok', 'finished at step 32')
  assert content(tmp_path) == content(uninterrupted)
  assert rollouts(tmp_path) == rollouts(uninterrupted) != {}


def test_killed_during_a_save(uninterrupted, env, tmp_path):
  """The run is killed when a second checkpoint is partly written."""
  folder = tmp_path / 'checkpoints'

  def saving():
    names = [p.name for p in folder.glob('*')] if folder.exists() else []
    return len(names) > 1 and any('tmp' in n for n in names)

  assert kill_when(start(env, tmp_path), saving) == -signal.SIGKILL
  run(env, tmp_path)
  assert content(tmp_path) == content(uninterrupted)
  assert rollouts(tmp_path) == rollouts(uninterrupted) != {}


def test_sigterm_saves_and_exits_with_its_code(uninterrupted, env, tmp_path):
  process = start(env, tmp_path)
  code = kill_when(process, reached(tmp_path, 'sft', 10), signal.SIGTERM)
  assert code == signals.SAVED
  before = max(r['step'] for r in content(tmp_path))
  log = run(env, tmp_path)
  assert f'Resuming at step {before}' in log  # no step was lost
  assert content(tmp_path) == content(uninterrupted)
  assert rollouts(tmp_path) == rollouts(uninterrupted) != {}


def test_torn_checkpoint_is_set_aside(uninterrupted, env, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(uninterrupted, copy)
  folder = copy / 'checkpoints'
  newest = max(int(p.name) for p in folder.glob('[0-9]*') if p.name.isdigit())
  files = [
    p for p in (folder / str(newest) / 'state').rglob('*') if p.is_file()
  ]
  for path in files:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  for path in (copy / 'rollouts').glob('*30.jsonl'):
    path.unlink()
  log = run(env, copy)
  assert f'damaged-{newest}' in log and (folder / f'damaged-{newest}').exists()
  assert content(copy) == content(uninterrupted)
  assert rollouts(copy) == rollouts(uninterrupted) != {}


def test_incompatible_checkpoint_is_refused(uninterrupted, tmp_path):
  copy = tmp_path / 'copy'
  shutil.copytree(uninterrupted, copy)
  message = refusal(copy, '--config.model.width=32')
  assert 'does not fit this config' in message and 'saved float32' in message
  assert lines(copy) == lines(uninterrupted)


def test_host_path_resumes_too(env, tmp_path):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  run(env, whole, *HOST)
  kill_when(start(env, killed, *HOST), reached(killed, 'rl', 26))
  run(env, killed, *HOST)
  assert content(killed) == content(whole)
  assert rollouts(killed) == rollouts(whole) != {}
  timed = [json.loads(x) for x in lines(whole)]
  assert any('perf/verify_wait_s' in row for row in timed)


@pytest.mark.parametrize(
  'flag, words',
  [
    ('--config.rl.smaples=4', 'smaples'),
    ('--config.data.prompt_len=3', 'data.prompt_len is 3'),
    ('--workdir=/proc/nowhere', '/proc/nowhere'),
    ('--config.sft.optimizer.lr=1e30', 'NaN'),
  ],
)
def test_bad_input_is_named_in_a_line(env, tmp_path, flag, words):
  """An unknown key, an impossible value, a folder, and an error of a run."""
  refused(env, tmp_path, words, flag)


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--config.rl.samples=many'], 'samples'),
    (['--config.rl.minibatches=3'], '= 16 does not divide by'),
    (['--config.data.name=riddles'], 'riddles'),
    (
      ['--config.data.name=countdown', '--config.data.knobs.max_ops=2'],
      'data.knobs.max_ops',
    ),
    (['--config.rl.rewards.answer.reward=nothing'], 'rl.rewards.answer'),
    (['--config.mesh=(3,1,1)'], 'needs 3 devices'),
  ],
)
def test_bad_values_of_flags_are_named(tmp_path, flags, words):
  assert words in refusal(tmp_path, *flags)


def test_a_folder_without_data_is_named(tmp_path):
  flags = '--config.data.dir=/nowhere', '--config.eval.problems=1'
  assert '/nowhere' in refusal(tmp_path, *flags, recipe=GSM8K)


def run_here(workdir, *flags, recipe=TINY):
  """Runs the command in this process, without its exit codes."""
  *_, first, second, third = command(workdir, recipe=recipe)
  a = main.parser().parse([first, second, third, *flags])
  return train.run(config_lib.load(a.config, a.changes), a.workdir)


def refusal(workdir, *flags, recipe=TINY):
  """Returns the error of a run in this process, which is one line."""
  with pytest.raises((ValueError, FileNotFoundError)) as e:
    run_here(workdir, *flags, recipe=recipe)
  assert '\n' not in str(e.value)
  return str(e.value)


def refused(env, tmp_path, words, *flags, recipe=TINY):
  log = run(env, tmp_path, *flags, code=1, recipe=recipe)
  assert words in '\n'.join(log.splitlines()[-3:]), log[-2000:]
  assert 'Traceback' not in log
