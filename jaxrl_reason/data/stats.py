"""Statistics of the prompts of a finite data set: tries and successes."""

import numpy as np


class PromptStats:
  """Counts by prompt id; part of a checkpoint.

  Attributes:
    tried, solved: int64 [n], samples with a verdict, and correct ones.
      Demonstrations, and rows that begin with a hint, do not count.
  """

  def __init__(self, n: int):
    self.tried = np.zeros(n, np.int64)
    self.solved = np.zeros(n, np.int64)

  def add(self, ids: np.ndarray, score: np.ndarray, valid: np.ndarray):
    """Adds samples: prompt id, score in [0, 1], whether there is a verdict."""
    ids, score = ids[valid], score[valid]
    np.add.at(self.tried, ids, 1)
    np.add.at(self.solved, ids, score > 0.5)

  def metrics(self) -> dict[str, float]:
    seen = self.tried > 0
    n = max(int(seen.sum()), 1)
    rate = self.solved[seen] / self.tried[seen]
    return {
      'data/seen': float(seen.mean()),  # share of the prompts
      'data/never_solved': float((rate == 0).sum() / n),
      'data/always_solved': float((rate == 1).sum() / n),
    }

  def get_state(self) -> dict[str, list]:
    return {'tried': self.tried.tolist(), 'solved': self.solved.tolist()}

  def fits(self, state: dict[str, list] | None) -> bool:
    """Returns True if a state, or None, has counts for so many prompts."""
    return state is not None and len(state['tried']) == len(self.tried)

  def set_state(self, state: dict[str, list]):
    self.tried = np.asarray(state['tried'], np.int64)
    self.solved = np.asarray(state['solved'], np.int64)
