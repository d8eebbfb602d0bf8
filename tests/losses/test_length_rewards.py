"""Length rewards in tokens equal numbers by hand."""

import jax.numpy as jnp
import numpy as np
from losses_batch import Compiled, close

from jaxrl_reason import losses as library

losses = Compiled(library)

LENGTH = jnp.array([2.0, 6.0, 10.0, 12.0])
RIGHT = jnp.array([1, 0, 1, 0])
GROUP = jnp.zeros(4, int)


def test_soft_overlong():
  """With a limit of 10 and a cache of 4, the reward is 0 up to 6 tokens, and
  falls linearly to -1 at 10.
  """
  got = losses.soft_overlong_penalty(
    jnp.array([5.0, 6.0, 8.0, 10.0, 11.0]), max_length=10, cache=4
  )
  close(got, [0, 0, -0.5, -1, -1], 1e-6)


def test_l1():
  close(
    losses.l1_exact_penalty(LENGTH, 7.0, alpha=0.1),
    [-0.5, -0.1, -0.3, -0.5],
    1e-6,
  )
  got = losses.l1_max_reward(RIGHT, LENGTH, 7.0, alpha=0.05)
  close(got, [0.75, 0, 0.35, 0], 1e-6)


def test_alp():
  """At a solve rate of 1/2, each token costs beta / 2. If no completion is
  correct, it costs beta / 4.
  """
  got = losses.alp_penalty(RIGHT, LENGTH, GROUP, alp_beta=0.1)
  close(got, -0.05 * LENGTH, 1e-6)
  got = losses.alp_penalty(jnp.zeros(4), LENGTH, GROUP, alp_beta=0.1)
  close(got, -0.025 * LENGTH, 1e-6)


def test_laser():
  close(losses.laser_bonus(RIGHT, LENGTH, 8.0), [0.5, 0, 0, 0], 0)
  got = losses.laser_bonus(RIGHT, LENGTH, 8.0, explore=0.2)
  close(got, [0.5, 0, 0, 0.2], 1e-6)


def test_laser_d():
  """A prompt with 3 of 4 correct is easy, one with 1 of 4 hard."""
  right = jnp.array([1, 1, 1, 0, 1, 0, 0, 0])
  length = jnp.array([2.0, 4, 6, 9, 7, 3, 3, 3])
  level = losses.difficulty(right, jnp.repeat(jnp.arange(2), 4))
  close(level, [2, 2, 2, 2, 0, 0, 0, 0], 0)
  target = losses.laser_d_target(right, length, level, 4, [1, 3, 5, 8])
  # Easy: 3 right per prompt, 1/3 of them by length 3: 1. Hard: all at 8.
  # Medium never occurs: the largest.
  close(target, [8, 8, 3], 0)


def test_laser_d_reaches_one_correct_answer_exactly():
  """One short correct answer per prompt is enough, for any other correct ones:
  quotients of counts would be less than 1 in float32.
  """
  for samples, prompts, n_right in ((4, 6, 23), (4, 7, 11), (8, 5, 40)):
    row = jnp.arange(samples * prompts)
    right, length = row < n_right, jnp.where(row < prompts, 1.0, 9.0)
    given = right, length, jnp.zeros(len(row), int), samples, [1, 9]
    close(losses.laser_d_target(*given), [1, 9, 9], 0)
    given = right, length.at[0].set(9), *given[2:]
    close(losses.laser_d_target(*given), [9, 9, 9], 0)


def test_kimi():
  """Lengths 2 to 12: lambda = 1/2 - (len - 2) / 10."""
  got = losses.kimi_bonus(RIGHT, LENGTH, GROUP)
  close(got, [0.5, 0, -0.3, -0.5], 1e-6)
  same = losses.kimi_bonus(RIGHT, jnp.full(4, 7.0), GROUP)
  assert not np.any(same)


def test_o1_pruner():
  got = losses.o1_pruner_reward(RIGHT[:2], LENGTH[:2], jnp.full(2, 3.0), 0.5)
  close(got, [0.5 + 1, -0.5 - 1], 1e-6)


def test_cosine():
  got = losses.cosine_reward(
    jnp.array([1, 1, 0, 0, 1]), jnp.array([0.0, 5, 0, 5, 10]), max_length=10
  )
  close(got, [2, 1.5, -10, -5, -10], 1e-5)


def test_drop_rows():
  mask = jnp.ones((2, 2), bool)
  close(losses.drop_rows(mask, jnp.array([0, 1])), [[1, 1], [0, 0]], 0)


def test_nan_is_wrong():
  got = losses.l1_max_reward(jnp.array([jnp.nan]), jnp.array([3.0]), 7.0)
  close(got, [0], 0)


def test_brevity_of_prime_rl():
  """r (1 + clip(1 - cost / mean cost of the best, 0, 1)) - r, as in its
  code.
  """
  rng = np.random.default_rng(0)
  group = np.array([0, 1, 0, 1, 0, 2, 2, 1, 0])
  reward = np.array([1, 0.5, 1, 0.5, 0, 0, -1, 0.2, 1])
  length = rng.integers(1, 50, 9)
  want = np.zeros(9)
  for i in range(9):
    mine = group == group[i]
    best = mine & (reward == reward[mine].max())
    if best[i] and reward[i] > 0:
      bonus = np.clip(1 - length[i] / length[best].mean(), 0, 1)
      want[i] = reward[i] * (1 + bonus) - reward[i]
  close(losses.brevity_bonus(reward, length, group), want, 1e-5)
  assert (want > 0).sum() >= 2


def test_repeated_ngrams_of_tokens():
  """Compares each n-gram with all n-grams that began before it."""
  rng = np.random.default_rng(1)
  tokens, mask = rng.integers(0, 3, (40, 12)), rng.random((40, 12)) < 0.9
  mask[0] = False
  for n in (1, 2, 3, 5, 12, 20):
    want = np.zeros(40)
    for i, row in enumerate(tokens):
      seen, covered = [], set()
      for t in range(12 - n + 1):
        if mask[i, t : t + n].all():
          if tuple(row[t : t + n]) in seen:
            covered |= set(range(t, t + n))
          seen.append(tuple(row[t : t + n]))
      want[i] = len(covered) / max(mask[i].sum(), 1)
    close(losses.repeated_share(tokens, mask, n=n), want, 1e-6, n)
    assert n > 3 or want.max() > 0
