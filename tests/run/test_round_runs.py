"""Nested kinds of rounds in whole runs, on both paths."""

import json
import pathlib

import pytest
import shared_recipe

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device
PARITY = pathlib.Path(__file__).parents[1] / 'pod_worker.py'
REFILL = {'rl.refill_rounds': 2, 'rl.filter': 'dead_groups'}
HINTS = {'rl.hints.room': 4, 'rl.hints.when': 'failed'}
REPLAY = {'rl.replay.rows': 32, 'rl.replay.capacity': 32}
DEMOS = {'rl.demos': 1, 'rl.demos_when': 'failed', 'rl.algorithm': 'luffy'}
EXPLAINED = DEMOS | {'rl.demos_prompt': '{answer}{prompt}'}
KINDS = {
  'hints, refill and replay': {
    **HINTS, **REFILL, **REPLAY, 'rl.refill_keep': True,
    'rl.old_logp': 'sampler',
  },
  'demonstrations and refill': {**DEMOS, **REFILL},
  'explanations and refill': {**EXPLAINED, **REFILL},
  'extra samples and replay': {
    **REPLAY, 'rl.extra.groups': 8, 'rl.old_logp': 'sampler',
  },
}  # fmt: skip
REPORTED = {
  'hints, refill and replay': ('hints/failed', 'refill/rounds', 'replay/used'),
  'demonstrations and refill': ('demos/groups', 'refill/rounds'),
  'explanations and refill': ('demos/found', 'refill/rounds'),
  'extra samples and replay': ('extra/problems', 'replay/used'),
}


@pytest.mark.parametrize('path', ['fused', 'host'])
@pytest.mark.parametrize('name', KINDS)
def test_kinds_of_rounds_nest(tmp_path, name, path):
  """Every kind has metrics. On the host every row of a step has its verdict in
  `rollouts/`, in all rounds.
  """
  c = shared_recipe.get_config()
  c.rl.update(steps=2, prompts=8, epochs=1, minibatches=1, parts=1)
  c.rollouts.every = 2
  if path == 'host':
    c.rl.update(path='host', steps_per_dispatch=1, workers=1)
    part = dict(reward=f'{PARITY}:parity', weight=1.0)
    c.rl.rewards = dict(answer=part)
  c.update_from_flattened_dict(KINDS[name])
  train.run(c, tmp_path)
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  seen = [json.loads(line) for line in lines]
  last = next(m for m in reversed(seen) if 'train/reward_mean' in m)
  for metric in REPORTED[name]:
    assert f'train/{metric}' in last
  dump = (tmp_path / 'rollouts' / '00000002.jsonl').read_text().splitlines()
  assert dump
  for row in map(json.loads, dump):
    assert row['verdict']['status'] != 'error'
    assert row['verdict']['score'] == row['reward']
