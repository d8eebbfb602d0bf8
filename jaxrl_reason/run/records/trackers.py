"""Sends metrics to trackers: Weights & Biases, MLflow, trackio.

`track='wandb,mlflow'` names them. Each is an extra of that name, reads its own
environment variables (WANDB_MODE=offline, MLFLOW_TRACKING_URI, TRACKIO_DIR,
...), and receives the lines of metrics.jsonl from process 0. A resumed run
continues the tracker's run; steps that it repeats are sent twice.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.names import choice, install
from jaxrl_reason.reports import metrics_file

PROJECT = 'jaxrl_reason'
IDS = 'track.json'  # in the workdir: tracker -> the id of its run


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
