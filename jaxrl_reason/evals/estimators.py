"""Estimators of n samples of a problem, and their errors.

A metric is a ratio of sums over problems, sum_e num[e] / sum_e den[e]; most
metrics have den = 1 and are means. Its interval is a bootstrap over problems
(Efron 1979), because problems are independent and samples of one problem are
not.
"""

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

DRAWS = 2000  # bootstrap samples of the problems
LEVEL = 0.95  # of intervals
Z = 1.959964  # the normal's quantile at (1 + LEVEL) / 2
CHUNK = 2**22  # numbers of bootstrap counts alive at once: 32 MB


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A value, its standard error and its interval of level `LEVEL`."""

  value: float
  se: float
  low: float
  high: float


def powers(n: int) -> list[int]:
  """Returns the values of k to report for n samples: 1, 2, 4, ... and n."""
  return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def pass_at_k(n: int, correct: int, k: int) -> float:
  """Computes an unbiased estimate, from n >= k samples, of the probability that
  at least one of k samples is correct.

  1 - C(n - c, k) / C(n, k), https://arxiv.org/abs/2107.03374, equation 1.
  """
  if not 1 <= k <= n:
    raise ValueError(f'pass@{k} needs k of 1 to {n} samples')
  return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def best_of_k(scores: Sequence[float], order: Sequence[float], k: int) -> float:
  """Computes the mean score of the sample of highest `order` among k, over all
  subsets.

  With samples sorted by order, the i-th of them (from 1) is the highest of
  C(i - 1, k - 1) of the C(n, k) subsets. Equal orders share their scores.
  """
  n = len(scores)
  if not 1 <= k <= n:
    raise ValueError(f'best-of-{k} needs k of 1 to {n} samples')
  shared = collections.defaultdict(list)
  for score, rank in zip(scores, order):
    shared[rank].append(score)
  means = [np.mean(shared[rank]) for rank in sorted(order)]
  weights = [math.comb(i, k - 1) / math.comb(n, k) for i in range(n)]
  return float(sum(w * m for w, m in zip(weights, means)))


def majority(
  answers: Sequence[str | None],
  scores: Sequence[float],
  weights: Sequence[float] | None = None,
) -> float:
  """Returns the score of the answer with the most votes (the first of equals);
  0 without votes.

  Self-consistency, https://arxiv.org/abs/2203.11171.

  Args:
    weights: of the votes; None: equal.
  """
  votes = collections.Counter()
  for answer, weight in zip(answers, weights or [1] * len(answers)):
    if answer is not None:
      votes[answer] += weight
  if not votes:
    return 0.0
  winner = max(votes, key=votes.get)
  return scores[list(answers).index(winner)]


def majority_at_k(
  answers: Sequence[str | None],
  scores: Sequence[float],
  k: int,
  weights: Sequence[float] | None = None,
) -> float:
  """Averages `majority` over the n // k consecutive groups of k samples. This
  is unbiased, since samples are exchangeable.
  """
  starts = range(0, len(answers) // k * k, k)
  if not starts:
    raise ValueError(f'maj@{k} needs k of 1 to {len(answers)} samples')
  weights = weights or [1] * len(answers)
  votes = [
    majority(*(x[i : i + k] for x in (answers, scores, weights)))
    for i in starts
  ]
  return sum(votes) / len(votes)


def bootstrap_counts(n: int, seed: int = 0, draws: int = DRAWS) -> np.ndarray:
  """Counts each of n problems in each bootstrap sample, int [draws,n].

  The result depends only on n. So models with the same problems have the same
  samples, and their differences are paired.
  """
  rng = np.random.default_rng(seed)
  return rng.multinomial(n, np.full(n, 1 / n), size=draws).astype(np.float64)


def resampled(sums: np.ndarray, draws: int = DRAWS) -> np.ndarray:
  """Returns sums over problems of every bootstrap sample, [draws,...].

  Args:
    sums: f64 [E,...], by problem.
  """
  n = len(sums)
  flat = sums.reshape(n, -1)
  step = max(1, CHUNK // n)
  parts = [
    bootstrap_counts(n, start, min(step, draws - start)) @ flat
    for start in range(0, draws, step)
  ]
  return np.concatenate(parts).reshape(draws, *sums.shape[1:])


def ratio(num: np.ndarray, den: np.ndarray) -> tuple[float, np.ndarray]:
  """Returns (sum num / sum den, the same for every bootstrap sample); NaN for
  0 / 0.
  """
  total = den.sum()
  value = float(num.sum() / total) if total else math.nan
  sums = resampled(np.stack([num, den], axis=1))
  with np.errstate(invalid='ignore', divide='ignore'):
    return value, sums[:, 0] / sums[:, 1]


def estimate(value: float, draws: np.ndarray, n: int = 0) -> Estimate:
  """Returns a value with the spread of its bootstrap samples, and the interval
  between their quantiles.

  Args:
    n: number of problems, for shares of problems. If the share is 0 or 1, the
      bootstrap has no spread, and the interval is Wilson's. 0: not a share.
  """
  draws = draws[np.isfinite(draws)]
  if math.isnan(value) or not len(draws):
    return Estimate(value, math.nan, math.nan, math.nan)
  tail = (1 - LEVEL) / 2
  low, high = (float(x) for x in np.quantile(draws, [tail, 1 - tail]))
  if n and value in (0.0, 1.0) and low == high:
    reach = Z**2 / (n + Z**2)
    low, high = (0.0, reach) if value == 0 else (1 - reach, 1.0)
  return Estimate(value, float(draws.std(ddof=1)), low, high)


def calibration_sums(
  confidence: np.ndarray, right: np.ndarray, bins: int = 10
) -> np.ndarray:
  """Computes sums [bins,3] of one problem's answers by equal bins of
  confidence: number, confidence, correct.
  """
  at = np.minimum((confidence * bins).astype(int), bins - 1)
  out = np.zeros((bins, 3))
  np.add.at(out, at, np.stack([np.ones_like(right), confidence, right], 1))
  return out


def calibration_error(sums: np.ndarray) -> np.ndarray:
  """Computes the expected calibration error [...] of sums [...,bins,3]: sum
  over bins of |confidence - right| / N.

  Naeini et al. 2015; https://arxiv.org/abs/1706.04599, equation 3.
  """
  gaps = np.abs(sums[..., 1] - sums[..., 2]).sum(-1)
  with np.errstate(invalid='ignore', divide='ignore'):
    return gaps / sums[..., 0].sum(-1)


def level_counts(
  confidence: np.ndarray, right: np.ndarray, levels: np.ndarray
) -> np.ndarray:
  """Counts one problem's incorrect and correct answers [U,2] by confidence.

  Args:
    levels: f64 [U], every confidence of all problems, rising.
  """
  out = np.zeros((len(levels), 2))
  np.add.at(out, (np.searchsorted(levels, confidence), right.astype(int)), 1)
  return out


def auroc(counts: np.ndarray) -> np.ndarray:
  """Computes the area [...] under the ROC curve from `level_counts` [...,U,2]:
  the probability that a correct answer has a higher confidence than an
  incorrect one, with ties as one half (https://doi.org/10.1148/radiology.143.1.7063747).
  NaN without an answer of each kind.
  """
  wrong, right = counts[..., 0], counts[..., 1]
  below = np.cumsum(wrong, -1) - wrong / 2
  pairs = wrong.sum(-1) * right.sum(-1)
  with np.errstate(invalid='ignore', divide='ignore'):
    return (right * below).sum(-1) / pairs
