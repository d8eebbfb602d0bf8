"""How training has changed the weights: sparsity and rank of the difference.

  python tools/weight_change.py runs/arithmetic@225 runs/arithmetic
  python tools/weight_change.py BEFORE AFTER --out=change.json

BEFORE and AFTER are WORKDIR[@step]. A line for each weight matrix, those of all
layers together:

  same    share of entries whose bfloat16 value is the one before: RL moves few
          of them past a rounding (https://arxiv.org/abs/2505.11711)
  size    |difference| / |weight|, Frobenius norms
  rank90  singular values that hold 90 % of the difference's squared norm,
          mean over layers, and of how many
  stable  squared norm over the largest squared singular value, mean
  rank1   share of the squared norm that the best matrix of rank 1 gives back
          (https://arxiv.org/abs/2510.00553 follow that one alone), mean
"""

import argparse
import json
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
from etils import epath

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import other_run

STACKED = 'layers/'  # weights under this path have a leading axis of layers


def read(name: str) -> dict[str, np.ndarray]:
  """The weights of WORKDIR[@step] by path.

  Raises:
    ValueError: no run, or no such checkpoint.
  """
  workdir, _, step = name.partition('@')
  if not other_run.is_run(workdir):
    raise ValueError(f'{workdir} is no workdir of a run')
  found = other_run.read_params(
    epath.Path(workdir), int(step) if step else None
  )
  return {k: np.asarray(x, np.float32) for k, x in trees.flatten(found).items()}


def matrices(x: np.ndarray, stacked: bool) -> np.ndarray:
  """A weight as matrices [layers, rows, columns], split where it is squarest;
  vectors have one row.
  """
  layers, shape = (len(x), x.shape[1:]) if stacked else (1, x.shape)
  splits = [int(np.prod(shape[:i])) for i in range(len(shape))]
  columns = int(np.prod(shape))
  rows = min(splits or [1], key=lambda r: abs(r - columns / r))
  return x.reshape(layers, rows, -1)


def change(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
  """Figures of one weight as matrices [layers, rows, columns]."""
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
  held = np.cumsum(shares, 1) < 0.9
  return out | {
    'rank90': float((held.sum(1) + 1).mean()),
    'stable': float((1 / shares[:, 0]).mean()),
    'rank1': float(shares[:, 0].mean()),
  }


def compare(before: dict, after: dict) -> dict[str, dict[str, float]]:
  """`change` of every weight that both have in one shape.

  Raises:
    ValueError: they have none.
  """
  out = {}
  for path, x in before.items():
    if path in after and after[path].shape == x.shape:
      stacked = path.startswith(STACKED)
      out[path] = change(matrices(x, stacked), matrices(after[path], stacked))
  if not out:
    raise ValueError('the two have no weight of the same shape')
  return out


def table(found: dict[str, dict[str, float]]) -> str:
  """The figures, a line for each weight."""
  wide = max(map(len, found))
  lines = [f'{"":{wide}}   same     size   rank90    of  stable  rank1']
  for path, c in found.items():
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
  p.add_argument('--out', help='the same as JSON')
  a = p.parse_args()
  try:
    found = compare(read(a.before), read(a.after))
    if a.out:
      pathlib.Path(a.out).write_text(json.dumps(found, indent=1) + '\n')
  except (ValueError, OSError) as e:
    print(f'weight_change: {e}', file=sys.stderr)
    return 1
  print(table(found))
  return 0


if __name__ == '__main__':
  sys.exit(main())
