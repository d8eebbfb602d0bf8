"""Paths through mazes."""

import collections

from jaxrl_reason.rewards.puzzles import answers, instances

WALL, FREE, START, GOAL = '#.SG'
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
MAX_SIDE = 100
Cell = tuple[int, int]


def maze(text: str, *, maze, shortest=False) -> float | None:
  """Checks a path from S to G that goes through no wall and ends at G.

  maze: rows of text, # a wall, . free, one S and one G. shortest: only a path
  of the fewest steps is right. Answers: moves (U D L R, words, arrows) or the
  cells (row, column) from S to G, counted from 0 (as many as the maze has
  cells, at most). The share: of a path that ends elsewhere, how much nearer to
  G it came; of one that is not the shortest, shortest / length. 0 through a
  wall.
  """
  rows = _rows(maze)
  instances.flag('shortest', shortest)
  cells = {
    (r, c): symbol
    for r, row in enumerate(rows)
    for c, symbol in enumerate(row)
    if symbol != WALL
  }
  start, goal = (
    next(cell for cell, symbol in cells.items() if symbol == end)
    for end in (START, GOAL)
  )
  distance = _distances(cells, goal)
  if start not in distance:
    instances.refuse('maze', 'no path from S to G')
  path = _path(text, start, len(rows) * len(rows[0]))
  if path is None:
    return None
  if path[0] != start or not _walks(path, cells):
    return 0.0
  if path[-1] != goal:
    # Never 1, however near: 1 is for those who arrive.
    return max(0.0, 1 - distance[path[-1]] / distance[start])
  return distance[start] / (len(path) - 1) if shortest else 1.0


def _rows(maze) -> list[str]:
  rows = instances.items('maze', maze, 1, MAX_SIDE)
  for row in rows:
    if not isinstance(row, str) or not 0 < len(row) <= MAX_SIDE:
      instances.refuse('maze', f'{row!r:.60} is no row')
    if len(row) != len(rows[0]) or row.strip(WALL + FREE + START + GOAL):
      instances.refuse('maze', f'{row!r:.60} has another length or symbol')
  if [''.join(rows).count(end) for end in (START, GOAL)] != [1, 1]:
    instances.refuse('maze', 'not one S and one G')
  return rows


def _distances(cells: dict, goal: Cell) -> dict[Cell, int]:
  """Steps to the goal from every cell that can reach it."""
  found, queue = {goal: 0}, collections.deque([goal])
  while queue:
    r, c = queue.popleft()
    for dr, dc in STEPS:
      cell = r + dr, c + dc
      if cell in cells and cell not in found:
        found[cell] = found[r, c] + 1
        queue.append(cell)
  return found


def _path(text: str, start: Cell, limit: int) -> list[Cell] | None:
  steps = answers.moves(text, limit)
  if steps is None:
    numbers = answers.integers(text, 2 * limit)
    if numbers is None or len(numbers) % 2:
      return None
    return list(zip(numbers[::2], numbers[1::2]))
  path = [start]
  for dr, dc in steps:
    path.append((path[-1][0] + dr, path[-1][1] + dc))
  return path


def _walks(path: list[Cell], cells: dict) -> bool:
  """Whether every step goes to a neighbouring cell that is free."""
  return all(cell in cells for cell in path) and all(
    (b[0] - a[0], b[1] - a[1]) in STEPS for a, b in zip(path, path[1:])
  )
