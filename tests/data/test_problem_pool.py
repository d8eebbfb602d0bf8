"""Statistics and draws of a pool equal sums written out by hand."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.config import Data
from jaxrl_reason.data import pool
from jaxrl_reason.run.rl import problem_pool

KEY = jax.random.key(3)


@pytest.mark.parametrize('value', ['0.25-0.75', True, float('nan')])
def test_a_difficulty_that_is_no_number_is_refused(value):
  """Only controllers that use it refuse it."""
  rows = [
    {'prompt': '1+1', 'solution': 'x' * i, 'meta': {'difficulty': d}}
    for i, d in enumerate([0.5, 0.25, value])
  ]
  assert len(problem_pool.facts(Data(), rows).difficulty) == 3
  data = Data().changed({'controller.name': 'easy_to_hard'})
  with pytest.raises(ValueError, match="problem 2 .'1.1'.: its difficulty is"):
    problem_pool.facts(data, rows)
  rows[2]['meta'] = {'difficulty': 1}
  assert problem_pool.facts(data, rows).difficulty.tolist() == [0.5, 0, 1]


def test_difficulties_in_mixed_units_are_refused():
  """Curated rows have 0 to 1, the others characters of the solution."""
  rows = [
    {'prompt': f'{i}+1', 'solution': 'x' * 9 * i, 'meta': meta}
    for i, meta in enumerate(({'difficulty': 0.9}, {}, {'difficulty': 0.1}))
  ]
  data = Data().changed({'controller.name': 'easy_to_hard'})
  with pytest.raises(ValueError, match=r"problem 1 \('1\+1'\) states no diff"):
    problem_pool.facts(data, rows)
  assert len(problem_pool.facts(Data(), rows).difficulty) == 3
  for example in rows:
    example['meta'] = {}
  assert problem_pool.facts(data, rows).difficulty.tolist() == [0, 0.5, 1]


def stats(m, source=None, difficulty=None, own=None, arms=None, **changes):
  """Returns statistics of m problems, with some fields set."""
  source = np.zeros(m) if source is None else source
  difficulty = np.zeros(m) if difficulty is None else difficulty
  found = pool.start(
    source, difficulty, prior=0.5, begun=0, own=own or {}, arms=arms or {}
  )
  return found.replace(**{k: jnp.asarray(v) for k, v in changes.items()})


def seen_batch(s, ids, reward, n_sources=1, **changes):
  n = len(ids)
  rows = dict(
    solved=np.asarray(reward) > 0.5,
    valid=np.ones(n, bool),
    length=np.arange(n) + 1,
    answer_id=np.full(n, -1),
    used_ids=jnp.asarray(ids),
    used_tokens=np.arange(n) + 1,
  )
  rows |= changes
  rows = {k: jnp.asarray(v) for k, v in rows.items()}
  ids, reward = jnp.asarray(ids), jnp.float32(reward)
  return pool.tell(s, ids, reward, n_sources=n_sources, **rows)


def counted(p, n, times):
  """Counts each problem in `times` proposals of n problems."""
  keys = jax.random.split(KEY, times)
  ids = jax.jit(jax.vmap(lambda k: pool.draw(p, k, n)))(keys)
  return np.bincount(np.asarray(ids).ravel(), minlength=len(p)), np.asarray(ids)


@pytest.mark.parametrize('m, n', [(7, 5), (3000, 64), (1, 4), (2, 9)])
def test_draws_follow_the_probabilities(m, n):
  """Checks 10^5 draws. Problems without weight are never drawn."""
  rng = np.random.default_rng(0)
  w = rng.random(m) * (rng.random(m) > 0.3)
  w[0] = 0.2
  p = w / w.sum()
  times = 100_000 // n
  count, ids = counted(jnp.float32(p), n, times)
  assert not count[p == 0].any()
  expected = p * n * times
  # Strata make the variance less than that of independent draws.
  assert np.all(np.abs(count - expected) < 5 * np.sqrt(expected) + 1e-3 * n)
  lowest = np.floor(p * n) - 1  # of one proposal: two strata may be cut
  for i in np.argsort(p)[-2:]:
    assert (ids == i).sum(axis=1).min() >= lowest[i]


def test_a_million_problems_keep_their_probabilities():
  """This includes the last problems, where a float32 sum loses precision."""
  m = 1_000_000
  w = np.ones(m)
  w[-1000:] = 50.0
  p = jnp.float32(w / w.sum())
  count, _ = counted(p, 256, 400)
  share = count[-1000:].sum() / count.sum()
  want = 50_000 / (m + 49_000)
  assert abs(share - want) < 5 * np.sqrt(want / count.sum())


@pytest.mark.parametrize('m', [1, 2, 3, 100, 1023])
def test_epochs_are_permutations_and_no_two_alike(m):
  places = jnp.arange(3 * m, dtype=jnp.uint32)
  ids = np.asarray(pool.shuffled(KEY, places, m)).reshape(3, m)
  for epoch in ids:
    assert sorted(epoch) == list(range(m))
  if m > 10:
    assert not np.array_equal(ids[0], ids[1])
    moved = np.mean(ids[0] != np.arange(m))
    assert moved > 0.9
    assert abs(np.corrcoef(ids[0], ids[1])[0, 1]) < 5 / np.sqrt(m)


def reference(before, groups, memory):
  """Updates the statistics one problem at a time."""
  out = dict(before)
  visits, rate, same = before['visits'], before['rate'], before['same']
  ok = [r for r in groups if r is not None and np.isfinite(r)]
  if not ok:
    return out
  solved = np.mean([r > 0.5 for r in ok])
  out['rate'] = solved if visits == 0 else memory * rate + (1 - memory) * solved
  out['same'] = same + 1 if max(ok) == min(ok) else 0
  out['visits'] = visits + 1
  return out


def test_statistics_are_those_of_a_loop_over_problems():
  """Some problems occur twice in a batch, some fail, and some rewards are not
  finite.
  """
  rng, m, memory = np.random.default_rng(1), 9, 0.6
  s = stats(m)
  want = [dict(visits=0, rate=0.5, same=0) for _ in range(m)]
  for step in range(40):
    ids = rng.integers(0, m, 12)
    reward = rng.integers(0, 2, 12).astype(float)
    valid = rng.random(12) > 0.2
    reward[rng.random(12) < 0.1] = np.nan
    by = collections.defaultdict(list)
    for i, r, v in zip(ids, reward, valid):
      by[i].append(r if v else None)
    seen = seen_batch(s, ids, reward, valid=valid)
    s = pool.note(s, seen, jnp.int32(step), memory)
    want = [reference(w, by.get(i, []), memory) for i, w in enumerate(want)]
  for name in ('visits', 'rate', 'same'):
    np.testing.assert_allclose(
      getattr(s, name), [w[name] for w in want], rtol=1e-5, err_msg=name
    )


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_invalid_numbers_change_nothing(bad):
  s = stats(4)
  seen = seen_batch(s, [0, 0, 1, 1], [bad, bad, 1.0, bad])
  after = pool.note(s, seen, jnp.int32(3), 0.5)
  np.testing.assert_array_equal(after.visits, [0, 1, 0, 0])
  np.testing.assert_array_equal(after.seen, [-1, 3, -1, -1])
  np.testing.assert_array_equal(after.rate, [0.5, 1.0, 0.5, 0.5])
  for x in jax.tree.leaves((seen, after)):
    assert np.isfinite(np.asarray(x, float)).all()


def test_a_batch_without_verdicts_changes_nothing():
  s = stats(4)
  seen = seen_batch(s, [2, 2], [1.0, 0.0], valid=np.zeros(2, bool))
  after = pool.note(s, seen, jnp.int32(3), 0.5)
  jax.tree.map(np.testing.assert_array_equal, after, s)


def test_advantages_are_those_of_normalised_groups():
  s = stats(5)
  reward = [1, 0, 0, 0, 0.3, 0.3, 0.3, 1, 1, 0]
  seen = seen_batch(s, [4, 4, 4, 4, 1, 1, 1, 2, 2, 2], reward)
  got = dict(zip(np.asarray(seen.ids).tolist(), np.asarray(seen.advantage)))

  def want(x):
    x = np.array(x, float)
    return np.mean(np.abs(x - x.mean()) / (x.std() + 1e-6))

  np.testing.assert_allclose(got[4], want([1, 0, 0, 0]), rtol=1e-5)
  np.testing.assert_allclose(got[2], want([1, 1, 0]), rtol=1e-5)
  assert got[1] == 0


def test_answers_are_counted_once():
  s = stats(3)
  for answers in ([5, 5, 37], [-1, 5, 6]):  # 37 and 5 share a place of 32
    seen = seen_batch(s, [1, 1, 1], [0, 0, 0], answer_id=np.array(answers))
    s = pool.note(s, seen, jnp.int32(0), 0.5)
  counts = jax.lax.population_count(s.answers)
  np.testing.assert_array_equal(counts, [0, 2, 0])


def test_difficulties_are_ranked():
  np.testing.assert_allclose(
    pool.ranked(np.array([10.0, 3, 3, 70])), [0.5, 0, 0, 1]
  )
  np.testing.assert_array_equal(pool.ranked(np.array([4.0, 4])), [0, 0])


def test_sources_alternate_and_have_their_own_epochs():
  """Every n m places of a source are n permutations of its m problems, and any
  part of the sequence has nearly the ratio of the weights.
  """
  sizes, weights = (7, 100, 1000, 3), (1.0, 2.0, 5.0, 0.0)
  source = np.repeat(np.arange(4), sizes)
  places = jnp.arange(4096, dtype=jnp.uint32)
  given = places, jnp.asarray(source), weights
  ids = np.asarray(pool.in_turns(KEY, *given))
  of = source[ids]
  for s, m in enumerate(sizes[:3]):
    mine = ids[of == s]
    for epoch in mine[: len(mine) // m * m].reshape(-1, m):
      np.testing.assert_array_equal(np.sort(epoch), np.flatnonzero(source == s))
    counts = np.cumsum(of == s)
    wanted = np.arange(1, 4097) * weights[s] / 8
    assert np.abs(counts - wanted).max() <= 2
  assert not (of == 3).any()
  first, second = ids[of == 0][:14].reshape(2, 7)
  assert not np.array_equal(first, second)
