"""Generates conversions of numbers to another base.

  prompt    1011_2>3:             or, to base 10,   1011_2>10:
  solution  1 2 5 11/3=3r2 3/3=1r0 1/3=0r1#102      1 2 5 11#11

The steps first read the number digit by digit (times the base, plus the digit),
then divide it until it is 0. The remainders in reverse order are the answer. It
has no leading zeros.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'base_conversion'
NUMERALS = problem.DIGITS + 'abcdef'


def _read(digits: str, radix: int) -> list[int]:
  """Returns the value of every prefix of a numeral."""
  total, totals = 0, []
  for digit in digits:
    total = total * radix + NUMERALS.index(digit)
    totals.append(total)
  return totals


def _divide(number: int, radix: int) -> tuple[str, list[str]]:
  """Returns the numeral of a number, and its divisions."""
  digits, steps = '', []
  while number or not digits:
    quotient, rest = divmod(number, radix)
    steps.append(f'{number}/{radix}={quotient}r{rest}')
    digits = NUMERALS[rest] + digits
    number = quotient
  return digits, steps


def generate(
  rng: np.random.Generator,
  *,
  min_number: int,
  max_number: int,
  bases: tuple[int, ...],
) -> problem.Example | None:
  if not all(radix in range(2, len(NUMERALS) + 1) for radix in bases):
    raise ValueError(f'bases={bases}: must be from 2 to {len(NUMERALS)}')
  if len(set(bases)) < 2 or min_number < 0:
    raise ValueError(f'bases={bases}, min_number={min_number}: at least two '
                     'bases, and no negative numbers')  # fmt: skip
  start, end = problem.choose(rng, bases), problem.choose(rng, bases)
  if start == end:
    return None
  number = problem.between(rng, min_number, max_number)
  written, _ = _divide(number, start)
  # In base 10 the value is the numeral, so there are no reading steps.
  steps = [] if start == 10 else [str(n) for n in _read(written, start)]
  answer, divisions = _divide(number, end)
  if end != 10:
    # The last reading step is the dividend of the first division.
    steps = [*steps[:-1], *divisions]
  else:
    steps = steps[:-1]
  return problem.make_example(NAME, f'{written}_{start}>{end}:', steps, answer)


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_text,
  knobs=dict(
    min_number=2,
    max_number=99,
    bases=(2, 3, 10),  # two or more, 2 to 16; repeat a base to draw it more
  ),
  harder=dict(min_number=100, max_number=999),
  alphabet=NUMERALS + 'r/=_>: ' + problem.MARKER,
  answer_chars=NUMERALS,
  kernel='text',
)
