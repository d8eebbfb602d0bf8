"""Generates and checks countdown: reach a target with + - * / and each number.

  prompt    3 7 2 5>24:
  solution  3*7=21 21+5=26 26-2=24#3*7+5-2

With `max_solutions`, problems have at most so many solutions. With
`max_tries`, incorrect attempts that end in a comma precede the correct
one, so that a model can learn to search:

  solution  3+7=10 10*2=20 20-5=15, 3*7=21 21+5=26 26-2=24#3*7+5-2

**Answers.** An answer is an expression of non-negative integers with + - * /,
ordinary precedence, parentheses and spaces between tokens, without unary minus.
Its value is an exact rational number. For n numbers, the checker and the device
kernel have these limits:
  - a number has at most `base.MAX_DIGITS` digits, leading zeros counted;
  - there are at most n pairs of parentheses, so at most 4n-1 tokens;
  - use='all': each number of the problem exactly once; 'subset': at most once.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'countdown'
_PRECEDENCE = {'+': 1, '-': 1, '*': 2, '/': 2}
_TOKEN = re.compile(r' *([0-9]+|[-+*/()])')


def max_tokens(n_numbers: int) -> int:
  return 4 * n_numbers - 1


# --- the checker --------------------------------------------------------------


def tokenize(
  text: str, limit: int, *, max_digits: int = problem.MAX_DIGITS
) -> list[str] | None:
  """Splits an expression into tokens; None if it is malformed or has more than
  `limit` tokens.
  """
  text = text.strip(' ')
  tokens, at = [], 0
  while at < len(text):
    match = _TOKEN.match(text, at)
    if match is None or len(tokens) == limit:
      return None
    if match[1].isdigit() and len(match[1]) > max_digits:
      return None
    tokens.append(match[1])
    at = match.end()
  return tokens


def _factor(tokens: list[str]) -> Fraction:
  token = tokens.pop()
  if token == '(':
    value = _sum(tokens)
    if tokens.pop() != ')':
      raise ValueError('unbalanced')
    return value
  return Fraction(int(token))


def _product(tokens: list[str]) -> Fraction:
  value = _factor(tokens)
  while tokens and tokens[-1] in '*/':
    if tokens.pop() == '*':
      value *= _factor(tokens)
    else:
      value /= _factor(tokens)
  return value


def _sum(tokens: list[str]) -> Fraction:
  value = _product(tokens)
  while tokens and tokens[-1] in '+-':
    if tokens.pop() == '+':
      value += _product(tokens)
    else:
      value -= _product(tokens)
  return value


def evaluate(tokens: list[str]) -> Fraction | None:
  """Computes the value; None if malformed, or if it divides by zero."""
  rest = tokens[::-1]
  try:
    value = _sum(rest)
  except (IndexError, ValueError, ZeroDivisionError):
    return None
  return None if rest else value


def check(text: str, example: problem.Example) -> float:
  answer, meta = problem.final_answer(text), example['meta']
  if answer is None:
    return 0.0
  n_numbers = len(meta['numbers'])
  tokens = tokenize(answer, max_tokens(n_numbers))
  if tokens is None or tokens.count('(') > n_numbers:
    return 0.0
  used = Counter(int(token) for token in tokens if token.isdigit())
  available = Counter(meta['numbers'])
  if not (used == available if meta['use'] == 'all' else used <= available):
    return 0.0
  return float(evaluate(tokens) == meta['target'])


# --- the generator ------------------------------------------------------------


def _moves(a: int, b: int, ops: str) -> list[tuple[str, int]]:
  """Returns (operator, value) of a and b. Values are positive integers, which
  keeps the steps short.
  """
  values = {'+': a + b, '-': a - b, '*': a * b}
  if b > 1 and a % b == 0:
    values['/'] = a // b
  return [(op, values[op]) for op in ops if values.get(op, 0) > 0]


def _wrap(part: str, precedence: int, needed: int) -> str:
  return part if precedence >= needed else f'({part})'


def _derive(rng, numbers, ops) -> tuple[int, list[str], str] | None:
  """Combines random pairs of numbers to (value, steps, expression)."""
  parts = [(number, str(number), 3) for number in numbers]
  steps = []
  while len(parts) > 1:
    a, left, p_left = parts.pop(problem.below(rng, len(parts)))
    b, right, p_right = parts.pop(problem.below(rng, len(parts)))
    moves = _moves(a, b, ops)
    if not moves:
      return None
    op, value = problem.choose(rng, moves)
    steps.append(f'{a}{op}{b}={value}')
    p = _PRECEDENCE[op]
    right = _wrap(right, p_right, p + (op in '-/'))
    parts.append((value, f'{_wrap(left, p_left, p)}{op}{right}', p))
  return parts[0][0], steps, parts[0][1]


def solutions(numbers: Sequence[int], target: int, ops: str, use: str) -> int:
  """Counts the expressions with the value `target`, up to the order of both
  sides of + and *. Values in between are positive integers. For four numbers
  this takes about 5 ms.
  """
  found = set()

  def combine(parts: list[tuple[int, str]]) -> None:
    if use == 'subset' or len(parts) == 1:
      found.update(text for value, text in parts if value == target)
    for i, j in itertools.permutations(range(len(parts)), 2):
      (a, left), (b, right) = parts[i], parts[j]
      rest = [part for k, part in enumerate(parts) if k not in (i, j)]
      for op, value in _moves(a, b, ops):
        sides = sorted((left, right)) if op in '+*' else (left, right)
        combine([*rest, (value, f'({op.join(sides)})')])

  combine([(number, str(number)) for number in numbers])
  return len(found)


def _subset(rng, numbers: list[int], use: str) -> list[int]:
  if use == 'all':
    return numbers
  return numbers[: problem.between(rng, min(2, len(numbers)), len(numbers))]


def generate(
  rng: np.random.Generator,
  *,
  min_numbers: int,
  max_numbers: int,
  max_number: int,
  max_target: int,
  ops: str,
  use: str,
  max_tries: int,
  max_solutions: int,
) -> problem.Example | None:
  if use not in ('all', 'subset'):
    raise ValueError(f"use={use!r}: must be 'all' or 'subset'")
  count = problem.between(rng, min_numbers, max_numbers)
  numbers = [problem.between(rng, 1, max_number) for _ in range(count)]
  derivation = _derive(rng, _subset(rng, numbers, use), ops)
  if derivation is None or derivation[0] > max_target:
    return None
  target, steps, expression = derivation
  if max_solutions and solutions(numbers, target, ops, use) > max_solutions:
    return None
  tries = []
  for _ in range(problem.between(rng, 0, max_tries)):
    wrong = _derive(rng, _subset(rng, numbers, use), ops)
    if wrong is not None and wrong[0] != target:
      tries.append(' '.join(wrong[1]) + ',')
  numbers = problem.shuffled(rng, numbers)
  prompt = f'{" ".join(map(str, numbers))}>{target}:'
  return problem.make_example(
    NAME,
    prompt,
    tries + steps,
    expression,
    numbers=numbers,
    target=target,
    use=use,
  )


def identity(example: problem.Example) -> str:
  """Returns the identity of a problem, for any order of its numbers."""
  meta = example['meta']
  return f'{sorted(meta["numbers"])}>{meta["target"]}'


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=check,
  knobs=dict(
    min_numbers=3,  # numbers of a problem; at most 6 for the device kernel
    max_numbers=3,
    max_number=9,  # numbers are drawn from 1 to this
    max_target=30,  # targets are drawn from 1 to this
    ops='+-*',  # any of + - * /
    use='all',  # 'all': every number once; 'subset': at most once
    max_tries=0,  # largest number of incorrect attempts in a solution
    max_solutions=0,  # most solutions of a problem; 0: no limit
  ),
  harder=dict(min_numbers=4, max_numbers=4, max_target=99),
  alphabet=problem.DIGITS + '+-*/()=>:, ' + problem.MARKER,
  answer_chars=problem.DIGITS + '+-*/() ',
  kernel='countdown',
  identity=identity,
  choices=dict(ops='+-*/'),
)
