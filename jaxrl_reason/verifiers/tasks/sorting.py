"""Generates lists of numbers to sort by insertion.

  prompt    5 3 9 1>
  solution  3 5, 3 5 9#1 3 5 9

The steps are the sorted prefixes of two, three, ... numbers. The last one is
the answer, which is compared character by character.
"""

import bisect

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'sorting'


def generate(
  rng: np.random.Generator, *, min_length: int, max_length: int, max_value: int
) -> problem.Example:
  length = problem.between(rng, min_length, max_length)
  numbers = [problem.below(rng, max_value + 1) for _ in range(length)]
  prefix, states = [], []
  for number in numbers:
    bisect.insort(prefix, number)
    states.append(' '.join(map(str, prefix)))
  prompt = ' '.join(map(str, numbers)) + '>'
  return problem.make_example(
    NAME, prompt, [', '.join(states[1:-1])], states[-1]
  )


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_text,
  knobs=dict(
    min_length=4,  # numbers
    max_length=5,
    max_value=20,  # numbers are drawn from 0 to this
  ),
  harder=dict(min_length=7, max_length=8),
  alphabet=problem.DIGITS + ',> ' + problem.MARKER,
  answer_chars=problem.DIGITS + ' ',
  kernel='text',
)
