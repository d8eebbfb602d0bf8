"""Lays out completions in chunks for the update (`models.chunk_layout`).

  rows [N,P+T]  ->  chunks [N*K,P+C], each the prompt, the carried tail, and the
  tokens sampled in the chunk  ->  packed rows  ->  log-probs [N,P+T]

Carried tokens are computed twice: as context, and in the chunk that sampled
them. Only the latter has a log-prob. A completion therefore has one reward and
one advantage, each of its tokens is trained on once, and means over its tokens
are over all its chunks, as in Delethink (https://arxiv.org/abs/2510.06557).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Batch
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.names import sized_choice
from jaxrl_reason.update.packing import KINDS, Packed, Packing


@dataclasses.dataclass(frozen=True)
class Chunked:
  """Chunks that attend to their prompt and their carried tokens.

  Attributes:
    start: P, columns of prompts.
    chunks: of a completion.
    packing: of the chunks, sequences of at most P + C tokens.
  """

  start: int
  chunks: Chunks
  packing: Packing

  def options(self, batch: Batch) -> tuple[jax.Array, list[Callable]]:
    """Returns (the index of the size, a function rows -> (rows, Packed) per
    size).
    """
    valid, (n, t) = batch.valid, batch.valid.shape
    room, p = t - self.start, self.start
    windows = p + self.chunks.windows(room)  # [K,C]
    k, c = windows.shape
    source = np.concatenate([np.tile(np.arange(p), (k, 1)), windows], axis=1)
    there = jnp.pad(valid, ((0, 0), (0, 1)))[:, source]  # [N,K,P+C]
    # A chunk in which no token was sampled is dropped, with its carried tail.
    first = np.where(np.arange(k) > 0, self.chunks.carry, 0)
    own = np.arange(c) >= first[:, None]
    there &= jnp.any(there[:, :, p:] & own, axis=2, keepdims=True)
    which, options = self.packing.placed(there.reshape(n * k, -1))
    source = jnp.arange(n)[:, None, None] * t + jnp.asarray(source)
    # Position in its chunk of each column's token; prompts belong to chunk 0.
    chunk = np.concatenate([np.zeros(p, int), self.chunks.chunk_of(room)])
    column = np.arange(t) - chunk * self.chunks.fresh

    def at(option: Callable, x: Any) -> tuple[Any, Packed]:
      put, to, ids = option()
      place = to.reshape(n, k, -1)[:, chunk, column]
      rows = put(n * t, source.reshape(n * k, -1)), put(0, ids)
      return x, Packed(*rows, place)

    return which, [functools.partial(at, option) for option in options]

  def order(self, batch: Batch, parts: int) -> None:
    """Returns None: the packing does not depend on the order of rows."""
    del batch, parts


def choose(chunks: Chunks, start: int, padding: str = 'whole') -> Chunked:
  """Parses the packing of chunks.

  Args:
    start: columns of prompts.
    padding: 'whole', a row each, or 'packed:TOKENS'.

  Raises:
    ValueError: padding has another value.
  """
  kind, size = sized_choice('rl.padding', padding, KINDS)
  if kind not in ('whole', 'packed'):
    raise ValueError(
      f'rl.padding={padding!r} with rl.chunks.tokens={chunks.tokens}: choose '
      'whole or packed:TOKENS'
    )
  room = start + chunks.tokens
  packed = Packing(size) if kind == 'packed' else Packing(room, 1)
  return Chunked(start, chunks, packed)
