"""Metrics to disk: `metrics.jsonl` (in an object store, `metrics/*.jsonl`), and
TensorBoard beside it when local.

One flat JSON object a line, `step` and `stage` first; docs/metrics.md lists the
names. A resumed run first drops the lines past its checkpoint, so the file
reads as that of one uninterrupted run.
"""

import json
import math
import resource
import sys

import jax
import numpy as np
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import files
from jaxrl_reason.run import board, chips, lines


def peak_flops() -> float | None:
  """FLOP/s of all devices together, or None where it is not known."""
  peak = chips.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  return peak and peak * jax.device_count()


def memory() -> dict[str, float]:
  """The most memory this process has had, and its fullest device, in GiB."""
  # Linux counts in KiB, macOS in bytes.
  unit = 2**30 if sys.platform == 'darwin' else 2**20
  held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
  told = [d.memory_stats() or {} for d in jax.local_devices()]
  device = max(m.get('peak_bytes_in_use', 0) for m in told) / 2**30
  return {'perf/host_gib': held} | (
    {'perf/device_gib': device} if device else {}
  )


def to_host(metrics: list[dict]) -> dict[str, float]:
  """The mean over steps (`_max`: the largest) of several dispatches' metrics,
  each a scalar or stacked [K]. Waits for the device.
  """
  stacked = {
    k: np.concatenate([np.atleast_1d(np.asarray(m[k])) for m in metrics])
    for k in metrics[0]
  }
  return {
    k: float(v.max() if k.endswith('_max') else v.astype(np.float64).mean())
    for k, v in stacked.items()
  }


def over_hosts(values: list[dict[str, float]]) -> dict[str, float]:
  """One dictionary of every host's: the sum of what pools count, else the mean
  (seconds; what all know alike).
  """
  out = {}
  for key in values[0]:
    column = [v[key] for v in values if key in v]
    total = math.fsum(column)
    out[key] = total if key.startswith('pool/') else total / len(column)
  return out


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

  def __init__(self, workdir: epath.Path, resume_step: int | None):
    self._lines = self._board = None
    if not hosts.is_main():
      return
    self._lines = lines.opened(workdir, resume_step)
    if not files.is_remote(workdir):
      purge = None if resume_step is None else resume_step + 1
      self._board = board.Board(workdir / 'tensorboard', purge)

  def write(self, step: int, stage: str, values: dict[str, float]):
    """One line; `values` by full name, as 'train/reward_mean'.

    Raises:
      OSError: it could not be written, or not all of it.
    """
    if self._lines is None:
      return
    row = {'step': step, 'stage': stage} | values
    self._lines.write(json.dumps(row) + '\n')
    if self._board is not None:
      self._board.write(step, values)

  def sync(self):
    """Until all is on disk: a checkpoint must not outlive its metrics."""
    if self._lines is not None:
      self._lines.sync()

  def close(self):
    for out in (self._lines, self._board):
      if out is not None:
        out.close()
