"""Runs with environments in Python: equal to those inside the program, with
hostile tools, killed and resumed.
"""

import json
import pathlib
import signal
import subprocess

import numpy as np
import pytest
from test_resume import env, kill_when, run, saved, start
from test_turn_runs import lines, recipe

from jaxrl_reason.run import train
from jaxrl_reason.run.checks import config_checks

pytestmark = pytest.mark.one_device

__all__ = ['env']
HOSTILE = pathlib.Path(__file__).parents[1] / 'hostile_env.py'
NOWHERE = {'tool': 'search', 'args': {'folder': '/none'}}


def hosted(**turns):
  c = recipe(path='host', steps_per_dispatch=1)
  c.rl.turns.update(workers=2, timeout_s=5.0)
  c.rl.turns.update(turns)
  return c


def rl_rows(workdir):
  """Returns lines of the rl stage without timings."""
  clocks = ('perf/', 'pool/', 'tools/')
  return [
    {k: v for k, v in line.items() if not k.startswith(clocks)}
    for line in lines(workdir)
    if 'train/turns/mean' in line
  ]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """Returns the workdir of a run with its rollouts."""
  workdir = tmp_path_factory.mktemp('hosted') / 'whole'
  train.run(kept(), workdir)
  return workdir


def kept():
  c = hosted()
  c.rollouts.every = 2
  return c


def test_a_host_run_equals_the_fused_run(whole, tmp_path):
  """Metrics, samples and evaluations are equal."""
  train.run(recipe(steps_per_dispatch=1), tmp_path / 'fused')
  want, got = rl_rows(tmp_path / 'fused'), rl_rows(whole)
  assert len(want) == len(got) > 1
  for a, b in zip(want, got):
    shared = [
      k for k in a if k in b and k.startswith(('train/turns', 'train/reward'))
    ]
    assert {'train/turns/malformed', 'train/reward/env'} <= {*shared}
    for k in shared:
      np.testing.assert_allclose(b[k], a[k], rtol=1e-4, atol=1e-5, err_msg=k)
    assert b['train/turns/timeout'] == b['train/turns/failed'] == 0
  evals = [
    [x['eval/heldout/pass@1'] for x in lines(d) if 'eval/heldout/pass@1' in x]
    for d in (tmp_path / 'fused', whole)
  ]
  assert evals[0] == evals[1]


def hostile(**changes):
  c = hosted(env=f'{HOSTILE}:step', timeout_s=1.0, workers=4, most=3)
  c.rl.turns.stops = ('=',)
  c.rl.update(steps=2, prompts=8, samples=2)
  c.rl.update(changes)
  c.sft.steps, c.eval.problems = 2, 4
  return c


def test_hostile_tools_lose_nothing(tmp_path, capfd):
  """Every row finishes and all events are counted in bounded time. Leftover
  processes are ended, and printed output is in no log.
  """
  before = count_sleepers()
  train.run(hostile(), tmp_path / 'run')
  assert sum(map(len, capfd.readouterr())) < 2**20
  last = rl_rows(tmp_path / 'run')[-1]
  counts = {k: last[f'train/turns/{k}'] for k in ('timeout', 'failed', 'cut')}
  assert counts['timeout'] > 0 and counts['failed'] > 0, counts
  assert np.isfinite(last['train/loss'])
  # Replies of forks are ignored, and so are markers in observations.
  assert last['train/reward/env'] < 2
  rows = lines(tmp_path / 'run')
  perf = [x for x in rows if 'tools/timeouts' in x][-1]
  assert perf['tools/crashes'] > 0 and perf['tools/done'] > 20
  assert count_sleepers() <= before


def count_sleepers():
  """Counts the processes of `sleep 1000`."""
  out = subprocess.run(['pgrep', '-f', 'sleep 1000'], capture_output=True)
  return {int(x) for x in out.stdout.split()}


def calm():
  c = hosted()
  c.rl.steps, c.checkpoint.every = 40, 2
  return c


def rough():
  """Defines tools that hang forever, or stay far below their limits, so that
  results do not depend on timing.
  """
  c = hostile(steps=12)
  c.rl.turns.timeout_s, c.checkpoint.every = 8.0, 2
  return c


@pytest.mark.slow
@pytest.mark.parametrize('made, after, n', [('calm', 12, 20), ('rough', 6, 6)])
def test_a_killed_run_resumes_identically(made, after, n, env, tmp_path):
  """Runs the command twice: killed between two saves, and uninterrupted."""
  script = tmp_path / 'recipe.py'
  root = pathlib.Path(__file__).parents[1]
  script.write_text(
    'import sys\n'
    f'sys.path[:0] = [{str(root)!r}, {str(root / "run")!r}]\n'
    'import test_hosted_runs\n'
    f'get_config = test_hosted_runs.{made}\n'
  )

  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  process = start(env, parts, recipe=script)
  assert kill_when(process, saved(parts, after)) == -signal.SIGKILL
  before = rl_rows(parts)
  assert 'Resuming at step' in run(env, parts, recipe=script)
  run(env, whole, recipe=script)
  assert rl_rows(parts) == rl_rows(whole)
  assert len(before) < len(rl_rows(whole)) == n


def test_a_resumed_run_is_identical(whole, tmp_path):
  half = kept()
  half.rl.steps = 2
  train.run(half, tmp_path / 'parts')
  train.run(kept(), tmp_path / 'parts')
  assert rl_rows(tmp_path / 'parts')[-1] == rl_rows(whole)[-1]


@pytest.mark.parametrize(
  'change, words',
  [
    ({'turns.env': 'abacus'}, "rl.turns.env='abacus': with rl.path"),
    ({'staleness': 1, 'old_logp': 'sampler'}, 'rl.staleness=1: with'),
    ({'turns.calls': 'morse'}, "has no effect without rl.turns.env='tools'"),
    (
      {'turns.env': 'tools', 'turns.calls': 'morse'},
      "rl.turns.calls='morse': choose one of tags",
    ),
    ({'turns.env': 'tools'}, "one at least: name={'tool'"),
    (
      {'turns.tools': {'s': {'tool': 'search'}}},
      "has no effect without rl.turns.env='tools'",
    ),
    (
      {'turns.env': 'tools', 'turns.tools': {'s': {'tol': 'search'}}},
      "rl.turns.tools.s={'tol': 'search'}: must be {'tool'",
    ),
    (
      {'turns.env': 'tools', 'turns.tools': {'s': 5}},
      "rl.turns.tools.s=5: must be {'tool'",
    ),
    (
      {'turns.env': 'tools', 'turns.tools': {'s': {'tool': 'a', 'args': 5}}},
      "'args': 5}: must be {'tool'",
    ),
    (
      {'turns.env': 'tools', 'turns.tools': {'s': {'tool': 'seek'}}},
      "rl.turns.tools.s.tool='seek': choose calculate",
    ),
    ({'turns.workers': 0}, 'rl.turns.workers=0: must be a whole number'),
    ({'turns.timeout_s': 0.0}, 'rl.turns.timeout_s=0.0: must be a number'),
    ({'path': 'fused'}, 'rl.turns.workers=2 has no effect without rl.path='),
    (
      {'path': 'fused', 'turns.stops': ('=',)},
      "rl.turns.stops=('=',) has no effect without rl.path='host' or rl.turns.",
    ),
    ({'algorithm': 'remax'}, "rl.algorithm='remax' reads greedy completions"),
  ],
)
def test_incompatible_settings_are_refused(change, words):
  c = hosted()
  with c.rl.unlocked():
    for key, value in change.items():
      section, _, name = key.rpartition('.')
      place = c.rl[section] if section else c.rl
      if isinstance(value, dict):
        place[name].update(value)
      else:
        place[name] = value
  with pytest.raises(ValueError) as e:
    config_checks.check(c, 1)
  assert words in str(e.value), str(e.value)


@pytest.mark.parametrize(
  'turns, words',
  [
    (dict(env='nowhere.py:step'), "reward 'nowhere.py:step': FileNotFound"),
    (dict(env=f'{HOSTILE}:Slow', start_s=1.0), 'not ready after 1 s'),
    (
      dict(env=f'{HOSTILE}:late', timeout_s=0.3),
      'longer than rl.turns.timeout_s=0.3 s; make the environment faster',
    ),
    (dict(env='tools', tools={'s': NOWHERE}), '/none has no documents'),
    (
      dict(env='jaxrl_reason.verifiers.tools:is_known'),
      'is_known() takes 1 positional',
    ),
  ],
)  # fmt: skip
def test_an_environment_that_cannot_start_is_refused(tmp_path, turns, words):
  """Before compilation."""
  tools = turns.pop('tools', {})
  c = hosted(**turns)
  c.rl.turns.tools.update(tools)
  with pytest.raises(ValueError, match='rl.turns.env=') as e:
    train.run(c, tmp_path / 'run')
  assert words in str(e.value), str(e.value)


def test_rollouts_on_disk_have_turns(whole):
  rows = [
    json.loads(line)
    for path in (whole / 'rollouts').glob('*.jsonl')
    for line in path.read_text().splitlines()
  ]
  heard = 0
  for row in rows:
    of = row['tokens']
    if 'turn' not in of:  # the first turn alone, which is not written
      continue
    assert of['turn'] == sorted(of['turn']) and of['turn'][0] == 0
    assert max(of['turn']) > 0
    heard += not all(of['sampled'])
  assert heard
