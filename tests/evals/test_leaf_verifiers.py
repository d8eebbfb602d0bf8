"""The verifier of a task as the value of the leaves of a search."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import trees
from jaxrl_reason.base import Rows
from jaxrl_reason.data import tokenizers
from jaxrl_reason.evals import cell_settings, leaf_verifiers, suites
from jaxrl_reason.rollouts import gumbel_search

P, C, PAD = 3, 12, 0
TEXTS = {  # of the answer 12
  '12#12': 1,
  '#12': 1,
  '9 12# 12': 1,
  '12#13': 0,
  '12': 0,
  '12#': 0,
  '#12#12': 0,
  '': 0,
}


def suite_of(kernel, reward='task'):
  example = dict(prompt='7+5=', answer='12', task='arithmetic')
  return suites.Suite('sums', [example], reward, kernel=kernel)


def rows_of(texts, tokenizer) -> Rows:
  """Returns prompts and completions, whose padding has tokens too."""
  ids = [tokenizer.encode(text) for text in texts]
  valid = np.arange(C) < np.array([len(x) for x in ids])[:, None]
  other = tokenizer.encode('1')[0]
  tokens = np.array([x + [other] * (C - len(x)) for x in ids])
  left = np.ones((len(ids), P), int)
  tokens, valid = np.hstack([left, tokens]), np.hstack([left > 0, valid])
  return Rows(jnp.asarray(tokens), jnp.asarray(valid))


def test_a_right_solution_is_worth_one_and_a_wrong_one_nothing():
  tokenizer = tokenizers.ByteTokenizer()
  suite = suite_of('integer')
  kernel = leaf_verifiers.kernel_of(suite, 'verifier')
  score = leaf_verifiers.score_of(kernel, tokenizer, C)
  examples = suite.examples[0], suite.examples[0] | dict(answer='13')
  answers = trees.stacked([kernel.encode(e) for e in examples])
  rows = rows_of([*TEXTS, *TEXTS], tokenizer)  # of both problems
  got = np.asarray(score(rows, answers)).reshape(2, -1)
  np.testing.assert_array_equal(got[0], list(TEXTS.values()))
  np.testing.assert_array_equal(got[1], [t == '12#13' for t in TEXTS])


@pytest.mark.parametrize(
  'suite, words',
  [
    (suite_of(None, 'math'), "verified by 'math', which runs in Python"),
    (suite_of('majority'), "by 'majority', which reads more than a completion"),
  ],
)
def test_other_verifiers_are_refused_by_name(suite, words):
  o = cell_settings.Options((), (), None, simulations=4, leaf='verifier')
  with pytest.raises(ValueError, match=words):
    cell_settings._leaf(o, suite)


def test_suites_have_the_kernels_of_their_tasks():
  o = dict(simulations=4, candidates=2, step_tokens=2)
  o = cell_settings.Options((), (), None, leaf='verifier_at_end', **o)
  found = suites.load('task:countdown?n=2')
  assert cell_settings._leaf(o, found) == dict(leaf='verifier_at_end')
  assert cell_settings._search(o, 8, {})['simulations'] == 4  # and no judge
  of = dict(simulations=4, candidates=2, step_tokens=2, step_end='')
  for name, leaf in (
    ('verifier', gumbel_search.CONTINUED),
    ('verifier_at_end', gumbel_search.ENDED),
  ):
    search = cell_settings.search_of(of | dict(leaf=name), None, None)
    assert search == gumbel_search.Search(4, 2, 2, (), leaf)
  with pytest.raises(ValueError, match='--leaf=verifier is the value fun'):
    none = cell_settings.Options((), (), None, leaf='verifier')
    cell_settings._leaf(none, found)
