"""Estimators equal enumeration, and intervals simulation."""

import itertools
import math

import numpy as np
import pytest

from jaxrl_reason.evals import accuracy, estimators, outcome, scores


def mean(xs):
  xs = list(xs)
  return sum(xs) / len(xs)


@pytest.mark.parametrize('n, correct', [(1, 0), (1, 1), (5, 2), (6, 0), (6, 6)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n, correct):
  rows = [i < correct for i in range(n)]
  for k in range(1, n + 1):
    want = mean(any(s) for s in itertools.combinations(rows, k))
    assert estimators.pass_at_k(n, correct, k) == pytest.approx(want)
  for k in (0, n + 1):
    with pytest.raises(ValueError, match=f'pass@{k} needs k of 1 to {n}'):
      estimators.pass_at_k(n, correct, k)


def test_pass_at_k_is_unbiased():
  """Its mean over all outcomes of n draws is 1 - (1 - p)^k."""
  n, p = 6, 0.3
  for k in range(1, n + 1):
    found = sum(
      math.comb(n, c)
      * p**c
      * (1 - p) ** (n - c)
      * estimators.pass_at_k(n, c, k)
      for c in range(n + 1)
    )
    assert found == pytest.approx(1 - (1 - p) ** k)


def test_best_of_k_is_the_mean_over_subsets():
  scores_, order = [0.0, 1.0, 0.25, 1.0, 0.0], [-3.0, -1.0, 2.0, 0.5, 7.0]
  for k in range(1, 6):
    sets = itertools.combinations(range(5), k)
    want = mean(scores_[max(s, key=order.__getitem__)] for s in sets)
    found = estimators.best_of_k(scores_, order, k)
    assert found == pytest.approx(want)
  # Ties are broken independently of the position of the correct answer.
  for right in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]):
    assert estimators.best_of_k(right, [5.0] * 3, 3) == pytest.approx(1 / 3)


def test_majority_at_k_is_unbiased():
  """Its mean over all orders of samples is the mean over ordered subsets."""
  answers = ['7', '3', None, '3', '9']
  right = [1.0, 0.0, 0.0, 0.0, 1.0]
  orders = list(itertools.permutations(range(5)))

  def at(order, k):
    return estimators.majority_at_k(
      [answers[i] for i in order], [right[i] for i in order], k
    )

  for k in range(1, 6):
    want = mean(
      estimators.majority([answers[i] for i in s], [right[i] for i in s])
      for s in itertools.permutations(range(5), k)
    )
    assert mean(at(order, k) for order in orders) == pytest.approx(want)


def judged_rows(seed, problems=3, n=6):
  """Returns records of random answers a, b, c (a is correct) and weights."""
  rng, out = np.random.default_rng(seed), []
  for problem in range(problems):
    for sample in range(1, n + 1):
      answer = [*'abc', None][rng.integers(4)]
      verdict = dict(score=float(answer == 'a'), status='parsed')
      row = dict(problem=problem, sample=sample, length=2, truncated=False)
      row |= dict(verdict=verdict | {'extracted': answer}, trace=None)
      out.append(row | {'p_correct': float(rng.random())})
  return out


@pytest.mark.parametrize('seed', range(4))
def test_votes_and_choices_by_a_judge_are_those_of_numpy(seed):
  rows = judged_rows(seed)
  found = {k: num / den for k, (num, den) in scores.sums(rows).items()}
  for problem in range(3):
    own = [r for r in rows if r['problem'] == problem]
    p = np.array([r['p_correct'] for r in own])
    answer = np.array([r['verdict']['extracted'] or '' for r in own])
    right = answer == 'a'
    for k in (1, 2, 4, 6):
      votes = []
      for start in range(0, 6 - k + 1, k):
        part = slice(start, start + k)
        totals = {
          x: p[part][answer[part] == x].sum() for x in set(answer[part]) - {''}
        }
        votes.append(bool(totals) and max(totals, key=totals.get) == 'a')
      assert found[f'judge_vote@{k}'][problem] == pytest.approx(mean(votes))
      sets = map(list, itertools.combinations(range(6), k))
      best = mean(right[s][p[s].argmax()] for s in sets)
      assert found[f'judge_best@{k}'][problem] == pytest.approx(best)


def test_a_judge_that_is_always_right_finds_every_correct_answer():
  """The accuracy of its choice is pass@k. With equal weights, the vote is the
  majority.
  """
  rows = judged_rows(7)
  certain = [r | {'p_correct': r['verdict']['score']} for r in rows]
  found, equal = (
    scores.values(x) for x in (certain, [r | {'p_correct': 0.5} for r in rows])
  )
  for k in (1, 2, 4, 6):
    assert found[f'judge_best@{k}'] == pytest.approx(found[f'pass@{k}'])
    assert equal[f'judge_vote@{k}'] == pytest.approx(equal[f'maj@{k}'])
  assert found['judge_vote@6'] >= found['maj@6']


def test_calibration_by_hand():
  confidence = np.array([0.05, 0.95, 0.9, 0.92])
  right = np.array([0.0, 1.0, 1.0, 0.0])
  sums = estimators.calibration_sums(confidence, right)
  # Bins [0, .1): |0.05 - 0| of 1; [.9, 1]: |2.77 - 2| of 3.
  want = (0.05 + 0.77) / 4
  assert estimators.calibration_error(sums) == pytest.approx(want)
  assert sums[:, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 3]
  sure = estimators.calibration_sums(np.array([1.0]), np.array([1.0]))
  assert estimators.calibration_error(sure) == 0


def test_the_standard_error_of_a_mean_is_the_known_one():
  x = np.random.default_rng(0).normal(size=400)
  value, draws = estimators.ratio(x, np.ones(400))
  found = estimators.estimate(value, draws)
  assert value == pytest.approx(x.mean())
  assert found.se == pytest.approx(x.std() / 20, rel=0.05)
  assert found.low < value < found.high


@pytest.mark.parametrize('n_problems, k', [(30, 1), (30, 4), (200, 4)])
def test_intervals_have_their_coverage(n_problems, k):
  """Problems have p ~ Beta(1/2, 1/2) and 8 draws each. Counts how often the
  interval contains the mean of 1 - (1 - p)^k over all problems.
  """
  rng, trials, n = np.random.default_rng(k), 400, 8
  chances = rng.beta(0.5, 0.5, 10**6)
  truth = (1 - (1 - chances) ** k).mean()
  table = [estimators.pass_at_k(n, c, k) for c in range(n + 1)]
  held = 0
  for _ in range(trials):
    p = rng.choice(chances, n_problems)
    num = np.array(table)[rng.binomial(n, p)]
    value, draws = estimators.ratio(num, np.ones(n_problems))
    e = estimators.estimate(value, draws, n_problems)
    held += e.low <= truth <= e.high
  # The nominal coverage is 95 %; 400 trials have an error of 1.1 %.
  assert 0.91 <= held / trials <= 0.98


def test_agreement_of_all_problems_has_an_interval():
  for value in (0.0, 1.0):
    num = np.full(20, value)
    e = estimators.estimate(*estimators.ratio(num, np.ones(20)), n=20)
    # Wilson 1927: z^2 / (n + z^2) from the end.
    reach = 1.959964**2 / (20 + 1.959964**2)
    assert e.high - e.low == pytest.approx(reach) and e.value == value
    assert e.low <= value <= e.high


def row(problem, sample, score, **more):
  verdict = {
    'score': score, 'status': 'parsed', 'extracted': str(score),
    'detail': None, 'parts': None,
  }  # fmt: skip
  return {
    'problem': problem, 'sample': sample, 'length': 3, 'truncated': False,
    'verdict': verdict, **more,
  }  # fmt: skip


def test_scores_by_hand():
  rows = [
    row(0, 0, 1.0, trace=True, logp=-1.0),
    row(0, 1, 1.0, trace=True, logp=-9.0),
    row(0, 2, 0.0, trace=False, logp=-1.0),
    row(1, 0, 0.0, trace=False, logp=-1.0),
    row(1, 1, 1.0, trace=False, logp=-1.0),
    row(1, 2, 1.0, trace=True, logp=-2.0),
  ]
  found = scores.values(rows)
  assert found['greedy'] == 0.5
  assert found['pass@1'] == 0.75 and found['pass@2'] == 1.0
  assert found['cot_pass@1'] == 0.5 and found['cot_pass@2'] == 1.0
  assert found['best@2'] == 0.5  # the likelier: wrong, then right
  assert found['length'] == 3 and found['invalid'] == 0
  assert 'brier' not in found and 'entropy' not in found


def test_distinct_answers_by_hand():
  """All subsets of k samples are enumerated."""
  answers = ['1+2', '1 + 2', '2+1', '9', None]
  rows = []
  for sample, answer in enumerate(answers, 1):
    verdict = row(0, sample, float(answer not in ('9', None)))
    verdict['verdict']['extracted'] = answer
    rows.append({**verdict, 'task': 'countdown'})
  found = scores.estimates(rows)
  kinds = ['a', 'a', 'b', '', '']
  for k in 1, 2, 4:
    each = [
      len({x for x in chosen if x})
      for chosen in itertools.combinations(kinds, k)
    ]
    assert found[f'distinct@{k}'].value == pytest.approx(np.mean(each))
  assert 'distinct@1' not in scores.values(
    [{**r, 'task': 'sort'} for r in rows]
  )
  assert accuracy.values(rows + [{**rows[0], 'sample': 0}])['distinct@4'] > 1


def test_budgets_and_confidence():
  rows = [
    row(0, 1, 1.0, confidence=0.8, at_budget={'4': 0.0, '8': 1.0}),
    row(0, 2, 0.0, confidence=0.6, at_budget={'4': 0.0, '8': 0.0}),
    row(1, 1, 1.0, at_budget={'4': 1.0, '8': 1.0}),
    row(1, 2, 1.0, at_budget={'4': 0.0, '8': 1.0}),
  ]
  found = scores.estimates(rows)
  assert found['budget_4/pass@1'].value == 0.25
  assert found['budget_8/pass@1'].value == 0.75
  assert found['budget_4/pass@2'].value == 0.5
  assert found['stated_confidence'].value == 0.5
  assert found['brier'].value == pytest.approx((0.04 + 0.36) / 2)
  assert found['ece'].value == pytest.approx((0.2 + 0.6) / 2)
  assert found['auroc'].value == 1
  assert scores.values(rows)['ece'] == found['ece'].value
  assert 'greedy' not in found


def test_differences_are_paired():
  """The difficulty of a problem cancels: if two models differ by a constant on
  every problem, the difference is certain.
  """
  rng = np.random.default_rng(0)
  hard = rng.random(50) < 0.5

  def of(n_right):
    return [
      row(i, s, float(s <= n_right + 2 * hard[i]))
      for i in range(50)
      for s in (1, 2, 3, 4)
    ]

  one = scores.differences(of(2), of(1))['pass@1']
  assert one.value == pytest.approx(0.25) and one.se < 1e-12
  assert scores.estimates(of(1))['pass@1'].se > 0.02
  for score in (0.0, 1.0):
    rows = [row(i, s, score) for i in range(30) for s in (1, 2)]
    same = scores.differences(rows, rows)['pass@1']
    assert (same.value, same.low) == (0, -same.high) and same.high > 0.1
  with pytest.raises(ValueError, match='other problems'):
    scores.differences(of(1), of(1)[:-4])


def test_votes_are_weighted():
  """The weight of a vote is the mean probability of its tokens. With equal
  weights, the vote is the majority.
  """
  answers, right = ['3', '7', '3', None], [0.0, 1.0, 0.0, 0.0]
  assert estimators.majority(answers, right, [1, 3, 1.5, 9]) == 1.0
  assert estimators.majority(answers, right, [1, 2, 1.5, 9]) == 0.0
  assert estimators.majority(answers, right) == 0.0

  def row(sample, answer, logp):
    verdict = dict(
      score=float(answer == '7'), status='parsed', extracted=answer
    )
    return dict(
      problem=0, sample=sample, length=2, truncated=False, logp=logp,
      verdict=verdict,
    )  # fmt: skip

  rows = [row(1, '3', -4.0), row(2, '3', -4.0), row(3, '7', -0.2)]
  found = scores.values(rows)
  assert found['maj@3'] == 0.0 and found['vote@3'] == 1.0
  assert found['vote@1'] == found['maj@1'] == pytest.approx(1 / 3)


def test_a_table_says_which_columns_have_fractions():
  about = {'model': 'm', 'suite': 's', 'variant': 'own', 'temperature': 1.0}
  for scores_, shown in (((0, 1), False), ((0.4, 1), True)):
    rows = [row(0, i, s) for i in (0, 1) for s in scores_]
    text = outcome.table([outcome.make(about, rows, None, None)])
    assert (outcome.FRACTIONS in text) == shown


def test_auroc_is_that_of_all_pairs():
  rng = np.random.default_rng(3)
  rows = [
    row(i % 9, i, float(rng.random() < 0.6), confidence=q / 5)
    for i, q in enumerate(rng.integers(0, 6, 60), start=1)
  ]
  rows += [row(9, 1, 1.0)]  # without a stated confidence
  q = {right: [] for right in (0, 1)}
  for r in rows[:-1]:
    q[r['verdict']['score']].append(r['confidence'])
  above = [(a > b) + (a == b) / 2 for a in q[1] for b in q[0]]
  found = scores.estimates(rows)['auroc']
  assert found.value == pytest.approx(np.mean(above))
  assert found.low < found.value < found.high
  right = [r for r in rows if r['verdict']['score']]
  assert np.isnan(scores.values(right)['auroc'])
