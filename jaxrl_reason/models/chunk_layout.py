"""The context of every token of a completion that is generated in chunks.

Delethink, https://arxiv.org/abs/2510.06557. A completion is generated in chunks
of C tokens. The next chunk keeps only the last m tokens of each:

  chunk 0   prompt, tokens 0 ... C - 1
  chunk k   prompt, tokens k (C - m) ... k (C - m) + C - 1, the first m of them
            carried: they are context, drawn in the chunk before

So the cache holds the keys of a prompt and C tokens, and the cost of a
completion is linear in its length. Completions stay rows [N,T] everywhere. Only
the context of each token differs, in sampling (`rollouts.chunks`) and in
training (`update.packing.Chunked`).
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Chunks:
  """Sizes of chunks; static, because they select a program.

  Attributes:
    tokens: C, tokens of a chunk, including the carried tokens.
    carry: m, tokens carried over from the chunk before, 0 < m < C.
  """

  tokens: int
  carry: int

  @property
  def fresh(self) -> int:
    """Returns the number of tokens that each chunk after the first adds."""
    return self.tokens - self.carry

  def count(self, max_tokens: int) -> int:
    """Returns the number of chunks of a completion of max_tokens tokens."""
    return 1 + max(0, -(-(max_tokens - self.tokens) // self.fresh))

  def chunk_of(self, max_tokens: int) -> np.ndarray:
    """Returns the chunk, i32 [max_tokens], in which each token is drawn."""
    late = np.arange(max_tokens) - self.tokens
    return np.where(late < 0, 0, late // self.fresh + 1).astype(np.int32)

  def windows(self, max_tokens: int) -> np.ndarray:
    """Returns the tokens of every chunk, i32 [chunks,C], as indices in the
    completion; max_tokens marks indices past its end.
    """
    first = np.arange(self.count(max_tokens)) * self.fresh
    at = first[:, None] + np.arange(self.tokens)
    return np.minimum(at, max_tokens).astype(np.int32)
