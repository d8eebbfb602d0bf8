"""Metrics to disk: `metrics.jsonl` always, TensorBoard beside it when local.

One flat JSON object a line, `step` and `stage` first; docs/metrics.md lists the
names. A resumed run first drops the lines past its checkpoint, so the file
reads as that of one uninterrupted run.
"""

import json
import math

import jax
import numpy as np
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.run import chips


def peak_flops() -> float | None:
  """FLOP/s of all devices together, or None where it is not known."""
  peak = chips.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  return peak and peak * jax.device_count()


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
  """Appends metrics to a workdir."""

  def __init__(self, workdir: epath.Path, resume_step: int | None):
    self._path = workdir / 'metrics.jsonl'
    self._truncate(resume_step)
    self._board = None
    # Object stores cannot append, which both kinds of file here need.
    self._remote = '://' in str(workdir)
    if hosts.is_main() and not self._remote:
      # Imported late: protobuf takes a second of every start.
      from tensorboardX import SummaryWriter

      self._board = SummaryWriter(
        str(workdir / 'tensorboard'),
        purge_step=None if resume_step is None else resume_step + 1,
      )

  def _truncate(self, resume_step: int | None):
    if not hosts.is_main() or not self._path.exists():
      return
    kept = []
    for line in self._path.read_text().splitlines():
      try:
        row = json.loads(line)
      except ValueError:
        break  # a line cut off by a kill; nothing after it was written
      if resume_step is not None and row['step'] <= resume_step:
        kept.append(line + '\n')
    self._path.write_text(''.join(kept))

  def write(self, step: int, stage: str, values: dict[str, float]):
    """One line; `values` by full name, as 'train/reward_mean'."""
    if not hosts.is_main():
      return
    line = json.dumps({'step': step, 'stage': stage} | values) + '\n'
    if self._remote:
      before = self._path.read_text() if self._path.exists() else ''
      self._path.write_text(before + line)
      return
    with self._path.open('a') as f:
      f.write(line)
    for name, value in values.items():
      self._board.add_scalar(name, value, step)

  def close(self):
    if self._board is not None:
      self._board.close()
