"""Generates the problems of `configs/search_tiny.py` about the archive.

Worker processes import this file, so it must not import jax.
"""

import json
import pathlib

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import problem

FILE = pathlib.Path(__file__).with_name('numbers.jsonl')
ROWS = [json.loads(line) for line in FILE.read_text().splitlines()]


def generate(rng, *, with_number, search):
  """Returns a problem that asks for the number of a name.

  Args:
    with_number: share of problems whose prompt contains the number.
    search: share of solutions that search the archive.
  """
  row = problem.choose(rng, ROWS)
  name, number = row['title'], row['text']
  prompt = f'{name} {number}?' if rng.random() < with_number else f'{name}?'
  turns = [['#' + number, '']]
  if rng.random() < search:
    turns.insert(0, [f'<s>{name}</s>', f'{name}: {number}'])
  example = dict(prompt=prompt, turns=turns, answer=number, meta={})
  example['solution'] = ''.join(turn + answer for turn, answer in turns)
  return example | {'task': 'archive'}


def name_of(example):
  """Returns the name that a problem asks for."""
  return example['prompt'][:3]


tasks.TASKS['archive'] = problem.Task(
  name='archive',
  generate=generate,
  check=problem.check_text,
  knobs=dict(with_number=0.1, search=0.2),
  harder=dict(with_number=0.0),
  alphabet='abcdefghijklmnoprstu0123456789 :?#<>/~',
  answer_chars='0123456789',
  kernel='text',
  identity=name_of,
)
