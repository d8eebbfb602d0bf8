"""Defines chained arithmetic whose solutions have errors, for studies.

Worker processes import this file, so it must not import jax.
"""

import math
import re

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import arithmetic, problem


def written(rng, *, errors, **chain):
  """Returns a problem with a solution whose author errs.

  A digit of the solution is wrong with the probability `errors`, and then one
  of the others. The author continues from the wrong digit. `answer` is correct.
  In `meta`, `logp` has the author's log-probability of every character and of
  the stop token, and `right` is 0 at wrong digits and 1 elsewhere.
  """
  example = arithmetic.generate(rng, **chain)
  if example is None:
    return None
  first, *terms = re.findall(r'[-+*]?\d+', example['prompt'].partition('%')[0])
  modulus, total, digits, wrong = chain['modulus'], int(first), [], []
  for term in terms:
    wrong.append(rng.random() < errors)
    change = problem.between(rng, 1, modulus - 1) if wrong[-1] else 0
    total = problem.OPERATIONS[term[0]](total, int(term[1:])) + change
    total %= modulus
    digits.append(str(total))
  own = {True: math.log(errors / (modulus - 1)), False: math.log1p(-errors)}
  meta = {
    'logp': [x for w in wrong for x in (own[w], 0.0)],
    'right': [x for w in wrong for x in (float(not w), 1.0)][:-1],
  }
  solution = ' '.join(digits[:-1]) + problem.MARKER + digits[-1]
  return example | {'solution': solution, 'meta': meta, 'task': 'written'}


TASK = arithmetic.TASK
tasks.TASKS['written'] = problem.Task(
  name='written',
  generate=written,
  check=TASK.check,
  knobs=TASK.knobs | {'errors': 0.15},
  harder=TASK.harder,
  alphabet=TASK.alphabet,
  answer_chars=TASK.answer_chars,
  kernel=TASK.kernel,
)
