"""pass@k and PKPO equal enumerations of all subsets and all samples."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import Compiled, close, run_in

from jaxrl_reason import losses as library
from jaxrl_reason.losses.passk import choose_ratio

losses = Compiled(library)


def subsets_with(n, k, i):
  return [c for c in itertools.combinations(range(n), k) if i in c]


def pkpo_by_enumeration(g, k, baseline):
  n = len(g)
  count = len(list(itertools.combinations(range(n), k)))

  def s(values):
    m = len(values)
    total = len(list(itertools.combinations(range(m), k)))
    return [
      sum(max(values[j] for j in c) for c in subsets_with(m, k, i)) / total
      for i in range(m)
    ]

  out = np.array(s(g))
  for i in range(n):
    if baseline == 'loo':
      out[i] -= np.mean(s(np.delete(g, i)))
    if baseline == 'loo_minus_one':
      rest = [[g[j] for j in c if j != i] for c in subsets_with(n, k, i)]
      out[i] -= sum(max(r, default=0.0) for r in rest) / count
  return out


@pytest.mark.parametrize('baseline', ['none', 'loo', 'loo_minus_one'])
def test_pkpo_is_the_average_over_subsets(baseline):
  g = np.array([0.3, 1.0, 0.3, -0.5, 1.0, 0.2])
  group = np.array([1, 1, 1, 1, 1, 1, 8, 8])
  reward = np.concatenate([g, [5.0, 7.0]])  # a group too small for k = 3
  for k in (2, 3, 5):
    ours, rtol = run_in(
      32,
      lambda dtype, k=k: losses.pkpo(
        jnp.asarray(reward, dtype), group, pass_k=k, pkpo_baseline=baseline
      ),
    )
    close(ours[:6], pkpo_by_enumeration(g, k, baseline), rtol, k)
    small = pkpo_by_enumeration(reward[6:], k, 'none') if k == 2 else [0, 0]
    if baseline == 'none':
      close(ours[6:], small, rtol)
  one = losses.pkpo(
    jnp.asarray(g), jnp.zeros(6, int), pass_k=1, pkpo_baseline='none'
  )
  close(one, g / 6, 1e-6)


def gradient_of_max_at_k(p, g, k):
  """Computes d/dp of E[max of k draws] from a categorical with weights p."""
  grad = np.zeros(len(p))
  for draw in itertools.product(range(len(p)), repeat=k):
    best, prob = max(g[j] for j in draw), np.prod([p[j] for j in draw])
    for j in draw:
      grad[j] += best * prob / p[j]
  return grad


@pytest.mark.parametrize('baseline', ['none', 'loo', 'loo_minus_one'])
def test_pkpo_is_unbiased(baseline):
  """Computes E sum A_i grad log p(x_i) over all samples of 4 from 3 answers.

  The gradient by p of log p(x) is onehot(x) / p; baselines shift all of it by
  a multiple of the ones vector times E[onehot / p] = 1, which vanishes along
  the simplex, so both sides are compared after centring.
  """
  p, g, n, k = np.array([0.5, 0.3, 0.2]), np.array([0.2, 1.0, 0.7]), 4, 2
  draws = list(itertools.product(range(3), repeat=n))
  rewards = jnp.asarray(g[np.array(draws)].reshape(-1))
  group = jnp.repeat(jnp.arange(len(draws)), n)
  adv = np.float64(
    losses.pkpo(rewards, group, pass_k=k, pkpo_baseline=baseline)
  ).reshape(-1, n)
  grad = np.zeros(3)
  for draw, a in zip(draws, adv):
    for x, ai in zip(draw, a):
      grad[x] += np.prod(p[list(draw)]) * ai / p[x]
  exact = gradient_of_max_at_k(p, g, k)
  close(grad - grad.mean(), exact - exact.mean(), 1e-5)


def test_passk_by_hand():
  """With N = 4, 2 incorrect and k = 2: R = 1 - 1/6, s = sqrt(5)/6."""
  adv = losses.passk(jnp.array([1.0, 0, 1, 0]), jnp.zeros(4, int), pass_k=2)
  s = 5**0.5 / 6
  # A+ = (1/6) / s; A- = (1/6 - C(1,1) / C(3,1)) / s = (-1/6) / s.
  close(adv, np.array([1, -1, 1, -1]) / 6 / s, 1e-6)


def test_passk_is_the_mean_over_subgroups():
  """The closed form equals averaging the z-scores of all subgroups."""
  reward, k = np.array([1.0, 0, 0, 0, 1, 0]), 3
  subgroups = list(itertools.combinations(range(6), k))
  best = np.array([max(reward[list(c)]) for c in subgroups])
  z = (best - best.mean()) / best.std()
  by_hand = [
    np.mean([z[j] for j, c in enumerate(subgroups) if i in c]) for i in range(6)
  ]
  adv = losses.passk(jnp.asarray(reward), jnp.zeros(6, int), pass_k=k)
  close(adv, by_hand, 1e-5)


def test_passk_of_one_is_the_zscore():
  reward = jnp.array([1.0, 0, 0, 1, 0])
  zscore = losses.group_zscore(reward, jnp.zeros(5, int), ddof=0, eps=0.0)
  close(losses.passk(reward, jnp.zeros(5, int), pass_k=1), zscore, 1e-5)


def test_the_estimate_of_pass_at_k_is_unbiased():
  """Over all outcomes of n = 5 coin flips: E[1 - C(m, k) / C(n, k)]."""
  p, n, k = 0.3, 5, 3
  flips = np.array(list(itertools.product([0, 1], repeat=n)))
  chance = np.prod(np.where(flips, p, 1 - p), 1)
  failures = jnp.asarray(n - flips.sum(1), jnp.float32)
  estimate = 1 - np.float64(choose_ratio(failures, jnp.full(2**n, 5.0), k))
  close((chance * estimate).sum(), 1 - (1 - p) ** k, 1e-6)
