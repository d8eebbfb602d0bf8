"""Generates chained arithmetic, and requests for another problem
(`rl.propose`).

  answer    3+5-2=      8#6
  propose   3+5-2=?     9-4+1=

Problems are those of `arithmetic`. A share `asked` of them ends with a question
mark, and the solution is then another problem of the same kind. Supervised
stages learn both roles from it. RL needs asked=0, because it appends the
question mark itself.
"""

import numpy as np

from jaxrl_reason.verifiers.tasks import arithmetic, problem

NAME = 'proposed'
ASK = '?'


def generate(
  rng: np.random.Generator, *, asked: float, **knobs
) -> problem.Example | None:
  example = arithmetic.generate(rng, **knobs)
  if example is None:
    return None
  example |= {'task': NAME}
  if rng.random() >= asked:
    return example
  other = arithmetic.generate(rng, **knobs)
  if other is None:
    return None
  prompt = example['prompt'] + ASK
  return example | {'prompt': prompt, 'solution': other['prompt']}


TASK = problem.Task(
  name=NAME,
  generate=generate,
  check=problem.check_integer,
  knobs=arithmetic.TASK.knobs | dict(asked=0.0),  # share of requests
  harder=arithmetic.TASK.harder,
  alphabet=arithmetic.TASK.alphabet + ASK,
  answer_chars=arithmetic.TASK.answer_chars,
  kernel='integer',
  choices=arithmetic.TASK.choices,
)
