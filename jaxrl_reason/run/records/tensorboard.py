"""Writes metrics for TensorBoard, without tensorboardX's writer: the thread of
that writer ends at the first full disk, and would then block the run forever.
"""

import contextlib
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from jaxrl_reason.checkpoints import files

FLUSH_S = 30.0
OBJECT_BYTES = 2**22


@contextlib.contextmanager
def _no_torch():
  """Hides torch, which tensorboardX imports if it is installed. The import
  takes three seconds of every start, and is not needed.
  """
  if 'torch' in sys.modules:
    yield
    return
  sys.modules['torch'] = None  # `import torch` raises ImportError
  try:
    yield
  finally:
    del sys.modules['torch']


class Board:
  """An event file in a folder. In an object store, which cannot append, the
  file is kept locally and uploaded whole; a long one is followed by another.

  Args:
    purge_step: TensorBoard drops the values from this step on; None drops none.
  """

  def __init__(self, folder: epath.Path, purge_step: int | None):
    # Imported late: protobuf takes a second of every start.
    with _no_torch():
      from tensorboardX import event_file_writer, summary
      from tensorboardX.proto import event_pb2

    self._folder, self._summary = folder, summary
    self._event, self._log = event_pb2.Event, event_pb2.SessionLog
    self._open = event_file_writer.EventsWriter
    self._aside, self._begun = None, 0
    with files.explained(folder):
      folder.mkdir(parents=True, exist_ok=True)
      if files.is_remote(folder):
        self._aside = tempfile.TemporaryDirectory()
        # TensorBoard reads files in the order of their names.
        self._begun = len(list(folder.iterdir()))
      self._begin()
      if purge_step is not None:
        start = self._log(status=self._log.START)
        self._file.write_event(self._event(step=purge_step, session_log=start))
    self._flushed = time.monotonic()

  def _begin(self) -> None:
    """Begins an event file."""
    where = self._aside.name if self._aside else str(self._folder)
    name = f'events{self._begun:04d}' if self._aside else 'events'
    self._file = self._open(f'{where}/{name}')
    self._begun += 1

  def flush(self) -> None:
    """Flushes the event file to disk. In an object store it is uploaded
    whole, and another is begun if it is long.

    Raises:
      OSError: the file could not be written.
    """
    with files.explained(self._folder):
      self._flush()

  def _flush(self) -> None:
    self._file.flush()
    self._flushed = time.monotonic()
    if self._aside:
      (path,) = pathlib.Path(self._aside.name).iterdir()
      (self._folder / path.name).write_bytes(path.read_bytes())
      if path.stat().st_size > OBJECT_BYTES:
        self._file.close()
        path.unlink()
        self._begin()

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds a value to each curve."""
    self._put(step, [self._summary.scalar(k, v) for k, v in values.items()])

  def text(self, step: int, name: str, text: str) -> None:
    """Writes a text, with its line breaks."""
    self._put(step, [self._summary.text(name, f'```\n{text}\n```')])

  def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
    """Writes a distribution of numbers."""
    found = np.asarray(values, np.float64)
    self._put(step, [self._summary.histogram(name, found, 'auto')])

  def hyper_parameters(self, values: Mapping[str, Any], judged: str) -> None:
    """Writes the values of the config, by dotted key.

    Args:
      judged: the metric by which runs are compared.
    """
    kinds = bool, int, float, str
    flat = {k: v if isinstance(v, kinds) else str(v) for k, v in values.items()}
    self._put(0, self._summary.hparams(flat, {judged: 0.0}))
    self.text(0, 'config', '\n'.join(f'{k} = {v}' for k, v in flat.items()))

  def _put(self, step: int, summaries: Iterable) -> None:
    now = time.time()
    with files.explained(self._folder):
      for summary in summaries:
        event = self._event(step=step, wall_time=now, summary=summary)
        self._file.write_event(event)
      if time.monotonic() - self._flushed > FLUSH_S:
        self._flush()

  def close(self) -> None:
    with files.explained(self._folder):
      if self._aside:
        self._flush()
      self._file.close()
      if self._aside:
        self._aside.cleanup()
