"""The reward 'verdict': a model's probability of yes after a question.

  text    rl.verdict.ask, or the `ask` of the reward part
  views   {'verdict': {Question: f32 [N], see `rollouts.judging`}}

If a text contains {answer}, the question differs between problems: `encoder`
replaces {answer} by the reference answer of the problem. A question with
{criterion} is asked for each item of the rubric of the problem (`criteria`).
{other} is replaced by another completion of the problem inside the compiled
step, and {thought} by tokens that the judge itself samples; the texts before
and after them are encoded separately.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.rewards.kernels import criteria, reference
from jaxrl_reason.verifiers.tasks import problem

NAME, RUBRIC = 'verdict', 'rubric'
ANSWER, CRITERION = '{answer}', '{criterion}'
OTHER, THOUGHT = '{other}', '{thought}'
FILLED = re.compile(r'\{(answer|criterion)\}')  # replaced by the encoder
SAMPLED = re.compile(
  r'(\{other\}|\{thought\})'
)  # replaced inside the compiled step


class Question(NamedTuple):
  """A question about completions: the `kwargs` of a reward part.

  Attributes:
    ask: text after the completion.
    rivals: other completions of the problem that {other} stands for; 0: all.
    criteria: K, most items of a rubric; criterion_len: most tokens of an item.
    thought_len: most tokens of {thought}.
  """

  ask: str
  rivals: int = 0
  criteria: int = 0
  criterion_len: int = 64
  thought_len: int = 0


def score(text, length, answer, views, **question) -> jax.Array:
  """Returns the view of a question."""
  return views[NAME][Question(**question)]


def pieces(ask: str) -> tuple[list[str], list[str]]:
  """Splits a question into n + 1 texts and the n places between them."""
  found = SAMPLED.split(ask)
  return found[::2], found[1::2]


def bare(ask: str) -> str:
  """Removes all places from a question."""
  return FILLED.sub('', ''.join(pieces(ask)[0]))


def varies(ask: str) -> bool:
  """Returns whether the question differs between rows."""
  return bare(ask) != ask


def columns(text: str, question: Question, tokenizer, max_new: int) -> int:
  """Counts the columns Q of a text between two sampled places.

  {answer} has columns for an answer of min(max_new, 64) tokens, and {criterion}
  for one of `criterion_len` tokens.
  """
  own = len(tokenizer.encode(FILLED.sub('', text)))
  own += (ANSWER in text) * reference.columns(max_new)
  return own + (CRITERION in text) * question.criterion_len


def encoder(
  question: Question, tokenizer, max_new: int
) -> Callable[[problem.Example], dict]:
  """Returns a function from an example to the texts of its question by number,
  {'0': {'tokens': i32 [Q], 'n_tokens': i32}, ...}, or to {} if the question is
  the same for all rows.

  With {criterion}, the texts of all items are [K,Q] and [K], and 'rubric' has
  the items, see `criteria`.

  Raises:
    ValueError: the answer is not a text, the rubric is invalid, or a text has
      too many tokens.
  """
  if not varies(question.ask):
    return lambda example: {}
  texts, _ = pieces(question.ask)
  each = [_text_encoder(x, question, tokenizer, max_new) for x in texts]

  def of_item(example):
    return {str(i): f(example) for i, f in enumerate(each)}

  def of_rubric(example):
    k = question.criteria
    items = criteria.items_of(example, k)
    asks = [item.criterion for item in items] + [''] * (k - len(items))
    rows = [of_item({**example, 'criterion': ask}) for ask in asks]
    return trees.stacked(rows) | {RUBRIC: criteria.encode(items, k)}

  return of_rubric if CRITERION in question.ask else of_item


def _text_encoder(
  text: str, question: Question, tokenizer, max_new: int
) -> Callable:
  size, names = (
    columns(text, question, tokenizer, max_new),
    dict.fromkeys(FILLED.findall(text)),
  )

  def encode(example):
    answer = example.get('answer')
    if ANSWER in text and not (isinstance(answer, str) and answer):
      raise ValueError(f'answer={answer!r}: the question {text!r} needs a text')
    ids = tokenizer.encode(FILLED.sub(lambda place: example[place[1]], text))
    if len(ids) > size:
      values = ' and '.join(f'the {x} {example[x]!r}' for x in names)
      raise ValueError(
        f'the question {text!r} has {len(ids)} tokens with {values}, and at '
        f'most {size} are read'
      )
    tokens = np.pad(np.int32(ids), (0, size - len(ids)))
    return {'tokens': tokens, 'n_tokens': np.int32(len(ids))}

  return encode
