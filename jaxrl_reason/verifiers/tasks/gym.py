"""The families of reasoning-gym as tasks, by name 'gym:<family>'.

  data.name = 'gym:chain_sum'      data.knobs = {'max_terms': 4}

reasoning-gym (https://arxiv.org/abs/2505.24760, the extra `gym`) is imported
when the first such name is looked up. A family's knobs are the fields of its
configuration. Its scorers, some of which execute the answer, do not run here
but in a verifier's worker: see `verifiers.gym_scorers`.

An example has the family's entry as `meta['entry']`, with Python objects that
JSON does not have (tuples, dates). Five families have no reference answer for
some or all problems; answer and solution are then empty.
Families that check their configuration with `assert` raise AssertionError.
"""

import dataclasses
import functools

import numpy as np

from jaxrl_reason.verifiers.tasks import problem

PREFIX = 'gym:'
# A mixture of other families, which knobs cannot describe.
NOT_A_FAMILY = frozenset(['composite'])


def _factory():
  try:
    from reasoning_gym import factory
  except ImportError as e:
    raise ValueError(
      f'{PREFIX}... is reasoning-gym, which cannot be imported ({e}): '
      'pip install "jaxrl_reason[gym]"'
    ) from e
  return factory


def families() -> tuple[str, ...]:
  """Lists the names that the installed version has."""
  return tuple(name for name in _factory().DATASETS if name not in NOT_A_FAMILY)


def dataset(family: str, seed: int = 0, **knobs):
  """Makes the family's data set of one problem."""
  # Sequences of a config come as tuples or lists; both are taken.
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
    f'{example["task"]}: its scorer runs in a verifier pool only; use the '
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
