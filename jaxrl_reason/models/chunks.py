"""Thoughts in chunks: which tokens a token of a long completion looks at.

Delethink, https://arxiv.org/abs/2510.06557. A completion is read and written
in chunks of C tokens; of each the next one keeps the last m and no more:

  chunk 0   prompt, tokens 0 ... C - 1
  chunk k   prompt, tokens k (C - m) ... k (C - m) + C - 1, the first m of them
            carried: they are context, and were drawn in the chunk before

So keys of a prompt and C tokens are all that is ever kept, and the cost of a
completion is linear in its length. Completions stay rows [N,T] everywhere;
what differs is the context of each token, here of those who sample
(`rollouts.chunks`) and of those who train (`update.packing.Chunked`).
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Chunks:
  """Chunks of a completion; static, they select a program.

  Attributes:
    tokens: C, of a chunk, what it carries included.
    carry: m, of them those of the chunk before, 0 < m < C.
  """

  tokens: int
  carry: int

  @property
  def fresh(self) -> int:
    """Counts the tokens that a chunk after the first adds."""
    return self.tokens - self.carry

  def count(self, room: int) -> int:
    """Counts the chunks of a completion of so many tokens."""
    return 1 + max(0, -(-(room - self.tokens) // self.fresh))

  def chunk_of(self, room: int) -> np.ndarray:
    """Returns the chunk, i32 [room], in which each token is drawn."""
    late = np.arange(room) - self.tokens
    return np.where(late < 0, 0, late // self.fresh + 1).astype(np.int32)

  def windows(self, room: int) -> np.ndarray:
    """Returns the tokens of every chunk, i32 [chunks,C]: indices in the
    completion; `room`: past its end.
    """
    first = np.arange(self.count(room)) * self.fresh
    at = first[:, None] + np.arange(self.tokens)
    return np.minimum(at, room).astype(np.int32)
