"""Compares 10^5 draws of every controller with its formula, and checks its
settings.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from data.test_problem_pool import seen_batch, stats

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import chooser as chooser_lib
from jaxrl_reason.data import controllers, pool

KEY = jax.random.key(11)
M = 40
RNG = np.random.default_rng(5)
RATE = np.round(RNG.random(M), 2)
VISITS = RNG.integers(0, 4, M)
SAME = RNG.integers(0, 5, M)
SEEN = np.where(VISITS > 0, RNG.integers(0, 90, M), -1)
DIFFICULTY = pool.ranked(RNG.integers(0, 6, M))
STEP = 70


def chooser(name, sources='weights', weights=(1.0,), **settings):
  data = config_lib.default().data
  data.controller.update(name=name, sources=sources, **settings)
  names = tuple(f's{i}' for i in range(len(weights)))
  return chooser_lib.make(data, names, weights)


def known(c, **changes):
  """Returns a chooser's statistics in the middle of a run."""
  arrays = dict(rate=np.float32(RATE), visits=VISITS, same=SAME, seen=SEEN)
  arrays |= dict(last=np.float32(RATE), difficulty=DIFFICULTY)
  arrays |= dict(own=c.problems.start(), arms=c.steering.start()) | changes
  own, arms = arrays.pop('own'), arrays.pop('arms')
  return stats(M, own=own, arms=arms, **arrays)


def drawn(c, s, n=16, times=6250, step=STEP):
  """Returns the share of 10^5 draws for each problem."""
  keys = jax.random.split(KEY, times)
  propose = jax.jit(jax.vmap(lambda k: c.propose(s, k, n, jnp.int32(step))))
  ids = np.asarray(propose(keys))
  return np.bincount(ids.ravel(), minlength=M) / ids.size


def band(low, high):
  return [float(v == 0 or low <= r <= high) for r, v in zip(RATE, VISITS)]


def balanced():
  w = np.zeros(M)
  inside = [i for i in range(M) if VISITS[i] == 0 or 0.2 <= RATE[i] <= 0.8]
  for half in (True, False):
    of_half = [i for i in inside if (RATE[i] < 0.5) == half]
    w[of_half] = 0.5 / len(of_half)
  return w


def hardest(share):
  order = np.sort(RATE.astype(np.float32))
  at = share * (M - 1)
  low, part = int(at), at - int(at)
  limit = order[low] + part * (order[min(low + 1, M - 1)] - order[low])
  return (RATE.astype(np.float32) <= limit + 1e-6).astype(float)


def rungs(now, review):
  rung = np.round(DIFFICULTY * 4)
  w = np.where(rung == now, 1 - review, 0.0) / np.sum(rung == now)
  return w + np.where(rung < now, review, 0.0) / np.sum(rung < now)


LAWS = [
  ('priority', {}, {}, 1 - RATE),
  ('priority', {'floor': 0.5}, {}, np.maximum(1 - RATE, 0.5)),
  ('learnability', {'floor': 0.0}, {}, RATE * (1 - RATE)),
  ('band', {'low': 0.3, 'high': 0.6}, {}, band(0.3, 0.6)),
  ('band', {'balanced': True}, {}, balanced()),
  (
    'greso',
    {},
    {'own': {'explore_easy': 0.3, 'explore_hard': 0.8}},
    [(0.3 if r > 0.5 else 0.8) ** z for r, z in zip(RATE, SAME)],
  ),
  (
    'mastered',
    {'above': 0.6, 'retest': 30},
    {},
    [
      float(v == 0 or r < 0.6 or STEP - at >= 30)
      for v, r, at in zip(VISITS, RATE, SEEN)
    ],
  ),
  ('drive', {'keep': 0.5, 'steps': 140}, {}, hardest(0.75)),
  ('drive', {'keep': 0.25, 'steps': 10}, {}, hardest(0.25)),
  (
    'easy_to_hard',
    {'steps': 100, 'power': 2.0, 'width': 0.3},
    {},
    np.exp(-((DIFFICULTY - 0.49) ** 2) / (2 * 0.09)),
  ),
  (
    'adarft',
    {'nearest': 0.01},
    {'own': {'target': 0.55}},
    (DIFFICULTY == 0.6).astype(float),
  ),
  ('ladder', {}, {'own': {'rung': 2}}, rungs(2, 0.2)),
  ('ladder', {'review': 0.5}, {'own': {'rung': 4}}, rungs(4, 0.5)),
]


@pytest.mark.parametrize('name, settings, changes, weights', LAWS)
def test_draws_follow_the_formula(name, settings, changes, weights):
  c = chooser(name, **settings)
  own = {k: jnp.asarray(v) for k, v in changes.get('own', {}).items()}
  s = known(c, own=c.problems.start() | own)
  weights = np.array(weights)
  assert 0 < weights.sum() and len(set(weights)) > 1
  want, got = weights / weights.sum(), drawn(c, s)
  assert not got[want == 0].any()
  np.testing.assert_allclose(got, want, atol=5 * np.sqrt(0.25 / M / 1e5))
  # The step is the seed: equal for one step, different for the next.
  propose = jax.jit(lambda i: c.propose(s, KEY, 5, i))
  ids = [propose(i) for i in (3, 3, 4)]
  np.testing.assert_array_equal(ids[0], ids[1])
  assert not np.array_equal(ids[0], ids[2])


def test_every_controller_has_a_formula_here():
  assert {name for name, *_ in LAWS} | {'uniform'} == {*controllers.CONTROLLERS}


def test_uniform_comes_in_epochs_over_steps():
  c = chooser('uniform')
  s = known(c).replace(begun=jnp.int32(7))
  ids = [np.asarray(c.propose(s, KEY, 16, jnp.int32(7 + i))) for i in range(15)]
  for epoch in np.concatenate(ids).reshape(-1, M):
    assert sorted(epoch) == list(range(M))


def test_stages_have_epochs_of_their_own():
  """The order of a stage at step 0 is that of the run's key."""
  c, orders = chooser('uniform'), []
  for begun in (0, 7, 9):
    s = known(c).replace(begun=jnp.int32(begun))
    orders.append(c.propose(s, KEY, M, jnp.int32(begun)).tolist())
    assert sorted(orders[-1]) == list(range(M))
  assert len(set(map(tuple, orders))) == 3
  places = jnp.arange(M, dtype=jnp.uint32)
  assert orders[0] == pool.shuffled(KEY, places, M).tolist()


@pytest.mark.parametrize('name', controllers.CONTROLLERS)
@pytest.mark.parametrize('m', [1, 3])
def test_sets_smaller_than_a_batch_are_legal(name, m):
  c = chooser(name)
  s = stats(m, own=c.problems.start())
  propose = jax.jit(lambda s, i: c.propose(s, KEY, 8, i))
  learn = jax.jit(
    lambda s, ids, i: c.learn(s, seen_batch(s, ids, np.ones(8)), i)
  )
  for step in range(4):
    ids = np.asarray(propose(s, step))
    assert ids.shape == (8,) and set(ids) <= set(range(m))
    if m == 3:
      assert len(set(ids)) > 1 or name in ('ladder', 'adarft')
    s = learn(s, ids, step)
  assert c.metrics(s, ids, ids >= 0, jnp.int32(5))['problems/entropy'] >= 0


def test_an_empty_band_selects_all_problems():
  c = chooser('band', low=0.991, high=0.992)
  s = known(c, visits=np.ones(M, np.int32))
  np.testing.assert_allclose(drawn(c, s), 1 / M, atol=0.005)


def test_greso_moves_its_chances_towards_its_targets():
  """Updates group by group, as the paper's algorithm does."""
  c = chooser('greso', change=0.01, easy=0.25, hard=0.25)
  s = known(c)
  easy = hard = 0.5
  for kinds in itertools.product('rwm', repeat=4):  # right, wrong, mixed
    reward = np.array(
      [{'r': [1, 1], 'w': [0, 0], 'm': [1, 0]}[k] for k in kinds]
    )
    seen = seen_batch(s, np.repeat(np.arange(4), 2), reward.ravel())
    s = s.replace(own=c.problems.observe(s, seen))
    easy += -0.01 if kinds.count('r') / 4 >= 0.25 else 0.01
    hard += -0.01 if kinds.count('w') / 4 >= 0.25 else 0.01
    easy, hard = (min(max(q, 0.01), 1.0) for q in (easy, hard))
    np.testing.assert_allclose(s.own['explore_easy'], easy, atol=1e-5)
    np.testing.assert_allclose(s.own['explore_hard'], hard, atol=1e-5)


def test_adarfts_target_follows_the_reward():
  c = chooser('adarft', change=0.1, slope=2.0, goal=0.5)
  s, target = known(c), 0.0
  for solved in (1.0, 1.0, 0.75, 0.25, 0.0, 0.0, 1.0):
    reward = np.arange(4) < 4 * solved
    s = s.replace(
      own=c.problems.observe(s, seen_batch(s, [0, 0, 1, 1], reward))
    )
    target = np.clip(target + 0.1 * np.tanh(2.0 * (solved - 0.5)), 0, 1)
    np.testing.assert_allclose(s.own['target'], target, rtol=1e-5)
  before = s.own['target']
  seen = seen_batch(s, [0, 1], [1, 1], valid=np.zeros(2, bool))
  assert c.problems.observe(s, seen)['target'] == before


def test_the_ladder_moves_up_when_its_rung_is_solved():
  """Rungs without problems are skipped, the last rung is kept, and results of
  lower rungs do not count.
  """
  c = chooser('ladder', rungs=5, climb=0.6)
  hard = np.array([0, 0, 0.5, 1.0])  # nothing on rungs 1 and 3
  s = stats(4, difficulty=hard, own=c.problems.start())
  visited = []
  for step in range(60):
    rung = int(s.own['rung'])
    visited.append(rung)
    right = {0: 1.0, 2: step > 20, 4: 0.0}[rung]
    reward = [1.0 - right, 1.0 - right, 0, 0] if rung else [right] * 4
    ids = [0, 1, 2, 2] if rung == 2 else [0, 1, 3, 3] if rung else [0, 0, 1, 1]
    if rung:
      reward[2:] = [right, right]
    s = c.learn(s, seen_batch(s, ids, reward), jnp.int32(step))
  assert sorted(set(visited)) == [0, 2, 4]
  assert visited.index(2) == 3 and visited.index(4) > 21
  assert visited[-1] == 4


def simulated(c, live, length, steps=400, batch=64):
  """Returns the consumed shares after some steps, for sources whose rows are
  used with probability `live` and have different lengths.
  """
  n = len(live)
  source = np.arange(300) * n // 300  # one after another, as in a pool
  s = stats(300, source=source, arms=c.steering.start(), own=c.problems.start())
  rng, used_rows, used_tokens = np.random.default_rng(2), [0] * n, [0] * n

  @jax.jit
  def step(s, i, u):
    ids = c.propose(s, KEY, batch, i)
    of = s.source[ids]
    used, long = u < jnp.array(live)[of], jnp.array(length)[of]
    ones = jnp.ones(batch)
    rows = ids, ones, ones > 0, ones > 0, long, ids
    tokens = jnp.where(used, long, 0)
    seen = pool.tell(s, *rows, ids, tokens, n_sources=len(c.names))
    return c.learn(s, seen, i), of, used, long

  for i in range(steps):
    s, of, used, long = step(s, jnp.int32(i), rng.random(batch))
    for j in range(n):
      mine = np.asarray(used & (of == j))
      used_rows[j] += mine.sum()
      used_tokens[j] += (mine * np.asarray(long)).sum()
  return np.array(used_rows) / sum(used_rows), np.array(used_tokens) / sum(
    used_tokens
  )


WEIGHTS = (3.0, 1.0, 0.0, 2.0)
LIVE, LENGTH = (0.2, 0.9, 1.0, 0.6), (10, 40, 10, 25)


@pytest.mark.parametrize('sources', ['weights', 'consumed', 'tokens'])
def test_steering_keeps_its_ratio(sources):
  c = chooser('uniform', sources, WEIGHTS)
  rows, tokens = simulated(c, LIVE, LENGTH)
  want = np.array(WEIGHTS) / sum(WEIGHTS)
  drawn_ratio = want * LIVE / np.sum(want * LIVE)
  if sources == 'consumed':
    np.testing.assert_allclose(rows, want, atol=0.01)
    assert np.abs(drawn_ratio - want).max() > 0.1
  elif sources == 'tokens':
    np.testing.assert_allclose(tokens, want, atol=0.01)
    assert np.abs(rows - want).max() > 0.1
  else:
    np.testing.assert_allclose(rows, drawn_ratio, atol=0.02)


def test_a_source_without_trained_rows_does_not_stop_the_others():
  c = chooser('uniform', 'consumed', (1.0, 1.0))
  rows, _ = simulated(c, (0.0, 1.0), (5, 5))
  np.testing.assert_array_equal(rows, [0, 1])


def test_weights_follow_their_schedule():
  c = chooser('uniform', weights=(1.0, ((0, 100), (0.0, 3.0))))
  s = stats(8, source=np.arange(8) % 2, begun=np.int32(50))
  for step, want in ((50, 0.0), (100, 0.6), (150, 0.75), (400, 0.75)):
    got = c.shares(s, jnp.int32(step))
    np.testing.assert_allclose(got, [1 - want, want], atol=1e-6)
    of = s.source[c.propose(s, KEY, 1000, jnp.int32(step))]
    np.testing.assert_allclose(np.mean(of), want, atol=2e-3)


def groups(rates, size=8):
  """Returns ids and rewards of one problem per source, with these solve
  rates.
  """
  ids = np.repeat(np.arange(len(rates)), size)
  reward = np.concatenate([np.arange(size) < r * size for r in rates])
  return ids, reward.astype(float)


@pytest.mark.parametrize('name', ['sec', 'dump'])
def test_bandits_follow_their_formula(name):
  learn, temperature = 0.3, 0.7
  weights = (1.0, 2.0, 1.0)
  c = chooser('uniform', name, weights, learn=learn, temperature=temperature)
  s = stats(3, source=np.arange(3), arms=c.steering.start())
  q, rows = np.zeros(3), np.zeros(3)
  for rates in ([0.5, 1.0, 0.25], [0.5, 0.0, 1.0], [0.25, 0.5, 0.5]):
    ids, reward = groups(rates)
    s = c.learn(s, seen_batch(s, ids, reward, n_sources=3), jnp.int32(0))
    # |A| of 0/1 rewards of rate p: (p (1-p) + (1-p) p) / sqrt(p (1-p)).
    new = [2 * np.sqrt(p * (1 - p)) for p in rates]
    rate = np.where((rows == 0) & (name == 'dump'), 1.0, learn)
    q, rows = q + rate * (new - q), rows + 8
    bound = q
    if name == 'dump':
      bound = q + np.sqrt(2 * np.log(rows.sum() + 1) / (rows + 1))
    p = np.exp(bound / temperature) * weights
    np.testing.assert_allclose(
      c.shares(s, jnp.int32(1)), p / p.sum(), rtol=1e-4
    )
  of = s.source[c.propose(s, KEY, 100_000, jnp.int32(1))]
  np.testing.assert_allclose(np.bincount(of) / 100_000, p / p.sum(), atol=1e-4)


def test_a_source_keeps_its_share_for_any_weights_of_its_problems():
  """Problems of a source are drawn by priority, and sources by weight. If all
  problems of a source have weight 0, they are drawn uniformly.
  """
  c = chooser('priority', weights=(1.0, 3.0))
  rate = np.float32([0.0, 0.5, 1.0, 1.0, 1.0])
  s = stats(5, source=[0, 0, 0, 1, 1], rate=rate)
  want = np.array([2 / 3, 1 / 3, 0, 1.5, 1.5]) / 4
  np.testing.assert_allclose(c.probabilities(s, jnp.int32(0)), want, rtol=1e-6)


def test_free_sources_have_no_fixed_shares():
  """A ladder over sources uses the problems of all of them."""
  c = chooser('ladder', 'free', (1.0, 1.0, 2.0), rungs=3)
  own = c.problems.start() | {'rung': jnp.int32(1)}
  d = np.array([0, 0, 0.5, 0.5, 0.5, 1.0])
  s = stats(6, source=[0, 0, 1, 1, 2, 2], difficulty=d, own=own)
  want = np.array([0.1, 0.1, 0.8 / 3, 0.8 / 3, 2 * 0.8 / 3, 0])
  got = c.probabilities(s, jnp.int32(0))
  np.testing.assert_allclose(got, want / want.sum(), rtol=1e-5)


def test_the_section_names_every_setting_and_no_other():
  kinds = [*controllers.CONTROLLERS.values(), *controllers.STEERING.values()]
  settings = {k for kind in kinds for k in kind.__dataclass_fields__}
  keys = set(config_lib.default().data.controller) - set(controllers.OTHER)
  assert keys == settings - {'weights'}


@pytest.mark.parametrize(
  'settings, words',
  [
    (dict(name='priorty'), "name='priorty': choose one of uniform, priority"),
    (dict(name='uniform', sources='ucb'), "sources='ucb': choose one of"),
    (
      dict(name='priority', low=0.1),
      "low=0.1 has no effect: neither 'priority' nor",
    ),
  ],
)
def test_wrong_settings_are_named(settings, words):
  with pytest.raises(ValueError, match=words):
    chooser(**settings)


def trial(c, s, first, last):
  """Returns the ids of some steps and the statistics after them. Correct
  answers follow a rule, with noise and failures.
  """

  @jax.jit
  def step(s, i):
    ids = jnp.repeat(c.propose(s, KEY, 8, i), 4)
    noise = jax.random.uniform(jax.random.fold_in(KEY, i), (3, 32))
    right = (noise[0] > s.difficulty[ids]).astype(jnp.float32)
    rows = right, right > 0, noise[1] > 0.1, ids + 1, ids
    tokens = jnp.where(noise[2] > 0.3, ids + 1, 0)
    seen = pool.tell(s, ids, *rows, ids, tokens, n_sources=len(c.names))
    return c.learn(s, seen, i), ids

  out = []
  for i in range(first, last):
    s, ids = step(s, jnp.int32(i))
    out.append(np.asarray(ids))
  return s, np.stack(out)


@pytest.mark.parametrize('steering', ['weights', 'tokens', 'sec', 'dump'])
@pytest.mark.parametrize('name', controllers.CONTROLLERS)
def test_a_restored_state_continues_identically(tmp_path, name, steering):
  """Restores every controller from a checkpoint on disk."""
  if steering != 'weights' and name != 'priority':
    pytest.skip('every steering once, every controller once')
  c = chooser(name, steering, (1.0, 2.0))
  s = known(c).replace(source=jnp.arange(M) % 2)
  begun, first = trial(c, s, 0, 6)
  with ocp.StandardCheckpointer() as saver:
    saver.save(tmp_path / 'state', begun)
    saver.wait_until_finished()
    template = jax.eval_shape(lambda: begun)
    restored = saver.restore(tmp_path / 'state', template)
  _, rest = trial(c, restored, 6, 12)
  _, whole = trial(c, s, 0, 12)
  np.testing.assert_array_equal(np.concatenate([first, rest]), whole)
