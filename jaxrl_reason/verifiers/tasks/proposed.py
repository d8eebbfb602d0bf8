"""Generates problems, and requests for another problem (`rl.propose`).

               proposed       proposed_strings
  answer       3+5-2=         abca|RS=
               8#6            acba#aabc
  propose      3+5-2=?        abca|RS=?
               9-4+1=         cab|TI=

Problems are those of `arithmetic` and of `string_functions`. A share `asked` of
them ends with a question mark, and the solution is then another problem of the
same kind. Supervised stages learn both roles from it. RL needs asked=0, because
it appends the question mark itself.
"""

import dataclasses

import numpy as np

from jaxrl_reason.verifiers.tasks import arithmetic, problem, string_functions

ASK = '?'


def _with_requests(task: problem.Task, name: str) -> problem.Task:
  """Makes the task with the knob `asked`, the share of requests."""

  def generate(
    rng: np.random.Generator, *, asked: float, **knobs
  ) -> problem.Example | None:
    example = task.generate(rng, **knobs)
    if example is None:
      return None
    example |= {'task': name}
    if rng.random() >= asked:
      return example
    other = task.generate(rng, **knobs)
    if other is None:
      return None
    prompt = example['prompt'] + ASK
    return example | {'prompt': prompt, 'solution': other['prompt']}

  return dataclasses.replace(
    task,
    name=name,
    generate=generate,
    knobs=task.knobs | dict(asked=0.0),
    alphabet=task.alphabet + ASK,
  )


TASK = _with_requests(arithmetic.TASK, 'proposed')
STRINGS = _with_requests(string_functions.TASK, 'proposed_strings')
