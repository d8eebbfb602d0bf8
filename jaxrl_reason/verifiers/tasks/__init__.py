"""Generates problems of procedural reasoning tasks, and checks answers.

  ex = example('arithmetic', seed=0, index=7, split='train')
  TASKS['arithmetic'].check(ex['solution'], ex)        # 1.0

Tasks are infinite and deterministic. There are three splits of a generator. A
problem is held out if a hash of its identity (by default its prompt) is below
`HELDOUT_SHARE`. 'train' samples until a problem is not held out, so the splits
never overlap, for all seeds, knobs and counts. 'harder' has held-out problems
with harder knobs.
"""

import hashlib
import os
import zlib

import numpy as np

from jaxrl_reason.names import nearest
from jaxrl_reason.verifiers.tasks import (
  arithmetic,
  base_conversion,
  checked,
  countdown,
  games,
  gym,
  problem,
  products,
  proposed,
  string_functions,
  word_problems,
)
from jaxrl_reason.verifiers.tasks.problem import Example, Task

__all__ = [
  'Example',
  'GAMES',
  'SPLITS',
  'TASKS',
  'Task',
  'check',
  'check_format',
  'example',
  'get',
]

TASKS: dict[str, Task] = {
  task.name: task
  for task in (
    arithmetic.TASK,
    base_conversion.TASK,
    checked.TASK,
    countdown.TASK,
    products.TASK,
    proposed.TASK,
    proposed.STRINGS,
    string_functions.TASK,
    word_problems.TASK,
  )
}
# Games: an environment verifies them (`games`).
GAMES: dict[str, Task] = games.GAMES
SPLITS = ('train', 'heldout', 'harder')
HELDOUT_SHARE = 1 / 8
MAX_DRAWS = 20_000


def files_of_own() -> tuple[str, ...]:
  """Returns the files that add tasks to `TASKS`. Other processes import these
  files.

  Raises:
    ValueError: a task was defined where no other process can import it.
  """
  package, files = os.path.dirname(os.path.abspath(__file__)), {}
  for name, task in TASKS.items():
    path = os.path.abspath(task.generate.__code__.co_filename)
    if os.path.dirname(path) == package:
      continue
    if not os.path.isfile(path):
      raise ValueError(
        f'task {name!r} was defined interactively, where verifier processes '
        'cannot import it: move it into a file, or set rl.path="fused"'
      )
    files[path] = None
  return tuple(files)


def is_known(name: str) -> bool:
  return name in TASKS or name in GAMES or name.startswith(gym.PREFIX)


def get(name: str) -> Task:
  """Returns a task of `TASKS`, a game, or 'gym:<family>' of reasoning-gym."""
  if name.startswith(gym.PREFIX):
    return gym.task(name.removeprefix(gym.PREFIX))
  known = TASKS | GAMES
  if name not in known:
    raise ValueError(
      f'unknown task {name!r}; known: {", ".join(known)}, and '
      f'{gym.PREFIX}<family> for those of reasoning-gym.'
      f'{nearest(name, known)}'
    )
  return known[name]


def is_heldout(identity: str) -> bool:
  digest = hashlib.blake2b(identity.encode(), digest_size=4).digest()
  return int.from_bytes(digest, 'big') < HELDOUT_SHARE * 2**32


def split_knobs(
  task: Task,
  split: str,
  knobs: dict | None = None,
  harder: dict | None = None,
) -> dict:
  """Returns the knobs of a split: those of the task, updated by `knobs`, and
  for 'harder' also by `harder` (None: that of the task).
  """
  if split not in SPLITS:
    raise ValueError(f'unknown split {split!r}; known: {", ".join(SPLITS)}')
  changes = dict(knobs or {})
  if split == 'harder':
    changes |= task.harder if harder is None else harder
  unknown = sorted(set(changes) - set(task.knobs))
  if unknown:
    raise ValueError(
      f'task {task.name!r} has no knob {", ".join(unknown)}; it has '
      f'{", ".join(task.knobs)}'
    )
  return task.knobs | changes


def example(
  task: str,
  seed: int,
  index: int,
  *,
  split: str,
  knobs: dict | None = None,
  harder: dict | None = None,
) -> Example:
  """Generates problem `index` of a split, the same on every machine."""
  family = get(task)
  settings = split_knobs(family, split, knobs, harder)
  entropy = (zlib.crc32(f'{task}/{split}'.encode()), seed, index)
  rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
  heldout = split != 'train'
  for _ in range(MAX_DRAWS):
    candidate = family.generate(rng, **settings)
    if (
      candidate is not None
      and is_heldout(family.identity(candidate)) == heldout
    ):
      return candidate
  raise ValueError(
    f'task {task!r}, split {split!r}: no problem in {MAX_DRAWS} draws; the '
    f'knobs allow too few: {settings}'
  )


def check(text: str, example: Example) -> float:
  return get(example['task']).check(text, example)


def check_format(text: str, example: Example) -> float:
  """Returns 1.0 if the text has one marker and then the characters of an
  answer.
  """
  return problem.check_format(text, get(example['task']).answer_chars)
