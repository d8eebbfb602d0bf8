"""Problems in files of your own, a row each: JSON lines, or Parquet.

  sources = load('problems.jsonl', question='problem', answer='answer')
  sources['train'][0]
  {'prompt': 'What is $2 + 3$?', 'answer': '5', 'solution': '5',
   'meta': {'problem': ..., 'answer': 5, 'level': 1}, 'task': 'files'}

  a file                         held-out problems are a share of it
  a folder with train.jsonl      likewise
    and test.jsonl               held-out problems are those

In a folder, `train-*.jsonl` and `test-*.jsonl` are read too, in order, and
`.parquet` where pyarrow is installed. A field is a key of a row; a dot goes
inside (`reward_model.ground_truth`, `prompt.0.content`), and of several with
commas between them a row must have one: exports of MATH, AIME, DAPO-Math-17k
differ only in these names. `meta` is the whole row, where verifiers find what
else they read (tests, choices).

A question counts once, however often it is repeated. What is held out is never
trained on: the share goes by a hash of the question, so that it stays when the
file grows, and questions of the test files are left out of train.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping

from absl import logging
from etils import epath

NAME = 'files'
KINDS = ('jsonl', 'parquet')
# An answer of several lines must mark the part that is the answer.
MARKS = ('\\boxed', '####')


class BadRow(ValueError):
  """An invalid row; the message names file, row, field and remedy."""


def rows(path: epath.Path) -> Iterator[tuple[int, dict]]:
  """Yields (number from 1, row) of a file: JSON lines, or Parquet by suffix."""
  return _parquet(path) if path.suffix == '.parquet' else _json_lines(path)


def examples(path: epath.Path, fields: Mapping[str, str]) -> list[dict]:
  """Returns the examples of one file, repeated questions left out.

  Args:
    fields: names of question, answer and solution, see the module.

  Raises:
    ValueError: names file, row and field (`BadRow`), or the file has none.
    ImportError: Parquet without pyarrow.
  """
  return _read([path], fields, set())


def _json_lines(path: epath.Path) -> Iterator[tuple[int, dict]]:
  """Yields (line number, row) of every line that is not empty."""
  for number, line in enumerate(path.read_bytes().split(b'\n'), start=1):
    if not line.strip():
      continue
    try:
      row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
      raise BadRow(
        f'{path}, row {number}: it is not JSON ({error}). Every line must be '
        'one JSON object; mend or remove it.'
      ) from error
    yield number, row


def _refuse_constant(name: str):
  """Refuses NaN and infinities, which Python's reader accepts."""
  raise ValueError(f'{name} is no JSON')


def _parquet(path: epath.Path) -> Iterator[tuple[int, dict]]:
  """Yields (row number, row); one batch of rows is in memory at a time."""
  try:
    import pyarrow.parquet as parquet
  except ImportError as error:
    raise ImportError(
      f'{path} needs pyarrow: pip install pyarrow, or write it as JSON lines'
    ) from error
  number = 0
  with parquet.ParquetFile(str(path)) as file:
    for batch in file.iter_batches():
      for row in batch.to_pylist():
        number += 1
        yield number, row


def _paths(source: epath.Path) -> dict[str, list[epath.Path]]:
  """Returns the files of each split; a single file is train."""
  if source.is_file():
    if source.suffix.removeprefix('.') not in KINDS:
      raise ValueError(f'data.dir={source}: a file is .{" or .".join(KINDS)}')
    return {'train': [source], 'test': []}
  if not source.is_dir():
    raise FileNotFoundError(f'data.dir={source} is no file and no folder')
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


def _inside(row, path: str):
  """Returns row[a][b] of 'a.b', or None; numbers are positions in lists."""
  for key in path.split('.'):
    if isinstance(row, Mapping):
      row = row.get(key)
    elif isinstance(row, list) and key.isdigit() and int(key) < len(row):
      row = row[int(key)]
    else:
      return None
  return row


def _text(value) -> str | None:
  """Returns a text or a finite number as text, and None for anything else.

  Empty text is None, and so is text with a lone surrogate: no tokenizer takes
  it.
  """
  if isinstance(value, (int, float)) and not isinstance(value, bool):
    return str(value) if math.isfinite(value) else None
  if not isinstance(value, str) or not value.strip():
    return None
  try:
    value.encode()
  except UnicodeEncodeError:
    return None
  return value


def _field(row, names: str, key: str) -> str:
  """Returns the first of the named fields that the row has, as text."""
  if not isinstance(row, Mapping):
    raise BadRow('it is not a JSON object')
  for name in names.split(','):
    value = _inside(row, name.strip())
    if value is not None:
      break
  else:
    raise BadRow(
      f'it has no field {names!r}, only {sorted(map(str, row))}; name the '
      f'right one in data.files.{key}, of a suite with ?{key}=FIELD'
    )
  text = _text(value)
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


def _key(question: str) -> bytes:
  """Returns a digest of a question that ignores differences in white space."""
  return hashlib.sha256(' '.join(question.split()).encode()).digest()


def _read(
  paths: Iterable[epath.Path], fields: Mapping[str, str], seen: set[bytes]
) -> list[dict]:
  """Reads the examples of files; leaves out questions already `seen`."""
  out, repeated = [], 0
  for path in paths:
    number = 0
    for number, row in rows(path):
      try:
        example = _example(row, fields)
      except BadRow as error:
        raise BadRow(f'{path}, row {number}: {error}.') from error
      key = _key(example['prompt'])
      if key in seen:
        repeated += 1
        continue
      seen.add(key)
      out.append(example)
    if not number:
      raise ValueError(f'{path} has no rows')
  if repeated:
    logging.warning(
      '%s: left out %d rows whose question was there already.',
      ', '.join(map(str, paths)),
      repeated,
    )
  return out


def place_of(source: epath.PathLike, example: dict) -> str:
  """Returns 'file, row N' of an example; '' if its row is not found."""
  for paths in _paths(epath.Path(source)).values():
    for path in paths:
      for number, row in rows(path):
        if row == example['meta']:
          return f'{path}, row {number}'
  return ''


def is_heldout(example: dict, share: float) -> bool:
  """Returns True if a problem is held out, by a hash of its question.

  So a problem stays in its split when the file grows.
  """
  return int.from_bytes(_key(example['prompt'])[:8]) < share * 2**64


def load(
  source: epath.PathLike,
  *,
  question: str = 'question',
  answer: str = 'answer',
  solution: str = '',
  heldout: float = 0.02,
) -> dict[str, list[dict]]:
  """Returns {'train': examples, 'test': examples} of a file or a folder.

  Args:
    question, answer, solution: fields, see the module; solution '': the
      answer's.
    heldout: share of train that is held out where there are no test files.

  Raises:
    FileNotFoundError: names the file that is missing.
    ValueError: names file, row, field (`BadRow`), or the split left empty.
    ImportError: Parquet without pyarrow.
  """
  if not 0 < heldout < 1:
    raise ValueError(f'data.files.heldout={heldout}: choose between 0 and 1')
  fields = dict(question=question, answer=answer, solution=solution)
  paths, seen = _paths(epath.Path(source)), set()
  test = _read(paths['test'], fields, seen)  # first: it takes from train
  train = _read(paths['train'], fields, seen)
  if not paths['test']:
    test = [e for e in train if is_heldout(e, heldout)]
    train = [e for e in train if not is_heldout(e, heldout)]
  if not (train and test):
    raise ValueError(
      f'{source}: {len(train)} problems to train on and {len(test)} held out, '
      f'with data.files.heldout={heldout}; give it more rows, another share, '
      'or a test.jsonl of other questions'
    )
  return {'train': train, 'test': test}
