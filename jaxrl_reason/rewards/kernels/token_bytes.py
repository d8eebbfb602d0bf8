"""Converts completion tokens to bytes on the device.

  host     table, lengths = token_bytes_table(tokenizer)
             u8[V,W], i32[V]
  device   text, length = to_bytes(
             tokens, sampled, table, lengths, max_bytes=64
           )  u8[N,max_bytes], i32[N]

Kernels read bytes and not tokens, so they work with any tokenizer: a token may
be several digits, half a character, or the marker with the answer.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def token_bytes_table(tokenizer) -> tuple[np.ndarray, np.ndarray]:
  """Returns the bytes of every token, padded with zeros, and their number."""
  tokens = tokenizer.token_bytes()
  lengths = np.array([len(t) for t in tokens], np.int32)  # [V]
  width = max(1, int(lengths.max()))
  table = np.zeros((len(tokens), width), np.uint8)  # [V,W]
  for row, token in zip(table, tokens):
    row[: len(token)] = np.frombuffer(token, np.uint8)
  return table, lengths


def to_bytes(
  tokens: jax.Array,
  sampled: jax.Array,
  table: jax.Array,
  lengths: jax.Array,
  *,
  max_bytes: int,
) -> tuple[jax.Array, jax.Array]:
  """Writes the sampled tokens of rows out as bytes.

  Args:
    tokens: int [N,C]; sampled: bool [N,C], those to be read.
    table, lengths: see `token_bytes_table`.

  Returns:
    (bytes u8 [N,max_bytes], their number i32 [N]).

  The returned length is that of the whole text. If it exceeds `max_bytes`, the
  text is cut and every kernel scores it 0. max_bytes = C * table.shape[1]
  never cuts. Special tokens, and ids beyond the table (a padded vocabulary),
  have no bytes, as in `decode`.
  """
  n, c = tokens.shape
  tokens = tokens.astype(jnp.int32)
  inside = sampled & (tokens >= 0) & (tokens < lengths.shape[0])
  tokens = jnp.where(inside, tokens, 0)
  size = jnp.where(inside, jnp.asarray(lengths)[tokens], 0)  # [N,C]
  end = jnp.cumsum(size, axis=1)
  at = jnp.arange(max_bytes)
  # A gather: for each byte the token that holds it. A scatter of the tokens'
  # bytes is sequential on TPU.
  which = jax.vmap(lambda e: jnp.searchsorted(e, at, side='right'))(end)
  which = jnp.minimum(which, c - 1)  # [N,max_bytes]
  start = jnp.take_along_axis(end - size, which, axis=1)
  offset = jnp.clip(at - start, 0, table.shape[1] - 1)
  token = jnp.take_along_axis(tokens, which, axis=1)
  length = end[:, -1] if c else jnp.zeros((n,), jnp.int32)
  text = jnp.asarray(table)[token, offset]
  return jnp.where(at < length[:, None], text, 0).astype(jnp.uint8), length


def is_digit(text: jax.Array) -> jax.Array:
  """Marks the decimal digits among bytes: bool, of the shape of `text`."""
  return (text >= ord('0')) & (text <= ord('9'))


def after_marker(
  tokens: jax.Array, n_tokens: jax.Array, table: np.ndarray, marker: int
) -> jax.Array:
  """Returns the first token of the final answer, i32[N], for
  `likelihood.splice_reference`; -1 if no token starts there.

  There must be exactly one marker byte, at the end of its token: the answer in
  a token such as `#1` cannot be replaced.
  """
  hits = table == marker  # [V,W]
  sizes = np.max(np.where(hits, np.arange(1, table.shape[1] + 1), 0), axis=1)
  used = np.max(
    np.where(table != 0, np.arange(1, table.shape[1] + 1), 0), axis=1
  )
  ends = jnp.asarray(sizes == used)
  inside = jnp.arange(tokens.shape[1]) < n_tokens[:, None]
  inside &= (tokens >= 0) & (tokens < table.shape[0])
  tokens = jnp.where(inside, tokens, 0)
  n_hits = jnp.where(inside, jnp.asarray(hits.sum(1))[tokens], 0)  # [N,C]
  at = jnp.argmax(n_hits, axis=1)
  holder = jnp.take_along_axis(tokens, at[:, None], axis=1)[:, 0]
  return jnp.where((n_hits.sum(1) == 1) & ends[holder], at + 1, -1)


def scanned(
  read: Callable, state: dict[str, jax.Array], text: jax.Array, length
) -> dict[str, jax.Array]:
  """Reads the bytes of rows from left to right.

  Args:
    read: (state, bytes i32 [N]) -> state.
    state: arrays [N,...], before the first byte. 'fine' and 'ended' are bool
      [N]: no byte so far is an error, and the text may end here.
    text: u8 [N,W]; length: i32 [N], bytes of it.

  Returns:
    The state after the last byte of each row. 'fine' is true if the row was
    fine, has ended and was not cut.
  """

  def step(state, now):
    c, there = now

    def pick(new, old):
      return jnp.where(there.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, read(state, c), state), None

  there = jnp.arange(text.shape[1])[:, None] < length
  state, _ = jax.lax.scan(step, state, (text.T.astype(jnp.int32), there))
  fine = state['fine'] & state['ended'] & (length <= text.shape[1])
  return state | {'fine': fine}
