"""Puzzles whose answers are checked exactly: one table, one reward.

  PUZZLES[name](answer, **instance) -> share in [0, 1], or None

A checker takes the text of an answer and the instance as plain data, one
keyword argument per field: its signature is the instance's schema, its
docstring the meaning. It returns 1 iff the puzzle is solved, the share of its
rules that hold where it is not, and None for text that is not of the answer's
form. It is total on any answer, in bounded time, and evaluates no text; a
malformed instance raises `fields.FieldError`, which names the field.
"""

import functools
import inspect
from collections.abc import Callable

from jaxrl_reason.rewards import fields
from jaxrl_reason.rewards.puzzles import (
  answers,
  arithmetic,
  grids,
  houses,
  logic,
  mazes,
  schedules,
  sequences,
)
from jaxrl_reason.rewards.verdict import Verdict

Checker = Callable[..., 'float | None']
PUZZLES: dict[str, Checker] = {
  'base_conversion': arithmetic.base_conversion,
  'countdown': arithmetic.countdown,
  'game24': arithmetic.game24,
  'graph_colouring': logic.graph_colouring,
  'knights_knaves': logic.knights_knaves,
  'lis': sequences.lis,
  'maze': mazes.maze,
  'n_queens': grids.n_queens,
  'satisfiability': logic.satisfiability,
  'scheduling': schedules.scheduling,
  'sorting': sequences.sorting,
  'sudoku': grids.sudoku,
  'zebra': houses.zebra,
}


@functools.cache
def schema(puzzle: str) -> dict[str, bool]:
  """Maps the fields of the instance to whether each must be there."""
  _, *parameters = inspect.signature(PUZZLES[puzzle]).parameters.values()
  return {p.name: p.default is p.empty for p in parameters}


def _instance(puzzle: str, example: dict, settings: dict) -> dict:
  """The fields of a puzzle: the example's, unless `settings` has them."""
  known = schema(puzzle)
  unknown = sorted(set(settings) - set(known))
  if unknown:
    raise ValueError(
      f'puzzle {puzzle!r} has no {", ".join(unknown)}; it has '
      f'{", ".join(known)}'
    )
  found = dict(settings)
  for name, needed in known.items():
    value = settings.get(name)
    if value is None:
      default = fields.MISSING if needed else None
      value = fields.field(example, name, default=default)
    if value is not None:
      found[name] = value
  return found


def reward(
  completion: str,
  example: dict,
  *,
  puzzle: str | None = None,
  threshold: float = 1.0,
  part: str = 'answer',
  **settings,
) -> Verdict:
  """Gives 1 if the answer solves the puzzle of the example.

  puzzle: a name in `PUZZLES`; None: example['puzzle'] (or of its 'meta'), or
    else its 'task'.
  threshold: partial credit counts from this share on; below it, the score is
    0. 1: all or nothing; 0: every share counts.
  settings: fields of the instance that hold for every example (`use='all'`,
    `shortest=True`); the others come from the example or its 'meta'.
  """
  if not 0 <= threshold <= 1:
    raise ValueError(f'{threshold=} is not in [0, 1]')
  if puzzle is None:
    puzzle = fields.field(example, 'puzzle', str, default=None)
    puzzle = puzzle or fields.field(example, 'task', str)
  if puzzle not in PUZZLES:
    raise fields.FieldError(
      f"'puzzle' is {puzzle!r:.60}, none of {', '.join(PUZZLES)}"
    )
  instance = _instance(puzzle, example, settings)
  answer = answers.located(completion, part)
  # Checked without an answer too: a bad instance shows at once, not when a
  # model first answers.
  share = PUZZLES[puzzle](answer or '', **instance)
  if answer is None:
    return Verdict(0.0, 'no_answer')
  if share is None:
    return Verdict(0.0, 'unparsed', answer[:200])
  return Verdict(share if share >= threshold else 0.0, extracted=answer[:200])
