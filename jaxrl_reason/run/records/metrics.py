"""Writes metrics to `metrics.jsonl` (in an object store, `metrics/*.jsonl`) and
to TensorBoard.

A line is one flat JSON object that starts with `step` and `stage`;
docs/metrics.md lists the names. A resumed run first drops the lines after its
checkpoint, so the file equals that of an uninterrupted run.
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
from jaxrl_reason.run.records import lines, trackers

# NaN for a batch without rows or a spread to measure.
WHERE_ANY = {
  'length_right',
  'length_wrong',
  'reward_correlation',
  'probe/auroc',
  'verdict/accuracy',
  'verdict/auroc',
  'verdict/loss',
  'verdict/mass',
  'verdict/right',
}
# Means over trained tokens. A step without one has 0, which is no measurement.
OF_TRAINED = frozenset(
  'entropy kl teacher_kl nll nll_sampler ppl ppl_sampler ratio_mean approx_kl '
  'approx_kl_rev ess weight_mean weight_ess gap_mean clip_low clip_high '
  'policy_lag advantage_rms'.split()
)


def peak_flops() -> float | None:
  """Returns the FLOP/s of all devices together, or None if unknown."""
  peak = chips.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  return peak and peak * jax.device_count()


def memory() -> dict[str, float]:
  """Measures the peak memory of this process and of its fullest device, in
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
  """Computes the mean over steps (for `_max`, the maximum) of the metrics of
  several dispatches, each a scalar or stacked [K]. Metrics in `WHERE_ANY` are
  averaged over the steps that have them, or left out, and those in `OF_TRAINED`
  over the steps with a trained token, or 0. Waits for the device.
  """
  stacked = {
    k: np.concatenate([np.atleast_1d(np.asarray(m[k])) for m in metrics])
    for k in metrics[0]
  }
  for k in WHERE_ANY & stacked.keys():
    stacked[k] = stacked[k][~np.isnan(stacked[k])]
  trained = stacked.get('trained_tokens', np.zeros(0)) > 0
  for k in OF_TRAINED & stacked.keys() if trained.any() else ():
    stacked[k] = stacked[k][trained]
  return {
    k: float(v.max() if k.endswith('_max') else v.astype(np.float64).mean())
    for k, v in stacked.items()
    if v.size
  }


def over_hosts(values: list[dict[str, float]]) -> dict[str, float]:
  """Combines the metrics of all hosts: sums of the counts of pools, and means
  of other metrics.
  """
  out = {}
  for key in values[0]:
    column = [v[key] for v in values if key in v]
    total = math.fsum(column)
    counts = key.startswith(('pool/', 'tools/'))
    out[key] = total if counts else total / len(column)
  return out


# Seconds of a step that identify a slow host.
COMPARED = (
  'perf/step_s',
  'perf/data_s',
  'perf/verify_s',
  'perf/tools_wait_s',
)


def stragglers(values: list[dict[str, float]]) -> dict[str, float]:
  """Compares seconds between hosts: the largest, its host, and the range."""
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
  """The dispatches of an interval that a signal interrupted. The checkpoint
  contains them, and the resumed run writes one line for the whole interval.

  Attributes:
    steps: their number.
    device: metrics of each dispatch, the numbers of its steps in lists.
    host: metrics of each dispatch, over all hosts.
  """

  steps: int = 0
  device: list[dict] = dataclasses.field(default_factory=list)
  host: list[dict] = dataclasses.field(default_factory=list)

  @classmethod
  def of(cls, record: dict | None) -> 'Begun':
    """Reads the dispatches from the record of a checkpoint."""
    return cls(**((record or {}).get('begun') or {}))

  def record(self) -> dict:
    """Returns the dispatches as JSON values for a record."""
    return dataclasses.asdict(self)

  def and_then(self, device: list[dict], host: list[dict], k: int) -> 'Begun':
    """Adds the metrics of more dispatches, of k steps each; waits for them."""
    # float64 represents every float32 and i32, so the means are the same.
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
    """Returns all dispatches of the interval, with these as the last."""
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
  """Stops a run if its loss or gradient is not finite.

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
  """Writes metrics to a workdir, on process 0."""

  def __init__(
    self,
    workdir: epath.Path,
    resume_step: int | None,
    others: Sequence = (),
    owed: bool = False,
  ):
    """Opens the files for more lines.

    Args:
      resume_step, owed: as of `lines.opened`.
      others: trackers for the same metrics (`trackers.start`).
    """
    self._lines, self._others = None, list(others)
    self.lost = 0, 0.0  # repeated steps, and their seconds
    if not hosts.is_main():
      return
    self._lines = lines.opened(workdir, resume_step, owed)
    self.lost = self._lines.lost.steps, self._lines.lost.seconds
    purge = None if resume_step is None else resume_step + 1
    self._others.append(trackers.Board(workdir / 'tensorboard', purge))

  def write(self, step: int, stage: str, values: dict[str, float]):
    """Writes one line; `values` by full name, as 'train/reward_mean'.

    Raises:
      OSError: the line could not be written completely.
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
      step: the last step whose line must be there, since it was written before
        the checkpoint.
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
      if isinstance(other, trackers.Board):
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
    """Waits until all lines and events are on disk: no checkpoint may be newer
    than its metrics.
    """
    if self._lines is not None:
      self._lines.sync()
    for other in self._others:
      if isinstance(other, trackers.Board):
        other.flush()

  def close(self):
    for out in (self._lines, *self._others):
      if out is not None:
        out.close()
