"""Generates and checks longest strictly increasing subsequences.

  prompt    3 1 4 2 5>
  solution  1 1 2 2 3#1 2 5

The steps are, for each number, the length of the longest increasing subsequence
that ends there. **Answers** are any longest subsequence: numbers of at most
`problem.MAX_DIGITS` digits, separated by spaces. (The length alone would be too
easy to guess.)
"""

import bisect

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'lis'


def lengths(numbers: list[int]) -> list[int]:
  """Computes the lengths of the longest subsequences that end at each
  number.
  """
  lowest: list[int] = []  # the lowest last number of each length
  out = []
  for number in numbers:
    at = bisect.bisect_left(lowest, number)
    lowest[at : at + 1] = [number]
    out.append(at + 1)
  return out


def _longest(numbers: list[int], ends: list[int]) -> list[int]:
  """Returns the longest subsequence that ends last, by a search from its end.

  Numbers with the same length never increase, so the nearest one always fits.
  """
  chosen: list[int] = []
  length = max(ends)
  for number, end in zip(reversed(numbers), reversed(ends)):
    if end == length:
      chosen.append(number)
      length -= 1
  return chosen[::-1]


def _parse(text: str, limit: int) -> list[int] | None:
  """Parses at most `limit` numbers, separated by spaces; None if malformed."""
  if text.strip(problem.DIGITS + ' '):
    return None
  words = text.split()
  if len(words) > limit or any(len(w) > problem.MAX_DIGITS for w in words):
    return None
  return [int(word) for word in words]


def check(text: str, example: problem.Example) -> float:
  answer, numbers = problem.final_answer(text), example['meta']['numbers']
  chosen = None if answer is None else _parse(answer, len(numbers))
  if chosen is None or len(chosen) != max(lengths(numbers)):
    return 0.0
  if any(a >= b for a, b in zip(chosen, chosen[1:])):
    return 0.0
  rest = iter(numbers)
  return float(all(number in rest for number in chosen))


def generate(
  rng: np.random.Generator, *, min_length: int, max_length: int, max_value: int
) -> problem.Example:
  length = problem.between(rng, min_length, max_length)
  numbers = [problem.below(rng, max_value + 1) for _ in range(length)]
  ends = lengths(numbers)
  prompt = ' '.join(map(str, numbers)) + '>'
  answer = ' '.join(map(str, _longest(numbers, ends)))
  return problem.make_example(
    NAME, prompt, [str(end) for end in ends], answer, numbers=numbers
  )


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=check,
  knobs=dict(
    min_length=5,  # numbers
    max_length=7,
    max_value=20,  # numbers are drawn from 0 to this
  ),
  harder=dict(min_length=9, max_length=12),
  alphabet=problem.DIGITS + '> ' + problem.MARKER,
  answer_chars=problem.DIGITS + ' ',
  kernel='subsequence',
)
