"""Rewards for the confidence that a completion states, by RLCR
(https://arxiv.org/abs/2507.16806).

`correct` names the verifier of the answer; c is 1 if its score is above 0.5,
else 0. q is the stated confidence.
"""

import dataclasses
import re

from jaxrl_reason.verifiers import compose
from jaxrl_reason.verifiers.verdict import Verdict, judge

_STATED = re.compile(
  r'<confidence>\s*([\d.]+)\s*(%?)\s*</confidence>'
  r'|\bconfidence[\s*]*[:=][\s*]*([\d.]+)(?=([a-z_]|,\d|\s*/\s*\d|))'
  r'\s*(%?)',
  re.IGNORECASE | re.ASCII,
)


def stated(completion: str) -> float | None:
  """Returns the last stated confidence, from 0 to 1, in tags or as `Confidence:
  80%`; None if there is none.

  Without a sign, 80 is 80%, and so are all numbers from 10 to 100. 1.2, 8/10,
  1e-1 and 0,8 are no confidence.
  """
  statements = _STATED.findall(completion)
  if not statements:
    return None
  tagged, percent, plain, goes_on, plain_percent = statements[-1]
  if goes_on:
    return None
  try:
    value = float(tagged or plain.rstrip('.'))
  except ValueError:
    return None
  unsigned = value >= 10 or (value > 1 and value.is_integer())
  if percent or plain_percent or unsigned:
    value /= 100
  return value if 0 <= value <= 1 else None


def brier(completion: str, example: dict, *, correct='task') -> Verdict:
  """Returns -(q - c)^2; -1, the lowest score, without a stated confidence."""
  return _scored(completion, example, correct, weight=0.0)


def calibrated(completion: str, example: dict, *, correct='task') -> Verdict:
  """Returns c - (q - c)^2, which is largest for correct answers and a
  calibrated q; c - 1 without a stated confidence.
  """
  return _scored(completion, example, correct, weight=1.0)


def _scored(completion, example, correct, weight: float) -> Verdict:
  verdict = judge(compose.build(correct), completion, example)
  if not verdict.valid:
    return verdict
  c, q = float(verdict.score > 0.5), stated(completion)
  loss = 1.0 if q is None else (q - c) ** 2
  return dataclasses.replace(verdict, score=weight * c - loss, parts=None)
