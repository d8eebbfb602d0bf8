"""Problems in files, a row each: JSON lines, or Parquet.

  sources = load('problems.jsonl', question='problem', answer='answer')
  sources['train'][0]
  {'prompt': 'What is $2 + 3$?', 'answer': '5', 'solution': '5',
   'meta': {'problem': ..., 'answer': 5, 'level': 1}, 'task': 'files'}

  a file                         a share of it is held out
  a folder with train.jsonl      a share of it is held out
    and test.jsonl               the problems of test.jsonl are held out
  hf:owner/name[:config]         a data set on the Hub (`hub`), likewise; if it
                                 has no test split, that of validation (or dev)

In a folder, `train-*.jsonl` and `test-*.jsonl` are read too, in order, and
`.parquet` if pyarrow is installed. A field is a key of a row; a dot selects a
nested field (`reward_model.ground_truth`, `prompt.0.content`). Of several
fields with commas between them a row must have one: exports of MATH, AIME,
DAPO-Math-17k differ only in these names. An empty name is guessed from the
first row, and the guess is logged. `meta` is the whole row, where verifiers
find what else they read (tests, choices).

A question counts once, however often it is repeated. What is held out is never
trained on: the share goes by a hash of the question, so that it stays when the
file grows, and questions of the test files are left out of train.
"""

import bisect
import functools
import itertools
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from absl import logging
from etils import epath

from jaxrl_reason import names
from jaxrl_reason.data import hub
from jaxrl_reason.data.row_fields import MARKS, guessed, inside, text_of
from jaxrl_reason.data.row_index import BadRow, Index, key_of, opened, rows

NAME = 'files'
KINDS = ('jsonl', 'parquet')
# Splits of the Hub that are held out: the first that a data set has.
HELDOUT = ('test', 'validation', 'valid', 'val', 'dev')


def is_source(text: str) -> bool:
  """Returns whether a text names a data set on the Hub, or a file of rows."""
  return text.startswith(hub.PREFIX) or text.endswith(
    tuple(f'.{kind}' for kind in KINDS)
  )


def paths_of(source: epath.PathLike) -> dict[str, list[epath.Path]]:
  """Returns the files of each split; a single file is train.

  Args:
    source: a file, a folder, or hf:owner/name.
  """
  if os.fspath(source).startswith(hub.PREFIX):
    found = hub.files(os.fspath(source))
    test = next((found[name] for name in HELDOUT if found.get(name)), [])
    found = {'train': found.get('train', []), 'test': test}
    return {k: [epath.Path(p) for p in v] for k, v in found.items()}
  source = epath.Path(source)
  if source.is_file():
    if source.suffix.removeprefix('.') not in KINDS:
      raise ValueError(f'data.dir={source}: a file is .{" or .".join(KINDS)}')
    return {'train': [source], 'test': []}
  if not source.is_dir():
    hint = names.hub_hint(str(source))
    raise FileNotFoundError(
      f'data.dir={source} is no file and no folder{hint and f".{hint}"}'
    )
  here = sorted(source.iterdir())

  def of(split):
    return [
      p
      for p in here
      if re.fullmatch(rf'{split}(-.*)?\.({"|".join(KINDS)})', p.name)
    ]

  found = {split: of(split) for split in ('train', 'test')}
  if not found['train']:
    raise FileNotFoundError(
      f'{source / "train.jsonl"} is missing: a folder must hold train.jsonl '
      '(or train-*.jsonl, or .parquet) and may hold test.jsonl; it has '
      f'{[p.name for p in here[:8]]}'
    )
  return found


def _field(row, names: str, key: str) -> str:
  """Returns the first of the named fields that the row has, as text."""
  if not isinstance(row, Mapping):
    raise BadRow('it is not a JSON object')
  for name in names.split(','):
    value = inside(row, name.strip())
    if value is not None:
      break
  else:
    null = [n for n in map(str.strip, names.split(',')) if n in row]
    if null:
      raise BadRow(f'its {null[0]!r} is null; mend or remove the row')
    raise BadRow(
      f'it has no field {names!r}, only {sorted(map(str, row))}; name the '
      f'right one in data.files.{key}, of a suite with ?{key}=FIELD'
    )
  text = text_of(value)
  if text is None:
    raise BadRow(
      f'its {name.strip()!r} is {value!r:.80}, no valid text and no finite '
      'number; mend or remove the row'
    )
  return text


def _example(row, fields: Mapping[str, str]) -> dict:
  """Converts a row to an example."""
  question = _field(row, fields['question'], 'question')
  answer = _field(row, fields['answer'], 'answer')
  if '\n' in answer.strip() and not any(m in answer for m in MARKS):
    raise BadRow(
      f'its {fields["answer"]!r} has several lines and neither '
      f'{" nor ".join(MARKS)}: which part is the answer? Name the field of the '
      'bare answer in data.files.answer, of a suite with ?answer=FIELD'
    )
  solution = answer
  if fields['solution']:
    solution = _field(row, fields['solution'], 'solution')
  return {
    'prompt': question,
    'solution': solution,
    'answer': answer,
    'meta': row,
    'task': NAME,
  }


def _key(question: str) -> int:
  """Returns a 64-bit hash of a question that ignores white space and how the
  text composes its accents.
  """
  return key_of(' '.join(unicodedata.normalize('NFC', question).split()))


def _keyed(fields: Mapping[str, str], row) -> tuple[dict, int]:
  """Returns the example of a row, and the key of its question.

  Raises:
    BadRow: the row is invalid.
  """
  example = _example(row, fields)
  return example, _key(example['prompt'])


class Examples(Sequence):
  """Problems of several files, each read from the disk when it is used.

  Args:
    places: i64 [n], positions in the concatenation of the files.
    keys: u64 [n], of the questions.
  """

  def __init__(
    self, files: Sequence[Index], places: np.ndarray, keys: np.ndarray
  ):
    self._files, self._places, self.keys = files, places, keys
    self._ends = [*itertools.accumulate(map(len, files))]

  def __len__(self) -> int:
    return len(self._places)

  def __getitem__(self, index: int) -> dict:
    at = int(self._places[index])
    number = bisect.bisect(self._ends, at)
    file = self._files[number]
    return file[at - self._ends[number] + len(file)]


def keys_of(source: Sequence[dict]) -> np.ndarray:
  """Returns the keys of the questions of finite problems, u64 [n]."""
  if isinstance(source, Examples):
    return source.keys
  keys = (_key(source[i]['prompt']) for i in range(len(source)))
  return np.fromiter(keys, np.uint64, len(source))


class _Files:
  """Files of one split, without questions that are repeated.

  Attributes:
    places: i64 [n], see `Examples`; keys: u64 [n], of these questions.
  """

  def __init__(
    self, paths: Iterable[epath.Path], fields: Mapping[str, str], seen=()
  ):
    """Args: seen: keys of questions that are left out too."""
    convert = functools.partial(_keyed, fields)
    self._files = [opened(path, convert, fields) for path in paths]
    seen = np.array(seen, np.uint64)
    keys = [seen, *(file.entries['key'] for file in self._files)]
    keys = np.concatenate(keys)
    # The first of each; those of `seen` come before all.
    first = np.sort(np.unique(keys, return_index=True)[1])
    first = first[first >= len(seen)]
    self.places, self.keys = first - len(seen), keys[first]
    if repeated := len(keys) - len(seen) - len(first):
      logging.warning(
        '%s: left out %d rows whose question was there already.',
        ', '.join(str(file.path) for file in self._files),
        repeated,
      )

  def examples(self, which=slice(None)) -> Examples:
    """Returns the problems, or those that a mask [n] selects."""
    return Examples(self._files, self.places[which], self.keys[which])


def examples(
  paths: Sequence[epath.Path], fields: Mapping[str, str]
) -> Examples:
  """Returns the examples of files, repeated questions left out.

  Args:
    fields: names of question, answer and solution, see the module.

  Raises:
    ValueError: names file, row and field (`BadRow`), or the file has none.
    ImportError: Parquet without pyarrow.
  """
  return _Files(paths, guessed(paths, fields)).examples()


def place_of(source: epath.PathLike, example: dict) -> str:
  """Returns 'file, row N' of an example; '' if its row is not found."""
  for paths in paths_of(source).values():
    for path in paths:
      for number, row in rows(path):
        if row == example['meta']:
          return f'{path}, row {number}'
  return ''


def is_heldout(example: dict, share: float) -> bool:
  """Returns True if a problem is held out, by a hash of its question.

  So a problem stays in its split when the file grows.
  """
  return bool(_held_out(np.uint64(_key(example['prompt'])), share))


def _held_out(keys: np.ndarray, share: float) -> np.ndarray:
  return keys < np.uint64(math.ceil(share * 2**64))


def load(
  source: epath.PathLike,
  *,
  question: str = '',
  answer: str = '',
  solution: str = '',
  heldout: float = 0.02,
) -> dict[str, Examples]:
  """Returns {'train': examples, 'test': examples} of a file, a folder or hf:...

  Args:
    question, answer, solution: fields, see the module; question or answer '':
      guessed; solution '': the answer's.
    heldout: share of train that is held out where there are no test files.

  Raises:
    FileNotFoundError: names the file that is missing.
    ValueError: names file, row, field (`BadRow`), or the split left empty.
    ImportError: Parquet without pyarrow.
  """
  if not 0 <= heldout < 1:
    raise ValueError(
      f'data.files.heldout={heldout}: choose a number from 0 to below 1'
    )
  paths = paths_of(source)
  fields = dict(question=question, answer=answer, solution=solution)
  fields = guessed([*paths['train'], *paths['test']], fields)
  test = _Files(paths['test'], fields)  # first: it takes from train
  train = _Files(paths['train'], fields, test.keys)
  held = _held_out(train.keys, heldout) & (not paths['test'])
  found = {
    'train': train.examples(~held),
    'test': test.examples() if paths['test'] else train.examples(held),
  }
  if not all(map(len, found.values())):
    raise ValueError(
      f'{source}: {len(found["train"])} problems to train on and '
      f'{len(found["test"])} held out, with data.files.heldout={heldout}; give '
      'it more rows, another share, or a test.jsonl of other questions'
    )
  return found
