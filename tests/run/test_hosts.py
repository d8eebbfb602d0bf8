"""Several real processes are one run: its numbers, its checkpoints, its end.

Gloo collectives on CPU; rows, verdicts, evaluations and shards of checkpoints
are split over the processes. Starting one costs seconds, so that all runs are
made once (`pod`), and each process makes several.
"""

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest
from paths import ROOT
from waiting import eventually

from jaxrl_reason import hosts
from jaxrl_reason.run.process import signals

HEARTBEAT_S = 10
FUSED = {
  'stages': ('rl',),
  'rl.steps': 12,
  'rl.epochs': 1,
  'rl.rewards.answer.reward': 'random',  # for a gradient
  'eval.problems': 5,  # not divided by the processes: filled up
  'eval.harder': False,
}
HOST = {
  'stages': ('rl',),
  'rl.path': 'host',
  'rl.steps': 8,
  'rl.steps_per_dispatch': 1,
  'rl.parts': 2,
  'rl.staleness': 1,
  'rl.old_logp': 'sampler',
  'rl.workers': 1,
  'rl.epochs': 1,
  'rl.minibatches': 1,
  'rl.rewards.answer.reward': f'{ROOT}/tests/pod_worker.py:parity',
  'eval.problems': 5,
  'eval.harder': False,
}
PLAYED = {
  'stages': ('rl',),
  'data.name': 'products',
  'data.prompt_len': 6,
  'data.completion_len': 24,
  'data.knobs': dict(min_digits=1, max_digits=2, call=0.7),
  'data.harder': {},
  'rl.path': 'host',
  'rl.steps': 3,
  'rl.steps_per_dispatch': 1,
  'rl.algorithm': 'mt_grpo',
  'rl.cache_segments': 1,
  'rl.prompts': 8,
  'rl.workers': 1,
  'rl.epochs': 1,
  'rl.minibatches': 1,
  'rl.turns.env': 'calculator',
  'rl.turns.most': 3,
  'rl.turns.tokens': 6,
  'rl.turns.observation': 6,
  'rl.turns.workers': 1,
  'rl.rewards.answer.reward': 'random',
  'eval.problems': 5,
  'eval.harder': False,
}
SPLIT = {'mesh': (1, 2, 1)}  # weights and rows over two processes
DOUBLED = {'mesh': (2, 1, 2)}  # each row on two processes of four
# Rows that divide by one, three and four.
ELASTIC = FUSED | {'rl.prompts': 12, 'rl.minibatches': 1}


@pytest.fixture(scope='module')
def env(tmp_path_factory):
  """Returns an environment with a shared compilation cache and fast
  compilation.
  """
  cache = tmp_path_factory.mktemp('cache')
  flags = os.environ['XLA_FLAGS'].replace('device_count=8', 'device_count=1')
  return os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}


def free_address() -> str:
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return f'localhost:{s.getsockname()[1]}'


def start(env, log, commands) -> list:
  """Starts a process per command; their output is written to files beside
  `log`.
  """
  processes = []
  for i, args in enumerate(commands):
    command = [sys.executable, str(ROOT / 'tests' / 'pod_worker.py'), *args]
    with log_file(log, i).open('w') as out:
      where = env | {'PYTHONPATH': str(ROOT), 'DISK': f'disk_{i}'}
      processes.append(
        subprocess.Popen(command, env=where, stderr=out, stdout=out, cwd=ROOT)
      )
  return processes


def log_file(log, i):
  return log.with_name(f'{log.name}.{i}.log')


def finish(processes, log, codes=(0,), within=400) -> list[str]:
  """Waits for all processes and returns their output."""
  deadline = time.monotonic() + within
  try:
    for p in processes:
      p.wait(max(0.1, deadline - time.monotonic()))
  finally:
    for p in processes:
      p.kill()
  logs = [log_file(log, i).read_text() for i in range(len(processes))]
  for p, text in zip(processes, logs):
    assert p.returncode in codes, f'{p.returncode}\n{text[-3000:]}'
  return logs


def start_worker(env, log, n, runs):
  """Starts n processes that run all of `runs`: (workdir, keys of the config,
  name of the recipe).
  """
  runs = [[str(run[0]), *run[1:]] for run in runs]
  address, commands = free_address(), []
  for i in range(n):
    join = [address, n, i] if n > 1 else []
    commands.append([json.dumps({'join': join, 'runs': runs})])
  return start(env, log, commands)


def start_signalled(
  env,
  workdir,
  n,
  who,
  what,
  keys,
  recipe='tiny_recipe',
  heartbeat_s=HEARTBEAT_S,
):
  """Starts the command on n processes. Process `who`, or each of several,
  receives a signal.
  """
  address, commands = free_address(), []
  numbers = (who,) if isinstance(who, int) else who
  for i in range(n):
    commands.append(
      [
        what if i in numbers else 'SIGKILL@-1',
        f'--config={ROOT}/tests/{recipe}.py',
        f'--workdir={workdir}',
        f'--coordinator={address}',
        f'--num_processes={n}',
        f'--process_id={i}',
        f'--heartbeat_s={heartbeat_s}',
        *(f'--config.{k}={v}' for k, v in keys.items()),
      ]
    )
  return start(env, workdir, commands)


# Starts of one run: the signal and its point, and the processes of two that
# receive it. Each start resumes where the last one ended.
STARTS = (
  ('SIGTERM@0:compile:group', (0, 1)),
  ('SIGHUP@4:save', (1,)),
  ('SIGINT@8:evaluation:group', (0,)),
  ('SIGKILL@10', (1,)),
  ('SIGTERM@12:evaluation', (1,)),  # after the last step
)


def interrupted(env, workdir) -> dict:
  """Returns, for each start, its logs, its rows and the last saved step.

  A copy of the workdir after the kill is the folder `elsewhere`.
  """
  found = {}
  for what, who in STARTS:
    killed = what.startswith('SIGKILL')
    # A long timeout, for a busy machine.
    beat = HEARTBEAT_S if killed else 60
    run = start_signalled(
      env, workdir, 2, who, what, FUSED | SPLIT, heartbeat_s=beat
    )
    logs = finish(run, workdir, codes=(1, -9) if killed else (signals.SAVED,))
    saved = [p.name for p in (workdir / 'checkpoints').iterdir()]
    found[what] = types.SimpleNamespace(
      logs=logs,
      rows=content(workdir),
      saved=max(int(name) for name in saved if name.isdigit()),
    )
    if killed:
      shutil.copytree(workdir, workdir.with_name('elsewhere'))
  return found


@pytest.fixture(scope='module')
def pod(env, tmp_path_factory):
  """Returns folders and logs of all runs: first the interrupted ones, then the
  resumed and the uninterrupted ones.
  """
  at = tmp_path_factory.mktemp('pod')
  out = types.SimpleNamespace(at=at)
  host, group = HOST | DOUBLED, 'SIGTERM@4:dispatch:group'
  four = start_signalled(env, at / 'four', 4, 3, group, host)
  out.starts = interrupted(env, at / 'cut')
  out.four = finish(four, at / 'four', codes=(signals.SAVED,))
  out.stopped_at = content(at / 'four')[-1]['step']
  kill_at(env, at / 'cut_list', 1, '10:dispatch', LISTED, LIST)
  runs = [
    (at / 'cut', FUSED | SPLIT),
    (at / 'whole', FUSED | SPLIT | {'profile.steps': '7:8'}),
    (at / 'four', HOST),
    (at / 'played_split', PLAYED | SPLIT),
    (at / 'played_twice', PLAYED | {'mesh': (1, 1, 2)}),
    (at / 'cut_list', LISTED, LIST),
    (at / 'list', LISTED, LIST),
  ]
  two = start_worker(env, at / 'two', 2, runs)
  runs = [
    (at / 'alone', FUSED),
    (at / 'elsewhere', FUSED),
    (at / 'alone_host', HOST),
    (at / 'played', PLAYED),
  ]
  one = start_worker(env, at / 'one', 1, runs)
  out.two = finish(two, at / 'two', within=1200)  # seven runs
  out.one = finish(one, at / 'one')
  return out


def lines_of(workdir):
  """Returns the rows of metrics.jsonl."""
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def content(workdir):
  """Returns the rows of metrics.jsonl without timings."""
  timing = ('perf/', 'pool/')
  return [
    {k: v for k, v in row.items() if not k.startswith(timing)}
    for row in lines_of(workdir)
  ]


def assert_compared(row, key):
  """Checks the comparison of seconds between two hosts."""
  assert row[f'{key}_argmax'] in (0, 1)
  assert 0 <= row[f'{key}_spread'] <= row[f'{key}_max']
  if (
    key != 'perf/step_s'
  ):  # that one ends when the device has computed the step
    assert row[key] <= row[f'{key}_max']


def assert_same_numbers(got, want):
  assert [list(r) for r in got] == [list(r) for r in want]
  learnt = [r['train/grad_norm'] for r in want if 'train/grad_norm' in r]
  assert min(learnt) > 0
  for x, y in zip(got, want):
    for key, value in y.items():
      where = f'{key} of step {y["step"]}'
      if isinstance(value, str):
        assert x[key] == value, where
      else:
        np.testing.assert_allclose(
          x[key], value, rtol=1e-3, atol=2e-5, err_msg=where
        )


def test_two_processes_compute_the_numbers_of_one(pod):
  assert_same_numbers(content(pod.at / 'whole'), content(pod.at / 'alone'))


def test_two_processes_play_the_episodes_of_one(pod):
  """Each process has its own rows, or both have all rows and process 0 plays
  them.
  """
  where = (pod.at / x for x in ('played', 'played_split', 'played_twice'))
  (done, want), *others = (played(content(x)) for x in where)
  assert done > 20 and any(r.get('train/turns/mean', 0) > 1 for r in want)
  assert 0 < max(r.get('train/gap_max', 0) for r in want) < 1e-5
  for count, got in others:
    assert count == done
    assert_same_numbers(got, want)
  told = lines_of(pod.at / 'played_split')
  told = [r for r in told if 'perf/tools_wait_s' in r]
  assert told
  for row in told:
    assert_compared(row, 'perf/tools_wait_s')


def played(rows):
  """Returns (turns that tools have answered, the rows without such counts)."""
  found = [{k: v for k, v in r.items() if 'tools/' not in k} for r in rows]
  return max(r.get('tools/done', 0) for r in rows), found


def test_only_process_0_writes_and_prints(pod):
  for name in ('curves.png', 'samples.txt', 'config.json', 'tensorboard'):
    assert (pod.at / 'cut' / name).exists(), name
  (trace,) = (pod.at / 'whole' / 'profile').rglob('*.xplane.pb')
  assert b'jit_rl_steps' in trace.read_bytes()
  assert 'rl_steps  ' in pod.two[0] and 'rl_learn  ' in pod.four[0]
  assert 'Curves' in pod.two[0] and '2 processes' in pod.two[0]
  assert 'Curves' not in pod.two[1] and 'step' not in pod.two[1]


def ends_with(log: str, *words: str) -> None:
  """Checks that the last line is an error with these words and a remedy."""
  last = log.strip().splitlines()[-1]
  assert last.startswith('error: '), log[-3000:]
  for word in (*words, 'Start the same command'):
    assert word in last, f'{word!r} is not in {last!r}'
  assert 'Traceback' not in log


def test_one_killed_process_stops_all_and_the_restart_is_exact(pod):
  killed = pod.starts['SIGKILL@10'].logs
  ends_with(
    killed[0],
    f'process 1 on {socket.gethostname()} (last step ',
    'gave no sign of life for',
  )
  # The process cannot see what killed it. Its child prints the rest.
  ends_with(killed[1], 'process 1 on', 'was ended without a word')
  assert 'Resuming at step' in pod.two[0]
  assert content(pod.at / 'cut') == content(pod.at / 'whole')  # bit by bit


def test_a_signal_saves_in_every_phase_and_to_whole_groups(pod):
  """Each start resumes where the last one stopped, without a loss."""
  before = 0
  for what, start in pod.starts.items():
    log, step = start.logs[0], start.saved
    assert (f'Resuming at step {before}' in log) == (before > 0), what
    assert step >= before
    before = step
    if what.startswith('SIGKILL'):
      continue
    assert 'Stopped by a signal; what was trained is saved' in log
    # The run does not finish an evaluation first, because a service manager
    # waits only for seconds.
    last = [row for row in start.rows if row['step'] == step]
    assert not any('eval/heldout/greedy' in row for row in last), what
  # A start that only repeats an evaluation saves no step.
  assert before == 12


def test_each_process_has_a_log_and_metrics_name_slow_hosts(pod):
  for i in (0, 1):
    text = (pod.at / 'whole' / 'logs' / f'process_{i:04d}.log').read_text()
    assert f' process {i} step 12: rl step 12: reward_mean' in text
    assert text.splitlines()[-1].endswith(': ended')
  rows = lines_of(pod.at / 'whole')
  told = [r for r in rows if 'perf/step_s_argmax' in r]
  assert len(told) == 6
  for row in told:
    for key in ('perf/step_s', 'perf/data_s'):
      assert_compared(row, key)
    assert 0 <= row['perf/goodput'] <= 1
  text = (pod.at / 'four' / 'metrics.jsonl').read_text()
  assert '"perf/verify_s_argmax"' in text


def test_restart_on_one_process_and_another_mesh(pod):
  assert 'Resuming at step' in pod.one[0]
  assert_same_numbers(content(pod.at / 'elsewhere'), content(pod.at / 'whole'))


def test_four_processes_with_rewards_on_every_host(pod):
  """A signal to one of them stops all at the same step, and two processes
  resume.
  """
  assert pod.stopped_at == 6
  assert 'Stopped by a signal; what was trained is saved' in pod.four[0]
  assert 'Resuming at step 6' in pod.two[0]
  want = content(pod.at / 'alone_host')
  assert_same_numbers(content(pod.at / 'four'), want)
  assert any(0 < r.get('train/reward_mean', 0) < 1 for r in want)


@pytest.mark.slow
def test_killed_on_one_then_on_four_and_finished_on_three(env, tmp_path):
  """Restarts on more processes, and after a loss on fewer, at random steps."""
  at, rng = tmp_path / 'elastic', random.Random(7)
  first, then = rng.choice((4, 6)), rng.choice((8, 10))
  one = start_signalled(env, at, 1, 0, f'SIGKILL@{first}', ELASTIC)
  finish(one, at, codes=(-9,))
  lost = rng.randrange(1, 4)
  four = start_signalled(env, at, 4, lost, f'SIGKILL@{then}', ELASTIC)
  for i, log in enumerate(finish(four, at, codes=(1, -9))):
    if i != lost:
      ends_with(log, f'process {lost} on {socket.gethostname()} (last step ')
  three = start_signalled(env, at, 3, 0, 'SIGKILL@-1', ELASTIC)
  log = finish(three, at)[0]
  assert 'Resuming at step' in log and '3 processes' in log
  alone = tmp_path / 'alone'
  finish(
    start_worker(env, tmp_path / 'own', 1, [(alone, ELASTIC)]), tmp_path / 'own'
  )
  assert_same_numbers(content(at), content(alone))


# The third stage begins with the weights that the first one ended with.
LIST, LISTED = 'stage_recipe', SPLIT | {'stages': ('sft', 'short', 'again')}
# Points of that run in their order: a later one is never behind a checkpoint.
POINTS = (
  '0:evaluation 0:dispatch 2:dispatch 4:evaluation 4:save 4:dispatch '
  '6:dispatch 8:evaluation 8:save 8:dispatch 10:dispatch 12:evaluation 12:save'
).split()


def kill_at(env, workdir, who, point, *args):
  """Kills one of two processes at a point of the run."""
  run = start_signalled(env, workdir, 2, who, f'SIGKILL@{point}', *args)
  finish(run, workdir, codes=(1, -9, -6))
  assert run[who].returncode == -9, point  # the run reached this point


def goes_on_after_kills(env, at, points, rng, want, args=(LISTED, LIST)):
  """Kills one of two processes at each point. The numbers do not change."""
  for point in points:
    kill_at(env, at, rng.randrange(2), point, *args)
  finish(start_signalled(env, at, 2, (), 'none@0', *args), at)
  assert played(content(at))[1] == want


def test_a_kill_after_reading_the_weights_of_a_stage_loses_nothing(pod):
  """The last stage has read its weights and made steps that are not saved."""
  got, want = content(pod.at / 'cut_list'), content(pod.at / 'list')
  assert got == want and {row['stage'] for row in want} == {*LISTED['stages']}


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(10))
def test_kills_in_a_list_of_stages_lose_nothing(env, tmp_path, pod, seed):
  """Four kills at random points (forty in all)."""
  rng, want = random.Random(seed), content(pod.at / 'list')
  points = [POINTS[i] for i in sorted(rng.sample(range(len(POINTS)), 4))]
  goes_on_after_kills(env, tmp_path / 'w', points, rng, want)


TOOLS = PLAYED | SPLIT | {'rl.steps': 8}


@pytest.fixture(scope='module')
def with_tools(env, tmp_path_factory):
  """Returns a run with tools in Python on both processes, without a kill."""
  at = tmp_path_factory.mktemp('with_tools') / 'whole'
  finish(start_signalled(env, at, 2, (), 'none@0', TOOLS), at)
  return played(content(at))[1]


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(5))
def test_kills_in_episodes_of_two_hosts_lose_nothing(
  env, tmp_path, with_tools, seed
):
  """Four kills at random points (twenty in all)."""
  rng = random.Random(seed)
  points = [f'{i}:dispatch' for i in range(8)]
  points[4:4], points[9:] = ['4:save'], ['8:evaluation', '8:save']
  points = [points[i] for i in sorted(rng.sample(range(len(points)), 4))]
  rest = rng, with_tools, (TOOLS, 'tiny_recipe')
  goes_on_after_kills(env, tmp_path / 'w', points, *rest)


@pytest.mark.parametrize('who', [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_hanging_process_is_named_within_the_heartbeat(env, tmp_path, who):
  """The process is stopped and not killed, so its connections stay open.
  Process 0 also has the coordinator.
  """
  keys = FUSED | SPLIT
  processes = start_signalled(env, tmp_path / 'w', 2, who, 'SIGSTOP@4', keys)
  try:
    assert eventually(lambda: stopped(processes[who].pid), 400)
    since = time.monotonic()
    processes[1 - who].wait(400)
    # Twice the heartbeat, and a margin for a busy machine.
    assert time.monotonic() - since < 2 * HEARTBEAT_S + 60
  finally:
    for p in processes:
      p.kill()
  log = log_file(tmp_path / 'w', 1 - who).read_text()
  ends_with(log, f'process {who} on {socket.gethostname()} (last step ')
  assert processes[1 - who].returncode == 1
  stacks = tmp_path / 'w' / 'logs' / f'stacks_{1 - who:04d}.txt'
  assert f'process {who} on' in stacks.read_text()
  assert 'most recent call first' in stacks.read_text()


def stopped(pid: int) -> bool:
  stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  return stat.rpartition(')')[2].split()[0] == 'T'


@pytest.mark.parametrize(
  'words, kind',
  [
    ('UNAVAILABLE: Connection reset by peer', hosts.Lost),
    ('RESOURCE_EXHAUSTED: Out of memory', jax.errors.JaxRuntimeError),
  ],
)
def test_an_error_of_this_process_alone_is_not_blamed_on_another(
  lost, words, kind
):
  with pytest.raises(kind, match=words), hosts.explained():
    raise jax.errors.JaxRuntimeError(words)


@pytest.fixture
def lost(monkeypatch):
  """Simulates a lost second process. Any thread may print the error."""
  monkeypatch.setattr('jax.process_count', lambda: 2)
  monkeypatch.setattr(hosts.peers, 'claimed', lambda: True)


GLOO = 'UNKNOWN: Gloo AllGather failed: [external/gloo/...] Read error'


def test_a_failed_collective_of_any_type_is_explained(lost):
  """A copy before a save raises it as ValueError, and a library wraps it."""
  with pytest.raises(hosts.Lost, match='lost the others: UNKNOWN: Gloo'):
    with hosts.explained():
      raise ValueError(GLOO)
  with pytest.raises(hosts.Lost, match='lost the others: UNKNOWN: Gloo'):
    with hosts.explained():
      try:
        raise ValueError(GLOO)
      except ValueError as e:
        raise RuntimeError('the save failed') from e


@pytest.mark.parametrize(
  'error',
  [
    ValueError('rl.prompts=6 does not divide over 4 devices'),
    OSError('gs://b/w could not be read: UNAVAILABLE: try again'),
  ],
)
def test_other_errors_are_not_changed(lost, error):
  with pytest.raises(type(error)) as raised, hosts.explained():
    raise error
  assert raised.value is error


def test_processes_that_never_meet_are_reported(env, tmp_path):
  args = [
    'SIGKILL@-1',
    f'--config={ROOT}/tests/tiny_recipe.py',
    f'--workdir={tmp_path}/w',
    '--coordinator=localhost:1',
    '--num_processes=2',
    '--process_id=1',
    '--join_timeout_s=2',
  ]
  processes = start(env, tmp_path / 'lonely', [args])
  (log,) = finish(processes, tmp_path / 'lonely', codes=(1,), within=60)
  words = 'process 1 of 2: not all processes met at --coordinator=localhost:1 '
  assert words in log and 'Traceback' not in log


def test_two_processes_of_one_number_are_named(env, tmp_path):
  """jax aborts the joined processes when another joins with their number."""
  address, keys = free_address(), {'rl.steps': 2000}
  commands = [
    [
      'SIGKILL@-1',
      f'--config={ROOT}/tests/tiny_recipe.py',
      f'--workdir={tmp_path}/w',
      f'--coordinator={address}',
      '--num_processes=2',
      f'--process_id={i}',
      f'--heartbeat_s={HEARTBEAT_S}',
      '--join_timeout_s=10',
      *(f'--config.{k}={v}' for k, v in keys.items()),
    ]
    for i in (0, 1, 1)
  ]
  processes = start(env, tmp_path / 'three', commands)
  finish(processes, tmp_path / 'three', codes=(1, -6), within=120)
  logs = [log_file(tmp_path / 'three', i) for i in range(3)]

  def named():  # a child of each writes the line after its end
    lines = [log.read_text().rpartition('error: ')[2] for log in logs]
    return all('--process_id' in line for line in lines)

  assert eventually(named), [log.read_text()[-3000:] for log in logs]


@pytest.mark.parametrize(
  'flags, variables, words',
  [
    ({'num_processes': 2}, {}, 'come together; --coordinator is not given'),
    ({}, {'JAX_PROCESS_ID': '1'}, 'together; --coordinator is not given'),
    ({'coordinator': 'h:1', 'process_id': 0}, {}, '--num_processes is not'),
    (
      {'coordinator': 'here', 'num_processes': 2, 'process_id': 0},
      {},
      "--coordinator='here': write host:port",
    ),
    (
      {'coordinator': 'here:1', 'process_id': 2},
      {'JAX_NUM_PROCESSES': '2'},
      r'--process_id=2 is not in 0\.\.1',
    ),
    ({}, {'JAX_NUM_PROCESSES': 'two'}, "JAX_NUM_PROCESSES='two'"),
  ],
)
def test_wrong_flags_are_named(monkeypatch, flags, variables, words):
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  with pytest.raises(ValueError, match=words):
    hosts.join(**flags)


@pytest.mark.parametrize('host', ['127.0.0.1', '::'])
def test_a_taken_port_is_named(monkeypatch, host):
  """With jax alone, process 0 ends with a segmentation fault."""

  def never(*args, **kwargs):
    raise AssertionError('jax is asked to bind a port that is taken')

  monkeypatch.setattr('jax.distributed.initialize', never)
  kind = socket.AF_INET6 if ':' in host else socket.AF_INET
  with socket.socket(kind) as s:
    s.bind((host, 0))
    s.listen()
    port = s.getsockname()[1]
    with pytest.raises(ValueError, match=f'cannot use port {port} of .*in use'):
      hosts.join(f'localhost:{port}', 2, 0)


@pytest.mark.parametrize('n', [1, 4])
def test_slurm_defines_the_number_of_processes(monkeypatch, n):
  joined = []
  monkeypatch.setattr(
    'jax.distributed.initialize', lambda *args, **_: joined.append(args)
  )
  monkeypatch.setattr('jax.config.update', lambda *_: None)
  monkeypatch.setattr('jaxrl_reason.hosts.peers.begin', lambda *_: None)
  for name in ('JOB_ID', 'STEP_NODELIST', 'NTASKS', 'PROCID', 'LOCALID'):
    monkeypatch.setenv(f'SLURM_{name}', str(n))
  hosts.join()
  assert joined == ([(None, None, None)] if n > 1 else [])
