"""Demonstrations are no samples of the policy: statistics leave them out."""

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Batch, Prompts, Reward, Rollout, Trajectories
from jaxrl_reason.parts import Step
from jaxrl_reason.rollouts import extra, filters, fused, replay, reward_shaping
from jaxrl_reason.rollouts.rounds import group_arrays

G, C = 4, 8
DEMO = np.arange(2 * G) % G == G - 1  # the last row of both groups


def trajectories(solved) -> Trajectories:
  """Returns one group per list of solved samples, each with a correct
  demonstration as its last row.
  """
  right = np.array([[*row, 1] for row in solved], np.float32).reshape(-1)
  n, b = len(right), len(solved)
  prompts = Prompts(
    jnp.zeros((b, 2)), jnp.ones((b, 2), bool), jnp.arange(b), {}
  )
  ones = jnp.ones((n, C), jnp.int32)
  rollout = Rollout(
    tokens=ones,
    sampled=ones > 0,
    length=jnp.full(n, C),
    logp=jnp.where(DEMO[:n], 0.0, -jnp.arange(1.0, n + 1))[:, None] * ones,
    truncated=jnp.zeros(n, bool),
    temperature=jnp.ones(n),
    version=0 * ones,
    turn=ones,
    node=ones,
    is_demo=jnp.asarray(DEMO[:n]),
  )
  total = jnp.asarray(right)
  return Trajectories(
    prompts, rollout, Reward(total, total[:, None], total >= 0)
  )


def test_solve_rates_are_of_samples():
  rates = extra.solve_rates(trajectories([[0, 0, 0], [1, 1, 0]]))
  np.testing.assert_allclose(rates, [1 / 5, 3 / 5])


def test_replay_scores_groups_by_their_samples():
  """The first problem is solved by its demonstration alone."""
  stored = group_arrays.of(trajectories([[0, 0, 0], [0, 1, 0]]))
  fresh = group_arrays.of(trajectories([[0, 0, 0], [0, 0, 0]]))
  given = replay.Stored(stored, jax.random.key(0), fresh)
  certain = replay.certain(given)
  assert certain[0] == jnp.finfo(certain.dtype).min and certain[1] == -6
  np.testing.assert_array_equal(replay.failing(given), [-np.inf, 0])
  noise = jax.random.gumbel(given.key, (2,))
  rate = np.array([0, 1 / 3])
  np.testing.assert_allclose(
    replay.difficulty(given), noise - 0.5 * (rate - 0.5) ** 2, rtol=1e-5
  )


def batch(lengths) -> Batch:
  """Returns two groups of correct rows, the last of each a demonstration."""
  n = 2 * G
  mask = jnp.arange(C) < jnp.asarray(lengths).reshape(-1)[:, None]
  ones = jnp.ones(n)
  return Batch(
    tokens=jnp.zeros((n, C), jnp.int32),
    valid=mask,
    mask=mask,
    reward=ones,
    reward_parts=ones[:, None],
    reward_valid=ones > 0,
    group=jnp.arange(n) // G,
    truncated=ones < 0,
    temperature=ones,
    sampler_logp=jnp.zeros((n, C)),
    is_offpolicy=mask & jnp.asarray(DEMO)[:, None],
  )


def test_the_policy_lag_is_of_samples():
  """A demonstration is of no version of the policy: it has 0."""
  b = batch([[2, 4, 6, 8], [8, 8, 8, 1]])
  version = jnp.where(b.is_offpolicy, 0, 7)
  lag = batch_lib.policy_lag(b.replace(version=version), jnp.int32(9))
  assert lag == 2


def test_terms_of_length_leave_demonstrations_out():
  b = batch([[2, 4, 6, 8], [8, 8, 8, 1]])
  penalty = filters.overlong_penalty(b, cache=4, max_new=C)
  np.testing.assert_allclose(penalty, [0, 0, -0.5, 0, -1, -1, -1, 0])
  made = reward_shaping.Shaping(
    G, C, brevity=1.0, alp=0.1, laser=0.5, laser_lengths=(4, 8)
  )
  # One of three samples of the first group is correct, so a token costs 0.1/3.
  right = jnp.float32([1, 0, 0, 1, 1, 1, 1, 1])
  b = b.replace(reward_parts=right[:, None])
  memory = made.init(jnp.int32(10)) | {'targets': jnp.float32([2, 0, 4])}
  terms = made._terms(memory, b, b.mask)
  # The mean length of the samples of the first group is 4.
  np.testing.assert_allclose(
    terms['brevity'], [0.5, 0, 0, 0, 0, 0, 0, 0], atol=1e-6
  )
  np.testing.assert_allclose(
    terms['alp'],
    -0.1 * np.array([2 / 3, 4 / 3, 6 / 3, 0, 8, 8, 8, 0]),
    rtol=1e-6,
  )
  # The first group is hard: its target is 2.
  np.testing.assert_allclose(terms['laser'], [0.5, *[0] * 7])


@pytest.mark.parametrize('is_filtered', [False, True])
def test_a_filter_of_rows_changes_no_term(is_filtered):
  """A truncated row keeps its length in the mean of its group."""
  b = jax.tree.map(lambda x: x[:3], batch([[4, 6, 8, 8]] * 2))
  b = b.replace(truncated=jnp.array([False, False, True]))
  kept = filters.drop_truncated(b) if is_filtered else b
  step = Step(None, None, None, b, kept, batch_lib.outcomes(b))
  terms = dict(alp=0.1, laser=0.5, laser_lengths=(5,), price=0.1)
  made = reward_shaping.Shaping(3, C, brevity=1.0, **terms)
  _, step, metrics = made.before(made.init(jnp.int32(10)), step)
  np.testing.assert_allclose(metrics['shaping/alp'], -0.1 * 6, rtol=1e-6)
  brevity, laser = np.array([1 / 3, 0, 0]), np.array([0.5, 0, 0])
  want = 1 + brevity + laser - 0.1 * np.array([4, 6, 8]) * (1 + 1 / C)
  np.testing.assert_allclose(step.batch.reward, want, rtol=1e-6)


def test_terms_of_answers_leave_demonstrations_out():
  b = batch([[2, 4, 6, 8], [8, 8, 8, 1]])
  answers = jnp.array([1, 1, 2, 1, 3, 4, 5, 5])
  b = b.replace(answer_id=answers, prompt_id=jnp.arange(2 * G) // G)
  made = reward_shaping.Shaping(G, C, 2, historical=1.0, repeats=1.0)
  terms = made._terms(made.init(jnp.int32(10)), b, b.mask)
  repeats = [-1 / 2, -1 / 2, 0, 0, 0, 0, 0, 0]
  np.testing.assert_allclose(terms['repeats'], repeats)
  np.testing.assert_allclose(terms['historical'], 1.0 - DEMO)


def test_samples_beside_demonstrations_keep_their_chunks():
  one = trajectories([[0, 0, 0]])
  turn = jnp.arange(G * C).reshape(G, C)
  prompts = one.prompts.replace(
    demo=jnp.full((1, C), 7), demo_length=jnp.array([3])
  )
  out = fused.with_demos(one.rollout.replace(turn=turn), prompts, 1)
  np.testing.assert_array_equal(out.turn[:-1], turn[:-1])
  np.testing.assert_array_equal(out.turn[-1], [1, 1, 1, 0, 0, 0, 0, 0])


def test_the_noise_of_a_demonstration_is_that_of_the_host():
  """The host draws one number per problem for the use 'greedy views'."""

  def view(params, prompts, rollout, key, control):
    u = jax.random.uniform(key, rollout.length.shape)
    return rollout.replace(views={'u': u})

  def reward(rollout, answers, control=None):
    u = rollout.views['u']
    return Reward(u, u[:, None], u >= 0)

  views = type('Noise', (), {'kept': (), '__call__': staticmethod(view)})()
  source = fused.FusedSource(L.GEN, reward, views, demos=True)
  b = L.B
  prompts = L.prompts().replace(
    demo=np.ones((b, L.C), np.int32), demo_length=np.full(b, 3, np.int32)
  )
  params = L.model_and_params()[1]
  found = jax.jit(
    lambda p: source(params, None, p, L.ROOT, 0, L.NEUTRAL, L.STOP)
  )(prompts)
  key = fused.key_of(L.ROOT, 0, 'greedy views')
  np.testing.assert_array_equal(found.demo.total, jax.random.uniform(key, (b,)))
