"""Problems about the archive: `configs/search_tiny.py`.

A file of its own: workers import it, and need no jax for that.
"""

import json
import pathlib

from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import problem

FILE = pathlib.Path(__file__).with_name('numbers.jsonl')
ROWS = [json.loads(line) for line in FILE.read_text().splitlines()]


def generate(rng, *, told, search):
  """A name of the archive; `told`: share of problems with the number in them,
  `search`: share of solutions that search.
  """
  row = problem.choose(rng, ROWS)
  name, number = row['title'], row['text']
  prompt = f'{name} {number}?' if rng.random() < told else f'{name}?'
  turns = [['#' + number, '']]
  if rng.random() < search:
    turns.insert(0, [f'<s>{name}</s>', f'{name}: {number}'])
  example = dict(prompt=prompt, turns=turns, answer=number, meta={})
  example['solution'] = ''.join(own + said for own, said in turns)
  return example | {'task': 'archive'}


def name_of(example):
  return example['prompt'][:3]


tasks.TASKS['archive'] = problem.Task(
  name='archive',
  generate=generate,
  check=problem.check_text,
  knobs=dict(told=0.1, search=0.2),
  harder=dict(told=0.0),
  alphabet='abcdefghijklmnoprstu0123456789 :?#<>/~',
  answer_chars='0123456789',
  kernel='text',
  identity=name_of,
)
