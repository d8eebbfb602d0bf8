"""Prints the sparsity and rank of the change of weights in training.

  .venv/bin/python tools/weight_change.py runs/arithmetic@225 runs/arithmetic
  .venv/bin/python tools/weight_change.py BEFORE AFTER --out=change.json
  .venv/bin/python tools/weight_change.py runs/a@150 runs/a@190 --to=230
    --out=230.npz

BEFORE and AFTER are WORKDIR[@step]. Each weight matrix has one line; figures of
a stacked matrix are means over its layers:

  same    share of entries whose bfloat16 value does not change. RL changes few
          (https://arxiv.org/abs/2505.11711)
  size    |difference| / |weight|, Frobenius norms
  rank90  number of singular values that have 90 % of the squared norm of the
          difference
  of      number of singular values
  stable  squared norm of the difference / its largest squared singular value
  rank1   share of the squared norm in the best approximation of rank 1, which
          https://arxiv.org/abs/2510.00553 studies

With --to, the tool predicts the change of the weights until a later step from
the checkpoints of one run between BEFORE and AFTER (AlphaRL, the same paper).
The directions are the first --rank singular vectors u, v of each matrix of
W(AFTER) - W(BEFORE). The coefficient u^T (W(t) - W(BEFORE)) v of every
checkpoint t is fitted by a line, whose value at --to is the coefficient of
u v^T in the prediction. --rank=0 fits a line to every entry. The paper fits u
by a regression on accuracy; here the line is over steps. The model
`changed:BEFORE+FILE` of `evaluate` adds the file to the weights.

Measured for three seeds of RL in configs/verdict_tiny.py:none, from the
checkpoints of steps 10, 20, 30 and 40, with --to=80 (pass@1 of 256 held-out
problems x 4, standard error 0.02):

                                         seed 0  seed 1  seed 2  mean
  step 10                                0.486   0.457   0.391   0.445
  step 40                                0.528   0.719   0.390   0.546
  step 80                                0.769   0.931   0.565   0.755
  fitted lines at step 40, rank 1        0.562   0.541   0.430   0.511
  predicted step 80, rank 1              0.538   0.596   0.400   0.511
  predicted step 80, every entry         0.223   0.218   0.146   0.196

So the prediction is far below the real step 80: the coefficients follow a line
between steps 10 and 40, and not after step 40 (docs/reports.md).
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from etils import epath

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import manager, other_run

STACKED = 'layers/'  # weights under this path have a leading axis of layers


def read(name: str) -> dict[str, np.ndarray]:
  """Reads the weights of WORKDIR[@step], by path.

  Raises:
    ValueError: WORKDIR is not a run, or has no such checkpoint.
  """
  workdir, _, step = name.partition('@')
  if not other_run.is_run(workdir):
    raise ValueError(f'{workdir} is not the workdir of a run')
  params = trees.flatten(
    other_run.read_params(epath.Path(workdir), int(step) if step else None)
  )
  return {k: np.asarray(x, np.float32) for k, x in params.items()}


def matrices(x: np.ndarray, stacked: bool) -> np.ndarray:
  """Reshapes a weight to matrices [layers, rows, columns] that are as square as
  possible. A vector has one row.
  """
  layers, shape = (len(x), x.shape[1:]) if stacked else (1, x.shape)
  splits = [int(np.prod(shape[:i])) for i in range(len(shape))]
  columns = int(np.prod(shape))
  rows = min(splits or [1], key=lambda r: abs(r - columns / r))
  return x.reshape(layers, rows, -1)


def change(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
  """Computes the figures of one weight, given as [layers, rows, columns]."""
  rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16)) for x in (before, after)]
  delta = after.astype(np.float64) - before
  squares = np.linalg.svd(delta, compute_uv=False) ** 2  # [layers, ranks]
  squares = squares[squares.sum(1) > 0]  # layers that have changed
  out = {
    'same': float((rounded[0] == rounded[1]).mean()),
    'size': float(np.linalg.norm(delta) / (np.linalg.norm(before) or 1.0)),
    'of': min(delta.shape[1:]),
  }
  if not len(squares):
    return out | {'rank90': 0.0, 'stable': 0.0, 'rank1': 0.0}
  shares = squares / squares.sum(1, keepdims=True)
  below = np.cumsum(shares, 1) < 0.9
  return out | {
    'rank90': float((below.sum(1) + 1).mean()),
    'stable': float((1 / shares[:, 0]).mean()),
    'rank1': float(shares[:, 0].mean()),
  }


def compare(before: dict, after: dict) -> dict[str, dict[str, float]]:
  """Computes the figures of every weight that has one shape in both runs.

  Raises:
    ValueError: there is no such weight.
  """
  out = {}
  for path, x in before.items():
    if path in after and after[path].shape == x.shape:
      stacked = path.startswith(STACKED)
      out[path] = change(matrices(x, stacked), matrices(after[path], stacked))
  if not out:
    raise ValueError('the two runs have no weight of the same shape')
  return out


def predict(
  steps: Sequence[int], weights: Sequence[np.ndarray], to: int, rank: int
) -> np.ndarray:
  """Predicts the change of a weight from the first step until a later one.

  Args:
    steps: steps of the checkpoints, increasing.
    weights: [layers, rows, columns] of each checkpoint.
    rank: number of singular vectors of the last change whose coefficients are
      fitted by lines; 0: fit a line to every entry.
  """
  first = weights[0].astype(np.float64)
  changes = np.stack([x - first for x in weights])  # [checkpoints, layers, ..]
  if not rank:
    return _line(steps, changes, to)
  u, _, v = np.linalg.svd(changes[-1], full_matrices=False)
  u, v = u[..., :rank], v[:, :rank]  # [layers, rows, r], [layers, r, columns]
  found = _line(steps, np.einsum('lir,tlij,lrj->tlr', u, changes, v), to)
  return np.einsum('lir,lr,lrj->lij', u, found, v)


def _line(steps: Sequence[int], values: np.ndarray, to: int) -> np.ndarray:
  """Evaluates the least-squares line through values [checkpoints,...] at a
  step.
  """
  x = np.asarray(steps, np.float64)
  apart = x - x.mean()
  slope = np.tensordot(apart, values, 1) / (apart @ apart)
  return values.mean(axis=0) + slope * (to - x.mean())


def predicted(before: str, after: str, to: int, rank: int) -> dict:
  """Predicts the changes of all weights until step `to`, by path.

  Raises:
    ValueError: the two names are not of one run, or `to` is not after them.
  """
  (workdir, _, first), (other, _, last) = (
    name.rpartition('@') for name in (before, after)
  )
  known = workdir == other and first.isdecimal() and last.isdecimal()
  if not known or not int(first) < int(last) <= to:
    raise ValueError(
      f'--to={to}: needs WORKDIR@step and WORKDIR@step of one run, at two '
      f'increasing steps up to it, not {before} and {after}'
    )
  folders = (epath.Path(workdir) / manager.CHECKPOINTS).iterdir()
  steps = sorted(int(f.name) for f in folders if f.name.isdecimal())
  steps = [s for s in steps if int(first) <= s <= int(last)]
  each = [read(f'{workdir}@{s}') for s in steps]
  out = {}
  for path, x in each[0].items():
    stacked = path.startswith(STACKED)
    weights = [matrices(w[path], stacked) for w in each]
    change = predict(steps, weights, to, rank)
    out[path] = change.reshape(x.shape).astype(np.float32)
  return out


def table(changes: dict[str, dict[str, float]]) -> str:
  """Formats the figures, one line per weight."""
  wide = max(map(len, changes))
  lines = [f'{"":{wide}}   same     size   rank90    of  stable  rank1']
  for path, c in changes.items():
    lines.append(
      f'{path:{wide}} {c["same"]:6.3f} {c["size"]:8.5f} {c["rank90"]:8.1f} '
      f'{c["of"]:5d} {c["stable"]:7.2f} {c["rank1"]:6.3f}'
    )
  return '\n'.join(lines)


def main() -> int:
  p = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  p.add_argument('before', metavar='BEFORE', help='WORKDIR[@step]')
  p.add_argument('after', metavar='AFTER', help='WORKDIR[@step]')
  p.add_argument(
    '--out', help='JSON file with the figures, or .npz with the prediction'
  )
  p.add_argument('--to', type=int, help='step of the prediction')
  p.add_argument(
    '--rank', type=int, default=1, help='rank of the prediction; 0: full'
  )
  a = p.parse_args()
  try:
    if a.to is not None:
      if not (a.out or '').endswith('.npz'):
        raise ValueError('--to: needs --out=FILE.npz')
      np.savez(a.out, **predicted(a.before, a.after, a.to, a.rank))
      print(f'{a.out}: evaluate it as changed:{a.before}+{a.out}')
      return 0
    changes = compare(read(a.before), read(a.after))
    if a.out:
      pathlib.Path(a.out).write_text(json.dumps(changes, indent=1) + '\n')
  except (ValueError, OSError) as e:
    print(f'weight_change: {e}', file=sys.stderr)
    return 1
  print(table(changes))
  return 0


if __name__ == '__main__':
  sys.exit(main())
