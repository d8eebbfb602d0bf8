"""Refill and replay satisfy their definitions, with constructed
trajectories.
"""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Reward, Rollout, Trajectories
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rollouts import filters, refill, replay
from jaxrl_reason.rollouts import group_arrays as groups
from jaxrl_reason.rollouts import rounds as rounds_lib
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.rollouts.rounds import RoundsSource
from jaxrl_reason.rollouts.views import Views
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import step as step_lib

B, G, C = 4, 3, 2
DEAD = filters.drop_dead_groups


def trajectories(ids, alive, solved=None) -> Trajectories:
  """Returns groups of the problems `ids` [b], some with a signal; tokens
  identify the problem.
  """
  ids, alive = jnp.asarray(ids, jnp.int32), jnp.asarray(alive)
  b, n = len(ids), len(ids) * G
  row = jnp.repeat(ids, G)
  up = jnp.where(alive[:, None], jnp.arange(G) == 0, False)
  if solved is not None:
    up |= jnp.asarray(solved)[:, None]
  total = up.reshape(-1).astype(jnp.float32)
  prompts = L.prompts(n=b).replace(prompt_id=ids)
  rollout = Rollout(
    tokens=jnp.stack([row, row], axis=1),
    sampled=jnp.ones((n, C), bool),
    length=jnp.full(n, C),
    logp=jnp.full((n, C), -1.0) * (1 + row[:, None]),
    truncated=jnp.zeros(n, bool),
    temperature=jnp.ones(n),
    version=jnp.zeros((n, C), jnp.int32),
    turn=jnp.ones((n, C), jnp.int32),
    node=jnp.ones((n, C), jnp.int32),
  )
  return Trajectories(
    prompts, rollout, Reward(total, total[:, None], jnp.ones(n, bool))
  )


def rounds(alive, keep=False, control=None) -> Trajectories:
  """Returns rounds with non-zero variance [R,B]; group i of round r has problem
  10 * r + i.
  """
  made = refill.Refill(DEAD, len(alive) - 1, keep)
  tally = None
  for r, row in enumerate(alive):
    found = trajectories(10 * r + np.arange(B), row)
    tally, more = programs.rl_add(made, control, tally, found, r)
    if not more:
      break
  return rounds_lib.finish(made, control, tally, L.ROOT, 0)


def before(**kinds) -> dict:
  """Returns the memory of kinds of rounds before the first step."""
  shapes = groups.of(trajectories(range(B), [1] * B))
  return {name: kind.memory(shapes) for name, kind in kinds.items()}


def ids_of(found) -> list[int]:
  return found.prompts.prompt_id.tolist()


def test_groups_without_signal_are_replaced_in_order():
  found = rounds([[0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]])
  assert ids_of(found) == [1, 3, 10, 20]
  # Prompts, rollouts and rewards moved together.
  tokens = np.asarray(found.rollout.tokens)[:, 0].reshape(B, G)
  np.testing.assert_array_equal(tokens, np.repeat([[1], [3], [10], [20]], G, 1))
  assert np.all(np.ptp(found.reward.total.reshape(B, G), axis=1) > 0)
  told = found.account.metrics
  assert found.account.rounds == 3 and told['refill/filled'] == 1
  np.testing.assert_allclose(told['refill/used'], 4 / 12)


def test_unfilled_groups_are_masked_and_counted():
  found = rounds([[0, 1, 0, 0], [0, 0, 0, 0]])
  assert (
    ids_of(found)[0] == 1 and found.account.metrics['refill/filled'] == 0.25
  )
  batch = DEAD(batch_lib.make_batch(found))
  rows = np.asarray(batch.mask).any(axis=1).reshape(B, G)
  np.testing.assert_array_equal(rows[:, 0], [True, False, False, False])


def test_surplus_groups_are_first_in_the_next_step():
  control = before(refill=refill.Refill(DEAD, 1, True))
  first = rounds([[1, 1, 0, 1], [0, 1, 1, 1]], True, control)
  assert ids_of(first) == [0, 1, 3, 11]
  left = first.account.control
  assert left['refill']['n'] == 2
  second = rounds([[0, 0, 0, 1], [1, 0, 0, 0]], True, left)
  assert ids_of(second) == [12, 13, 3, 10]
  assert second.account.control['refill']['n'] == 0
  # Surplus groups are not kept twice.
  third = rounds([[1, 1, 1, 1]], True, second.account.control)
  assert ids_of(third) == [0, 1, 2, 3]


@pytest.mark.parametrize('seed', range(3))
def test_any_rounds_against_a_list(seed):
  """Compares with a loop over a Python list: trained and kept groups."""
  rng = np.random.default_rng(seed)
  control, queue = before(refill=refill.Refill(DEAD, 1, True)), []
  for _ in range(6):
    alive = rng.random((3, B)) < 0.4
    ran = 0
    for r in range(3):
      queue += [10 * r + i for i in range(B) if alive[r, i]]
      ran += 1
      if len(queue) >= B:
        break
    found = rounds(alive.tolist(), True, control)
    n = min(len(queue), B)
    assert ids_of(found)[:n] == queue[:n] and found.account.rounds == ran
    queue = queue[B:]
    control = found.account.control
    assert control['refill']['n'] == len(queue)


def source_of(keeps=DEAD, n_rounds=3):
  return RoundsSource(L.SOURCE, refill.Refill(keeps, n_rounds))


def keep_nothing(batch):
  return batch.replace(mask=jnp.zeros_like(batch.mask))


def columns(n_rounds=3):
  """Returns a step's problems [B,1+rounds,...]; the first column is that of a
  plain step.
  """
  parts = [L.prompts(first=i * L.B) for i in range(1 + n_rounds)]
  return jax.tree.map(lambda *x: np.stack(x, axis=1), *parts)


def test_without_dead_groups_refill_changes_nothing():
  """Results are equal bit for bit, and only one round is generated."""
  learner = L.learner()
  want, m1 = jax.jit(lambda s, p: L.fused(learner, s, p))(
    L.state(learner), L.prompts()
  )
  whole = source_of(keeps=None)
  got, m2 = jax.jit(lambda s, p: L.fused(learner, s, p, whole))(
    L.state(learner), columns()
  )
  assert m2['refill/rounds'] == 1
  jax.tree.map(np.testing.assert_array_equal, got, want)
  for name, x in m1.items():
    np.testing.assert_array_equal(m2[name], x, name)


def test_rounds_are_other_samples_of_other_problems():
  state = L.state(L.learner())
  never = source_of(keep_nothing)

  def run(source, prompts):
    return source(
      state.params, None, prompts, L.ROOT, state.step, L.NEUTRAL, L.STOP
    )

  found = jax.jit(lambda p: run(source_of(), p))(columns())
  seen = found.account.seen
  assert found.account.rounds == 4  # an untrained model solves almost nothing
  plain = jax.jit(lambda p: run(L.SOURCE, p))(L.prompts())
  np.testing.assert_array_equal(seen.length[0], plain.rollout.length)
  # The same problems in another round have other samples.
  again = jax.tree.map(lambda x: np.stack([x] * 4, 1), L.prompts())
  found = jax.jit(lambda p: run(never, p))(again)
  lengths = np.asarray(found.account.seen.length)
  assert len({tuple(x) for x in lengths}) == 4
  np.testing.assert_array_equal(lengths[0], plain.rollout.length)
  assert found.account.metrics['refill/filled'] == 0


@pytest.mark.parametrize('shape', [(8, 1, 1), (2, 2, 2)])
def test_eight_devices_refill_and_replay_as_one(shape):
  learner = L.learner(old_logp='sampler', part_names=('answer',))
  coin = device.make(
    {'answer': {'reward': 'random', 'kwargs': {'p': 0.15}}},
    'integer',
    L.TOKENIZER,
    L.C,
  )[1]
  views = Views(L.MODEL, ('uniform',), L.P)
  own = FusedSource(L.GEN, coin, views)
  kinds = (
    refill.Refill(DEAD, 2, True),
    replay.Replay(DEAD, 8, 16, 'uniform'),
  )
  source = rounds_lib.nested(own, kinds)

  def begin(params):
    like = jax.eval_shape(
      lambda p: groups.of(own(params, None, p, L.ROOT, 0, L.NEUTRAL, L.STOP)),
      L.prompts(),
    )
    return {kind.name: kind.memory(like) for kind in kinds}

  def steps(state, prompts):
    control = begin(state.params)
    both = jax.tree.map(lambda x: jnp.stack([x] * 3), prompts)
    return programs.rl_steps(
      learner, source, state.replace(control=control), both, L.ROOT,
      L.NEUTRAL, L.STOP,
    )  # fmt: skip

  want, m1 = jax.jit(steps)(L.state(learner), columns(2))
  assert m1['replay/used'].max() > 0 and m1['refill/rounds'].max() > 1
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    params = sharding.shardings(L.MODEL.specs, mesh, sharding.TRAIN_RULES)
    start = L.state(learner)
    where = sharding.state_shardings(start, params, mesh)
    start = jax.tree.map(
      lambda x, s: jax.device_put(np.asarray(x), s), start, where
    )
    rows = sharding.to_global(columns(2), mesh)
    got, m8 = jax.jit(steps)(start, rows)
    laid = sharding.state_shardings(got, params, mesh)
  L.assert_close(m8, m1, rtol=1e-3, atol=1e-5)
  L.assert_close(got.params, want.params, rtol=1e-3, atol=1e-5)
  for name in ('refill', 'replay'):
    a, b = got.control[name]['groups'], want.control[name]['groups']
    L.assert_close(a.reward, b.reward)
    np.testing.assert_array_equal(a.rollout.tokens, b.rollout.tokens)
    # A group's arrays are split over devices, not copied to each.
    split = laid.control[name]['groups'].rollout.tokens
    assert not split.is_fully_replicated


# --- replay -------------------------------------------------------------------


def ring(*steps, capacity=6, like=None) -> dict:
  """Returns a ring after the trajectories of several steps."""
  out = before(ring=replay.Replay(DEAD, 1, capacity, 'recent'))['ring']
  for found in steps:
    alive = groups.alive(DEAD, found)
    out = replay.stored(out, groups.of(found), alive)
  return out


def mixed_with(held, found, by, m, mixes='groups', seed=0):
  """Returns a step's trajectories with replayed ones of a ring."""
  kind = replay.Replay(DEAD, m, len(held['groups'].prompts.tokens), by, mixes)
  control, key = {'replay': held}, jax.random.key(seed)
  tally = rounds_lib.add(kind, rounds_lib.begin(kind, control, found), found, 0)
  return rounds_lib.finish(kind, control, tally, key, 0)


def chosen(by, held, found=None, m=2, seed=0):
  """Returns (replayed problems, None for those without trained tokens)."""
  found = trajectories([90, 91, 92, 93], [1] * B) if found is None else found
  both = mixed_with(held, found, by, m, seed=seed)
  assert ids_of(both)[:B] == ids_of(found)
  rows = np.asarray(both.rollout.sampled).any(axis=1).reshape(-1, G)[B:]
  ids = ids_of(both)[B:]
  return [i if row.all() else None for i, row in zip(ids, rows)], both


def test_a_ring_holds_the_newest_groups_with_signal():
  held = ring(
    trajectories([0, 1, 2, 3], [1, 0, 1, 1]),
    trajectories([4, 5, 6, 7], [1, 1, 1, 0]),
    trajectories([8, 9, 10, 11], [0, 0, 0, 1]),
  )
  assert int(held['n']) == 6 and int(held['next']) == 1
  ids = held['groups'].prompts.prompt_id
  assert ids.tolist() == [11, 2, 3, 4, 5, 6]
  assert chosen('recent', held, m=3)[0] == [11, 6, 5]


def test_a_partial_ring_replays_its_groups():
  got, both = chosen('uniform', ring(trajectories([0, 1, 2, 3], [0, 1, 0, 0])))
  assert got == [1, None]
  empty, both = chosen('recent', ring())
  assert empty == [None, None]
  # Rows in place of missing groups have no effect.
  assert not np.any(both.reward.valid[B * G :])
  batch = batch_lib.make_batch(both)
  assert not np.any(batch.mask[B * G :]) and np.all(np.isfinite(batch.reward))
  np.testing.assert_allclose(both.account.metrics['replay/used'], 0)


def test_a_step_does_not_replay_itself():
  found = trajectories([0, 1, 2, 3], [1] * B)
  got, both = chosen('recent', ring(), found)
  assert got == [None, None]
  kept = both.account.control['replay']
  assert kept['groups'].prompts.prompt_id.tolist()[:B] == [0, 1, 2, 3]


def test_choices_by_reward_and_certainty():
  """Problem i has i + 1 nats per token; the second step has higher rewards."""
  low = trajectories([3, 2, 1], [1] * 3)
  high = trajectories([8, 7, 6], [0] * 3)
  total = jnp.float32([1, 1, 0] * 2 + [1, 0, 1])
  high = high.replace(reward=Reward(total, total[:, None], jnp.ones(9, bool)))
  held = ring(low, high)
  assert chosen('reward', held, m=3)[0] == [6, 7, 8]
  assert chosen('certain', held, m=2)[0] == [1, 2]
  # Variances are equal, (1/3)(2/3): the newest come first.
  assert chosen('variance', held, m=2)[0] == [6, 7]


def test_only_failing_problems_are_replayed():
  held = ring(
    trajectories([0, 1, 2, 3], [1] * B), trajectories([1, 5], [1] * 2)
  )
  now = trajectories([0, 1, 2, 5], [0, 0, 1, 0], solved=[0, 0, 0, 1])
  got, _ = chosen('failing', held, now, m=4)
  assert got == [1, 1, 0, None]  # newest first; 2 and 5 are solved now


def test_difficulty_is_drawn_by_its_law():
  """The law is p ~ exp(-(s - 1/2)^2 / 2). One problem has s = 2/3 (the same p)
  or s = 1 (a tenth less), and all others have s = 1/3.
  """
  easy = trajectories([4], [0], solved=[1])
  held = ring(trajectories([0, 1, 2], [1] * 3))
  held = replay.stored(held, groups.of(easy), jnp.ones(1, bool))
  again = replay.Replay(DEAD, 1, 6, 'difficulty')
  fresh = jax.tree.map(jnp.asarray, groups.of(trajectories([90], [1])))

  def draw(key):
    out, _ = again._choose(held, fresh, key)
    return out.prompts.prompt_id[0]

  keys = jax.random.split(jax.random.key(0), 20_000)
  ids = np.asarray(jax.jit(jax.vmap(draw))(keys))
  weights = np.exp(-0.5 * (np.array([1, 1, 1, 3]) / 3 - 0.5) ** 2)
  want = weights / weights.sum()
  share = np.array([(ids == i).mean() for i in (0, 1, 2, 4)])
  np.testing.assert_allclose(share, want, atol=4 * np.sqrt(0.25 / 20_000))
  assert abs(want[3] - 0.25) > 4 * np.sqrt(0.25 / 20_000)


def test_a_replayed_group_keeps_its_own_baseline():
  """Advantages of new groups equal those without replay."""
  learner = L.learner(old_logp='sampler', part_names=('answer',))
  found = trajectories([0, 1, 2, 3], [1, 1, 0, 1])
  held = ring(trajectories([7, 8], [1, 1]))
  _, both = chosen('recent', held, found)
  alone = step_lib.advantages(learner, batch_lib.make_batch(found))
  mixed = step_lib.advantages(learner, batch_lib.make_batch(both))
  np.testing.assert_array_equal(mixed[: B * G], alone)
  want = step_lib.advantages(
    learner, batch_lib.make_batch(trajectories([8, 7], [1, 1]))
  )
  np.testing.assert_array_equal(mixed[B * G :], want)


def test_only_correct_rows_join_the_new_group_of_their_problem():
  """Advantages are those of a group with the new rows and the correct old rows.
  Incorrect rows and other problems do not count.
  """
  learner = L.learner(old_logp='sampler', part_names=('answer',))
  held = ring(trajectories([7, 2, 8], [1, 1, 1]))
  found = trajectories([0, 1, 2, 3], [1, 1, 0, 1])
  both = mixed_with(held, found, 'recent', 2, 'rows')
  batch = batch_lib.make_batch(both)
  used = np.asarray(batch.mask).any(axis=1)
  old = np.flatnonzero(used[B * G :]) + B * G
  right = np.asarray(batch.reward_parts[:, 0] > 0.5)
  assert 0 < len(old) < G and right[old].all()
  assert np.all(batch.prompt_id[old] == 2) and np.all(batch.group[old] == 2)
  np.testing.assert_array_equal(batch.group[: B * G], np.repeat(range(B), G))
  adv = np.asarray(step_lib.advantages(learner, batch))
  mine = np.flatnonzero(np.asarray(batch.group) == 2)
  mine = mine[used[mine]]
  reward = np.asarray(batch.reward)[mine]
  want = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
  np.testing.assert_allclose(adv[mine], want, rtol=1e-3, atol=1e-3)
  assert adv[old].max() > 0 and (adv[2 * G : 3 * G] < 0).all()
  alone = step_lib.advantages(learner, batch_lib.make_batch(found))
  others = np.delete(np.arange(B * G), np.arange(2 * G, 3 * G))
  np.testing.assert_array_equal(adv[others], np.asarray(alone)[others])
