"""Scores answers by a rubric: criteria, each scored by a judge.

  score = sum over items of  weight * gate * mark
          / sum of the weights above 0,   clipped to [0, 1]

after "Rubrics as Rewards" (https://arxiv.org/abs/2507.17746), explicit
aggregation. An item:

  {'name': 'cites', 'criterion': 'It names its source.',
   'weight': 1.0,          # below 0: a pitfall, whose mark is subtracted
   'required': True,       # a mark below `threshold` makes the score 0
   'needs': 'on_topic',    # or a list: counts 0 unless these marks reach it
   'threshold': 0.5}       # of this item's own mark, for both

Marks are in [0, 1] and are the verdict's `parts`. If the judge fails on an
item, the verdict is invalid.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.judges import http as judge_http
from jaxrl_reason.verifiers.judges import judge
from jaxrl_reason.verifiers.judges.judge import Case, Judge
from jaxrl_reason.verifiers.judges.rubric_items import (
  Item,
  RubricError,
  aggregate,
  make,
)
from jaxrl_reason.verifiers.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Rubric:
  """A Judge that passes every item of every case to `judge`, in one batch.

  Attributes:
    judge: reads example['criterion'] (`judge.CRITERION`); marks in [0, 1].
    items: of all cases; None: those of example['rubric'].
  """

  judge: Judge
  items: tuple[Item, ...] | None = None

  def __call__(self, cases: Sequence[Case]) -> list[Verdict]:
    rubrics = [self._items(example) for _, example in cases]
    asked = [
      (completion, {**example, 'criterion': item.criterion})
      for (completion, example), rubric in zip(cases, rubrics)
      if not isinstance(rubric, Verdict)
      for item in rubric
    ]
    marks = iter(self.judge(asked) if asked else ())
    return [
      rubric
      if isinstance(rubric, Verdict)
      else _verdict(rubric, [next(marks) for _ in rubric])
      for rubric in rubrics
    ]

  def _items(self, example: dict) -> tuple[Item, ...] | Verdict:
    if self.items is not None:
      return self.items
    try:
      return make(fields.field(example, 'rubric', (list, tuple)))
    except (fields.FieldError, RubricError) as e:
      return Verdict(0.0, 'error', detail=str(e))


def _verdict(items: Sequence[Item], found: Sequence[Verdict]) -> Verdict:
  marks = {item.name: v.score for item, v in zip(items, found) if v.valid}
  for item, verdict in zip(items, found):
    if not verdict.valid:
      why = f'item {item.name!r}: {verdict.detail}'
      return Verdict(0.0, verdict.status, verdict.extracted, why, marks)
  if any(v.status == 'no_answer' for v in found):
    return dataclasses.replace(found[0], parts=marks)
  score = aggregate(items, marks)
  return Verdict(score, found[0].status, found[0].extracted, parts=marks)


def reward(
  completion: str,
  example: dict,
  *,
  items: Sequence[Mapping] | None = None,
  **settings,
) -> Verdict:
  """Judges by a rubric over HTTP; `settings` are those of
  `judge_http.HttpJudge`.
  """
  settings = {'template': judge.CRITERION, **settings}
  rubric = Rubric(
    judge_http.of(settings), None if items is None else make(items)
  )
  return rubric([(completion, example)])[0]
