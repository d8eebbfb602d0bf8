"""pass@k of evaluations on disk, with errors over problems."""

from collections.abc import Sequence

import numpy as np


def pass_at_k(right: np.ndarray, n: int, k: int) -> np.ndarray:
  """Computes 1 - C(n - c, k) / C(n, k) of each problem with c of n correct
  samples.

  As a product in float64 (https://arxiv.org/abs/2107.03374, figure 3).
  """
  right = np.asarray(right)[:, None]
  i = np.arange(k)
  # With fewer incorrect samples than k, a factor is 0.
  return 1.0 - np.prod(np.clip(n - right - i, 0, None) / (n - i), axis=1)


def powers(n: int) -> list[int]:
  """Lists 1, 2, 4, ... and n."""
  return sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})


def curve(right: list[int], n: int) -> list[tuple[int, float, float]]:
  """Returns (k, mean over problems, its standard error) for the powers up to
  n.
  """
  out = []
  for k in powers(n):
    values = pass_at_k(right, n, k)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0
    out.append((k, float(values.mean()), float(error)))
  return out


def crossover(before: list[tuple], after: list[tuple]) -> int | None:
  """Returns the least k at which `before` is ahead of `after`, if it is not
  ahead at 1; otherwise None.
  """
  both = dict((k, v) for k, v, _ in before)
  ahead = [k for k, v, _ in after if k in both and both[k] > v]
  return min(ahead) if ahead and ahead[0] > 1 else None


def paired(before: list[float], after: list[float]) -> tuple[float, float]:
  """Returns (mean change over problems, its standard error)."""
  change = np.asarray(after, float) - np.asarray(before, float)
  n = len(change)
  error = change.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
  return float(change.mean()) if n else 0.0, float(error)


def ratio(
  parts: Sequence[float], wholes: Sequence[float]
) -> tuple[float, float]:
  """Returns (sum of parts / sum of wholes, its standard error over problems, by
  the delta method).

  Args:
    wholes: positive, one per problem.
  """
  parts, wholes = np.asarray(parts, float), np.asarray(wholes, float)
  n, total = len(wholes), wholes.sum()
  value = parts.sum() / total
  spread = ((parts - value * wholes) ** 2).sum() * n / max(n - 1, 1)
  return float(value), float(np.sqrt(spread) / total)


def changes(before: list[int], after: list[int]) -> dict[str, list[int]]:
  """Groups problems by their change: solved before and after, gained, lost, or
  never solved.
  """
  names = {(1, 1): 'kept', (0, 1): 'gained', (1, 0): 'lost', (0, 0): 'neither'}
  out: dict[str, list[int]] = {name: [] for name in names.values()}
  for i, (b, a) in enumerate(zip(before, after)):
    out[names[int(b > 0), int(a > 0)]].append(i)
  return out
