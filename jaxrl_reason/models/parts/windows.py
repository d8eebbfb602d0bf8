"""Windows of attention: a number of tokens for each layer.

  0    all tokens up to the query
  n    the last n tokens, the query's own included
  -n   the tokens of the query's chunk. Chunks are n positions long, and the
       first one begins with the row (Llama 4,
       https://ai.meta.com/blog/llama-4-multimodal-intelligence/).

A chunk is a window whose length depends on the query's position, and no longer
than n tokens. So a query attends to at most abs(window) tokens.
"""

import jax
import jax.numpy as jnp

MOST = 2**30  # tokens, stands for no window


def reach(window: int | jax.Array, positions: jax.Array) -> jax.Array:
  """Returns how many tokens queries at int positions [...] may attend to, their
  own included.

  Args:
    window: not 0; may be traced.
  """
  in_chunk = positions % jnp.abs(window) + 1
  return jnp.where(window < 0, in_chunk, window)


def reaches(windows: tuple[int, ...], which, positions: jax.Array) -> jax.Array:
  """Returns `reach` for the window at index `which`, which may be traced."""
  return reach(jnp.asarray([w or MOST for w in windows])[which], positions)


def chunk_ids(
  segments: jax.Array, positions: jax.Array, window: int
) -> jax.Array:
  """Returns i32 [N,T], a different number for each chunk of each segment, for
  kernels that separate segments; 0: padding.

  Args:
    segments: i32 [N,T], 0: padding; positions: i32 [N,T] within a segment.
    window: below 0.
  """
  first = (segments > 0) & (positions % -window == 0)
  return jnp.where(segments > 0, jnp.cumsum(first, axis=1), 0)
