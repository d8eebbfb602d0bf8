"""A run whose reward compares the completions of a problem."""

import json
import pathlib

import pytest
from judge_server import JudgeServer
from test_recipe_features import recipe, rows

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device


def write(path: pathlib.Path) -> None:
  lines = [
    {'question': f'right {i}', 'answer': 'right', 'solution': 'right'}
    for i in range(40)
  ]
  path.write_text(''.join(json.dumps(x) + '\n' for x in lines))


def test_each_completion_meets_those_of_its_problem(tmp_path):
  """Every second sample is the solution, which the judge prefers."""
  write(tmp_path / 'a.jsonl')
  c = recipe(**{'rl.demos': 1, 'rl.workers': 2, 'rl.path': 'host'})
  c.data.update(name='files', dir=str(tmp_path / 'a.jsonl'), tokenizer='byte')
  c.data.update(completion_len=32)
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.update(heldout=0.3, solution='solution')
  c.rl.update(steps=2, samples=2, parts=2, timeout_s=30.0)
  c.rl.loss.offpolicy = 'sft'
  c.rollouts.every = 1
  with JudgeServer() as server:
    kwargs = {'url': server.url, 'model': 'm', 'part': 'all'}
    c.rl.rewards = {'better': dict(reward='pairwise', kwargs=kwargs)}
    train.run(c, tmp_path / 'run')
    assert server.requests
  found = rows(tmp_path / 'run')
  assert [row['train/reward/better'] for row in found] == [0.5, 0.5]
  assert found[-1]['data/never_solved'] == 1  # by samples of the policy
  files = sorted((tmp_path / 'run/rollouts').glob('*.jsonl'))
  records = [json.loads(x) for f in files for x in f.read_text().splitlines()]
  assert records
  for record in records:
    assert record['reward'] == float(record['completion'].strip() == 'right')
