"""Text answers: exact, normalised, token F1, ROUGE-L, edit similarity.

  completion -> its answer (`fields.final`) -> score against each right answer
             -> the best

  exact        equal but for white space at the edges
  normalized   equal after `normalize` (SQuAD, https://arxiv.org/abs/1606.05250)
  token_f1     2 p r / (p + r) of the normalised texts' common words (same)
  rouge_l      2 p r / (p + r) of the longest common subsequence of words
               (Lin 2004, https://aclanthology.org/W04-1013; beta = 1)
  edit         1 - Levenshtein distance / length of the longer text

The two quadratic ones run on big integers whose bits are one text's positions
(LCS: Hyyro 2004; distance: Myers 1999, https://doi.org/10.1145/316542.316550 in
Hyyro's form), a machine word at a time; beyond `MAX_WORDS` and `MAX_CHARS`
they return a lower bound. So a long text costs a tenth of a second, not hours.
"""

import collections
import re
import string
import unicodedata
from collections.abc import Callable, Hashable, Sequence

from jaxrl_reason.rewards import fields
from jaxrl_reason.rewards.text import language
from jaxrl_reason.rewards.verdict import Verdict

MAX_WORDS = 20_000
MAX_CHARS = 20_000
ARTICLES = re.compile(r'\b(?:a|an|the)\b')


def normalize(text: str) -> str:
  """Lower case, no punctuation, no English articles, single spaces.

  As SQuAD's script, and idempotent; punctuation is also Unicode's, and
  composed and decomposed letters are the same (NFC).
  """
  kept = (c for c in text.lower() if not _is_punctuation(c))
  plain = unicodedata.normalize('NFC', ''.join(kept))
  return ' '.join(ARTICLES.sub(' ', plain).split())


def _is_punctuation(char: str) -> bool:
  if char.isascii():
    return char in string.punctuation
  return unicodedata.category(char).startswith('P')


def best(completion: str, example: dict, score: Callable, part: str) -> Verdict:
  """The highest score(answer, gold) over example['answer'].

  The whole completion counts too where it equals a right answer: an answer may
  itself have tags in it.
  """
  golds = fields.golds(example)
  answer = fields.final(completion, part)
  if answer is None or not answer.strip():
    same = any(completion.strip() == gold.strip() for gold in golds)
    return Verdict(float(same), 'parsed' if same else 'no_answer')
  answer = answer.strip()
  scores = [
    1.0 if completion.strip() == gold.strip() else score(answer, gold.strip())
    for gold in golds
  ]
  return Verdict(max(scores), 'parsed', answer)


def exact(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """1 if the answer is example['answer'], or one of a list of them."""
  return best(completion, example, lambda a, b: float(a == b), part)


def normalized(
  completion: str, example: dict, *, part: str = 'answer'
) -> Verdict:
  """1 if the answer is a right one after `normalize`."""
  return best(completion, example, same_normalized, part)


def token_f1(
  completion: str, example: dict, *, part: str = 'answer'
) -> Verdict:
  """F1 of the words in common with example['answer'], in [0, 1]."""
  return best(completion, example, f1, part)


def rouge_l(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """F measure of the longest common subsequence of words, in [0, 1]."""
  return best(completion, example, lcs_f, part)


def edit(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """1 - edit distance / length of the longer text, in [0, 1]."""
  return best(completion, example, edit_similarity, part)


# --- scores of two texts -------------------------------------------------


def same_normalized(a: str, b: str) -> float:
  return float(normalize(a) == normalize(b))


def f1(a: str, b: str) -> float:
  """Token F1; two texts without words are equal or nothing."""
  x, y = (collections.Counter(language.units(normalize(t))) for t in (a, b))
  return _f(sum((x & y).values()), x.total(), y.total(), a == b)


def lcs_f(a: str, b: str) -> float:
  """ROUGE-L; a lower bound if a text has more than MAX_WORDS words."""
  x, y = language.units(a), language.units(b)
  return _f(lcs(x[:MAX_WORDS], y[:MAX_WORDS]), len(x), len(y), a == b)


def _f(common: int, n: int, m: int, equal: bool) -> float:
  return 2 * common / (n + m) if n + m else float(equal)


def edit_similarity(a: str, b: str) -> float:
  """A lower bound if the texts differ beyond MAX_CHARS characters."""
  longest = max(len(a), len(b))
  return 1.0 - distance(a, b) / longest if longest else 1.0


# --- the two dynamic programs --------------------------------------------


def _positions(items: Sequence[Hashable]) -> dict[Hashable, int]:
  """item -> the bits of the positions where it stands."""
  places: dict[Hashable, list[int]] = collections.defaultdict(list)
  for i, item in enumerate(items):
    places[item].append(i)
  bits = {}
  for item, found in places.items():
    mask = bytearray(len(items) // 8 + 1)
    for i in found:
      mask[i >> 3] |= 1 << (i & 7)
    bits[item] = int.from_bytes(mask, 'little')
  return bits


def lcs(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
  """The length of the longest common subsequence.

  Bit i of `row` is 0 where the LCS with b so far grows at a[i]; one addition
  moves every such place left at once.
  """
  masks = _positions(a)
  full = (1 << len(a)) - 1
  row = full
  for item in b:
    matches = row & masks.get(item, 0)
    row = ((row + matches) | (row - matches)) & full
  return len(a) - row.bit_count()


def distance(a: str, b: str) -> int:
  """Levenshtein distance; an upper bound for very long differences.

  What is beyond MAX_CHARS is counted as replaced, after the common beginning
  and end are left out.
  """
  start = _common(a, b)
  a, b = a[start:], b[start:]
  end = _common(a[::-1], b[::-1])
  a, b = a[: len(a) - end], b[: len(b) - end]
  rest = max(len(a) - MAX_CHARS, len(b) - MAX_CHARS, 0)
  return _myers(a[:MAX_CHARS], b[:MAX_CHARS]) + rest


def _common(a: str, b: str) -> int:
  """The length of the common beginning."""
  low, high = 0, min(len(a), len(b))
  while low < high:  # a[:low] is common; halve, as slices compare fast
    middle = (low + high + 1) // 2
    if a[low:middle] == b[low:middle]:
      low = middle
    else:
      high = middle - 1
  return low


def _myers(a: str, b: str) -> int:
  """Levenshtein distance; bits of `up` (`down`): +1 (-1) from row to row."""
  if not a or not b:
    return len(a) + len(b)
  masks = _positions(a)
  full, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
  up, down, score = full, 0, len(a)
  for char in b:
    matches = masks.get(char, 0)
    diagonal = (((matches & up) + up) ^ up) | matches | down
    right = down | (full & ~(diagonal | up))
    left = diagonal & up
    score += bool(right & last) - bool(left & last)
    right = (right << 1) | 1
    up = ((left << 1) | (full & ~(diagonal | right))) & full
    down = right & diagonal & full
  return score
