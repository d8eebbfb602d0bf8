"""Verdicts of studies equal scipy's tests, and are rarely wrong by chance."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats

from jaxrl_reason.studies import fits, pages, verdicts
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.results import Found, Told
from jaxrl_reason.studies.verdicts import Claim, Criterion

RNG = np.random.default_rng(0)
FIVE = [0.31, 0.12, 0.4, 0.25, 0.18]


def decided(values, gains=None, **bound):
  c = Criterion('m', 'a', 'b', **bound)
  (one,) = verdicts.decide(
    [c], lambda _: (values, gains or [0.0] * len(values))
  )
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
    ([0.1] * 3, verdicts.HOLDS),  # without variance
    ([-0.1] * 3, verdicts.NOT),
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
      order, lambda c: (values[c], [math.nan] * len(values[c]))
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
    noise = iter(RNG.standard_normal((10, 5)))
    every = [Criterion('m', 'a', 'b', more_than=0.0)] * 10
    got = verdicts.decide(every, lambda _: (next(noise), np.zeros(5)))  # noqa: B023
    hits += any(d.verdict == verdicts.HOLDS for d in got)
  assert stats.binom.cdf(hits, n, 0.025) > 1e-3
  assert stats.binom.sf(hits - 1, n, 0.025) > 1e-3


@pytest.mark.parametrize(
  'parts, verdict',
  [
    ('h h', verdicts.HOLDS),
    ('n n', verdicts.NOT),
    ('h n', verdicts.PART),
    ('h u', verdicts.PART),
    ('n u', verdicts.NOT),
    ('u u', verdicts.UNKNOWN),
  ],
)
def test_a_claim_of_several_criteria(parts, verdict):
  values = {'h': [1.0, 1.1, 0.9], 'n': [-1.0, -1.1, -0.9], 'u': [1.0, -1.0]}
  got = [decided(values[x], more_than=0.0) for x in parts.split()]
  assert verdicts.of_claim(got) == verdict


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
  values, gains = f.effects(pair)
  np.testing.assert_allclose(values, [0.1, 0.4])
  np.testing.assert_allclose(gains, [0.3, 0.2])  # of b
  np.testing.assert_allclose(f.effects(gain)[0], [0.4, 0.6])
  np.testing.assert_allclose(f.effects(ratio)[0], np.log([1.25, 2.0]))
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
