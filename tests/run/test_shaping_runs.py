"""Reward terms that depend on earlier steps, in whole runs. Their memory is
recomputed from rollouts and metrics.
"""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from test_recipe_features import recipe, rows
from test_resume import check_a_killed_run, env

from jaxrl_reason.base import Outcomes
from jaxrl_reason.rollouts import reward_shaping
from jaxrl_reason.run import train

__all__ = ['env']
TERMS = {
  'alp': 0.02,
  'laser': 0.5,
  'laser_lengths': (2.0, 4.0, 6.0, 8.0),
  'laser_explore': 0.25,
  'laser_every': 2,
  'price': 0.1,
  'price_rate': 0.3,
  'price_by': 'mean_length',
  'price_goal': 0.5,
  'price_most': 2.0,
  'historical': 0.7,
  'repeats': 0.3,
  'brevity': 0.4,
  'repetition': 0.2,
  'repetition_n': 1,
}
# A coin is the first part, so most groups have correct and incorrect rows.
COIN = dict(
  answer=dict(reward='random', kwargs=dict(p=0.5)),
  form=dict(reward='format', weight=0.5),
)


def shaped(path, **flat):
  c = recipe(**{'rl.path': path, 'rl.samples': 4, 'rollouts.every': 1})
  c.data.controller.update(name='uniform', window=16)
  c.rl.rewards = COIN
  c.rl.shaping.update(TERMS)
  c.update_from_flattened_dict(flat)
  return c


@pytest.fixture(scope='module')
def both(tmp_path_factory):
  """Returns folder and last state of a run on each path."""
  out = {}
  for path in ('fused', 'host'):
    where = tmp_path_factory.mktemp(path)
    out[path] = where, train.run(shaped(path), where)
  return out


def terms(row):
  return {k: v for k, v in row.items() if k.startswith('train/shaping/')}


def test_both_paths_shape_alike(both):
  """This includes control rewards: random numbers are equal in Python and in
  the program.
  """
  fused, host = (rows(both[path][0]) for path in ('fused', 'host'))
  assert len(fused) == 6 and len(terms(fused[0])) == 11
  for a, b in zip(fused, host):
    for name in ('answer', 'form'):
      name = f'train/reward/{name}'
      np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=1e-6)
    x, y = terms(a), terms(b)
    assert x.keys() == y.keys()
    # The host hashes answers in another way, so other answers may share places.
    for name in x.keys() - {'train/shaping/historical'}:
      np.testing.assert_allclose(x[name], y[name], rtol=2e-4, atol=1e-6)
  given = [
    np.asarray(both[p][1].control['shaping']['given']).sum(1) for p in both
  ]
  np.testing.assert_array_equal(*given)


def test_every_row_has_its_own_coin(both):
  """With p = 1/2 over 6 x 32 rows, there is one coin per row, and not per
  problem or step.
  """
  seen = rows(both['host'][0])
  shares = [r['train/reward/answer'] for r in seen]
  assert abs(np.mean(shares) - 0.5) < 4 * np.sqrt(0.25 / (6 * 32))
  assert len(set(shares)) > 2


def test_the_price_of_tokens_follows_its_formula(both):
  """It becomes lambda + rate (mean length / max. length - goal), clipped to
  [0, most].
  """
  for path in both:
    seen, price = rows(both[path][0]), np.float32(TERMS['price'])
    for row in seen:
      np.testing.assert_allclose(row['train/shaping/lambda'], price, rtol=1e-5)
      share = row['train/length_mean'] / 8
      np.testing.assert_allclose(
        row['train/shaping/price'], -price * share, rtol=1e-4
      )
      price = np.clip(price + 0.3 * (share - 0.5), 0, 2)


def test_a_price_without_a_rate_is_constant():
  """The largest price limits only a price that changes."""
  made, two = reward_shaping.Shaping(2, 8, price=2.0), jnp.zeros(2)
  right = dict(reward=two + 1, reward_parts=jnp.ones((2, 1)))
  length = dict(length=jnp.full(2, 4), truncated=two > 0)
  seen = Outcomes(**right, **length, reward_valid=two == 0, group=two)
  memory = made.init(jnp.int32(10))
  assert made.observe(memory, seen)['price'] == memory['price'] == 2


def records_by_step(where):
  """Returns the records of rollouts on disk by step."""
  out = {}
  for path in sorted((where / 'rollouts').glob('*.jsonl')):
    out[int(path.stem)] = [json.loads(x) for x in path.open()]
  return out


def test_answers_are_counted_by_problem(both):
  """Counts equal the rollouts on disk, for all problems of a step."""
  where, state = both['fused']
  given = np.asarray(state.control['shaping']['given'])
  assert given.shape == (16, 32)
  found = np.zeros(16, int)
  for step in records_by_step(where).values():
    assert len(step) == 32
    for record in step:
      found[record['problem']] += '#' in record['completion']
  # Answers may be empty after the marker, or have equal hashes. So the count
  # may be less than the number of answers with a marker.
  assert 0 < given.sum() <= found.sum()
  assert np.all(given.sum(1) <= found)


def test_targets_are_candidates_and_change_every_second_step(both):
  for path in both:
    names = [f'train/shaping/target_{x}' for x in ('hard', 'medium', 'easy')]
    seen = [[r[name] for name in names] for r in rows(both[path][0])]
    assert seen[0] == [8, 8, 8]
    assert np.isin(seen, TERMS['laser_lengths']).all()
    assert seen[1] == seen[2] and seen[3] == seen[4]
    # About half of the random rewards are correct, so that targets change.
    assert seen[1] != seen[0] or seen[3] != seen[1]


@pytest.mark.slow
@pytest.mark.parametrize('path', ['fused', 'host'])
def test_a_killed_run_keeps_the_memory_of_rewards(env, tmp_path, path):
  given = {f'rl.shaping.{k}': v for k, v in TERMS.items()}
  given |= {'stages': 'rl', 'data.controller.name': 'uniform', 'rl.steps': 12}
  given |= {'data.controller.window': 16, 'rl.path': path, 'rl.workers': 1}
  given |= {'rl.epochs': 1, 'rl.minibatches': 1, 'rl.steps_per_dispatch': 1}
  given |= {'rl.rewards.answer.reward': 'random'}
  check_a_killed_run(env, tmp_path, given)


@pytest.mark.parametrize(
  'given, words',
  [
    ({'laser': 0.5}, 'rl.shaping.laser=0.5 and rl.shaping.laser_lengths'),
    ({'laser_lengths': (4.0, 2.0), 'laser': 0.5}, 'that rise'),
    ({'laser_explore': 0.5}, 'has no effect without rl.shaping.laser'),
    ({'price_by': 'length', 'price_rate': 0.1}, ".price_by='length': choose"),
    ({'price': 2.0, 'price_rate': 0.1}, 'above rl.shaping.price_most'),
    ({'alp': -1.0}, 'rl.shaping.alp=-1.0'),
    ({'historical': 0.1}, 'never come twice'),
  ],
)
def test_bad_values_are_named(tmp_path, given, words):
  c = recipe()
  c.rl.shaping.update(given)
  with pytest.raises(ValueError) as e:
    train.run(c, tmp_path)
  assert words in str(e.value) and '\n' not in str(e.value)
