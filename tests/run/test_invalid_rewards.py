"""Failing rewards: the first failure is printed, and above a limit the run
stops. The wait for a verifier has its own name and its own share of the time.
"""

import functools
import json
import types

import numpy as np
import pytest
from etils import epath
from test_recipe_features import recipe

from jaxrl_reason.base import Reward
from jaxrl_reason.data.stats import PromptStats
from jaxrl_reason.rollouts.host import Answered, RewardFailed
from jaxrl_reason.run import train
from jaxrl_reason.run.process import compile_log, goodput, logs
from jaxrl_reason.run.rl.invalid_rewards import InvalidRewards
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.verdict import Verdict

REWARDS = """
import time, zlib

def mine(completion, example, share):
  if zlib.crc32(completion.encode()) % 100 < 100 * share:
    return 1 / len([])  # line 6
  return 1.0

def slow(completion, example):
  time.sleep(0.2 if completion == 'quick' else 30)
  return 1.0
"""

LATER = """
import os, time

def later(completion, example, seen, fast):
  with open(seen, 'ab') as f:
    f.write(b'.')
  time.sleep(0.2 if os.path.getsize(seen) > fast else 0)
  return 1.0
"""


@pytest.fixture
def made(tmp_path):
  """Returns the recipe with a reward that raises on a share of completions."""
  (tmp_path / 'mine.py').write_text(REWARDS)

  def make(share: float, **changes):
    c = recipe(**{'rl.path': 'host', 'rl.steps': 4, 'log_every': 2} | changes)
    name, kwargs = f'{tmp_path}/mine.py:mine', dict(share=share)
    c.rl.rewards = {'mine': dict(reward=name, kwargs=kwargs, weight=1.0)}
    return c

  return make


def test_a_reward_that_fails_on_most_rows_stops_the_run(made, tmp_path):
  with pytest.raises(RewardFailed) as e:
    train.run(made(0.85), tmp_path / 'run')
  said = str(e.value)
  assert 'rl.invalid_limit=0.5' in said and 'rewards of 2 steps' in said
  assert 'ZeroDivisionError' in said and 'mine.py:6' in said


def test_below_the_limit_the_first_failure_is_printed_once(
  made, tmp_path, capsys
):
  train.run(made(0.3), tmp_path / 'run')
  lines = [x for x in capsys.readouterr().err.splitlines() if 'invalid' in x]
  assert len(lines) == 1 and 'mine.py:6' in lines[0], lines
  rows = (tmp_path / 'run' / 'metrics.jsonl').read_text().splitlines()
  shares = [json.loads(row).get('train/reward_invalid') for row in rows]
  assert np.mean([x for x in shares if x is not None]) == pytest.approx(
    0.3, abs=0.2
  )


def test_the_limit_can_be_raised_and_the_alarm_is_printed(
  made, tmp_path, capsys
):
  raised = {'rl.invalid_limit': 1.0, 'log_every': 1, 'rl.steps': 5}
  train.run(made(0.8, **raised), tmp_path / 'run')
  said = capsys.readouterr().err
  alarm = 'alarm at rl step 3: rewards that fail (train/reward_invalid'
  assert said.count(alarm) == 1


def test_a_pool_reports_its_progress(tmp_path):
  (tmp_path / 'mine.py').write_text(REWARDS)
  reward = f'{tmp_path}/mine.py:slow'
  with VerifierPool(reward, workers=2, timeout_s=20) as pool:
    assert pool.progress() == ''
    future = pool.submit([('quick', {})] * 3 + [('never', {})])
    quick = pool.submit([('quick', {})])
    quick.result(timeout=60)
    text = pool.progress()
    assert text.startswith('waiting for the verifier: 4 of 5 answered, slowest')
    assert 0.2 <= float(text.split()[-2]) < 20 and not future.done()


def test_the_wait_for_a_verifier_is_not_compile_time():
  said, other = [], ['', 'waiting for the verifier: 1 of 2 answered']
  with compile_log.Waiting(
    'compiling', said.append, every_s=0.01, other=lambda: other[len(said) % 2]
  ) as waiting:
    while len(said) < 2:
      waiting._done.wait(0.01)
  assert said[0].startswith('compiling, ')
  assert said[1].startswith('waiting for the verifier: 1 of 2 answered, ')


def test_a_wait_without_a_reason_prints_nothing():
  said, other = [], ['']
  with compile_log.Waiting('', said.append, 0.01, lambda: other[0]) as waiting:
    waiting._done.wait(0.1)
    assert not said
    other[0] = 'waiting for the verifier: 1 of 2 answered'
    while not said:
      waiting._done.wait(0.01)


def test_a_wait_for_the_verifier_is_printed_after_the_first_dispatch(
  tmp_path, capsys, monkeypatch
):
  (tmp_path / 'mine.py').write_text(LATER)
  often = functools.partial(compile_log.Waiting, every_s=0.05)
  monkeypatch.setattr('jaxrl_reason.run.records.journal.Waiting', often)
  c = recipe(**{'rl.path': 'host', 'rl.steps': 2})
  fast = 2 * c.rl.prompts * c.rl.samples  # `run` tries the reward before
  kwargs = dict(seen=f'{tmp_path}/seen', fast=fast)
  name = f'{tmp_path}/mine.py:later'
  c.rl.rewards = {'mine': dict(reward=name, kwargs=kwargs, weight=1.0)}
  train.run(c, tmp_path / 'run')
  said = capsys.readouterr().err
  first, _, later = said.rpartition('compiling the first step')
  assert first and 'waiting for the verifier: ' in later, said


def test_the_wait_for_a_verifier_is_not_training_time(monkeypatch):
  clock = [0.0]
  monkeypatch.setattr(goodput.time, 'monotonic', lambda: clock[0])
  spent = goodput.Spent(0.0, compile_log.Log())
  with spent.on('train'):
    clock[0] += 8
    spent.count('verification', 6.0)
  clock[0] += 2
  told = spent.metrics()
  assert told['perf/goodput'] == 2 / 10
  assert told['perf/spent/verification_s'] == 6


def test_an_interval_continues_after_a_resume():
  """Its counts are those of an uninterrupted run, also the first failure."""
  bad = Verdict(0.0, 'timeout', detail='10 s')
  valid = np.array([True, False, False])
  answered = Answered(Reward(0, 0, valid), ~valid, None, None, None, [bad])
  whole = answered._replace(reward=Reward(0, 0, valid | True), verdicts=[])
  before = InvalidRewards(1.0, 4, print)
  for _ in range(3):
    before.add([answered])
  said = []
  resumed = InvalidRewards(1.0, 4, said.append)
  resumed.set_state(json.loads(json.dumps(before.get_state())))
  for _ in range(5):
    resumed.add([whole])
  assert len(said) == 1
  assert said[0].startswith('6 of 12 rewards of 4 steps are invalid (50%)')
  assert 'timeout: 10 s' in said[0]


def test_an_interval_ends_after_a_resume_with_a_smaller_log_every():
  valid = np.array([False])
  failed = Answered(Reward(0, 0, valid), ~valid, None, None, None, [])
  before = InvalidRewards(0.5, 10, print)
  for _ in range(7):
    before.add([failed])
  resumed = InvalidRewards(0.5, 5, print)
  resumed.set_state(before.get_state())
  with pytest.raises(RewardFailed, match='8 of 8 rewards of 8 steps'):
    resumed.add([failed])


def test_a_message_with_a_lone_surrogate_is_logged(tmp_path):
  r"""A reward may quote JSON of a completion, such as "\ud800"."""
  with logs.kept(epath.Path(tmp_path)):
    logs.begin()
    logs.note('the reward raised ValueError: \ud800')
    logs.note('the next line')
    logs._current.stacks('\ud800')
  lines = (tmp_path / 'logs' / 'process_0000.log').read_text().splitlines()
  assert lines[0].endswith('ValueError: \\ud800')
  assert [x.rpartition(': ')[2] for x in lines[1:]] == [
    'the next line',
    '\\ud800',
    'ended',
  ]


@pytest.mark.parametrize(
  'counts', [None, {'tried': [1] * 3, 'solved': [1] * 3}]
)
def test_counts_of_other_prompts_are_not_continued(counts, capsys):
  """The path was fused, or the data have grown or shrunk."""
  stage = types.SimpleNamespace(
    data=types.SimpleNamespace(set_state=lambda state: None),
    stats=PromptStats(5),
    invalid=None,
  )
  train._restore_data(stage, {'data': {}, 'stats': counts})
  assert 'no counts of these prompts' in capsys.readouterr().err
  stage.stats.add(np.array([4]), np.ones(1), np.array([True]))
  assert stage.stats.metrics()['data/seen'] == 1 / 5
  later = stage.stats.get_state()
  train._restore_data(stage, {'data': {}, 'stats': later})
  assert stage.stats.get_state() == later
