"""Contamination: n-grams of words that problems share with training data.

A problem is a hit if any n consecutive words of it occur in a training text (n
= 13 in https://arxiv.org/abs/2005.14165, appendix C). Case and punctuation do
not count. In scripts without spaces, such as Chinese, two characters count as a
word. A problem of fewer words is a hit if it equals a training text; signs of
formulas count there: `3-1` is not `3+1`. The index contains the problems, so
training files of any size are read as a stream.
"""

import bisect
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

N = 13
# Thai, Lao, Burmese, Khmer, kana and Chinese characters.
UNSPACED = (
  '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff'
  '\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003ffff'
)
SHORT = re.compile(f'[{UNSPACED}]')
WORD = re.compile(rf'[{UNSPACED}]|[^\W{UNSPACED}]+')
WITH_SIGNS = re.compile(rf'{WORD.pattern}|[-+*/=<>^×÷−±]')


@dataclasses.dataclass(frozen=True)
class Hit:
  """A problem, and the first training text with common words."""

  problem: int
  where: str
  words: str


def words(text: str, pattern: re.Pattern = WORD) -> list[str]:
  """Returns the words of a text, numbers included, in lower case."""
  return pattern.findall(unicodedata.normalize('NFC', text).lower())


def grams(text: str, n: int) -> set[tuple[str, ...]]:
  """Returns the n-grams of a text; for a shorter text, all its words and signs.
  Two characters of a script without spaces count as a word.
  """
  found = words(text)
  halves = (1 if SHORT.match(word) else 2 for word in found)
  at = [*itertools.accumulate(halves, initial=0)]
  if not found or at[-1] < 2 * n:
    whole = tuple(words(text, WITH_SIGNS))
    return {whole} if found else set()
  last = bisect.bisect_right(at, at[-1] - 2 * n)
  ends = (bisect.bisect_left(at, begun + 2 * n) for begun in at[:last])
  return {tuple(found[i:end]) for i, end in enumerate(ends)}


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
