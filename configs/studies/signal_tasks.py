"""Defines variants of chained arithmetic for studies of training signals.

Worker processes import this file, so it must not import jax.
"""

import dataclasses
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


def confident(rng, **chain):
  """Returns a problem whose solution states a confidence from 0.1 to 0.9, which
  is drawn at random.
  """
  example = arithmetic.generate(rng, **chain)
  if example is None:
    return None
  steps, marker, answer = example['solution'].partition(problem.MARKER)
  stated = f' confidence=.{problem.between(rng, 1, 9)}'
  solution = steps + stated + marker + answer
  return example | {'solution': solution, 'task': 'confident'}


def shown(rng, *, shown, **chain):
  """Returns a problem. With the probability `shown`, its prompt contains the
  solution, and then `:`.
  """
  example = arithmetic.generate(rng, **chain)
  if example is None:
    return None
  prompt = example['prompt']
  if rng.random() < shown:
    prompt += example['solution'] + ':'
  return example | {'prompt': prompt, 'task': 'shown'}


def problem_of(example):
  """Returns the problem of a prompt that may contain its solution."""
  return example['prompt'].partition('=')[0]


def _register(generate, knobs: dict, characters: str = '', **changes) -> None:
  """Registers a variant under the name of its generator.

  Args:
    knobs: of the variant alone; characters: that solutions have in addition.
  """
  variant = dataclasses.replace(
    arithmetic.TASK,
    name=generate.__name__,
    generate=generate,
    knobs=arithmetic.TASK.knobs | knobs,
    alphabet=arithmetic.TASK.alphabet + characters,
    **changes,
  )
  tasks.TASKS[variant.name] = variant


# An author errs in digits, so totals are taken modulo 10 by default.
_register(written, {'errors': 0.15, 'modulus': 10})
_register(confident, {}, ''.join(sorted({*'confidence.'})))
_register(shown, {'shown': 0.0}, ':', identity=problem_of)
