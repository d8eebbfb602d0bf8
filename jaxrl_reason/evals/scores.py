"""Computes metrics with intervals from records of answers.

  sums(rows)                      {name: (num [E], den [E])} by problem
  estimates(rows)                 {name: Estimate}
  differences(rows, base rows)    {name: Estimate}, paired by problem

Sample 0 of a problem is its greedy completion, the others are random. An answer
is correct if its score is above 0.5. An answer with a failed verifier counts as
incorrect; `invalid` is the share of these.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxrl_reason.evals import estimators
from jaxrl_reason.evals.estimators import Estimate
from jaxrl_reason.verifiers.verdict import FAILED

Sums = dict[str, tuple[np.ndarray, np.ndarray]]
# Metrics that are not between 0 and 1.
AMOUNTS = ('length', 'entropy', 'logp', 'kl_base')
DISTINCT = 'distinct'  # an amount too, with @k
# Tasks with several correct answers to a problem, which are single texts
# without significant spaces.
SEVERAL = ('countdown',)
# Metrics of the confidences that answers state.
CONFIDENCE = ('stated_confidence', 'brier', 'ece', 'auroc')


def by_problem(rows: Iterable[Mapping]) -> dict[int, list[Mapping]]:
  """Groups the records by problem, in their order."""
  out: dict[int, list] = {}
  for row in rows:
    out.setdefault(row['problem'], []).append(row)
  return out


def is_right(row: Mapping) -> bool:
  return row['verdict']['score'] > 0.5


def is_sound(row: Mapping) -> bool:
  """Returns whether answer and reasoning are correct
  (https://arxiv.org/abs/2506.14245).
  """
  return is_right(row) and row['trace'] is True


def sums(rows: Sequence[Mapping]) -> Sums:
  """Returns every metric that the records allow, as (num, den) [E] by
  problem.
  """
  groups = list(by_problem(rows).values())
  greedy = [[r for r in g if r['sample'] == 0] for g in groups]
  drawn = [[r for r in g if r['sample'] != 0] for g in groups]
  out: Sums = {}
  if all(greedy):
    out['greedy'] = _means(greedy, _score)
  if all(drawn):
    out |= _of_draws(drawn)
  out['length'] = _means(groups, _field('length'))
  out['truncated'] = _means(groups, _field('truncated'))
  out['invalid'] = _means(groups, _status(FAILED))
  out['no_answer'] = _means(groups, _status(('no_answer',)))
  for name in ('entropy', 'logp', 'generated'):
    if all(name in r for r in rows):
      out[name] = _means(drawn if all(drawn) else groups, _field(name))
  if all(drawn) and all('base_logp' in r for r in rows):
    out['kl_base'] = _kl(drawn)
  stated = [[r for r in g if r.get('confidence') is not None] for g in groups]
  if any(stated):
    out['stated_confidence'] = _share(stated, groups)
    out['brier'] = _means(stated, _squared_error)
  return out


def _of_draws(drawn: list[list[Mapping]]) -> Sums:
  """Computes the metrics of random samples, for k of 1, 2, 4, ... to the
  fewest.
  """
  n, out = min(map(len, drawn)), {}
  ks = estimators.powers(n)

  def each(f: Callable, name: str):
    for k in ks:
      out[f'{name}@{k}'] = _ones([f(g, k) for g in drawn])

  def passes(right: Callable):
    def f(g, k):
      return estimators.pass_at_k(len(g), sum(map(right, g)), k)

    return f

  each(passes(is_right), 'pass')
  each(_vote_by(None), 'maj')
  if all(r.get('trace') is not None for g in drawn for r in g):
    each(passes(is_sound), 'cot_pass')
  if all(_is_open(r) for g in drawn for r in g):
    each(_distinct, DISTINCT)
  if all('logp' in r for g in drawn for r in g):
    each(_best_by(_token_probability), 'best')
    each(_vote_by(_token_probability), 'vote')
  if all('p_correct' in r for g in drawn for r in g):
    each(_best_by(_field('p_correct')), 'judge_best')
    each(_vote_by(_field('p_correct')), 'judge_vote')
  for budget in drawn[0][0].get('at_budget') or ():
    each(passes(_right_at(budget)), f'budget_{budget}/pass')
  return out


def _is_open(row: Mapping) -> bool:
  return row.get('task') in SEVERAL


def _distinct(rows: Sequence[Mapping], k: int) -> float:
  """Returns the mean number of different correct answers among k samples.

  An answer of c samples is among k with the probability of pass@k.
  """
  answers = Counter(
    ''.join(str(r['verdict']['extracted']).split()) for r in rows if is_right(r)
  )
  n = len(rows)
  return sum(estimators.pass_at_k(n, c, k) for c in answers.values())


def _token_probability(row: Mapping) -> float:
  """Returns the mean probability of an answer's tokens, a geometric mean."""
  return math.exp(row['logp'] / max(row['length'], 1))


def _best_by(order: Callable[[Mapping], float]) -> Callable:
  """Returns a function of (samples, k) to the score of the answer of highest
  `order` among k.
  """

  def best(rows: Sequence[Mapping], k: int) -> float:
    right = [float(is_right(r)) for r in rows]
    return estimators.best_of_k(right, list(map(order, rows)), k)

  return best


def _vote_by(weight: Callable[[Mapping], float] | None) -> Callable:
  """Returns a function of (samples, k) to the score of the answer with the
  largest sum of weights (https://arxiv.org/abs/2203.11171, weighted sum).

  Args:
    weight: of a vote; None: all votes are equal.
  """

  def vote(rows: Sequence[Mapping], k: int) -> float:
    verdicts = [r['verdict'] for r in rows]
    return estimators.majority_at_k(
      [v['extracted'] for v in verdicts],
      [v['score'] for v in verdicts],
      k,
      weight and list(map(weight, rows)),
    )

  return vote


def _right_at(budget: str) -> Callable[[Mapping], bool]:
  def right(row):
    return row['at_budget'][budget] > 0.5

  return right


def _score(row: Mapping) -> float:
  return row['verdict']['score']


def _field(name: str) -> Callable[[Mapping], float]:
  def get(row):
    return row[name]

  return get


def _status(statuses: Sequence[str]) -> Callable[[Mapping], bool]:
  def holds(row):
    return row['verdict']['status'] in statuses

  return holds


def _squared_error(row: Mapping) -> float:
  return (row['confidence'] - is_right(row)) ** 2


def _ones(values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
  return np.asarray(values, np.float64), np.ones(len(values))


def _means(groups: Sequence[Sequence], f: Callable) -> tuple:
  """Returns the sum of f and the count of each group."""
  num = [float(sum(f(r) for r in g)) for g in groups]
  return np.asarray(num), np.asarray([float(len(g)) for g in groups])


def _kl(groups: Sequence[Sequence]) -> tuple[np.ndarray, np.ndarray]:
  """Returns sums of log (policy / base) and counts of tokens: a KL in nats per
  token, unbiased for samples at temperature 1.
  """
  num = [float(sum(r['logp'] - r['base_logp'] for r in g)) for g in groups]
  den = [float(sum(r['length'] for r in g)) for g in groups]
  return np.asarray(num), np.asarray(den)


def _share(some: Sequence[Sequence], of: Sequence[Sequence]) -> tuple:
  n = np.asarray([[len(a), len(b)] for a, b in zip(some, of)], np.float64)
  return n[:, 0], n[:, 1]


def values(rows: Sequence[Mapping]) -> dict[str, float]:
  """Returns the values of the metrics."""
  out = {
    name: float(num.sum() / den.sum())
    for name, (num, den) in sums(rows).items()
  }
  of_all = _of_confidence(rows).items()
  return out | {name: float(f(parts.sum(0))) for name, (f, parts) in of_all}


def estimates(rows: Sequence[Mapping]) -> dict[str, Estimate]:
  """Returns the metrics with standard error and interval, by bootstrap of
  problems.
  """
  out = {}
  for name, (num, den) in sums(rows).items():
    n = len(num) if _is_share(name) else 0
    out[name] = estimators.estimate(*estimators.ratio(num, den), n)
  for name, (f, parts) in _of_confidence(rows).items():
    draws = f(estimators.resampled(parts))
    out[name] = estimators.estimate(float(f(parts.sum(0))), draws)
  return out


def _of_confidence(rows: Sequence[Mapping]) -> dict[str, tuple]:
  """Returns the metrics of stated confidences that are no ratios: (function of
  sums, sums [E,...] by problem).
  """
  stated = [r['confidence'] for r in rows if r.get('confidence') is not None]
  if not stated:
    return {}
  levels, bins, counts = np.unique(stated), [], []
  for group in by_problem(rows).values():
    group = [r for r in group if r.get('confidence') is not None]
    confidence = np.asarray([r['confidence'] for r in group], np.float64)
    right = np.asarray([is_right(r) for r in group], np.float64)
    bins.append(estimators.calibration_sums(confidence, right))
    counts.append(estimators.level_counts(confidence, right, levels))
  return {
    'ece': (estimators.calibration_error, np.stack(bins)),
    'auroc': (estimators.auroc, np.stack(counts)),
  }


def differences(
  rows: Sequence[Mapping], base: Sequence[Mapping]
) -> dict[str, Estimate]:
  """Returns the metrics minus those of `base`, for the same problems. Both have
  the same bootstrap samples, so the difficulty of problems cancels.
  """
  a, b, out = sums(rows), sums(base), {}
  for name in [name for name in a if name in b]:
    if len(a[name][0]) != len(b[name][0]):
      raise ValueError('other problems: a difference needs the same ones')
    (va, da), (vb, db) = estimators.ratio(*a[name]), estimators.ratio(*b[name])
    found = estimators.estimate(va - vb, da - db)
    if va == vb and found.low == found.high and _is_share(name):
      # None or all of the problems are solved by both: see `estimate`.
      one = estimators.estimate(va, da, len(a[name][0]))
      reach = one.high - one.low
      found = estimators.Estimate(found.value, found.se, -reach, reach)
    out[name] = found
  return out


def _is_share(name: str) -> bool:
  """Returns whether a metric is a share of problems or answers."""
  return name.partition('@')[0] not in (*AMOUNTS, DISTINCT)
