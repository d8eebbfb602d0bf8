"""The order of a step's problems does not depend on their sources, and the
first problems are a sample of all.
"""

import numpy as np
import pytest
from data.test_controllers import KEY, chooser, known
from data.test_problem_pool import stats

from jaxrl_reason.data import pipeline
from jaxrl_reason.data.tokenizers import CharTokenizer
from jaxrl_reason.run.rl import problem_pool, sources


@pytest.mark.parametrize('spares', [1, 2, 3])
def test_every_round_of_a_mixture_has_the_shares_of_its_sources(spares):
  """In epochs, sources alternate. If a round had every second problem, it would
  contain only one source.
  """
  m, n = 64, 32
  source = np.repeat([0, 1], m // 2).astype(np.int32)
  c = chooser('uniform', weights=(1.0, 1.0))
  s = stats(m, source, own=c.problems.start(), arms=c.steering.start())
  ask = problem_pool.ProblemSampler(c, n, spares)
  ids = np.asarray(ask.ids({problem_pool.POOL: s}, KEY, np.int32(0)))
  assert ids.shape == (n, 1 + spares)
  np.testing.assert_array_equal((source[ids] == 0).sum(axis=0), n // 2)


class Numbers:
  """Problems 0, 1, 2, ... of two alternating sources."""

  def __len__(self):
    return 10**6

  def __getitem__(self, i):
    return {'source': i % 2, 'number': i}


@pytest.mark.parametrize('k', [1, 2])
def test_rounds_without_a_controller_have_neighbouring_problems(monkeypatch, k):
  rows, spares = 8, 2
  taken = []

  def batches(source, encode, n, *, seed, mine):
    taken.append((n, np.asarray(mine)))
    return None

  monkeypatch.setattr(pipeline, 'batches', batches)
  monkeypatch.setattr(sources.goodput, 'Timed', lambda data: data)
  monkeypatch.setattr(sources.sharding, 'my_rows', lambda *_: np.arange(rows))
  sources.batches(0, Numbers(), None, rows, k, 'rl', None, spares)
  (_, first), (n, others) = taken
  assert n == k * rows * spares
  assert sorted(others) == list(range(n))
  for step in others.reshape(k, rows, spares):
    for column in step.T:
      np.testing.assert_array_equal(np.diff(column), 1)


def test_proposed_problems_are_not_sorted():
  c = chooser('priority')
  s = known(c)
  ids = [np.asarray(c.propose(s, KEY, 32, np.int32(i))) for i in range(200)]
  first = np.mean([np.mean(x[:8]) for x in ids])
  last = np.mean([np.mean(x[-8:]) for x in ids])
  spread = np.std([np.mean(x) for x in ids]) + np.std(ids) / np.sqrt(8 * 200)
  assert abs(first - last) < 4 * spread
  # The draw itself contains neighbours in increasing order.
  assert not all((np.diff(x) >= 0).all() for x in ids)


@pytest.mark.parametrize(
  ('solution', 'kept'),
  [
    ('1 2 5#6', '1 2 5'),
    ('#1 2 3', ''),
    ('2 + 3 = 5.\n#### 5', '2 + 3 = 5.\n'),
    (
      r'Thus $x = \frac12$, that is \boxed{\frac12}.',
      r'Thus $x = \frac12$, that is ',
    ),
    ('I think. <answer>4</answer>', 'I think. '),
    ('Hence the answer is 7.', 'Hence the '),
    ('no mark at all', 'no mark at al'),
  ],
)
def test_a_hint_ends_before_the_answer(solution, kept):
  tokenizer = CharTokenizer(''.join(sorted({*solution})))
  n = pipeline.hint_limit(solution, tokenizer)
  text = tokenizer.decode(tokenizer.encode(solution)[:n])
  assert text == kept
