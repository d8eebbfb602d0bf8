"""Generates products of short and long numbers, for use with a calculator.

  prompt    7*8=             734*286=
  solution  #56              <<734*286=209924>>#209924

A share `easy` of the problems has factors of one digit. The others have the
length of the knobs. A share `call` of the worked solutions calls the
calculator, independently of the problem, so they do not show when a call is
useful. The observation `209924>>` of the calculator (`envs.calculator`) is not
trained on.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

NAME = 'products'


def generate(
  rng: np.random.Generator,
  *,
  min_digits: int,
  max_digits: int,
  easy: float,
  call: float,
) -> problem.Example | None:
  low, high = min_digits, max_digits
  if rng.random() < easy:
    low = high = 1
  a, b = (
    problem.between(rng, 10 ** (n - 1), 10**n - 1)
    for n in (problem.between(rng, low, high) for _ in 'ab')
  )
  question, answer = f'{a}*{b}=', str(a * b)
  turns = [['#' + answer, '']]
  if rng.random() < call:
    turns.insert(0, [f'<<{question}', f'{answer}>>'])
  return {
    'prompt': question,
    'solution': ''.join(turn + observation for turn, observation in turns),
    'turns': turns,
    'answer': answer,
    'meta': {},
    'task': NAME,
  }


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=dict(
    min_digits=3,  # digits of a factor, at least 1
    max_digits=3,
    easy=0.1,  # share of the problems with factors of one digit
    call=0.2,  # share of the solutions that call the calculator
  ),
  harder=dict(min_digits=4, max_digits=4),
  # Includes all characters of the calculator.
  alphabet='0123456789*=-#<>adegiorstxyz n',
  answer_chars='-0123456789',
  kernel='integer',
)
