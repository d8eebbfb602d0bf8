"""Generates sudokus of 4 x 4: each row, column and 2 x 2 box has 1, 2, 3, 4.

  prompt    1.34 3412 2.43 43.1>
  solution  a2=2 c2=1 d3=2#1234 3412 2143 4321

Dots are free cells. A step has the row (a to d), the column (1 to 4) and the
only possible digit. The answer is the grid. All grids can be solved by such
steps, so the solution is unique.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'sudoku4'
SIDE = 4
FREE = '.'
_CELLS = range(SIDE * SIDE)


def _peers(cell: int) -> list[int]:
  r, c = divmod(cell, SIDE)
  return [
    other
    for other in _CELLS
    if other != cell
    and (
      other // SIDE == r
      or other % SIDE == c
      or (other // SIDE // 2, other % SIDE // 2) == (r // 2, c // 2)
    )
  ]


PEERS = [_peers(cell) for cell in _CELLS]


def _fits(grid: list[str], cell: int) -> list[str]:
  """Returns the digits that no peer of the cell has."""
  taken = {grid[other] for other in PEERS[cell]}
  return [digit for digit in '1234' if digit not in taken]


def _filled(rng: np.random.Generator) -> list[str] | None:
  """Samples a full grid, or None if a cell has no possible digit."""
  grid = [FREE] * len(_CELLS)
  for cell in _CELLS:
    fits = _fits(grid, cell)
    if not fits:
      return None
    grid[cell] = problem.choose(rng, fits)
  return grid


def solve(grid: list[str]) -> list[str] | None:
  """Solves `grid` in place by forced cells. Returns the steps, or None."""
  steps = []
  while FREE in grid:
    forced = (
      (cell, fits[0])
      for cell in _CELLS
      if grid[cell] == FREE and len(fits := _fits(grid, cell)) == 1
    )
    cell, digit = next(forced, (None, None))
    if cell is None:
      return None
    grid[cell] = digit
    steps.append(f'{"abcd"[cell // SIDE]}{cell % SIDE + 1}={digit}')
  return steps


def _show(grid: list[str]) -> str:
  rows = (grid[i : i + SIDE] for i in range(0, len(grid), SIDE))
  return ' '.join(map(''.join, rows))


def generate(
  rng: np.random.Generator, *, min_holes: int, max_holes: int
) -> problem.Example | None:
  if not 1 <= min_holes <= max_holes <= 12:
    raise ValueError(
      f'min_holes={min_holes}, max_holes={max_holes}: must be from 1 to 12'
    )
  full = _filled(rng)
  if full is None:
    return None
  holes = problem.between(rng, min_holes, max_holes)
  grid = list(full)
  for cell in problem.shuffled(rng, _CELLS)[:holes]:
    grid[cell] = FREE
  steps = solve(list(grid))
  if steps is None:
    return None
  return problem.make_example(NAME, _show(grid) + '>', steps, _show(full))
