"""The reward 'verdict': a model's probability of yes after a question.

  text    rl.verdict.ask, or the `ask` of the reward part
  views   {'verdict': {text: f32 [N], probability of the verdict yes}}

If a text contains {answer}, the question differs between problems: `encoder`
replaces {answer} by the reference answer of the problem.
"""

from collections.abc import Callable

import jax
import numpy as np

from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.verifiers.tasks import problem

NAME, ANSWER = 'verdict', '{answer}'


def score(text, length, answer, views, *, ask: str) -> jax.Array:
  """Returns the view of the question `ask`."""
  return views[NAME][ask]


def columns(ask: str, tokenizer, max_new: int) -> int:
  """Counts the columns Q of a question.

  A question with {answer} has columns for an answer of min(max_new, 64) tokens.
  """
  own = len(tokenizer.encode(ask.replace(ANSWER, '')))
  return own + (ANSWER in ask) * reference.columns(max_new)


def encoder(
  ask: str, tokenizer, max_new: int
) -> Callable[[problem.Example], dict]:
  """Returns a function from an example to its question: {'tokens': i32 [Q],
  'n_tokens': i32}, or {} if the question is the same for all problems.

  Raises:
    ValueError: the answer is not a text, or the question has too many tokens.
  """
  size = columns(ask, tokenizer, max_new)

  def encode(example):
    answer = example.get('answer')
    if not isinstance(answer, str) or not answer:
      raise ValueError(f'answer={answer!r}: the question {ask!r} needs a text')
    ids = tokenizer.encode(ask.replace(ANSWER, answer))
    if len(ids) > size:
      raise ValueError(
        f'the question {ask!r} has {len(ids)} tokens with the answer '
        f'{answer!r}, and at most {size} are read'
      )
    tokens = np.pad(np.int32(ids), (0, size - len(ids)))
    return {'tokens': tokens, 'n_tokens': np.int32(len(ids))}

  return encode if ANSWER in ask else lambda example: {}
