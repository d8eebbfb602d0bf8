"""Generates chained arithmetic with a second turn (`rl.turns.links`).

  verify   2*3+1%5=  1#2;  ?  y        2*3+1%5=  1#4;?  n
  recheck  2*3+1%5=  1#2;  ?  1#2y     2*3+1%5=  1#4;?  1#2n
  refine   2*3+1%5=  1#2;  ?  1#2      2*3+1%5=  1#4;?  1#2

Problems are those of `arithmetic`. In the second turn, the policy verifies or
refines the first solution, or solves the problem again before its verdict. An
incorrect first solution has another last digit. It is an observation, so
supervised stages do not train on it.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import arithmetic, problem

NAME = 'checked'
STOP, ASK = ';', '?'
SECOND = {'verify': 'yn', 'recheck': 'yn', 'refine': ''}


def generate(
  rng: np.random.Generator, *, second: str, wrong: float, **knobs
) -> problem.Example | None:
  if second not in SECOND:
    raise ValueError(f'second={second!r}: choose {" or ".join(SECOND)}')
  example = arithmetic.generate(rng, **knobs)
  if example is None:
    return None
  right, solution = rng.random() >= wrong, example['solution']
  other = (int(solution[-1]) + problem.between(rng, 1, 9)) % 10
  verdict = SECOND[second] and SECOND[second][not right]
  last = verdict if second == 'verify' else solution + verdict
  turns = [[solution + STOP, ASK], [last, '']]
  if not right:
    turns[0] = ['', f'{solution[:-1]}{other}{STOP}{ASK}']
  return example | {'turns': turns, 'task': NAME}


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=arithmetic.TASK.knobs
  | dict(
    second='verify',  # the second turn: verify, recheck, refine
    wrong=0.5,  # share of problems with an incorrect first solution
  ),
  harder=arithmetic.TASK.harder,
  alphabet=arithmetic.TASK.alphabet + ';?yn',
  answer_chars=arithmetic.TASK.answer_chars,
  kernel='integer',
  choices=arithmetic.TASK.choices,
)
