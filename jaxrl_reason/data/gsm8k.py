"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv:2110.14168).

  sources = load('../shared/data/gsm8k', cache_dir)     a local folder
  sources = load(None, cache_dir)                       the published files
  sources['train'][0]
  {'prompt': 'Natalia sold clips to 48 of her friends in April, ...',
   'solution': 'Natalia sold 48/2 = 24 clips in May.\n...\n#### 72',
   'answer': '72', 'meta': {}, 'task': 'gsm8k'}

The folder contains `train.jsonl` and `test.jsonl` as published: one object per
line with 'question' and 'answer', whose last line is `#### ` and the number.
The rows are checked, written once as ArrayRecord by a TFDS builder (without
TensorFlow) below `cache_dir`, and read by index in the order of the files.
"""

import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import tensorflow_datasets as tfds
from etils import epath

NAME = 'gsm8k'
SPLITS = ('train', 'test')
_URL = (
  'https://raw.githubusercontent.com/openai/grade-school-math/master/'
  'grade_school_math/data/'
)
URLS = {split: f'{_URL}{split}.jsonl' for split in SPLITS}
SIZES = {'train': 4_166_206, 'test': 749_738}  # bytes
SHA256 = {
  'train': '17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465',
  'test': '3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14',
}
LOOK_S = 5.0  # for an answer of the server, before TFDS downloads with retries
_ANSWER = '####'
_ANNOTATION = re.compile(r'<<[^<>]*>>')


def _check_row(row) -> str | None:
  """Returns the defect of a row, or None."""
  if not isinstance(row, dict):
    return 'it is not a JSON object'
  for key in ('question', 'answer'):
    if not isinstance(row.get(key), str) or not row[key].strip():
      return f'it has no text under {key!r}'
  _, marker, answer = row['answer'].rpartition(_ANSWER)
  if not marker or not answer.strip():
    return f"its 'answer' does not end in '{_ANSWER} <number>'"
  return None


def read_rows(path: epath.PathLike) -> Iterator[dict]:
  """Yields the rows of a published file; an error names the file and the
  row.
  """
  path = epath.Path(path)
  empty = True
  for number, line in enumerate(path.read_bytes().split(b'\n'), start=1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
      problem = _check_row(row)
    except ValueError as error:
      problem = f'it is not JSON ({error})'
    if problem:
      raise ValueError(
        f'{path}, row {number}: {problem}. Expected '
        '{"question": "...", "answer": "... #### 42"}; fix or remove the row.'
      )
    empty = False
    yield {'question': row['question'], 'answer': row['answer']}
  if empty:
    raise ValueError(f'{path} has no rows: download it again from {_URL}')


# Not registered, because TFDS's own builder named 'gsm8k' can only download.
class Gsm8k(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """The published files, downloaded or from `source_dir`."""

  VERSION = tfds.core.Version('1.0.0')
  # In place of the checksums file that TFDS reads for a registered builder.
  url_infos = {
    URLS[split]: tfds.download.checksums.UrlInfo(
      size=SIZES[split], checksum=SHA256[split], filename=f'{split}.jsonl'
    )
    for split in SPLITS
  }

  def __init__(self, *, source_dir: str | None = None, **kwargs):
    self._source_dir = source_dir
    super().__init__(**kwargs)

  def _info(self) -> tfds.core.DatasetInfo:
    return self.dataset_info_from_configs(
      features=tfds.features.FeaturesDict(
        {'question': tfds.features.Text(), 'answer': tfds.features.Text()}
      ),
      homepage='https://github.com/openai/grade-school-math',
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    if self._source_dir is None:
      paths = _download(dl_manager)
    else:
      paths = split_paths(self._source_dir)
    return {s: self._generate_examples(paths[s]) for s in SPLITS}

  def _generate_examples(self, path):
    yield from enumerate(read_rows(path))


def _download(dl_manager) -> dict[str, epath.Path]:
  try:
    _reach(URLS['train'])
    return dl_manager.download(URLS)
  except OSError as error:
    raise OSError(
      f'cannot download {", ".join(URLS.values())}: {error}. Without a '
      'network, set data.dir to a folder with train.jsonl and test.jsonl, or '
      'read the data set of the Hub: data.name=files, data.dir=hf:openai/gsm8k'
    ) from error


def _reach(url: str) -> None:
  """Raises an OSError if the server of a URL cannot be reached. TFDS would
  retry for minutes.
  """
  request = urllib.request.Request(url, method='HEAD')
  try:
    urllib.request.urlopen(request, timeout=LOOK_S).close()
  except urllib.error.HTTPError:
    pass  # the server answers; TFDS retries or reports its error


def split_paths(source_dir: epath.PathLike) -> dict[str, epath.Path]:
  paths = {s: epath.Path(source_dir) / f'{s}.jsonl' for s in SPLITS}
  for path in paths.values():
    if not path.exists():
      raise FileNotFoundError(
        f'{path} is missing: the folder must have train.jsonl and test.jsonl '
        'as published at https://github.com/openai/grade-school-math; leave '
        'data.dir empty to download them'
      )
  return paths


class Source:
  """Examples by index, as a grain source."""

  def __init__(self, rows, keep_annotations: bool):
    self._rows = rows
    self._keep_annotations = keep_annotations

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> dict:
    if not 0 <= index < len(self):
      raise IndexError(f'row {index} of {len(self)}')
    row = self._rows[index]
    return to_example(
      row['question'].decode(), row['answer'].decode(), self._keep_annotations
    )


def to_example(question: str, answer: str, keep_annotations: bool) -> dict:
  if not keep_annotations:
    answer = _ANNOTATION.sub('', answer)
  return {
    'prompt': question,
    'solution': answer,
    'answer': answer.rpartition(_ANSWER)[2].strip().replace(',', ''),
    'meta': {},
    'task': NAME,
  }


def load(
  source_dir: epath.PathLike | None,
  cache_dir: epath.PathLike,
  *,
  keep_annotations: bool = False,
) -> dict[str, Source]:
  """Returns {'train': source, 'test': source}, prepared below `cache_dir` once.

  Args:
    source_dir: a folder with the two files; None: download them.
    keep_annotations: keep the calculator's `<<48/2=24>>` in the solutions.
  """
  key = 'published'
  if source_dir is not None:
    # Named by content: an edited file is prepared again, a moved one is not.
    digest = hashlib.sha256()
    for path in split_paths(source_dir).values():
      digest.update(hashlib.sha256(path.read_bytes()).digest())
    key = digest.hexdigest()[:16]
  builder = Gsm8k(
    source_dir=None if source_dir is None else os.fspath(source_dir),
    data_dir=epath.Path(cache_dir) / key,
    file_format=tfds.core.FileFormat.ARRAY_RECORD,
  )
  tfds.disable_progress_bar()  # which would take a second
  builder.download_and_prepare()
  rows = builder.as_data_source()
  return {s: Source(rows[s], keep_annotations) for s in SPLITS}
