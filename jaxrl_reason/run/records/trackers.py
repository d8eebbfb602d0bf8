"""Sends metrics to trackers: TensorBoard, Weights & Biases, MLflow, trackio.

`Board` writes TensorBoard files in the workdir, without tensorboardX's writer:
the thread of that writer ends at the first full disk, and would then block the
run forever. `track='wandb,mlflow'` names other trackers. Each is an extra of
that name, reads its own environment variables (WANDB_MODE=offline,
MLFLOW_TRACKING_URI, TRACKIO_DIR, ...), and receives the lines of metrics.jsonl
from process 0. A resumed run continues the tracker's run; steps that it repeats
are sent twice.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.names import choice, install
from jaxrl_reason.reports import metrics_file

PROJECT = 'jaxrl_reason'
IDS = 'track.json'  # in the workdir: tracker -> the id of its run
FLUSH_S = 30.0  # of TensorBoard files
OBJECT_BYTES = 2**22  # of a TensorBoard file in an object store


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


class Wandb:
  """Weights & Biases (https://docs.wandb.ai); offline, in the workdir."""

  def __init__(self, workdir: epath.Path, values: Mapping, run_id: str):
    import wandb

    self._wandb = wandb
    local = None if files.is_remote(workdir) else str(workdir)
    self._run = wandb.init(
      project=PROJECT, name=workdir.name, id=run_id or uuid.uuid4().hex,
      dir=local, config=dict(values), resume='allow',
    )  # fmt: skip
    # wandb would drop the steps that a resumed run repeats.
    self._run.define_metric('*', step_metric='step')
    self.id = self._run.id

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds a value to each curve."""
    self._run.log({'step': step, **values})

  def text(self, step: int, name: str, text: str) -> None:
    """Keeps a text."""
    html = self._wandb.Html(f'<pre>{_escaped(text)}</pre>', inject=False)
    self._run.log({'step': step, name: html})

  def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
    """Writes a distribution of numbers."""
    self._run.log({'step': step, name: self._wandb.Histogram(list(values))})

  def close(self) -> None:
    self._run.finish()


class Mlflow:
  """MLflow (https://mlflow.org); by default a database in the workdir."""

  def __init__(self, workdir: epath.Path, values: Mapping, run_id: str):
    import mlflow

    address, artifacts = None, None
    if not mlflow.is_tracking_uri_set() and not files.is_remote(workdir):
      address = f'sqlite:///{workdir.resolve()}/mlflow.db'
      artifacts = f'{workdir.resolve()}/mlflow'
    self._client = mlflow.MlflowClient(address)
    self.id = run_id
    if not run_id:
      self.id = self._new(workdir.name, artifacts)
      for key, value in values.items():
        self._client.log_param(self.id, key, str(value)[:500])

  def _new(self, name: str, artifacts: str | None) -> str:
    client = self._client
    found = client.get_experiment_by_name(PROJECT)
    where = found and found.experiment_id
    where = where or client.create_experiment(PROJECT, artifacts)
    return client.create_run(where, run_name=name).info.run_id

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds a value to each curve."""
    for name, value in values.items():
      self._client.log_metric(self.id, _plain(name), value, step=step)

  def text(self, step: int, name: str, text: str) -> None:
    """Keeps a text."""
    self._client.log_text(self.id, text, f'{name}/{step:08d}.txt')

  def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
    """Writes the quantiles of numbers: MLflow has no histograms."""
    ranked = sorted(values)
    for q in (10, 50, 90):
      value = ranked[min(len(ranked) * q // 100, len(ranked) - 1)]
      self.write(step, {f'{name}/p{q}': value})

  def close(self) -> None:
    self._client.set_terminated(self.id)


class Trackio:
  """trackio (https://github.com/gradio-app/trackio); a local database."""

  def __init__(self, workdir: epath.Path, values: Mapping, run_id: str):
    import trackio

    self._trackio = trackio
    self.id = run_id or f'{workdir.name}-{uuid.uuid4().hex[:8]}'
    self._run = trackio.init(
      project=PROJECT, name=self.id, config=dict(values), resume='allow',
      embed=False, auto_log_gpu=False, auto_log_cpu=False,
    )  # fmt: skip

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds a value to each curve."""
    self._run.log(dict(values), step=step)

  def text(self, step: int, name: str, text: str) -> None:
    """Keeps a text."""
    self._run.log(
      {name: self._trackio.Markdown(f'```\n{text}\n```')}, step=step
    )

  def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
    """Writes a distribution of numbers."""
    self._run.log({name: self._trackio.Histogram(list(values))}, step=step)

  def close(self) -> None:
    self._run.finish()


TRACKERS: dict[str, Callable] = {
  'wandb': Wandb,
  'mlflow': Mlflow,
  'trackio': Trackio,
}


def names(track: str) -> list[str]:
  """Returns the trackers that a configuration names, separated by commas.

  Raises:
    ValueError: one is unknown.
  """
  found = [name.strip() for name in track.split(',') if name.strip()]
  for name in found:
    if name not in TRACKERS:
      raise ValueError(choice('track', name, TRACKERS))
  return found


def start(workdir: epath.Path, values: Mapping[str, Any], track: str) -> list:
  """Starts the trackers of a run, or continues the tracker runs of a resumed
  run.

  Args:
    values: of the config, by dotted key.

  Raises:
    ValueError: one is not installed, or does not start.
  """
  path, out = workdir / IDS, []
  # Without it, trackers begin new runs.
  ids = next(iter(metrics_file.lines(path)), {})
  for name in names(track):
    try:
      made = TRACKERS[name](workdir, values, ids.get(name, ''))
    except ImportError as e:
      raise ValueError(f'track={track!r}: {e}; {install(name)}') from e
    # Any exception of a service or its client.
    except Exception as e:
      raise ValueError(f'track={track!r}: {name} did not start: {e}') from e
    out.append(Guarded(name, made))
    ids[name] = made.id
  if out:
    files.write_whole(path, json.dumps(ids) + '\n')
  return out


class Guarded:
  """A tracker whose failure does not end the run: the values are also in the
  workdir.
  """

  def __init__(self, name: str, tracker):
    self._name, self._tracker = name, tracker

  def __getattr__(self, method: str) -> Callable[..., None]:
    def call(*args) -> None:
      if self._tracker is None:
        return
      try:
        getattr(self._tracker, method)(*args)
      # Any exception of a service or its client; the run continues.
      except Exception as e:
        self._tracker = None
        logging.warning(
          'track: %s failed and receives no more data: %s', self._name, e
        )

    return call


def _escaped(text: str) -> str:
  return text.replace('&', '&amp;').replace('<', '&lt;')


def _plain(name: str) -> str:
  """Returns a metric's name that MLflow accepts: pass@1 is pass_at_1."""
  return name.replace('@', '_at_')
