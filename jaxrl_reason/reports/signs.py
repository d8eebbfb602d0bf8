"""Signs in a text that a reward is satisfied without a solution."""

import collections
import re
import statistics
import zlib
from collections.abc import Mapping, Sequence

from jaxrl_reason.verifiers.verdict import FAILED

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
SHORT = 16  # least characters for the test of short texts
# Names of reward parts that judge whether the answer is correct.
CORRECT = re.compile(
  r'answer|correct|accura|verif|task|host|math|number|integer|exact|normalized|'
  r'equal|countdown|code|sql|gym|instructions|tool_calls$|judge|'
  r'rubric|verdict'
)
RUN = 4  # words of a sequence, or characters of a short text


def has_failed(row: Mapping) -> bool:
  """Returns whether the verification of an answer failed."""
  return (row.get('verdict') or {}).get('status') in FAILED


def is_right(row: Mapping) -> bool:
  """Returns whether an answer counts as correct."""
  return ((row.get('verdict') or {}).get('score') or 0.0) > 0.5


def shares(rows: Sequence[dict]) -> dict[str, float]:
  """Returns the share of a step's records with each sign, by the name of a
  metric.

  `rollouts/copies` counts wrong answers that another sample of the same problem
  gives too.
  """
  key = [(row['problem'], row['completion']) for row in rows]
  same = collections.Counter(key)
  found = [
    of(row) | {'copies': same[k] > 1 and not is_right(row)}
    for row, k in zip(rows, key)
  ]
  return {
    f'rollouts/{name}': statistics.fmean(row[name] for row in found)
    for name in found[0]
  }


def of(row: dict) -> dict[str, bool]:
  """Returns the signs of a record by name."""
  text = row.get('completion', '')
  verdict = row.get('verdict') or {}
  # A verification that failed, by a timeout say, may have some of the parts.
  parts = {} if has_failed(row) else verdict.get('parts') or {}
  parts = {k: v for k, v in parts.items() if v is not None}
  return {
    'repeats': repeats(text),
    'early': answers_early(text),
    'reflects': bool(REFLECTION.search(text)),
    'format_only': format_only(parts),
    'disagree': disagree(parts),
  }


def repeats(text: str) -> bool:
  """Returns whether a text repeats itself."""
  data = text.encode('utf-8', 'replace')
  if len(data) >= LONG and len(zlib.compress(data)) < REPEATED * len(data):
    return True
  short = SHORT <= len(data) < LONG
  return _few_runs(text.split()) or (short and _few_runs(text))


def _few_runs(parts: Sequence[str]) -> bool:
  """Returns whether most sequences of words or characters occur again."""
  runs = [tuple(parts[i : i + RUN]) for i in range(len(parts) - RUN + 1)]
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
  """Returns whether two parts that judge the answer disagree: one is 0, another
  is 1. Bonuses, prices of calls and forms judge something else.
  """
  judged = {
    v for k, v in parts.items() if CORRECT.search(k) and not _is_form(k)
  }
  return {0.0, 1.0} <= judged
