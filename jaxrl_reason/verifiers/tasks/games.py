"""Generates problems of environments (`rl.turns.env`), by environment name.

  guess        1-31?                        16; < 8; > ...
  frozen_lake  SFFF FHFH FFFH HFFG>         R; F ...
  sudoku       1.34 3412 2.43 43.1>         a2=2; + ...
  lookup       4?? (two look-ups from 4)    ?4; 7 ?7; 2 #2
  tic_tac_toe  X...O....>                   1; 3 ...
  subtraction  17/3>                        1; 15> ...
  kuhn_poker   9JK>                         J> p; b> b;

`turns` of a problem has the turns of a good player and the observations. The
verdict depends on the rewards of the environment, which an evaluation adds to
the example as 'gained'. Only `lookup` has an answer in the text.
"""

import functools
import operator
from collections.abc import Callable

import numpy as np

from jaxrl_reason.verifiers.tasks import problem, sudoku4

LINES = ('012', '345', '678', '036', '147', '258', '048', '246')
RANKS = '23456789TJQKA'
_STEPS = {'L': (0, -1), 'R': (0, 1), 'U': (-1, 0), 'D': (1, 0)}


def _example(task: str, prompt: str, turns: list, answer: str, **meta) -> dict:
  return {
    'prompt': prompt,
    'solution': ''.join(turn + observation for turn, observation in turns),
    'turns': turns,
    'answer': answer,
    'meta': meta,
    'task': task,
  }


def won(text: str, example: problem.Example) -> float:
  """Returns whether the episode succeeded: its rewards exceed 0.5."""
  del text
  return float(example.get('gained', 0.0) > 0.5)


def guess(rng: np.random.Generator, *, largest: int) -> problem.Example:
  number, low, high = problem.between(rng, 1, largest), 1, largest
  turns, at = [], 0
  while at != number:
    at = (low + high) // 2
    reply = '=' if at == number else '><'[number < at]
    turns.append([f'{at};', reply])
    low, high = (at + 1, high) if at < number else (low, at - 1)
  turns[-1][1] = ''
  return _example('guess', f'1-{largest}?', turns, str(number), number=number)


def _path(lake: str) -> str | None:
  """Returns the shortest path from S to G on ice."""
  begun = lake.index('S')
  ways, queue = {begun: ''}, [begun]
  for at in queue:
    for name, (down, right) in _STEPS.items():
      row, column = at // 4 + down, at % 4 + right
      to = row * 4 + column
      inside = 0 <= row < 4 and 0 <= column < 4
      if inside and to not in ways and lake[to] != 'H':
        ways[to] = ways[at] + name
        queue.append(to)
  return ways.get(lake.index('G'))


def frozen_lake(
  rng: np.random.Generator, *, holes: int
) -> problem.Example | None:
  cells = problem.shuffled(rng, 'SG' + 'H' * holes + 'F' * (14 - holes))
  lake = ''.join(cells)
  path = _path(lake)
  if path is None:
    return None
  turns, at = [], lake.index('S')
  for move in path:
    down, right = _STEPS[move]
    at += 4 * down + right
    turns.append([f'{move};', lake[at]])
  turns[-1][1] = ''
  shown = ' '.join(lake[i : i + 4] for i in range(0, 16, 4)) + '>'
  return _example('frozen_lake', shown, turns, path, lake=lake)


def sudoku(
  rng: np.random.Generator, *, min_holes: int, max_holes: int
) -> problem.Example | None:
  puzzle = sudoku4.generate(rng, min_holes=min_holes, max_holes=max_holes)
  if puzzle is None:
    return None
  steps = puzzle['solution'].partition(problem.MARKER)[0].split(' ')
  turns = [[f'{step};', '+'] for step in steps]
  turns[-1][1] = ''
  prompt, answer = puzzle['prompt'], puzzle['answer']
  return _example('sudoku', prompt, turns, answer, grid=prompt[:-1])


def lookup(rng: np.random.Generator, *, hops: int) -> problem.Example:
  table = problem.shuffled(rng, range(10))
  start = at = problem.below(rng, 10)
  turns = []
  for _ in range(hops):
    turns.append([f'?{at};', str(table[at])])
    at = table[at]
  turns.append([f'{problem.MARKER}{at}', ''])
  return _example(
    'lookup', f'{start}' + '?' * hops, turns, str(at), table=table
  )


def _completing(board: str, who: str) -> list[int]:
  free_cells = []
  for line in LINES:
    cells = [int(c) for c in line]
    free = [c for c in cells if board[c] == '.']
    if len(free) == 1 and all(board[c] == who for c in cells if c != free[0]):
      free_cells += free
  return free_cells


def opponent(board: str) -> int:
  """Returns the next cell of the opponent in `envs.tic_tac_toe`."""
  order = [4, 0, 2, 6, 8, 1, 3, 5, 7]
  free = [c for c in order if board[c] == '.']
  both = [_completing(board, who) for who in 'OX']
  candidates = next((cells for cells in both if cells), free)
  return min(candidates, key=order.index)


def _put(board: str, cell: int, who: str) -> str:
  return board[:cell] + who + board[cell + 1 :]


@functools.cache
def _best(board: str) -> tuple[float, list]:
  """Returns (the best result of X against the opponent, its turns)."""
  best = (-1.0, [])
  for cell in range(9):
    if board[cell] != '.':
      continue
    wins = cell in _completing(board, 'X')
    after_x = _put(board, cell, 'X')
    if wins or '.' not in after_x:
      result = (1.0 if wins else 0.5), [[f'{cell + 1};', '']]
    else:
      at = opponent(after_x)
      lost, after = at in _completing(after_x, 'O'), _put(after_x, at, 'O')
      value, rest = (0.0, []) if lost else _best(after)
      result = value, [[f'{cell + 1};', str(at + 1) if rest else ''], *rest]
    best = max(best, result, key=operator.itemgetter(0))
  return best


def tic_tac_toe(
  rng: np.random.Generator, *, played: int
) -> problem.Example | None:
  if not 1 <= played <= 2:  # the only empty board cannot be split
    raise ValueError(f'played={played}: must be 1 or 2')
  board = '.' * 9
  for cell in problem.shuffled(rng, range(9))[: 2 * played]:
    board = _put(board, cell, 'XO'[board.count('.') % 2 == 0])
  value, turns = _best(board)
  if value < 1:
    return None
  moves = ''.join(turn[0] for turn, _ in turns)
  return _example('tic_tac_toe', board + '>', turns, moves, board=board)


def taken(left: int, most: int) -> int:
  """Returns the move of the best player in `envs.subtraction`."""
  return left % (most + 1) or left // (most + 1) % most + 1


def subtraction(
  rng: np.random.Generator, *, largest: int, most: int, skill: float
) -> problem.Example | None:
  limit = problem.between(rng, 2, most)
  start = left = problem.between(rng, limit + 1, largest)
  if left % (limit + 1) == 0:
    return None
  turns = []
  while left:
    own = taken(left, limit)
    if rng.random() >= skill:
      own = problem.between(rng, 1, min(limit, left))
    left -= own
    left -= taken(left, limit) if left else 0
    turns.append([f'{own};', f'{left}>' if left else ''])
  prompt, moves = f'{start}/{limit}>', ''.join(own for own, _ in turns)
  return _example('subtraction', prompt, turns, moves, left=start, most=limit)


def kuhn_poker(rng: np.random.Generator, *, ranks: int) -> problem.Example:
  """Deals one game of random moves, as one of its players reads it."""
  ranks = problem.shuffled(rng, RANKS[-ranks:])[:3]
  deck = ''.join(sorted(ranks, key=RANKS.index))
  card = problem.choose(rng, deck)
  played, seat = '', problem.below(rng, 2)
  while played not in ('pp', 'bp', 'bb', 'pbp', 'pbb'):
    played += problem.choose(rng, 'pb')
  # The policy reads its card, and each move of the other player.
  turns = [['', f'{card}>']]
  for i, move in enumerate(played):
    if i % 2 == seat:
      turns.append([f'{move};', ''])
    elif i + 1 < len(played):
      turns[-1][1] += f'{move}>'
  return _example('kuhn_poker', f'{deck}>', turns, played, deck=deck)


def _number(example: problem.Example) -> str:
  return example['answer']


def _table(example: problem.Example) -> str:
  return f'{example["prompt"]} {example["meta"]["table"]}'


def _game(
  generate: Callable, knobs: dict, harder: dict, alphabet: str, **rest
) -> problem.Task:
  return problem.Task(
    name=generate.__name__,
    generate=generate,
    knobs=knobs,
    harder=harder,
    alphabet=alphabet,
    **dict(check=won, answer_chars='', kernel=None) | rest,
  )


GAMES = {
  game.name: game
  for game in (
    _game(
      guess,
      dict(largest=31),  # numbers are from 1 to this
      dict(largest=99),
      '0123456789-?<>=;',
      identity=_number,
    ),
    _game(frozen_lake, dict(holes=4), dict(holes=6), 'SFHGLRUD >;?'),
    _game(
      sudoku,
      dict(min_holes=3, max_holes=6),  # free cells, 1 to 12
      dict(min_holes=8, max_holes=9),
      '1234abcd.=> ;+-?',
    ),
    _game(
      lookup,
      dict(hops=2),
      dict(hops=3),
      '0123456789?;#',
      identity=_table,
      check=problem.check_text,
      answer_chars='0123456789',
      kernel='text',
    ),
    _game(
      tic_tac_toe,
      dict(played=1),  # moves of each player on the first board, 1 or 2
      dict(played=2),
      '123456789.XO>;?',
    ),
    _game(
      subtraction,
      # Counters at most; largest limit of a move, 2 or more; share of the best
      # moves among those of the worked solutions, the others are random.
      dict(largest=20, most=4, skill=1.0),
      dict(largest=40, most=4, skill=1.0),
      '0123456789/>;',
    ),
    _game(
      kuhn_poker,
      dict(ranks=6),  # the three cards have different ranks among the highest
      dict(ranks=13),
      RANKS + 'pb>;',
    ),
  )
}
