"""Contamination: n-grams of words that problems share with training data.

A problem is a hit where any n words in a row of it stand in a training text
(n = 13 in https://arxiv.org/abs/2005.14165, appendix C); one of fewer words,
where it is a training text as a whole. Case and punctuation do not count. What
is indexed are the problems, so that training files of any size stream by.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

N = 13
_WORD = re.compile(r'\w+')


@dataclasses.dataclass(frozen=True)
class Hit:
  """A problem, and the first training text that has words of it."""

  problem: int
  where: str
  words: str


def words(text: str) -> list[str]:
  """Returns the words of a text, numbers included, in lower case."""
  return _WORD.findall(text.lower())


def grams(text: str, n: int) -> set[tuple[str, ...]]:
  """Returns the n-grams of a text; of a shorter one, all its words."""
  found = words(text)
  if not found:
    return set()
  return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))}


def hits(
  problems: Sequence[str],
  training: Iterable[tuple[str, Sequence[str]]],
  n: int = N,
) -> list[Hit]:
  """Returns the problems that training texts contain words of, in order.

  Args:
    training: (where, texts of a row).
  """
  index: dict[tuple[str, ...], list[int]] = {}
  for i, text in enumerate(problems):
    for gram in grams(text, n):
      index.setdefault(gram, []).append(i)
  found: dict[int, Hit] = {}
  for where, texts in training:
    for text in texts:
      for gram in grams(text, n) & index.keys():
        for i in index[gram]:
          found.setdefault(i, Hit(i, where, ' '.join(gram)))
  return [found[i] for i in sorted(found)]


def numbered(
  name: str, texts: Iterable[str]
) -> Iterable[tuple[str, list[str]]]:
  """Texts in memory as `hits` wants them."""
  return ((f'{name}:{i}', [text]) for i, text in enumerate(texts, 1))
