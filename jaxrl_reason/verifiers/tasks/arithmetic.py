"""Chained arithmetic, evaluated strictly from left to right.

  prompt    7+5-3*2+8=           or, modulo 10,   7+5-3*2+8%10=
  solution  12 9 18#26                            2 9 8#6

With `width`, blanks pad every chain to this number of characters. The inputs of
a total are then at the same distance from it for all lengths, so a model that
knows short chains can begin longer ones.

`numbered` steps begin with their number, 112 29 318#26. Each shows the position
in the chain, so earlier text is not needed.

The solution writes the running total after every operation; the last one is
the answer. `*` does not bind tighter than `+`: every step is one look-up of
(total, operator, operand), so a small model can do each, and none can do a
long chain at once.
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
    modulus=0,  # every total is reduced modulo this; 0: never
    min_total=0,  # bounds of every running total; a chain that
    max_total=99,  # leaves them is drawn again
    width=0,  # characters of a chain at least, blanks after it included
    numbered=False,  # steps begin with their number
  ),
  harder=dict(min_ops=7, max_ops=9),
  alphabet=problem.DIGITS + '+-*%= ' + problem.MARKER,
  answer_chars=problem.DIGITS + '+- ',
  kernel='integer',
)
