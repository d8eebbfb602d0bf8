"""Contamination: n-grams of words that problems share with training data.

A problem is a hit if any n consecutive words of it occur in a training text (n
= 13 in https://arxiv.org/abs/2005.14165, appendix C). A problem of fewer words
is a hit if it equals a training text. Case and punctuation do not count. The
index contains the problems, so training files of any size are read as a stream.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence

N = 13
_WORD = re.compile(r'\w+')


@dataclasses.dataclass(frozen=True)
class Hit:
  """A problem, and the first training text with common words."""

  problem: int
  where: str
  words: str


def words(text: str, pattern: re.Pattern = _WORD) -> list[str]:
  """Returns the words of a text, numbers included, in lower case."""
  return pattern.findall(text.lower())


def grams(
  text: str, n: int, pattern: re.Pattern = _WORD
) -> set[tuple[str, ...]]:
  """Returns the n-grams of a text; for a shorter text, all its words."""
  found = words(text, pattern)
  if not found:
    return set()
  return {tuple(found[i : i + n]) for i in range(max(1, len(found) - n + 1))}


def hits(
  problems: Sequence[str],
  training: Iterable[tuple[str, Sequence[str]]],
  n: int = N,
) -> list[Hit]:
  """Returns the problems with n-grams in training texts, in order.

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
  """Yields texts in memory with their numbers, for `hits`."""
  return ((f'{name}:{i}', [text]) for i, text in enumerate(texts, 1))
