"""Checks before the first step that problems fit into their rows.

Otherwise a run would end at the step that samples the first problem that is too
long, and a corrected data set would be another data set.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import tqdm

from jaxrl_reason import hosts
from jaxrl_reason.data import example_files, pipeline

SHOWN_AFTER_S = 2.0


def check(problems, c, tokenizer, solution_len: int | None) -> None:
  """Refuses problems that are too long; each process checks its share.

  Endless sources are skipped: their lengths follow from data.knobs.

  Args:
    c: config.data.
    solution_len: most tokens of a reference solution, its stop token included;
      None: no stage reads solutions.

  Raises:
    ValueError: names split, file, row, length and remedy; the same on every
      process.
  """
  if c.too_long == 'drop':
    return
  parts = problems.parts or {c.name: (c, problems)}
  messages = (
    _message(name, section, part, tokenizer, solution_len)
    for name, (section, part) in parts.items()
  )
  message = next(filter(None, messages), '')
  if message := next(filter(None, hosts.gather(message)), ''):
    raise ValueError(message)


def check_encoded(problems, c, encode: Callable[[int, dict], Any]) -> None:
  """Refuses training rows that a stage cannot encode, such as answers that its
  verifier cannot read; each process checks its share.

  Args:
    c: config.data.
    encode: (index, example) -> anything; raises ValueError.

  Raises:
    ValueError: names file and row; the same on every process.
  """
  source, message = problems.train, ''
  if len(source) >= pipeline.ENDLESS:
    return
  for i in _shown(len(source), f'{c.name} train'):
    example = source[i]
    try:
      encode(i, example)
    except ValueError as e:
      section, _ = problems.parts.get(example.get('domain'), (c, None))
      place = _place(section, 'train', i, example)
      message = f'{place}: {e}. Mend or remove this row'
      break
  if message := next(filter(None, hosts.gather(message)), ''):
    raise ValueError(message)


def too_long(source, fits, name: str) -> np.ndarray:
  """Returns i64 [n], the examples of a finite source that do not fit.

  Each process checks its share; all return the same.

  Args:
    fits: example -> bool.
    name: of the source, for the bar.
  """
  own = [i for i in _shown(len(source), name) if not fits(source[i])]
  return np.sort(np.concatenate(hosts.gather(own)).astype(np.int64))


def fits(c, tokenizer, solution_len: int | None) -> Callable[[dict], bool]:
  """Returns a function whether an example fits its row.

  The arguments are those of `check`.
  """

  def rule(example: dict) -> bool:
    found = _lengths(example, c, tokenizer, solution_len)
    return all(n <= limit for _, n, _, limit in found)

  return rule


def without_long(
  source, rule: Callable[[dict], bool], c, name: str
) -> pipeline.Subset:
  """Returns the examples of a finite source that fit.

  Raises:
    ValueError: none fits.
  """
  long = too_long(source, rule, name)
  if len(long) == len(source):
    raise ValueError(
      f'data.too_long=drop leaves no example of {name}: none of {len(source)} '
      f'fits data.prompt_len={c.prompt_len} and data.completion_len of every '
      'stage; increase them'
    )
  return pipeline.Subset(source, np.delete(np.arange(len(source)), long))


def _message(
  name: str, c, problems, tokenizer, solution_len: int | None
) -> str:
  """Returns the error for the first problem that is too long, or ''."""
  for split in ('train', 'heldout'):
    source = getattr(problems, split)
    if len(source) >= pipeline.ENDLESS:
      continue
    room = solution_len if split == 'train' else None
    for i in _shown(len(source), f'{name} {split}'):
      example = source[i]
      for kind, n, key, limit in _lengths(example, c, tokenizer, room):
        if n > limit:
          return (
            f'{_place(c, split, i, example)}: the {kind} has {n} tokens and '
            f'data.{key} is {limit}. Raise data.{key}, or drop what is too '
            'long with data.too_long="drop"'
          )
  return ''


def _lengths(
  example: dict, c, tokenizer, solution_len: int | None
) -> Iterator[tuple]:
  """Yields (kind of text, tokens, key of the limit, limit)."""
  n = len(pipeline.prompt_ids(example, tokenizer))
  yield 'prompt', n, 'prompt_len', c.prompt_len
  if solution_len is not None:
    n = pipeline.solution_length(example, tokenizer)
    yield 'solution', n, 'completion_len', solution_len


def _shown(n: int, name: str) -> Iterator[int]:
  """Yields this process's share of n rows, with a bar if it takes longer."""
  return tqdm.tqdm(
    range(jax.process_index(), n, jax.process_count()),
    desc=f'checking the lengths of {name}',
    unit='row',
    delay=SHOWN_AFTER_S,
    mininterval=1.0,
    disable=not hosts.is_main(),
  )


def _place(c, split: str, i: int, example: dict) -> str:
  """Names the file and row of an example, or its split and index."""
  if 'place' in example:
    return example['place']
  if example.get('task') == example_files.NAME:
    if place := example_files.place_of(c.dir, example):
      return place
  return f'{example.get("task", c.name)} {split}, example {i}'
