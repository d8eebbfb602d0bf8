"""Problems composed of several problems of a data set (`data.chain`), after
R-Horizon (https://arxiv.org/abs/2510.08189).

A number in the text of every problem but the first is replaced by a variable.
Its value is the answer to the problem before, plus a constant that restores the
number. So the answer to the last problem, which is the answer of the composed
problem, needs all of them.

  Problem 1: Tom has 3 boxes with 4 pens each. How many pens are there?
  Problem 2: A bus has [x2] seats, and 5 are free. How many are taken?
  [x2] is the answer to problem 1 plus 28.

A small model learns two-problem chains from composed solutions: the table is in
docs/models.md, "Problems in files of your own".
"""

import re
from collections.abc import Sequence

import numpy as np
import tqdm

from jaxrl_reason import hosts
from jaxrl_reason.data import lengths
from jaxrl_reason.data.row_index import key_of
from jaxrl_reason.verifiers.math import extraction

# A whole number that is no part of a word, a date, a time or a decimal number.
NUMBER = re.compile(r'(?<![\w.,:/\[-])\d{1,6}(?![\w%:/\]-]|[.,]\d)')
MARKER = '####'  # before the answer of a solution, once in a completion
BOX = re.compile(r'\\boxed\{([^{}]*)\}')
INTRODUCTION = (
  'Solve the problems in order. A name in brackets is a number that follows '
  'from the answer to the problem before.'
)


def whole(answer: str) -> int | None:
  """Returns an answer, or the part of it that is marked as the answer, as a
  whole number; None if it is something else.
  """
  marked = extraction.extract(answer, strict=True)
  try:
    return int((marked.text if marked else answer).replace(',', ''))
  except ValueError:
    return None


class Chained(Sequence):
  """Every problem of a source that has a number, after `n` - 1 others.

  The others are drawn by a hash of the problem, so that an index always has the
  same composed problem, in any split of the rows over processes.
  """

  def __init__(self, source: Sequence, n: int, name: str):
    """Args:
    source: finite, with fields prompt, answer and solution.
    n: problems of a composed one, at least 2.
    name: of the split, for messages.

    Raises:
      ValueError: there are fewer than n problems with a number and a whole
        number as the answer.
    """
    self._source, self._n = source, n
    last, others = [], []
    for i in tqdm.tqdm(
      range(len(source)),
      f'looking for numbers in {name}',
      delay=lengths.SHOWN_AFTER_S,
      disable=not hosts.is_main(),
    ):
      example = source[i]
      if NUMBER.search(example['prompt']):
        last.append(i)
        if whole(example['answer']) is not None:
          others.append(i)
    if len(others) < n:
      raise ValueError(
        f'data.chain={n}: {name} has {len(others)} problems with a number in '
        'the text and a whole number as the answer; choose another data set, '
        'or set it to 1'
      )
    self._last, self._others = np.array(last), np.array(others)

  def __len__(self) -> int:
    return len(self._last)

  def __getitem__(self, index: int) -> dict:
    last = int(self._last[index])
    rng = np.random.default_rng(key_of(self._source[last]['prompt']))
    drawn = []
    while len(drawn) < self._n - 1:
      i = int(self._others[rng.integers(len(self._others))])
      if i not in (*drawn, last):
        drawn.append(i)
    return composed([self._source[i] for i in (*drawn, last)], rng)


def composed(examples: Sequence[dict], rng: np.random.Generator) -> dict:
  """Returns one example that asks for the answer of the last one.

  Args:
    examples: all have a number in the prompt, and all but the last a whole
      number as the answer.
    rng: chooses the number that becomes a variable.
  """
  first = examples[0]
  prompts = [INTRODUCTION, f'Problem 1: {first["prompt"]}']
  solutions = [f'Problem 1:\n{_inner(first, 1)}']
  for k, (example, earlier) in enumerate(zip(examples[1:], examples), 2):
    text, question, value = _linked(example, k, whole(earlier['answer']), rng)
    solution = example['solution'] if k == len(examples) else _inner(example, k)
    prompts += [f'Problem {k}: {text}', question]
    solutions.append(f'Problem {k}: {value}\n{solution}')
  prompts.append(f'Give the answer to problem {len(examples)}.')
  both = {'prompt': '\n'.join(prompts), 'solution': '\n'.join(solutions)}
  return examples[-1] | both


def _linked(
  example: dict, k: int, before: int, rng: np.random.Generator
) -> tuple[str, str, str]:
  """Returns the text of problem k with a variable, the definition of the
  variable, and the same with its value.

  Args:
    before: the answer to problem k - 1.
  """
  text = example['prompt']
  found = list(NUMBER.finditer(text))
  match = found[rng.integers(len(found))]
  constant = int(match.group()) - before
  change = f'{"plus" if constant >= 0 else "minus"} {abs(constant)}'
  return (
    f'{text[: match.start()]}[x{k}]{text[match.end() :]}',
    f'[x{k}] is the answer to problem {k - 1} {change}.',
    f'[x{k}] is {before} {change} = {match.group()}.',
  )


def _inner(example: dict, k: int) -> str:
  """Returns the solution of a problem before the last, without the marker of a
  final answer.
  """
  solution = example['solution'].partition(MARKER)[0].strip()
  solution = BOX.sub(r'\1', solution)
  return f'{solution}\nThe answer to problem {k} is {whole(example["answer"])}.'
