"""Encodes prompts that contain more than the problem, such as its solution. A
teacher scores under such a prompt (`rl.teacher.prompt`), and the policy samples
demonstrations from it (`rl.demos_prompt`).

Some fields of a teacher's prompt depend on the verdicts of the step. Then a row
has the tokens of all texts that the prompt may contain. `teacher_valid`, int8,
has for each token the condition under which it is in the prompt, or marks the
place of a text of the step. `rollouts.feedback` assembles the prompt:

  template   {prompt}{verdict}{sample}=
  tokens     1+1     yes no   _   42   =    _ is the place of a sample
  kinds      AAA     RRR WW   S   NN   A    A always, R right, W wrong, N no
                                            sample
"""

import re
from collections.abc import Callable

import jax
import numpy as np

from jaxrl_reason.base import left_padded
from jaxrl_reason.config.rl_sections import Teacher

FIELDS = re.compile(r'\{(prompt|solution|answer)\}')  # of an example
FEEDBACK = re.compile(r'\{(verdict|sample|observations|detail)\}')  # of a step

# Values of `teacher_valid`: when the prompt has a token.
PADDING, ALWAYS, RIGHT, WRONG, NO_SAMPLE, SAMPLE, OBSERVATIONS, DETAIL = range(
  8
)
PLACES = SAMPLE, OBSERVATIONS, DETAIL  # of texts of the step


def fields(template: str) -> frozenset[str]:
  """Returns the names of the template's fields that depend on the step."""
  return frozenset(FEEDBACK.findall(template))


def is_open(valid: jax.Array | np.ndarray) -> bool:
  """Returns whether rows still depend on the verdicts of the step.

  Args:
    valid: `teacher_valid` of Prompts or of a Batch.
  """
  return valid.dtype != bool


def row(index: int, example: dict, tokenizer, c: Teacher, room: int) -> dict:
  """Returns the prompt under which a teacher scores, for one example.

  Args:
    c: its `prompt` replaces the problem, inside the chat template if there is
      one.
    room: C, the most tokens of a sample and of observations.

  Raises:
    ValueError: names the example that does not fit.
  """
  what = f'{example["task"]} example {index}: rl.teacher.prompt'
  limit = 'rl.teacher.prompt_len', c.prompt_len
  if not fields(c.prompt):
    padded = _of_example(example, tokenizer, c.prompt, what, *limit)
    return {f'teacher_{name}': x for name, x in padded.items()}
  before, after = _around(example, what)

  def encode(text: str) -> list[int]:
    return tokenizer.encode(_filled(text, example))

  names = FEEDBACK.findall(c.prompt)
  # Example texts may contain braces, so the template is split before them.
  texts = [_filled(text, example) for text in FEEDBACK.split(c.prompt)[::2]]
  texts[0], texts[-1] = before + texts[0], texts[-1] + after
  pieces = [(ALWAYS, tokenizer.encode(texts[0]))]
  for name, text in zip(names, texts[1:]):
    pieces += _alternatives(name, encode, c)
    pieces.append((ALWAYS, tokenizer.encode(text)))
  rooms = dict(zip(PLACES, (room, room, c.detail_len)))
  _refuse_longer(_longest(pieces, rooms), what, *limit)
  return _joined(pieces, c.prompt_len)


def explained_row(
  index: int, example: dict, tokenizer, template: str, length: int
) -> dict:
  """Returns the prompt under which demonstrations are sampled, for one example.

  Args:
    template: of `rl.demos_prompt`.
    length: P, columns.

  Raises:
    ValueError: names the example that does not fit.
  """
  what = f'{example["task"]} example {index}: rl.demos_prompt'
  limit = 'data.prompt_len', length
  return _of_example(example, tokenizer, template, what, *limit)


def _of_example(
  example: dict, tokenizer, template: str, what: str, key: str, length: int
) -> dict:
  """Returns tokens and valid of a prompt that depends on the example alone."""
  before, after = _around(example, what)
  ids = tokenizer.encode(before + _filled(template, example) + after)
  _refuse_longer(len(ids), what, key, length)
  return left_padded(ids, length)


def _filled(text: str, example: dict) -> str:
  return FIELDS.sub(lambda found: str(example[found[1]]), text)


def _around(example: dict, what: str) -> tuple[str, str]:
  """Returns the texts of the chat template before and after the problem."""
  if 'rendered' not in example:
    return '', ''
  before, there, after = example['rendered'].rpartition(example['prompt'])
  if not there:
    raise ValueError(
      f'{what}: the template of data.template changes the problem, so that '
      'it cannot be replaced; use another template'
    )
  return before, after


def _alternatives(
  name: str, encode: Callable[[str], list[int]], c: Teacher
) -> list[tuple[int, list[int]]]:
  """Returns the (condition, tokens) of the texts that a field may have."""
  if name == 'verdict':
    return [(RIGHT, encode(c.right)), (WRONG, encode(c.wrong))]
  if name == 'sample':
    return [(SAMPLE, [0]), (NO_SAMPLE, encode(c.no_sample))]
  return [(DETAIL if name == 'detail' else OBSERVATIONS, [0])]


def _longest(pieces: list[tuple[int, list[int]]], rooms: dict[int, int]) -> int:
  """Counts the most tokens of a prompt, or of its row if that is longer.

  Args:
    rooms: the most tokens of the texts of the step, by kind.
  """
  n = np.zeros(DETAIL + 1, int)
  for when, ids in pieces:
    n[when] += rooms.get(when, len(ids))
  longest = n[ALWAYS] + n[OBSERVATIONS] + n[DETAIL]
  longest += max(n[RIGHT], n[WRONG]) + max(n[SAMPLE], n[NO_SAMPLE])
  return max(int(longest), sum(len(ids) for _, ids in pieces))


def _refuse_longer(n: int, what: str, key: str, length: int) -> None:
  if n > length:
    raise ValueError(f'{what} has {n} tokens and {key} is {length}: raise it')


def _joined(pieces: list[tuple[int, list[int]]], length: int) -> dict:
  """Returns the row [Q] of pieces, left-padded."""
  ids = [i for _, piece in pieces for i in piece]
  when = [kind for kind, piece in pieces for _ in piece]
  return {
    'teacher_tokens': left_padded(ids, length)['tokens'],
    'teacher_valid': left_padded(when, length)['tokens'].astype(np.int8),
  }
