"""Generates satisfiability problems with one solution.

  prompt    aBc C ac Ab>
  solution  TTT!C#TTF

A clause is a row of literals: a small letter is a variable, a capital letter
its negation. The answer has the value of each variable in order, T or F. The
steps try all assignments in order, each with the first clause that is false.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'satisfiability'
VARIABLES = 'abcdef'
MAX_CLAUSES = 40  # after which a draw without a single solution is discarded


def holds(clause: Sequence[int], values: Mapping[int, bool]) -> bool:
  """Returns whether a clause has a true literal (-3: not variable 3)."""
  return any(values.get(abs(x)) is (x > 0) for x in clause)


def _clause(rng: np.random.Generator, variables: int, size: int) -> list[int]:
  chosen = sorted(problem.shuffled(rng, range(1, variables + 1))[:size])
  return [x if problem.below(rng, 2) else -x for x in chosen]


def _show(clause: Sequence[int]) -> str:
  def letter(x):
    return VARIABLES[abs(x) - 1]

  return ''.join(letter(x) if x > 0 else letter(x).upper() for x in clause)


def _assignments(variables: int) -> list[dict[int, bool]]:
  return [
    dict(enumerate(values, 1))
    for values in itertools.product((True, False), repeat=variables)
  ]


def _row(values: Mapping[int, bool]) -> str:
  return ''.join('T' if value else 'F' for value in values.values())


def _draw(rng, variables: int, min_size: int, max_size: int):
  """Samples clauses with one common solution. Each excludes an assignment."""
  clauses, left = [], _assignments(variables)
  for _ in range(MAX_CLAUSES):
    size = problem.between(rng, min_size, max_size)
    clause = _clause(rng, variables, min(size, variables))
    rest = [values for values in left if holds(clause, values)]
    if not rest or len(rest) == len(left):
      continue
    clauses.append(clause)
    left = rest
    if len(left) == 1:
      return clauses, left[0]
  return None


def generate(
  rng: np.random.Generator,
  *,
  min_variables: int,
  max_variables: int,
  min_size: int,
  max_size: int,
) -> problem.Example | None:
  if not 1 <= min_variables <= max_variables <= len(VARIABLES):
    raise ValueError(
      f'min_variables={min_variables}, max_variables={max_variables}: use 1 to '
      f'{len(VARIABLES)}'
    )
  variables = problem.between(rng, min_variables, max_variables)
  drawn = _draw(rng, variables, min_size, max_size)
  if drawn is None:
    return None
  clauses, solution = drawn
  steps = []
  for values in _assignments(variables):
    if values == solution:
      break
    failed = next(c for c in clauses if not holds(c, values))
    steps.append(f'{_row(values)}!{_show(failed)}')
  prompt = ' '.join(map(_show, clauses)) + '>'
  return problem.make_example(NAME, prompt, steps, _row(solution))


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_text,
  knobs=dict(
    min_variables=3,  # 1 to 6
    max_variables=3,
    min_size=1,  # literals of a clause, at most the number of variables
    max_size=3,
  ),
  harder=dict(min_variables=4, max_variables=4, min_size=2),
  alphabet=VARIABLES + VARIABLES.upper() + 'TF!> ' + problem.MARKER,
  answer_chars='TF',
  kernel='text',
)
