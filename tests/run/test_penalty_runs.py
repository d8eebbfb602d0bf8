"""Whole runs with penalties for repeated tokens and biases of tokens."""

import pytest
import test_recipe_features as features

from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device

PENALTIES = {
  'repetition_penalty': 1.4,
  'presence_penalty': 0.3,
  'frequency_penalty': 0.6,
  'logit_bias': {'7': 1.0, 'id:4': -2.0},
}


@pytest.mark.parametrize(
  'changes',
  [
    dict(padding='whole', logprob_chunk=5, slots=1),
    pytest.param(
      dict(padding='buckets:2', logprob_chunk=64, top_p=0.9),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      dict(path='host', padding='shared:1', logprob_chunk=3),
      marks=pytest.mark.slow,
    ),
    pytest.param(
      dict(algorithm='remax', logprob_chunk=7, temperature=0.7),
      marks=pytest.mark.slow,
    ),
  ],
  ids=lambda x: x.get('padding', 'greedy'),
)
def test_the_update_has_the_samplers_distribution(tmp_path, changes):
  c = features.recipe(**{'rl.steps': 3})
  c.rl.update(**PENALTIES, **changes)
  host = {'reward': features.PARITY}
  coin = {'reward': 'random', 'kwargs': {'p': 0.5}}
  c.rl.rewards = {'coin': host if c.rl.path == 'host' else coin}
  train.run(c, tmp_path)
  rows = features.rows(tmp_path)
  assert len(rows) == 3
  assert max(r['train/gap_max'] for r in rows) < 1e-5
  assert all(r['train/grad_norm'] > 0 for r in rows)


@pytest.mark.slow
def test_exact_sums_make_the_log_probs_equal(tmp_path):
  exact = {'model.numerics': 'exact', 'model.dtype': 'bfloat16'}
  c = features.recipe(**{'rl.steps': 2}, **exact)
  c.rl.update(**PENALTIES, logprob_chunk=5, top_p=0.9)
  train.run(c, tmp_path)
  assert [r['train/gap_max'] for r in features.rows(tmp_path)] == [0, 0]
