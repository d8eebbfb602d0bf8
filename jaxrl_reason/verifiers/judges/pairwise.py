"""Scores an answer by comparisons with other answers to the same question.

  s(a, b) = 1/2 + (p(a, b) - p(b, a)) / 2
  score(a) = mean of s(a, b) over the rivals b

p(x, y) is the judge's mark that the first answer x is better than the second
answer y. Judges prefer a position (https://arxiv.org/abs/2306.05685), so both
orders are judged. A preference that does not depend on the answers cancels
exactly: if p is constant, every score is 1/2. For every pair,
s(a, b) + s(b, a) = 1.
"""

import dataclasses
from collections.abc import Sequence

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.judges import http as judge_http
from jaxrl_reason.verifiers.judges import judge
from jaxrl_reason.verifiers.judges.judge import Case, Judge
from jaxrl_reason.verifiers.verdict import Verdict

EVEN = 0.5  # the score of an answer that is as good as its rivals


@dataclasses.dataclass(frozen=True)
class Pairwise:
  """A Judge that compares each completion with those of example['others'].

  A completion without an answer loses against one with an answer. Two equal
  answers, or two completions without one, are even. None of these pairs is
  judged. If the judge fails on a pair, the verdict is invalid. Without rivals
  the score is 1/2.

  Attributes:
    judge: reads example['other'], the second answer (`judge.BETTER`); marks in
      [0, 1].
    rivals: number of other completions, from the first one on; 0: all.
    part, max_chars: those of the judge, see `judge.answer_of`.
  """

  judge: Judge
  rivals: int = 0
  part: str = 'answer'
  max_chars: int = 50_000

  def __call__(self, cases: Sequence[Case]) -> list[Verdict]:
    met = [self._rivals(example) for _, example in cases]
    asked = []
    for (completion, example), texts in zip(cases, met):
      if not isinstance(texts, Verdict):
        asked += [x for y in texts for x in self._both(completion, y, example)]
    marks = iter(self.judge(asked) if asked else ())
    return [
      texts
      if isinstance(texts, Verdict)
      else self._score(completion, texts, example, marks)
      for (completion, example), texts in zip(cases, met)
    ]

  def _rivals(self, example: dict) -> list[str] | Verdict:
    try:
      others = fields.field(example, 'others', (list, tuple))
    except fields.FieldError as e:
      return Verdict(0.0, 'error', detail=str(e))
    return list(others[: self.rivals or None])

  def _answer(self, completion: str) -> str | Verdict:
    return judge.answer_of(completion, self.part, self.max_chars)

  def _both(self, one: str, two: str, example: dict) -> list[Case]:
    """Returns the cases of a pair in both orders, or none if it is not
    judged.
    """
    answers = self._answer(one), self._answer(two)
    if answers[0] == answers[1] or any(isinstance(x, Verdict) for x in answers):
      return []
    return [
      (one, {**example, 'other': answers[1]}),
      (two, {**example, 'other': answers[0]}),
    ]

  def _score(self, completion: str, texts, example, marks) -> Verdict:
    """Computes the verdict of a completion; takes its pairs from `marks`."""
    answer, total = self._answer(completion), 0.0
    found = [
      [next(marks) for _ in self._both(completion, text, example)]
      for text in texts
    ]
    failed = [v for pair in found for v in pair if not v.valid]
    if failed:
      why = f'a comparison failed: {failed[0].detail}'
      return Verdict(0.0, failed[0].status, detail=why)
    for text, pair in zip(texts, found):
      total += _margin(pair) if pair else _unjudged(answer, self._answer(text))
    score = EVEN + total / max(len(texts), 1) / 2
    if isinstance(answer, Verdict):
      return dataclasses.replace(answer, score=score)
    return Verdict(score, 'parsed', answer)


def _margin(pair: Sequence[Verdict]) -> float:
  """Computes p(a, b) - p(b, a), in [-1, 1]."""
  first, second = (v.score for v in pair)
  return first - second


def _unjudged(answer: str | Verdict, other: str | Verdict) -> float:
  """Returns the margin of a pair that needs no judge."""
  return float(isinstance(other, Verdict)) - float(isinstance(answer, Verdict))


def others(texts: Sequence[str]) -> list[list[str]]:
  """Returns the other completions of a group for each of its completions, from
  the next to the previous one. So with `rivals=k` every completion is a rival
  of k others.
  """
  n, ring = len(texts), [*texts, *texts]
  return [ring[i + 1 : i + n] for i in range(n)]


def reward(
  completion: str, example: dict, *, rivals: int = 0, **settings
) -> Verdict:
  """Compares a completion with `rivals` others of its group over HTTP (0: all);
  `settings` are those of `judge_http.HttpJudge`.
  """
  settings = {'template': judge.BETTER, **settings}
  same = {k: v for k, v in settings.items() if k in ('part', 'max_chars')}
  compare = Pairwise(judge_http.of(settings), rivals, **same)
  return compare([(completion, example)])[0]
