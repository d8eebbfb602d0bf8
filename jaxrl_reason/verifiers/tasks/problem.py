"""Defines tasks and final answers.

A task has a pure generator of problems and a checker:

  generate(rng, **knobs) -> Example | None     one draw (None: draw again)
  check(completion, example) -> 1.0 | 0.0      never raises an error

An Example is a plain dict of JSON values:

  {'prompt': '7+5-3=', 'solution': '12#9', 'answer': '9', 'meta': {},
   'task': 'arithmetic'}

A problem for an environment may also have 'turns', a list of [turn of the
policy, observation]. The solution is their concatenation. Observations are not
trained on.

**Final answers.** A completion has free text, one marker `#`, and the answer:
`12 9 18#26`. There must be exactly one marker, and no text after the answer.
Only the answer is rewarded. An integer answer has any number of spaces, an
optional sign and ASCII digits. It is compared as an integer of any size: `#26`,
`# +26` and `#0026` are the same answer, `#-0` is `#0`; `#26 `, `#26.0` and
`##26` are wrong. The device kernels in `rewards.kernels` have the same
definition, byte by byte.

Data workers import this package, so it uses only the standard library and
NumPy.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Sequence

import numpy as np

MARKER = '#'
DIGITS = '0123456789'
OPERATIONS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
# Largest number of digits in answers that are lists or expressions.
MAX_DIGITS = 4

Example = dict
Check = Callable[[str, Example], float]

_INTEGER = re.compile(r' *([+-]?)([0-9]+)')


@dataclasses.dataclass(frozen=True)
class Task:
  """A procedural task.

  Attributes:
    name: key in `TASKS`.
    generate: makes one draw, a pure function of rng.
    check: completion, example -> 1.0 or 0.0, in bounded time for any text.
    knobs: settings of the train and held-out splits.
    harder: knobs that differ in the harder split.
    alphabet: all characters of prompts and solutions, for all knobs; None if
      unknown.
    answer_chars: characters of an answer, for the format reward.
    kernel: name of the device kernel with the verdict of `check`, or None.
    identity: problems with the same identity are one problem, for any wording
      of the prompt, and are in the same split.
    reward: name of the host reward that verifies answers.
    choices: text knob -> the characters that it may have, at least one.
  """

  name: str
  generate: Callable[..., Example | None]
  check: Check
  knobs: dict
  harder: dict
  alphabet: str | None
  answer_chars: str
  kernel: str | None
  identity: Callable[[Example], str] = operator.itemgetter('prompt')
  reward: str = 'jaxrl_reason.verifiers.task:reward'
  choices: dict = dataclasses.field(default_factory=dict)


def make_example(
  task: str, prompt: str, steps: Sequence[str], answer: str, **meta
) -> Example:
  solution = ' '.join(steps) + MARKER + answer
  return {
    'prompt': prompt,
    'solution': solution,
    'answer': answer,
    'meta': meta,
    'task': task,
  }


def final_answer(text: str) -> str | None:
  """Returns the text after the marker; None unless there is exactly one."""
  _, marker, answer = text.partition(MARKER)
  return None if not marker or MARKER in answer else answer


def canonical_integer(text: str) -> str | None:
  """Canonicalises ' +007' -> '7', '-0' -> '0', '1.5' -> None. Returns a string,
  because int() refuses more than 4,300 digits.
  """
  match = _INTEGER.fullmatch(text)
  if match is None:
    return None
  digits = match[2].lstrip('0')
  if not digits:
    return '0'
  return '-' + digits if match[1] == '-' else digits


def check_integer(text: str, example: Example) -> float:
  answer = final_answer(text)
  if answer is None:
    return 0.0
  number = canonical_integer(answer)
  return float(
    number is not None and number == canonical_integer(example['answer'])
  )


def check_text(text: str, example: Example) -> float:
  """Checks the answer, character for character."""
  return float(final_answer(text) == example['answer'])


def check_format(text: str, answer_chars: str) -> float:
  """Checks for one marker, then one or more characters of `answer_chars`."""
  answer = final_answer(text)
  return float(bool(answer) and not answer.strip(answer_chars))


# Generators use only `rng.random()`. NumPy guarantees only its stream for a bit
# generator, and it takes 0.1 us per scalar, `rng.integers` 2 us.


def below(rng: np.random.Generator, n: int) -> int:
  """Draws uniformly in [0, n)."""
  return int(rng.random() * n)


def between(rng: np.random.Generator, low: int, high: int) -> int:
  """Draws uniformly in [low, high]."""
  if high < low:
    raise ValueError(f'the range from {low} to {high} is empty')
  return low + int(rng.random() * (high - low + 1))


def choose(rng: np.random.Generator, items: Sequence):
  return items[int(rng.random() * len(items))]


def shuffled(rng: np.random.Generator, items: Sequence) -> list:
  items = list(items)
  for i in range(len(items) - 1, 0, -1):
    j = below(rng, i + 1)
    items[i], items[j] = items[j], items[i]
  return items
