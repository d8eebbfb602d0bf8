"""Scores text answers: exact, normalised, token F1, ROUGE-L, edit similarity.

  completion -> its answer (`fields.final`) -> score against each right answer
             -> the best

  exact        equal but for white space at the edges
  normalized   equal after `normalize` (SQuAD, https://arxiv.org/abs/1606.05250)
  token_f1     2 p r / (p + r) of the normalised texts' common words (same)
  rouge_l      2 p r / (p + r) of the longest common subsequence of words
               (Lin 2004, https://aclanthology.org/W04-1013; beta = 1)
  edit         1 - Levenshtein distance / length of the longer text

Words are those of the published scripts: SQuAD's for `token_f1`, rouge-score's
(runs of letters and digits, no stemming) for `rouge_l`. On ASCII texts the
scores equal those of the scripts. Letters outside ASCII are words too
(rouge-score drops them), and a character of a script without spaces is a word,
as in MLQA's script (https://arxiv.org/abs/1910.07475). rapidfuzz computes the
two quadratic scores. Beyond `MAX_WORDS` and `MAX_CHARS` they are a lower bound,
so that a long text takes tenths of a second, not hours.
"""

import collections
import operator
import re
import string
import unicodedata
from collections.abc import Callable

from rapidfuzz.distance import LCSseq, Levenshtein

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.text import scripts
from jaxrl_reason.verifiers.verdict import Verdict

__all__ = ['edit', 'exact', 'normalized', 'rouge_l', 'token_f1']

MAX_WORDS = 50_000
MAX_CHARS = 50_000
ARTICLES = re.compile(r'\b(?:a|an|the)\b')


def normalize(text: str) -> str:
  """Reduces a text to lower case, no punctuation, no English articles, single
  spaces.

  The rules are those of SQuAD's script. In addition, Unicode punctuation is
  removed, and composed and decomposed letters are equal (NFC). Idempotent.
  """
  kept = (c for c in text.lower() if not _is_punctuation(c))
  plain = unicodedata.normalize('NFC', ''.join(kept))
  return ' '.join(ARTICLES.sub(' ', plain).split())


def _is_punctuation(char: str) -> bool:
  if char.isascii():
    return char in string.punctuation
  return unicodedata.category(char).startswith('P')


def best(completion: str, example: dict, score: Callable, part: str) -> Verdict:
  """Computes the highest score(answer, gold) over example['answer'].

  The whole completion is compared too, because an answer may contain tags.
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
  return Verdict(float(max(scores)), 'parsed', answer)


def exact(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """Returns 1 if the answer is example['answer'], or one of a list of them."""
  return best(completion, example, operator.eq, part)


def normalized(
  completion: str, example: dict, *, part: str = 'answer'
) -> Verdict:
  """Returns 1 if the answer equals a gold answer after `normalize`."""
  return best(completion, example, same_normalized, part)


def token_f1(
  completion: str, example: dict, *, part: str = 'answer'
) -> Verdict:
  """Computes the F1 of common words with example['answer'], in [0, 1]."""
  return best(completion, example, f1, part)


def rouge_l(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """Computes the F measure of the longest common subsequence of words, in [0,
  1].
  """
  return best(completion, example, lcs_f, part)


def edit(completion: str, example: dict, *, part: str = 'answer') -> Verdict:
  """Computes 1 - edit distance / length of the longer text, in [0, 1]."""
  return best(completion, example, edit_similarity, part)


# --- scores of two texts -------------------------------------------------


def same_normalized(a: str, b: str) -> float:
  """Compares normalised texts; texts without words, such as < and >, as they
  are.
  """
  x, y = normalize(a), normalize(b)
  return float(x == y and (x != '' or a == b))


def f1(a: str, b: str) -> float:
  """Computes the token F1. Texts without words score 1 if they are equal."""
  x, y = (collections.Counter(_words(normalize(text))) for text in (a, b))
  return _f((x & y).total(), x.total(), y.total(), a == b)


def _words(plain: str) -> list[str]:
  return [w for word in plain.split() for w in scripts.UNIT.findall(word)]


def lcs_f(a: str, b: str) -> float:
  """Computes ROUGE-L; a lower bound if a text has more than MAX_WORDS words."""
  x, y = scripts.tokens(a), scripts.tokens(b)
  common = LCSseq.similarity(x[:MAX_WORDS], y[:MAX_WORDS])
  return _f(common, len(x), len(y), a == b)


def _f(common: int, n: int, m: int, equal: bool) -> float:
  return 2 * common / (n + m) if n + m else float(equal)


def edit_similarity(a: str, b: str) -> float:
  """Computes `edit`, or a lower bound beyond MAX_CHARS differing characters."""
  longest = max(len(a), len(b))
  return 1.0 - distance(a, b) / longest if longest else 1.0


def distance(a: str, b: str) -> int:
  """Computes the Levenshtein distance; an upper bound for very long
  differences.

  The common prefix and suffix are removed first. Characters beyond MAX_CHARS
  count as replaced.
  """
  start = _common(a, b)
  a, b = a[start:], b[start:]
  end = _common(a[::-1], b[::-1])
  a, b = a[: len(a) - end], b[: len(b) - end]
  rest = max(len(a) - MAX_CHARS, len(b) - MAX_CHARS, 0)
  return Levenshtein.distance(a[:MAX_CHARS], b[:MAX_CHARS]) + rest


def _common(a: str, b: str) -> int:
  """Returns the length of the common prefix."""
  low, high = 0, min(len(a), len(b))
  while low < high:  # a[:low] is common; bisect, because slices compare fast
    middle = (low + high + 1) // 2
    if a[low:middle] == b[low:middle]:
      low = middle
    else:
      high = middle - 1
  return low
