"""Signs in a text that a reward is satisfied without a solution."""

import re
import zlib

# Words of self-correction, https://arxiv.org/abs/2501.12948.
REFLECTION = re.compile(
  r'\b(wait|hmm|actually|let me (check|verify|re|see)|double[- ]check|'
  r'on second thought|alternatively|however|mistake|recheck|verify)\b',
  re.I,
)
# Marks of an answer.
ANSWER = re.compile(r'\\boxed|<answer>|final answer|answer is|####|#', re.I)
LONG = 200  # least characters for the zlib test
REPEATED = 0.2  # compressed share of a repetitive text
WORDS = 4  # of the sequences that count as repeated

SIGNS = ('repeats', 'early', 'reflects', 'format_only', 'disagree')


def of(row: dict) -> dict[str, bool]:
  """Returns each of `SIGNS` of a record."""
  text = row.get('completion', '')
  verdict = row.get('verdict') or {}
  parts = verdict.get('parts') or {}
  return {
    'repeats': repeats(text),
    'early': answers_early(text),
    'reflects': bool(REFLECTION.search(text)),
    'format_only': format_only(parts),
    'disagree': disagree(parts),
  }


def repeats(text: str) -> bool:
  """Returns whether a text repeats itself."""
  data = text.encode()
  if len(data) >= LONG and len(zlib.compress(data)) < REPEATED * len(data):
    return True
  words = text.split()
  runs = [tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)]
  return len(runs) > 8 and len(set(runs)) < len(runs) / 2


def answers_early(text: str) -> bool:
  """Returns whether the mark of the answer comes before most of the text."""
  found = ANSWER.search(text)
  return bool(found) and len(text) >= 8 and found.start() < 0.2 * len(text)


def _is_form(name: str) -> bool:
  return bool(re.search('format|length|language|style|tag|structure', name))


def format_only(parts: dict[str, float]) -> bool:
  """Returns whether a format part is satisfied and no answer part."""
  form = [v > 0.5 for k, v in parts.items() if _is_form(k)]
  answer = [v > 0.5 for k, v in parts.items() if not _is_form(k)]
  return any(form) and bool(answer) and not any(answer)


def disagree(parts: dict[str, float]) -> bool:
  """Returns whether two answer parts disagree."""
  answer = [v > 0.5 for k, v in parts.items() if not _is_form(k)]
  return len({*answer}) > 1
