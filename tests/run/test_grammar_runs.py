"""Whole runs whose completions follow a grammar."""

import json
import re

import pytest
import test_recipe_features as features

from jaxrl_reason.run import train

pytest.importorskip('outlines_core')

REGEX = '[0-9]{2,4}(\\+|-)[0-9]'
SCHEMA = {'type': 'array', 'items': {'enum': [1, 2]}, 'maxItems': 2}


def recipe(**rl):
  c = features.recipe(**{'rl.steps': 3, 'rl.temperature': 0.8})
  c.rl.update(regex=REGEX, **rl)
  c.rollouts.every, c.eval.every = 1, 3
  host = {'reward': features.PARITY}
  coin = {'reward': 'random', 'kwargs': {'p': 0.5}}
  c.rl.rewards = {'coin': host if c.rl.path == 'host' else coin}
  return c


@pytest.mark.parametrize(
  'rl',
  [
    dict(padding='packed:64', logprob_chunk=3),
    dict(path='host', padding='shared:1', top_p=0.9),
    pytest.param(
      dict(padding='buckets:2', staleness=2, logit_bias={'7': 1.0}),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      dict(algorithm='remax', repetition_penalty=1.3, logprob_chunk=5),
      marks=pytest.mark.slow,
    ),
  ],
  ids=lambda rl: rl.get('padding', 'greedy'),
)
def test_completions_follow_the_grammar_and_the_update_too(tmp_path, rl):
  """The rows of the fused path are on eight devices."""
  train.run(recipe(**rl), tmp_path)
  rows = features.rows(tmp_path)
  assert max(r['train/gap_max'] for r in rows) < 1e-5
  assert all(r['train/grad_norm'] > 0 for r in rows)
  texts = [
    json.loads(line)['completion']
    for kind in ('rollouts', 'samples')
    for dump in sorted((tmp_path / kind).glob('*.jsonl'))
    for line in dump.read_text().splitlines()
  ]
  whole = [text for text in texts if re.fullmatch(REGEX, text)]
  assert len(whole) > len(texts) / 2 > 8, texts
  begun = '[0-9]{0,4}|[0-9]{2,4}[+-][0-9]?'
  assert all(re.fullmatch(begun, text) for text in texts), texts
