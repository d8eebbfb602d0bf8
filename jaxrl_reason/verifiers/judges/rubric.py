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
from jaxrl_reason.verifiers.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Item:
  """One row of a rubric; see the module."""

  name: str
  criterion: str
  weight: float = 1.0
  required: bool = False
  needs: tuple[str, ...] = ()
  threshold: float = 0.5


class RubricError(ValueError):
  """An invalid rubric; the message names the item."""


def make(items: Sequence[Mapping]) -> tuple[Item, ...]:
  """Converts dicts to checked items; names default to 'item0', 'item1', ..."""
  made = tuple(_item(i, row) for i, row in enumerate(items))
  names = [item.name for item in made]
  if len(set(names)) < len(names):
    raise RubricError(f'two items have one name: {names}')
  for item in made:
    unknown = set(item.needs) - set(names)
    if unknown or item.name in item.needs:
      raise RubricError(
        f'item {item.name!r} needs {item.needs}, not in {names}'
      )
  if not any(item.weight > 0 for item in made):
    raise RubricError(f'no item of {names} has a weight above 0')
  return made


def _item(index: int, row: Mapping) -> Item:
  known = {f.name for f in dataclasses.fields(Item)}
  if 'criterion' not in row or set(row) - known:
    raise RubricError(f'item {index}: {sorted(row)}; known are {sorted(known)}')
  needs = row.get('needs', ())
  needs = (needs,) if isinstance(needs, str) else tuple(needs)
  return Item(**{'name': f'item{index}', **row, 'needs': needs})


def aggregate(items: Sequence[Item], marks: Mapping[str, float]) -> float:
  """Computes the score in [0, 1] of marks by item; see the module.

  `needs` is direct: it reads the marks of other items, not their gates.
  """
  passed = {item.name: marks[item.name] >= item.threshold for item in items}
  if any(item.required and not passed[item.name] for item in items):
    return 0.0
  total = sum(
    item.weight * marks[item.name]
    for item in items
    if all(passed[name] for name in item.needs)
  )
  best = sum(item.weight for item in items if item.weight > 0)
  return min(1.0, max(0.0, total / best))


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
