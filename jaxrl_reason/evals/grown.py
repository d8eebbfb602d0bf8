"""Writes records block by block: to a file, or in an object store, which cannot
append, to one object per block until all records are written.

  gs://.../<name>.jsonl             all records, after the last block
  gs://.../<name>.parts/<n>.jsonl   before: a block, after n records
"""

from collections.abc import Sequence

from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.verifiers import records


def read(path: epath.Path) -> list[dict]:
  """Reads the complete records.

  Raises:
    BadRecord: a complete line is no JSON object.
  """
  if not files.is_remote(path):
    return records.finished(path)
  if path.exists():
    return records.parsed(path.read_bytes(), path)
  found = [records.parsed(p.read_bytes(), p) for p in _parts(path)]
  return [row for rows in found for row in rows]


def cut_torn(path: epath.Path) -> None:
  """Cuts an incomplete line at the end of a file; objects are always
  complete.
  """
  if not files.is_remote(path):
    records.cut_torn(path)


def add(path: epath.Path, before: int, rows: Sequence[dict]) -> None:
  """Appends records.

  Args:
    before: number of existing records.
  """
  text = ''.join(map(records.line_of, rows))
  if not files.is_remote(path):
    with path.open('a', encoding='utf-8') as f:
      f.write(text)
    return
  folder = path.with_suffix('.parts')
  folder.mkdir(parents=True, exist_ok=True)
  files.write_whole(folder / f'{before:09d}.jsonl', text)


def finish(path: epath.Path) -> None:
  """Joins the parts to one object, if there are parts."""
  if not files.is_remote(path) or path.exists():
    return
  parts = _parts(path)
  files.write_whole(path, ''.join(p.read_text() for p in parts))
  for part in parts:
    part.unlink()


def _parts(path: epath.Path) -> list[epath.Path]:
  folder = path.with_suffix('.parts')
  return sorted(folder.glob('*.jsonl')) if folder.exists() else []
