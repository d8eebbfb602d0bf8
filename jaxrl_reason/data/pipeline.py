"""The data pipeline: examples -> fixed-shape rows, by grain.

  source[i] -> Example -> encode -> rows of a batch

Deterministic by (seed, index) and resumable: the iterator's state is a small
dict in the checkpoint. A process encodes only the rows of its devices.
Procedural tasks are endless; data sets on disk are shuffled again every epoch.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

import grain
import jax
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.base import left_padded
from jaxrl_reason.config.rules import is_number
from jaxrl_reason.verifiers import tasks

# grain indexes with 64 bits, prompt ids with 32.
ENDLESS = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class TaskSource:
  """An endless split of a procedural task as a random-access source."""

  task: str
  seed: int
  split: str
  knobs: dict
  harder: dict | None = None

  def __len__(self) -> int:
    return ENDLESS

  def __getitem__(self, index: int) -> dict:
    return tasks.example(
      self.task,
      self.seed,
      int(index),
      split=self.split,
      knobs=self.knobs,
      harder=self.harder,
    )


def pad_prompt(ids: list[int], length: int, what: str) -> dict:
  """Returns left-padded tokens and valid [P]; refuses longer prompts."""
  if len(ids) > length:
    raise ValueError(
      f'{what}: the prompt has {len(ids)} tokens and data.prompt_len is '
      f'{length}. Raise data.prompt_len, or drop long prompts with '
      'data.too_long="drop".'
    )
  return left_padded(ids, length)


def prompt_ids(example: dict, tokenizer) -> list[int]:
  """Returns the tokens of a problem, in its template if it has one
  (`Rendered`).
  """
  return tokenizer.encode(example.get('rendered', example['prompt']))


def prompt_row(
  index: int, example: dict, tokenizer, length, encode, demo_len=None
) -> dict:
  """Returns the row of a `base.Prompts` for one example; with `demo_len` (C)
  also its reference solution.
  """
  what = f'{example["task"]} example {index}'
  row = pad_prompt(prompt_ids(example, tokenizer), length, what)
  row |= {
    'prompt_id': np.int32(index),
    'answer': encode(example) if encode else {},
  }
  if demo_len is not None:
    ids, _ = _solution_ids(example, tokenizer, demo_len, what)
    row['demo'] = np.pad(ids, (0, demo_len - len(ids)))
    row['demo_length'] = np.int32(len(ids))
    row['hint_limit'] = np.int32(hint_limit(example['solution'], tokenizer))
  return row


def pass_rate(index: int, example: dict) -> np.float32:
  """Returns the `pass_rate` of an example's row, as `jaxrl curate` writes it.

  Raises:
    ValueError: names the example without one.
  """
  rate = example.get('meta', {}).get('pass_rate')
  if not is_number(rate) or not 0 <= rate <= 1:
    raise ValueError(
      f'{example["task"]} example {index} has pass_rate={rate!r}, and '
      "rl.loss.advantage='optimal_value' reads a share from 0 to 1, of the "
      'policy as the stage begins: `jaxrl curate` measures it'
    )
  return np.float32(rate)


# Marks of the answer in a solution. A hint ends before it, since rewards read
# only the completion.
ANSWER_MARK = re.compile(
  r'\\(?:boxed|fbox)\b|#+|<answer>|(?:final )?answer(?: is|:)', re.IGNORECASE
)


def hint_limit(solution: str, tokenizer) -> int:
  """Counts the tokens of a solution before its last answer mark. Without a
  mark, it counts all but the last token.
  """
  ids, marks = tokenizer.encode(solution), [*ANSWER_MARK.finditer(solution)]
  if not marks:
    return max(len(ids) - 1, 0)
  before = solution[: marks[-1].start()]
  n = min(len(tokenizer.encode(before)), len(ids))
  while not before.startswith(tokenizer.decode(ids[:n])):
    n -= 1
  return n


def _solution_tokens(example: dict, tokenizer) -> tuple[list[int], list[bool]]:
  """Returns the tokens of the solution with its stop token, and for each token
  whether the policy writes it (and not a tool).
  """
  ids, of_policy = [], []
  for words in example.get('turns', [[example['solution'], '']]):
    for text, written in zip(words, (True, False)):
      new = tokenizer.encode(text)
      ids += new
      of_policy += [written] * len(new)
  return [*ids, tokenizer.eos_ids[0]], [*of_policy, True]


def solution_length(example: dict, tokenizer) -> int:
  """Counts the tokens of the solution, its stop token included."""
  return len(_solution_tokens(example, tokenizer)[0])


def _solution_ids(
  example: dict, tokenizer, max_tokens: int, what: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns `_solution_tokens` as arrays; refuses longer solutions."""
  ids, of_policy = _solution_tokens(example, tokenizer)
  if len(ids) > max_tokens:
    raise ValueError(
      f'{what}: the solution has {len(ids)} tokens and data.completion_len is '
      f'{max_tokens}. Raise it, or drop long ones with data.too_long="drop".'
    )
  return np.int32(ids), np.array(of_policy)


def solution_row(
  index: int, example: dict, tokenizer, prompt_len: int, completion_len: int
) -> dict:
  """Returns prompt and worked solution [T], in the layout of sampled rows."""
  what = f'{example["task"]} example {index}'
  row = pad_prompt(prompt_ids(example, tokenizer), prompt_len, what)
  ids, own = _solution_ids(example, tokenizer, completion_len, what)
  room = completion_len - len(ids)

  def pad(x, n):
    return np.pad(x, (0, n))

  return {
    'tokens': np.concatenate([row['tokens'], pad(ids, room)]),
    'valid': np.concatenate([row['valid'], pad(np.ones(len(ids), bool), room)]),
    'mask': np.concatenate([np.zeros(prompt_len, bool), pad(own, room)]),
  }


def weight_row(
  index: int, example: dict, field: str, valid: np.ndarray, lens: tuple
) -> dict:
  """Returns the weights [T] of the tokens of a worked solution.

  Args:
    field: of the example's row: a number for all tokens, or a list with a
      number for each token. The stop token has the last one.
    valid: [T], of the row; lens: P and C, columns.

  Raises:
    ValueError: names the example without such weights.
  """
  given = example.get('meta', {}).get(field)
  n = int(valid[lens[0] :].sum()) - 1
  try:
    numbers = np.asarray(given, np.float32)
  except (TypeError, ValueError):
    numbers = np.full(1, np.nan)
  if numbers.ndim == 0:
    numbers = np.full(n, numbers)
  fit = numbers.shape == (n,) and np.isfinite(numbers).all()
  if not fit or n and numbers.min() < 0:
    raise ValueError(
      f'{example["task"]} example {index}: sft.weights={field!r} is '
      f'{given!r:.80}; write one number, or one for each of the {n} tokens of '
      'the solution, at least 0'
    )
  room = lens[0], lens[1] - n - 1
  return {'token_weight': np.pad(np.append(numbers, numbers[-1:]), room)}


class _Steps:
  """Maps the number of a step to this process's encoded rows of its batch. It
  is a class, because grain needs a name.
  """

  def __init__(self, source, order, encode: Callable, rows: int, mine):
    self._source, self._order, self._encode = source, order, encode
    self._rows, self._mine = rows, mine

  def __len__(self) -> int:
    return len(self._order) // self._rows

  def __getitem__(self, step: int) -> dict:
    rows = []
    for row in self._mine:
      index = int(self._order[int(step) * self._rows + int(row)])
      rows.append(self._encode(index, self._source[index]))
    return trees.stacked(rows)


class Subset:
  """The given indices of a source."""

  def __init__(self, source, indices: Sequence[int] | np.ndarray):
    self._source = source
    self._indices = indices

  def __len__(self) -> int:
    return len(self._indices)

  def __getitem__(self, index: int) -> dict:
    return self._source[int(self._indices[index])]


class Rendered:
  """A source whose examples also have their prompt in the template."""

  def __init__(self, source, render: Callable[[str], str]):
    self._source, self._render = source, render

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict:
    example = self._source[index]
    return example | {'rendered': self._render(example['prompt'])}


class Redrawn:
  """An endless source that replaces examples that break a rule."""

  def __init__(
    self,
    source,
    rule: Callable[[dict], bool],
    broken: str = (
      'do not fit data.prompt_len and data.completion_len; raise them'
    ),
    tries: int = 100,
  ):
    self._source, self._rule = source, rule
    self._broken, self._tries = broken, tries

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict:
    for i in range(self._tries):
      # A fixed sequence from the index, so that an index always has one
      # example.
      example = self._source[(index + i * 1_000_003) % len(self)]
      if self._rule(example):
        return example
    raise ValueError(f'{self._tries} examples in a row {self._broken}')


class Batches:
  """Endless batches. The state is the number of rows so far over all processes,
  so another number of processes continues at the same position.
  """

  def __init__(self, steps: grain.DatasetIterator, rows: int):
    self._steps, self._rows = steps, rows

  def __iter__(self):
    return self

  def __next__(self) -> dict:
    return next(self._steps)

  def get_state(self) -> dict[str, int]:
    return {'next_index': self._steps.get_state()['next_index'] * self._rows}

  def set_state(self, state: dict[str, int]):
    """Continues from a state, possibly with another number of rows per batch;
    it repeats less than a batch.
    """
    self._steps.set_state({'next_index': state['next_index'] // self._rows})


def batches(
  source,
  encode: Callable[[int, dict], dict],
  rows: int,
  *,
  seed: int,
  mine: np.ndarray | None = None,
) -> Batches:
  """Builds endless batches of `rows` encoded examples, the same for any number
  of processes.

  Args:
    mine: int [m], the rows of each batch for this process; None: all.
  """
  if not len(source):
    raise ValueError('the data set is empty: nothing to train on')
  order = range(len(source))
  if len(source) < ENDLESS:
    # Indices that are shuffled again every epoch.
    order = grain.MapDataset.source(order).seed(seed).shuffle().repeat()
  mine = np.arange(rows) if mine is None else mine
  steps = _Steps(source, order, encode, rows, mine)
  # One thread, a short buffer: rows cost microseconds, and the cores are
  # the device's on a CPU.
  options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
  data = grain.MapDataset.source(steps).to_iter_dataset(options)
  return Batches(iter(data), rows)


class WithSpares:
  """Batches with further rows for each row, [rows,1+spares,...]. The first
  column is the batch without them; the other columns have their own order.
  """

  def __init__(self, first: Batches, others: Batches, spares: int):
    self._first, self._others, self._spares = first, others, spares

  def __iter__(self):
    return self

  def __next__(self) -> dict:
    def beside(row, others):
      others = others.reshape(len(row), self._spares, *others.shape[1:])
      return np.concatenate([row[:, None], others], axis=1)

    return jax.tree.map(beside, next(self._first), next(self._others))

  def get_state(self) -> dict[str, int]:
    return self._first.get_state()

  def set_state(self, state: dict[str, int]):
    self._first.set_state(state)
    self._others.set_state({'next_index': state['next_index'] * self._spares})
