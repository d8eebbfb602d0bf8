"""Small seeded instances of every puzzle, and what is right by definition.

`CASES[name](rng)` gives an instance and pairs (answer, whether it solves it):
all candidates where there are few, or a sample. Each is judged here by its own
means, written from the rules and without the checkers.
"""

import itertools
import random
from fractions import Fraction

NAMES = ['Ann', 'Bo', 'Cy', 'Di']


def trees(rng, numbers):
  """A random expression over the numbers, and its value or None."""
  if len(numbers) == 1:
    return str(numbers[0]), Fraction(numbers[0])
  cut = rng.randrange(1, len(numbers))
  left, a = trees(rng, numbers[:cut])
  right, b = trees(rng, numbers[cut:])
  op = rng.choice('+-*/')
  if a is None or b is None or (op == '/' and b == 0):
    value = None
  else:
    value = {'+': a + b, '-': a - b, '*': a * b, '/': b and a / b}[op]
  return f'({left}){op}({right})', value


def countdown(rng: random.Random):
  numbers = [rng.randint(1, 9) for _ in range(4)]
  rows = []
  for _ in range(60):
    used = rng.sample(numbers, rng.randint(2, 4))
    rows.append(trees(rng, used))
  whole = [v for _, v in rows if v is not None and v.denominator == 1]
  target = int(whole[0]) if whole else 3
  answers = [(text, value == target) for text, value in rows]
  extra = max(numbers) + 1
  answers.append((f'{target}', numbers.count(target) > 0))
  answers += [(f'{t}+{extra}-{extra}', False) for t, v in rows if v == target]
  return {'numbers': numbers, 'target': target}, answers


def game24(rng: random.Random):
  numbers, rows = [1, 2, 3, 4], []
  for _ in range(200):
    order = rng.sample(numbers, 4)
    rows.append(trees(rng, order))
  rows = [(text, value == 24) for text, value in rows]
  rows += [('1*2*3*4', True), ('2*3*4', False), ('24', False)]
  rows += [('(1+2+3)*4', True), ('1*2*3*4=24', True), ('1*2*3*4=25', False)]
  return {'numbers': numbers}, rows


def truth(statement, knight):
  kind, *rest = statement
  if kind == 'knight':
    return knight[rest[0]]
  if kind == 'knave':
    return not knight[rest[0]]
  values = [truth(s, knight) for s in rest]
  if kind == 'and':
    return False not in values
  if kind == 'or':
    return True in values
  if kind == 'not':
    return values == [False]
  if kind == 'same':
    return len(set(values)) == 1
  return values != [True, False]


def knights_knaves(rng: random.Random):
  def draw(depth):
    kind = rng.choice(
      ['knight', 'knave', 'and', 'or', 'not', 'same', 'implies']
    )
    if depth == 0 or kind in ('knight', 'knave'):
      return [rng.choice(['knight', 'knave']), rng.choice(NAMES)]
    n = 1 if kind == 'not' else 2
    return [kind, *(draw(depth - 1) for _ in range(n))]

  said = [[name, draw(2)] for name in NAMES]
  answers = []
  for kinds in itertools.product((True, False), repeat=4):
    knight = dict(zip(NAMES, kinds))
    right = all(truth(s, knight) == knight[who] for who, s in said)
    word = {True: 'knight', False: 'knave'}
    text = ', '.join(f'{n} is a {word[k]}' for n, k in knight.items())
    answers.append((text, right))
    answers.append((''.join('K' if k else 'N' for k in kinds), right))
    answers.append((text.rpartition(',')[0], False))
  return {'people': NAMES, 'statements': said}, answers


def zebra(rng: random.Random):
  attributes = {
    'colour': ['red', 'blue', 'green'],
    'pet': ['cat', 'dog', 'emu'],
  }
  values = [*attributes['colour'], *attributes['pet']]
  test = {
    'same': lambda d: d == 0, 'different': lambda d: d != 0,
    'left': lambda d: d == 1, 'right': lambda d: d == -1,
    'next': lambda d: d in (1, -1), 'before': lambda d: d > 0,
    'after': lambda d: d < 0,
  }  # fmt: skip
  clues = [
    [rng.choice(list(test)), *rng.sample(values, 2)] for _ in range(3)
  ] + [[rng.choice(['at', 'not_at']), rng.choice(values), rng.randint(1, 3)]]
  answers = []
  for colours in itertools.permutations(attributes['colour']):
    for pets in itertools.permutations(attributes['pet']):
      place = {v: i for row in (colours, pets) for i, v in enumerate(row, 1)}
      right = all(
        (place[a] == b) == (kind == 'at')
        if kind in ('at', 'not_at')
        else test[kind](place[b] - place[a])
        for kind, a, b in clues
      )
      rows = [
        f'{i}: {c}, {p}' for i, (c, p) in enumerate(zip(colours, pets), 1)
      ]
      answers.append(('\n'.join(rows), right))
      by = f'colour: {", ".join(colours)}\npet: {", ".join(pets)}'
      answers.append((by, right))
      answers.append(('\n'.join(rows[:2]), False))
      answers.append((by.replace(pets[0], pets[1]), False))
  return {'attributes': attributes, 'clues': clues}, answers


def fill(rng, side):
  """A full sudoku: a pattern with digits, rows and columns permuted."""
  n = side * side

  def bands():
    return [
      b * side + i
      for b in rng.sample(range(side), side)
      for i in rng.sample(range(side), side)
    ]

  digits, rows, columns = rng.sample(range(1, n + 1), n), bands(), bands()
  return [
    [digits[(side * (r % side) + r // side + c) % n] for c in columns]
    for r in rows
  ]


def right_sudoku(full, grid):
  n = len(full)
  side = int(n**0.5)
  boxes = [
    [full[r + i][c + j] for i in range(side) for j in range(side)]
    for r in range(0, n, side)
    for c in range(0, n, side)
  ]
  digits = list(range(1, n + 1))
  kept = all(g in (0, f) for fs, gs in zip(full, grid) for f, g in zip(fs, gs))
  return kept and all(sorted(u) == digits for u in (*full, *zip(*full), *boxes))


def sudoku(rng: random.Random):
  side = rng.choice([2, 3])
  full = fill(rng, side)
  grid = [[x * (rng.random() < 0.5) for x in row] for row in full]

  def show(rows):
    return '\n'.join(' '.join(map(str, row)) for row in rows)

  answers = [(show(full), True)]
  for r, c in itertools.product(range(side**2), repeat=2):
    wrong = [list(row) for row in full]
    wrong[r][c] = wrong[r][c] % side**2 + 1
    answers.append((show(wrong), right_sudoku(wrong, grid)))
  for _ in range(10):
    other = fill(rng, side)
    answers.append((show(other), right_sudoku(other, grid)))
  return {'grid': grid}, answers


def n_queens(rng: random.Random):
  size = rng.choice([4, 5])

  def free(cols):
    return all(
      a != b and abs(a - b) != j - i
      for (i, a), (j, b) in itertools.combinations(enumerate(cols), 2)
    )

  boards = list(itertools.product(range(size), repeat=size))
  fixed = rng.choice([b for b in boards if free(b)])[0]
  answers = []
  for cols in rng.sample(boards, 150) + [b for b in boards if free(b)]:
    right = free(cols) and cols[0] == fixed
    rows = ['.' * c + 'Q' + '.' * (size - 1 - c) for c in cols]
    answers.append(('\n'.join(rows), right))
    answers.append((str([[r, c] for r, c in enumerate(cols)]), right))
    if set(cols) == set(range(size)):
      answers.append((' '.join(map(str, cols)), right))
      answers.append((' '.join(str(c + 1) for c in cols), right))
  return {'size': size, 'queens': [[0, fixed]]}, answers


def maze(rng: random.Random):
  while True:
    cells = ['.'] * 7 + ['#'] * 3 + ['S', 'G']
    rng.shuffle(cells)
    rows = [''.join(cells[i : i + 4]) for i in (0, 4, 8)]
    ends = {}
    for n in range(1, 8):
      for moves in itertools.product('UDLR', repeat=n):
        ends[''.join(moves)] = walk(rows, moves)
      if any(ends[m] for m in ends if len(m) == n):
        break
    good = [m for m in ends if ends[m]]
    if good:
      break
  shortest = min(map(len, good))
  some = rng.sample(sorted(ends), min(len(ends), 200)) + good
  answers = [(m, ends[m]) for m in some]
  # There and back again at the end: valid, but not the shortest.
  back = {'U': 'D', 'D': 'U', 'L': 'R', 'R': 'L'}
  longer = good[0] + back[good[0][-1]] + good[0][-1]
  strict = rng.random() < 0.5
  answers.append((longer, not strict))
  assert all(len(m) == shortest for m in good)
  return {'maze': rows, 'shortest': strict}, answers


def walk(rows, moves):
  r, c = next((r, c) for r in range(3) for c in range(4) if rows[r][c] == 'S')
  for m in moves:
    r, c = r + (m == 'D') - (m == 'U'), c + (m == 'R') - (m == 'L')
    if not (0 <= r < 3 and 0 <= c < 4) or rows[r][c] == '#':
      return False
  return rows[r][c] == 'G'


def sorting(rng: random.Random):
  descending = rng.random() < 0.5
  items = [rng.randint(-9, 9) for _ in range(4)]
  answers = []
  for order in itertools.permutations(items):
    steps = [b - a for a, b in zip(order, order[1:])]
    right = all((s <= 0 if descending else s >= 0) for s in steps)
    answers.append((str(list(order)), right))
    answers.append((' '.join(map(str, order[1:])), False))
  return {'items': items, 'descending': descending}, answers


def lis(rng: random.Random):
  numbers = [rng.randint(-9, 9) for _ in range(6)]
  chosen = {c for n in range(1, 7) for c in itertools.combinations(numbers, n)}
  rising = {c for c in chosen if list(c) == sorted(set(c))}
  longest = max(map(len, rising))
  return {'numbers': numbers}, [
    (' '.join(map(str, c)), c in rising and len(c) == longest) for c in chosen
  ] + [
    (
      ' '.join(map(str, sorted(range(longest)))),
      tuple(range(longest)) in rising,
    )
  ]


def numeral(n, base):
  digits = ''
  while n:
    digits = '0123456789abcdefghijklmnopqrstuvwxyz'[n % base] + digits
    n //= base
  return digits or '0'


def base_conversion(rng: random.Random):
  n, a, b = rng.randint(1, 10**9), rng.randint(2, 36), rng.randint(2, 36)
  answers = [(numeral(m, b), m == n) for m in range(n - 3, n + 4)]
  answers += [
    (f'00{numeral(n, b).upper()}', True),
    (f'-{numeral(n, b)}', False),
  ]
  return {'number': numeral(n, a), 'from_base': a, 'to_base': b}, answers


def satisfiability(rng: random.Random):
  clauses = [
    [
      x * rng.choice([1, -1])
      for x in rng.sample(range(1, 5), rng.randint(1, 3))
    ]
    for _ in range(5)
  ]
  answers = []
  for bits in itertools.product((1, 0), repeat=4):
    literals = {i if bit else -i for i, bit in enumerate(bits, 1)}
    right = all(literals & set(clause) for clause in clauses)
    in_order = sorted(literals, key=abs)
    answers += [
      (' '.join(map(str, in_order)), right),
      ('v ' + ' '.join(map(str, in_order)) + ' 0', right),
      (''.join('FT'[b] for b in bits), right),
      (''.join(map(str, bits)), right),
      (', '.join(f'x{i}={bool(b)}' for i, b in enumerate(bits, 1)), right),
      (' '.join(map(str, [*in_order[:3], -in_order[0]])), False),
    ]
  return {'clauses': clauses, 'variables': 4}, answers


def graph_colouring(rng: random.Random):
  every = list(itertools.combinations(NAMES, 2))
  edges = [list(e) for e in rng.sample(every, 4)]
  answers = []
  for colours in itertools.product('123', repeat=4):
    of = dict(zip(NAMES, colours))
    right = not any(of[a] == of[b] for a, b in edges)
    answers.append((''.join(colours), right))
    answers.append((', '.join(f'{n}={c}' for n, c in of.items()), right))
    answers.append((', '.join(f'{n}={c}' for n, c in [*of.items()][1:]), False))
  return {'nodes': NAMES, 'edges': edges, 'colours': 3}, answers


def scheduling(rng: random.Random):
  jobs = NAMES[:3]
  durations = {job: rng.randint(1, 2) for job in jobs}
  capacity, use = 2, {job: rng.randint(1, 2) for job in jobs}
  first, then = rng.sample(jobs, 2)
  window = [rng.randint(0, 1), rng.randint(3, 5)]
  instance = {
    'durations': durations,
    'precedence': [[first, then]],
    'windows': {jobs[0]: window},
    'resources': {'machine': {'capacity': capacity, 'use': use}},
    'deadline': 5,
  }
  answers = []
  for times in itertools.product(range(6), repeat=3):
    start = dict(zip(jobs, times))
    busy = {j: set(range(start[j], start[j] + durations[j])) for j in jobs}
    right = (
      all(max(b) < 5 for b in busy.values())
      and max(busy[first]) < min(busy[then])
      and busy[jobs[0]] <= set(range(*window))
      and all(sum(use[j] for j in jobs if t in busy[j]) <= 2 for t in range(9))
    )
    answers.append((', '.join(f'{j}={t}' for j, t in start.items()), right))
  return instance, answers


CASES = {
  'base_conversion': base_conversion,
  'countdown': countdown,
  'game24': game24,
  'graph_colouring': graph_colouring,
  'knights_knaves': knights_knaves,
  'lis': lis,
  'maze': maze,
  'n_queens': n_queens,
  'satisfiability': satisfiability,
  'scheduling': scheduling,
  'sorting': sorting,
  'sudoku': sudoku,
  'zebra': zebra,
}
