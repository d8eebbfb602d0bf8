"""The items of a rubric, and the score of their marks; see `rubric`."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Item:
  """One row of a rubric; see `rubric`."""

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
  """Computes the score in [0, 1] of marks by item; see `rubric`.

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
