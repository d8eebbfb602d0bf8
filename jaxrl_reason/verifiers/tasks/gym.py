"""Adapts the families of reasoning-gym to tasks named 'gym:<family>'.

  data.name = 'gym:chain_sum'      data.knobs = {'max_terms': 4}

reasoning-gym (https://arxiv.org/abs/2505.24760, the extra `gym`) is imported
when the first such name is looked up. A family's knobs are the fields of its
configuration. Its scorers run only in the workers of a verifier pool, because
some of them execute the answer (`verifiers.gym_scorers`).

`meta['entry']` of an example has the entry of the family, which may contain
Python objects that JSON does not have (tuples, dates). Five families have no
reference answer for some or all problems: answer and solution are then empty.
Families that check their configuration with `assert` raise AssertionError.
"""

import dataclasses
import functools

import numpy as np

from jaxrl_reason.names import install
from jaxrl_reason.verifiers.tasks import problem

PREFIX = 'gym:'
# `composite` is a mixture of other families. Knobs cannot describe it.
NOT_A_FAMILY = frozenset(['composite'])


def _factory():
  try:
    from reasoning_gym import factory
  except ImportError as e:
    raise ValueError(
      f'{PREFIX}... needs reasoning-gym, which cannot be imported ({e}): '
      f'{install("gym")}'
    ) from e
  return factory


def families() -> tuple[str, ...]:
  """Returns the families of the installed version."""
  return tuple(name for name in _factory().DATASETS if name not in NOT_A_FAMILY)


def dataset(family: str, seed: int = 0, **knobs):
  """Returns a family's data set with one problem."""
  # reasoning-gym accepts tuples and lists for sequences.
  return _factory().create_dataset(family, seed=seed, size=1, **knobs)


def _generate(
  family: str, rng: np.random.Generator, **knobs
) -> problem.Example:
  entry = dataset(family, problem.below(rng, 2**31), **knobs)[0]
  answer = entry['answer']
  answer = '' if answer is None else str(answer)
  return {
    'prompt': entry['question'],
    'solution': f'<answer>{answer}</answer>' if answer else '',
    'answer': answer,
    'meta': {'entry': entry},
    'task': PREFIX + family,
  }


def _no_check(text: str, example: problem.Example) -> float:
  raise ValueError(
    f'{example["task"]}: its scorer runs only in a verifier pool; use the '
    "reward 'gym'"
  )


@functools.cache
def task(family: str) -> problem.Task:
  if family not in families():
    raise ValueError(
      f'unknown family {family!r}; reasoning-gym has {", ".join(families())}'
    )
  _, config = _factory().DATASETS[family]
  default = config()
  knobs = {
    field.name: getattr(default, field.name)
    for field in dataclasses.fields(config)
    if field.init and field.name not in ('seed', 'size')
  }
  return problem.Task(
    name=PREFIX + family,
    generate=functools.partial(_generate, family),
    check=_no_check,
    knobs=knobs,
    harder={},
    alphabet=None,
    answer_chars='',
    kernel=None,
    reward='gym',
  )
