"""Generates linear equations with an integer solution; the answer is x.

  prompt    3x+5=20:         2x+3y=8;x-y=-1:
  solution  3x=15#5          5x=5#1

The steps are Gaussian elimination: constants move to the right. Then the last
unknown is eliminated from all other equations, and each equation is divided by
its greatest common divisor, until only x is left.
"""

import math

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'linear_equations'
_UNKNOWNS = 'xyz'

# An equation is its coefficients and then its right-hand side.
Row = list[int]


def _term(coefficient: int, unknown: str) -> str:
  size = '' if abs(coefficient) == 1 else str(abs(coefficient))
  return ('-' if coefficient < 0 else '+') + size + unknown


def _show(row: Row, constant: int = 0) -> str:
  """Formats an equation, [2, -1, 8] -> '2x-y=8'. A constant is added to both
  sides.
  """
  terms = [_term(c, u) for c, u in zip(row[:-1], _UNKNOWNS) if c]
  if constant:
    terms.append(f'{constant:+d}')
  return f'{"".join(terms).removeprefix("+")}={row[-1] + constant}'


def _reduced(row: Row) -> Row:
  divisor = math.gcd(*row) or 1
  lead = next((c for c in row if c), 1)
  return [c // (divisor if lead > 0 else -divisor) for c in row]


def _eliminate(rows: list[Row], unknown: int) -> tuple[list[Row], list[Row]]:
  """Eliminates an unknown. Returns all rows and the new rows, or no rows if
  none has the unknown.
  """
  pivot = next((row for row in reversed(rows) if row[unknown]), None)
  if pivot is None:
    return [], []
  rest, new = [], []
  for row in rows:
    if row is pivot:
      continue
    if row[unknown]:
      pairs = zip(row, pivot)
      row = _reduced([a * pivot[unknown] - b * row[unknown] for a, b in pairs])
      new.append(row)
    rest.append(row)
  return rest, new


def _draw(
  rng: np.random.Generator, values: list[int], limit: int
) -> Row | None:
  """Samples an equation that the values solve; None if it has no unknown."""
  row = [problem.between(rng, -limit, limit) for _ in values]
  row.append(sum(c * v for c, v in zip(row, values)))
  return row if any(row[:-1]) else None


def generate(
  rng: np.random.Generator,
  *,
  unknowns: int,
  max_coefficient: int,
  max_constant: int,
  max_value: int,
) -> problem.Example | None:
  if not 1 <= unknowns <= len(_UNKNOWNS):
    raise ValueError(f'unknowns={unknowns}: must be from 1 to {len(_UNKNOWNS)}')
  values = [
    problem.between(rng, -max_value, max_value) for _ in range(unknowns)
  ]
  prompt, steps, rows = [], [], []
  for _ in range(unknowns):
    row = _draw(rng, values, max_coefficient)
    if row is None:
      return None
    constant = problem.between(rng, -max_constant, max_constant)
    prompt.append(_show(row, constant))
    if constant:
      steps.append(_show(row))
    rows.append(row)
  for unknown in range(unknowns - 1, 0, -1):
    rows, new = _eliminate(rows, unknown)
    steps += [_show(row) for row in new]
  if not rows or not rows[0][0]:
    return None
  return problem.make_example(
    NAME, ';'.join(prompt) + ':', steps, str(values[0])
  )


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=dict(
    unknowns=1,  # 1 to 3, and as many equations
    max_coefficient=9,  # coefficients are drawn from -this to this
    max_constant=20,  # constants are drawn from -this to this
    max_value=20,  # solutions are drawn from -this to this
  ),
  harder=dict(unknowns=2, max_constant=0),
  alphabet=problem.DIGITS + '+-=;:xyz ' + problem.MARKER,
  answer_chars=problem.DIGITS + '+- ',
  kernel='integer',
)
