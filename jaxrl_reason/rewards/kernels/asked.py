"""The reward 'verdict': a model's probability of yes after a question.

  text    rl.verdict.ask, or the `ask` of the reward part
  views   {'verdict': {Question: f32 [N], see `rollouts.judging`}}

If a text contains {answer}, the question differs between problems: `encoder`
replaces {answer} by the reference answer of the problem. {other} is replaced by
another completion of the problem inside the compiled step; the texts before
and after it are encoded separately.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_reason.rewards.kernels import reference
from jaxrl_reason.verifiers.tasks import problem

NAME, ANSWER, OTHER = 'verdict', '{answer}', '{other}'
SAMPLED = re.compile(r'(\{other\})')  # replaced inside the compiled step


class Question(NamedTuple):
  """A question about completions: the `kwargs` of a reward part.

  Attributes:
    ask: text after the completion.
    rivals: other completions of the problem that {other} stands for; 0: all.
  """

  ask: str
  rivals: int = 0


def score(text, length, answer, views, **question) -> jax.Array:
  """Returns the view of a question."""
  return views[NAME][Question(**question)]


def pieces(ask: str) -> tuple[list[str], list[str]]:
  """Splits a question into n + 1 texts and the n places between them."""
  found = SAMPLED.split(ask)
  return found[::2], found[1::2]


def bare(ask: str) -> str:
  """Removes all places from a question."""
  return ''.join(pieces(ask)[0]).replace(ANSWER, '')


def varies(ask: str) -> bool:
  """Returns whether the question differs between rows."""
  return bare(ask) != ask


def columns(text: str, tokenizer, max_new: int) -> int:
  """Counts the columns Q of a text without {other}.

  A text with {answer} has columns for an answer of min(max_new, 64) tokens.
  """
  own = len(tokenizer.encode(text.replace(ANSWER, '')))
  return own + (ANSWER in text) * reference.columns(max_new)


def encoder(
  question: Question, tokenizer, max_new: int
) -> Callable[[problem.Example], dict]:
  """Returns a function from an example to the texts of its question by number,
  {'0': {'tokens': i32 [Q], 'n_tokens': i32}, ...}, or to {} if the question is
  the same for all rows.

  Raises:
    ValueError: the answer is not a text, or a text has too many tokens.
  """
  if not varies(question.ask):
    return lambda example: {}
  texts, _ = pieces(question.ask)
  each = [_text_encoder(text, tokenizer, max_new) for text in texts]
  return lambda example: {str(i): f(example) for i, f in enumerate(each)}


def _text_encoder(text: str, tokenizer, max_new: int) -> Callable:
  size = columns(text, tokenizer, max_new)

  def encode(example):
    answer = example.get('answer') if ANSWER in text else ''
    if not isinstance(answer, str) or (ANSWER in text and not answer):
      raise ValueError(f'answer={answer!r}: the question {text!r} needs a text')
    ids = tokenizer.encode(text.replace(ANSWER, answer))
    if len(ids) > size:
      raise ValueError(
        f'the question {text!r} has {len(ids)} tokens with the answer '
        f'{answer!r}, and at most {size} are read'
      )
    tokens = np.pad(np.int32(ids), (0, size - len(ids)))
    return {'tokens': tokens, 'n_tokens': np.int32(len(ids))}

  return encode
