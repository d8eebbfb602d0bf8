"""Metrics to disk: `metrics.jsonl` (in an object store, `metrics/*.jsonl`), and
TensorBoard beside it.

One flat JSON object a line, `step` and `stage` first; docs/metrics.md lists the
names. A resumed run first drops the lines past its checkpoint, so the file
reads as that of one uninterrupted run.
"""

import dataclasses
import json
import math
import resource
import sys
from collections.abc import Sequence

import jax
import numpy as np
from absl import logging
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.run.process import chips
from jaxrl_reason.run.records import lines
from jaxrl_reason.run.records import tensorboard as board

# Means of some rows of a batch, of which it may have none.
WHERE_ANY = {'length_right', 'length_wrong'}


def peak_flops() -> float | None:
  """Returns the FLOP/s of all devices together, or None where it is not
  known.
  """
  peak = chips.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  return peak and peak * jax.device_count()


def memory() -> dict[str, float]:
  """Measures the most memory this process has had, and its fullest device, in
  GiB.
  """
  # Linux counts in KiB, macOS in bytes.
  unit = 2**30 if sys.platform == 'darwin' else 2**20
  held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
  told = [d.memory_stats() or {} for d in jax.local_devices()]
  device = max(m.get('peak_bytes_in_use', 0) for m in told) / 2**30
  return {'perf/host_gib': held} | (
    {'perf/device_gib': device} if device else {}
  )


def to_host(metrics: list[dict]) -> dict[str, float]:
  """Takes the mean over steps (`_max`: the largest) of several dispatches'
  metrics, each a scalar or stacked [K]; of `WHERE_ANY` over the steps that have
  one, and none where no step has. Waits for the device.
  """
  stacked = {
    k: np.concatenate([np.atleast_1d(np.asarray(m[k])) for m in metrics])
    for k in metrics[0]
  }
  for k in WHERE_ANY & stacked.keys():
    stacked[k] = stacked[k][~np.isnan(stacked[k])]
  return {
    k: float(v.max() if k.endswith('_max') else v.astype(np.float64).mean())
    for k, v in stacked.items()
    if v.size
  }


def over_hosts(values: list[dict[str, float]]) -> dict[str, float]:
  """Makes one dictionary of every host's: the sum of what pools count, else the
  mean (seconds; what all know alike).
  """
  out = {}
  for key in values[0]:
    column = [v[key] for v in values if key in v]
    total = math.fsum(column)
    out[key] = total if key.startswith('pool/') else total / len(column)
  return out


# Seconds of a step by which a slow host is found.
COMPARED = ('perf/step_s', 'perf/data_s', 'perf/verify_s')


def stragglers(values: list[dict[str, float]]) -> dict[str, float]:
  """Compares seconds that every host has its own of: the largest, whose they
  are, and how far apart they lie.
  """
  out = {}
  for key in COMPARED if len(values) > 1 else ():
    column = [v[key] for v in values if key in v]
    if len(column) == len(values):
      out[f'{key}_max'] = max(column)
      out[f'{key}_argmax'] = float(np.argmax(column))
      out[f'{key}_spread'] = max(column) - min(column)
  return out


@dataclasses.dataclass(frozen=True)
class Begun:
  """The dispatches of an interval that a signal has cut, as its checkpoint
  keeps them: the run that goes on writes one line of all.

  Attributes:
    steps: so many.
    device: metrics of each dispatch, the numbers of its steps in lists.
    host: metrics of each dispatch, over all hosts.
  """

  steps: int = 0
  device: list[dict] = dataclasses.field(default_factory=list)
  host: list[dict] = dataclasses.field(default_factory=list)

  @classmethod
  def of(cls, record: dict | None) -> 'Begun':
    """Returns what a checkpoint's record has of it."""
    return cls(**((record or {}).get('begun') or {}))

  def record(self) -> dict:
    """Returns the record as JSON."""
    return dataclasses.asdict(self)

  def and_then(self, device: list[dict], host: list[dict], k: int) -> 'Begun':
    """Goes on with the metrics of more dispatches, of k steps each; waits for
    them.
    """
    # float64 holds every float32 and i32, so that means come out the same.
    more = [
      {
        key: np.atleast_1d(x).astype(np.float64).tolist()
        for key, x in m.items()
      }
      for m in jax.device_get(device)
    ]
    over = [over_hosts(column) for column in zip(*hosts.gather(host))]
    steps = self.steps + k * len(device)
    return Begun(steps, self.device + more, self.host + over)

  def before(self, device: list[dict], host: list[dict]) -> tuple[list, list]:
    """Returns all dispatches of the interval, these the last of it."""
    if self.device and self.device[0].keys() != device[0].keys():
      logging.warning(
        'The metrics of this config are not those of the checkpoint: the line '
        'of its interval is of the steps since then alone.'
      )
      return device, host
    return self.device + device, self.host + host


def check_finite(
  values: dict[str, float], trained: list[str], step: int
) -> None:
  """Stops a run whose loss or gradient is no longer a number.

  Args:
    trained: paths of the trained parameters, in `trees.flatten` order.

  Raises:
    FloatingPointError: names the first bad gradient.
  """
  leaf = int(values.get('nonfinite_leaf_max', -1))
  if leaf < 0 and math.isfinite(values['loss']):
    return
  where = trained[leaf] if leaf >= 0 else 'the loss itself'
  raise FloatingPointError(
    f'NaN or infinity in or before step {step}; the first bad gradient is that '
    f'of {where} (loss {values["loss"]}). Lower optimizer.lr or raise '
    'warmup_steps; the last checkpoint is from before and is kept.'
  )


class Writer:
  """Adds metrics to a workdir; on process 0, for all."""

  def __init__(
    self, workdir: epath.Path, resume_step: int | None, others: Sequence = ()
  ):
    """Args: others: trackers that are told the same (`trackers.start`)."""
    self._lines, self._others = None, list(others)
    self.lost = 0, 0.0  # steps told before that are made again, seconds
    if not hosts.is_main():
      return
    self._lines = lines.opened(workdir, resume_step)
    self.lost = self._lines.lost.steps, self._lines.lost.seconds
    purge = None if resume_step is None else resume_step + 1
    self._others.append(board.Board(workdir / 'tensorboard', purge))

  def write(self, step: int, stage: str, values: dict[str, float]):
    """Writes one line; `values` by full name, as 'train/reward_mean'.

    Raises:
      OSError: it could not be written, or not all of it.
    """
    if self._lines is None:
      return
    row = {'step': step, 'stage': stage} | values
    self._lines.write(json.dumps(row) + '\n')
    for other in self._others:
      other.write(step, values)

  def warn_of_gap(self, step: int) -> None:
    """Warns if lines of metrics up to the step of the checkpoint are missing.

    Args:
      step: the step whose line was written before the checkpoint was saved.
    """
    last = step if self._lines is None else self._lines.last
    if last < step:
      logging.warning(
        'The metrics of steps %d to %d are lost: their lines were cut off. '
        'Training goes on from the checkpoint; curves have a gap there.',
        last + 1,
        step,
      )

  def hyper_parameters(self, values: dict) -> None:
    """Writes the values of the config, by dotted key, to TensorBoard."""
    for other in self._others:
      if isinstance(other, board.Board):
        other.hyper_parameters(values, 'eval/heldout/pass@1')

  def text(self, step: int, name: str, text: str) -> None:
    """Sends a text to the trackers."""
    for other in self._others:
      other.text(step, name, text)

  def histogram(self, step: int, name: str, values: Sequence[float]) -> None:
    """Sends a distribution of numbers to the trackers."""
    for other in self._others:
      other.histogram(step, name, values)

  def sync(self):
    """Waits until all lines are on disk: no checkpoint may be newer than its
    metrics.
    """
    if self._lines is not None:
      self._lines.sync()

  def close(self):
    for out in (self._lines, *self._others):
      if out is not None:
        out.close()
