"""Generates chained arithmetic, which is evaluated from left to right.

  prompt    7+5-3*2+8=           or, modulo 10,   7+5-3*2+8%10=
  solution  12 9 18#26                            2 9 8#6

With `width`, blanks pad every chain to this number of characters. The operands
then have the same distance from their result for all lengths, so that a model
can generalize from short chains to longer ones.

With `numbered`, steps begin with their number, 112 29 318#26. A model can then
write a step without the text before the previous step.

The solution has the result of every operation, and the last result is the
answer. `*` does not bind tighter than `+`, so every step is one look-up of
(result, operator, operand), which a small model can learn.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'arithmetic'


def generate(
  rng: np.random.Generator,
  *,
  min_ops: int,
  max_ops: int,
  min_operand: int,
  max_operand: int,
  ops: str,
  modulus: int,
  min_total: int,
  max_total: int,
  width: int,
  numbered: bool,
) -> problem.Example | None:
  total = problem.between(rng, min_operand, max_operand)
  prompt, totals = [str(total)], []
  for _ in range(problem.between(rng, min_ops, max_ops)):
    op = problem.choose(rng, ops)
    operand = problem.between(rng, min_operand, max_operand)
    total = problem.OPERATIONS[op](total, operand)
    if modulus:
      total %= modulus
    if not min_total <= total <= max_total:
      return None
    prompt.append(f'{op}{operand}')
    totals.append(str(total))
  steps = totals[:-1]
  if numbered:
    steps = [f'{i + 1}{total}' for i, total in enumerate(steps)]
  ending = f'%{modulus}=' if modulus else '='
  return problem.make_example(
    NAME, ''.join(prompt).ljust(width) + ending, steps, totals[-1]
  )


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=dict(
    min_ops=4,  # operations in a problem, at least 1
    max_ops=6,
    min_operand=1,  # at least 0, because a sign would be an operator
    max_operand=9,
    ops='+-',  # any of + - *; repeat one to draw it more often
    modulus=0,  # every result is reduced modulo this; 0: none
    min_total=0,  # smallest allowed result; other chains are drawn again
    max_total=99,  # largest allowed result
    width=0,  # least number of characters, filled with blanks
    numbered=False,  # steps begin with their number
  ),
  harder=dict(min_ops=7, max_ops=9),
  alphabet=problem.DIGITS + '+-*%= ' + problem.MARKER,
  answer_chars=problem.DIGITS + '+- ',
  kernel='integer',
  choices=dict(ops=''.join(problem.OPERATIONS)),
)
