"""Verdicts of studies equal scipy's tests, and are rarely wrong by chance."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats

from jaxrl_reason.studies import fits, pages, ranks, verdicts
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.results import Found, Told
from jaxrl_reason.studies.verdicts import Claim, Criterion

RNG = np.random.default_rng(0)
FIVE = [0.31, 0.12, 0.4, 0.25, 0.18]


def decided(values, gains=None, **bound):
  c = Criterion('m', 'a', 'b', **bound)
  effects = verdicts.Effects(values, gains or [0.0] * len(values))
  (one,) = verdicts.decide([c], lambda _: effects)
  return one


def test_intervals_are_those_of_student():
  """Two standard errors of five values would be an interval of 88 %."""
  value = fits.over(FIVE)
  low, high = stats.t.interval(0.95, 4, np.mean(FIVE), stats.sem(FIVE))
  assert value.mean - value.half == pytest.approx(low)
  assert value.mean + value.half == pytest.approx(high)
  assert value.half / value.error == pytest.approx(2.776, abs=1e-3)
  assert str(value) == f'{value.mean:.3f} ± {value.half:.3f}'
  assert math.isnan(fits.over([1.0]).half)


@pytest.mark.parametrize('bound', [0.0, 0.2])
def test_equal_differences_have_the_sign_test(bound):
  """Without spread, t has no error, and n seeds alone decide."""
  for n in (2, 5, 6):
    values = [bound + (0.55 - 0.3), *[bound + 0.25] * (n - 1)]  # rounded apart
    got = decided(values, more_than=bound)
    assert got.for_it == pytest.approx(0.5**n)
    assert decided(values, less_than=bound).against_it == pytest.approx(0.5**n)
  assert decided([bound] * 5, more_than=bound).for_it == pytest.approx(0.5)


@pytest.mark.parametrize('bound', [-0.1, 0.0, 0.2, 0.5])
def test_one_sided_tests_are_those_of_scipy(bound):
  for key, way in ('more_than', 'greater'), ('less_than', 'less'):
    got, other = decided(FIVE, **{key: bound}), {'greater': 'less'}
    want = stats.ttest_1samp(FIVE, bound, alternative=way).pvalue
    assert got.for_it == pytest.approx(want)
    against = stats.ttest_1samp(
      FIVE, bound, alternative=other.get(way, 'greater')
    ).pvalue
    assert got.against_it == pytest.approx(against)


def test_equivalence_is_two_one_sided_tests():
  small = [0.01, -0.02, 0.015, 0.0, -0.005]
  got = decided(small, within=0.05)
  low = stats.ttest_1samp(small, -0.05, alternative='greater').pvalue
  high = stats.ttest_1samp(small, 0.05, alternative='less').pvalue
  assert got.for_it == pytest.approx(max(low, high))
  assert got.verdict == verdicts.HOLDS
  assert decided(FIVE, within=0.05).verdict == verdicts.NOT
  assert decided(small, within=0.01).verdict == verdicts.UNKNOWN


def test_margins_may_be_shares_of_a_gain():
  """0.05 below a gain of 0.5 is less than a fifth of it."""
  below = [-0.05, -0.06, -0.04, -0.05, -0.055]
  given = dict(more_than=-0.2, of_gain=True)
  assert decided(below, [0.5] * 5, **given).verdict == verdicts.HOLDS
  assert decided(below, [0.1] * 5, **given).verdict == verdicts.NOT


@pytest.mark.parametrize(
  'values, verdict',
  [
    ([0.1] * 6, verdicts.HOLDS),  # without variance
    ([-0.1] * 6, verdicts.NOT),
    ([0.1] * 5, verdicts.UNKNOWN),  # p 0.031
    ([0.0] * 3, verdicts.UNKNOWN),
    ([0.1], verdicts.UNKNOWN),  # one seed has no variance
    ([], verdicts.UNKNOWN),
  ],
)
def test_few_or_equal_values(values, verdict):
  assert decided(values, more_than=0.0).verdict == verdict


def test_holm_by_hand():
  """0.01 x 4; 0.02 x 3; 0.03 x 2; 0.04 stays below and is raised."""
  got = verdicts.holm([0.04, 0.01, 0.03, 0.02])
  np.testing.assert_allclose(got, [0.06, 0.04, 0.06, 0.06])
  assert verdicts.holm([0.9, 0.8]) == [1.0, 1.0]
  assert verdicts.holm([]) == []


def test_a_criterion_without_a_number_leaves_the_others():
  """Its gain is unknown, as that of a metric without a first value."""
  unknown = Criterion('m', 'u', 'b', more_than=0.1, of_gain=True)
  sure = Criterion('m', 's', 'b', more_than=0.0)
  wrong = Criterion('m', 'w', 'b', more_than=0.0)
  values = {unknown: FIVE, sure: [0.1, 0.11, 0.12], wrong: [-0.1, -0.11, -0.1]}
  want = {
    unknown: verdicts.UNKNOWN,
    sure: verdicts.HOLDS,
    wrong: verdicts.NOT,
  }
  for order in itertools.permutations(want):
    got = verdicts.decide(
      order,
      lambda c: verdicts.Effects(values[c], [math.nan] * len(values[c])),
    )
    assert {d.criterion: d.verdict for d in got} == want


def test_bars_of_a_criterion_do_not_end_a_cell():
  near = Criterion('m', 'a', 'b', within=0.2)
  f = found([near], a=[told(0, 1), told(0, 2)], b=[told(0, 1), told(0, 2)])
  header, rule, *rows = pages._claims(f)[:-1]
  assert '\\|a - b\\| < 0.2' in rows[1]
  counts = {len(re.findall(r'(?<!\\)\|', row)) for row in (header, rule, *rows)}
  assert counts == {4}


def test_chance_alone_rarely_holds():
  """Ten criteria without an effect: 2.5 % of studies accept one of them."""
  hits, n = 0, 1000
  for _ in range(n):
    noise = RNG.standard_normal((10, 5))
    every = [Criterion('m', 'a', 'b', more_than=0.0)] * 10
    effects = iter([verdicts.Effects(x, np.zeros(5)) for x in noise])
    got = verdicts.decide(every, lambda _: next(effects))  # noqa: B023
    hits += any(d.verdict == verdicts.HOLDS for d in got)
  assert stats.binom.cdf(hits, n, 0.025) > 1e-3
  assert stats.binom.sf(hits - 1, n, 0.025) > 1e-3


@pytest.mark.parametrize(
  'parts, verdict',
  [
    ('h h', verdicts.HOLDS),
    ('n n', verdicts.NOT),
    ('h n', verdicts.NOT),
    ('h u n', verdicts.NOT),
    ('h h u', verdicts.PART),
    ('h u', verdicts.PART),
    ('n u', verdicts.NOT),
    ('u u', verdicts.UNKNOWN),
  ],
)
def test_a_claim_of_several_criteria(parts, verdict):
  values = {'h': [1.0, 1.1, 0.9], 'n': [-1.0, -1.1, -0.9], 'u': [1.0, -1.0]}
  got = [decided(values[x], more_than=0.0) for x in parts.split()]
  assert verdicts.of_claim(got) == verdict


def costs(values):
  """Reads '3 5+ 8': the second run has not come to the target after 5."""
  return [(float(x.rstrip('+')), not x.endswith('+')) for x in values.split()]


def test_ranks_of_runs_that_all_come_to_the_target():
  """The probabilities are those of Mann and Whitney, also with ties."""
  for _ in range(20):
    a, b = RNG.standard_normal(5), RNG.standard_normal(4) + 1
    got = ranks.sides([(x, True) for x in a], [(x, True) for x in b])
    for p, way in zip(got, ('greater', 'less')):
      want = stats.mannwhitneyu(a, b, alternative=way, method='exact').pvalue
      assert p == pytest.approx(want)


def test_ranks_of_censored_runs():
  """By hand: 5+ is above 3 and 5, unknown beside 8; 4 pairs are known. The
  probabilities are those of the permutations that scipy makes.
  """
  a, b = costs('3 5 5'), costs('5+ 8 2+')
  assert ranks.scores([*a, *b]).tolist() == [-4, -1, -1, 3, 3, 0]
  got = ranks.sides(a, b)
  pooled = ranks.scores([*a, *b])
  for p, way in zip(got, ('greater', 'less')):
    want = stats.permutation_test(
      (pooled[:3], pooled[3:]), lambda x, y: x.sum(), alternative=way
    ).pvalue
    assert p == pytest.approx(want)
  assert ranks.sides(costs('9+ 9+ 9+'), costs('5+ 5+')) == (1.0, 1.0)


def test_a_cost_to_a_target_is_decided_by_ranks():
  """Censored runs do not decide: as numbers they would."""

  def of(a, b, **bound):
    c = Criterion('target/steps', 'a', 'b', ratio=True, **bound)
    differences = [
      math.log(x / y) for (x, _), (y, _) in zip(costs(a), costs(b))
    ]
    effects = verdicts.Effects(differences, [0.0] * 5, (costs(a), costs(b)))
    (one,) = verdicts.decide([c], lambda _: effects)
    return one

  fast, slow = '1 1.2 1.1 1.3 1', '2 2.5 2.2 3 2'
  assert of(fast, slow, less_than=0.0).verdict == verdicts.HOLDS
  assert of(slow, fast, less_than=0.0).verdict == verdicts.NOT
  assert of(fast, slow, less_than=0.0).for_it == pytest.approx(1 / 252)
  assert of(fast, slow, less_than=math.log(0.5)).verdict == verdicts.UNKNOWN
  assert of(fast, slow, within=1.5).verdict == verdicts.HOLDS
  assert of(fast, slow, within=0.1).verdict == verdicts.NOT
  bounds = '1+ 1.2+ 1.1+ 1.3 1'  # at least this
  assert of(bounds, slow, less_than=0.0).verdict == verdicts.UNKNOWN
  late = '2+ 2.5+ 2.2+ 3+ 2+'  # even more
  assert of(fast, late, less_than=0.0).verdict == verdicts.HOLDS


def test_criteria_without_one_bound_are_refused():
  for bounds in {}, {'more_than': 0.0, 'within': 1.0}:
    with pytest.raises(ValueError, match='set one of'):
      Criterion('m', 'a', 'b', **bounds)
  with pytest.raises(ValueError, match='within must be above 0'):
    Criterion('m', 'a', 'b', within=0.0)
  with pytest.raises(ValueError, match='of_gain needs over'):
    Criterion('m', 'a', more_than=0.0, of_gain=True)


def told(first, last, diverged=False):
  return Told([], diverged, {'m': last}, {'m': first}, True, {}, {}, {})


def found(criteria, **runs):
  study = Study(None, dict.fromkeys(runs, {}), claims=[Claim('c', criteria)])
  return Found(study, {k: dict(enumerate(v)) for k, v in runs.items()})


def test_effects_are_taken_seed_by_seed():
  """A seed that diverged in one setting is left out of both."""
  a = [told(0.1, 0.5), told(0.2, 0.8), told(0.1, 9.9, diverged=True)]
  b = [told(0.1, 0.4), told(0.2, 0.4), told(0.1, 0.3)]
  pair = Criterion('m', 'a', 'b', more_than=0.0)
  gain = Criterion('m', 'a', more_than=0.0)
  ratio = Criterion('m', 'a', 'b', less_than=0.0, ratio=True)
  f = found([pair, gain, ratio], a=a, b=b)
  of_pair = f.effects(pair)
  np.testing.assert_allclose(of_pair.differences, [0.1, 0.4])
  np.testing.assert_allclose(of_pair.gains, [0.3, 0.2])  # of b
  assert of_pair.costs is None
  np.testing.assert_allclose(f.effects(gain).differences, [0.4, 0.6])
  np.testing.assert_allclose(f.effects(ratio).differences, np.log([1.25, 2.0]))
  ((_, parts),) = f.decided()
  assert [str(d.criterion) for d in parts] == [
    'm: a - b > 0',
    'm: a - before > 0',
    'm: log(a / b) < 0',
  ]


def test_p_of_differences_is_corrected_for_the_settings():
  base = [told(0, x) for x in (0.1, 0.2, 0.3)]
  one = [told(0, x) for x in (0.2, 0.31, 0.4)]
  two = [told(0, x) for x in (0.15, 0.2, 0.45)]
  f = found([], base=base, one=one, two=two)
  p1 = stats.ttest_rel([0.2, 0.31, 0.4], [0.1, 0.2, 0.3]).pvalue
  p2 = stats.ttest_rel([0.15, 0.2, 0.45], [0.1, 0.2, 0.3]).pvalue
  assert f.p_values('m') == pytest.approx({'one': 2 * p1, 'two': p2})
