"""The recurrence of `delta` over many tokens, in chunks of CHUNK: products of
matrices within a chunk, and a scan over chunks.
"""

import jax
import jax.numpy as jnp

CHUNK = 64  # tokens: a system of 64 unknowns fills a TPU's 128 x 128 as well


def dot(equation: str, *factors: jax.Array) -> jax.Array:
  """Computes an einsum whose float32 factors no platform rounds to bfloat16."""
  return jnp.einsum(equation, *factors, precision=jax.lax.Precision.HIGHEST)


def _inverse(lower: jax.Array) -> jax.Array:
  """Computes the inverses of 1 + lower [...,T,T], for strictly lower triangular
  matrices with T a power of 2.

  The inverse of a square follows from those of its two diagonal blocks:
  (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1, B^-1). This is as stable as
  substitution, and consists of products of matrices.
  """
  t = lower.shape[-1]
  at, out = jnp.arange(t), jnp.eye(t, dtype=lower.dtype)
  size = 1
  while size < t:
    block = at // size
    below = (block[:, None] == block + 1) & (block % 2 == 0)
    part = jnp.where(below, lower, 0)
    out = out - dot('...ij,...jk,...kl->...il', out, part, out)
    size *= 2
  return out


def _by_chunk(x: jax.Array, size: int) -> jax.Array:
  """Splits [N,T,...] into [chunks,N,size,...], with leading zeros to fill T."""
  x = jnp.pad(x, ((0, 0), (-x.shape[1] % size, 0)) + ((0, 0),) * (x.ndim - 2))
  return jnp.moveaxis(x.reshape(len(x), -1, size, *x.shape[2:]), 1, 0)


def _within(q, k, v, decay, share, run, corrects: bool):
  """Computes the part of chunks [C,N,T,...] that does not depend on the state
  at their beginning.

  Returns:
    (scores of queries and keys [C,N,K,G,T,T], new values [C,N,T,K,G,U], the
    keys' predictions from the state [C,N,T,K,G,H], or None if the rule does not
    correct values by them, the state's remaining weight
    at each token [C,N,T,K,G], each token's weight at the end of the chunk
    [C,N,T,K,G]).
  """
  t = q.shape[2]
  total = jnp.cumsum(decay, axis=2)
  past = jnp.tril(jnp.ones((t, t)))
  # The decay between two tokens is summed separately: a difference of two
  # totals would lose the digits of a small sum.
  between = jnp.moveaxis(decay, 2, -1)[..., None] * jnp.tril(past, -1)
  between = dot('il,cnkglj->cnkgij', past, between)
  seen = (past > 0) & (run[..., :, None] == run[..., None, :])
  kept = jnp.exp(between) * seen[:, :, None, None]
  scores = dot('cntkh,cnskh->cnkts', q, k)[:, :, :, None] * kept
  left, end = jnp.exp(total), jnp.moveaxis(kept[..., -1, :], -1, 2)
  if not corrects:
    return scores, v * share[..., None], None, left, end
  alike = dot('cntkh,cnskh->cnkts', k, k)[:, :, :, None] * kept
  alike = alike * jnp.moveaxis(share, 2, -1)[..., None]
  solved = _inverse(jnp.tril(alike, -1))
  values = dot('cnkgts,cnskgu->cntkgu', solved, v * share[..., None])
  scaled = k[..., None, :] * (share * left)[..., None]
  expected = dot('cnkgts,cnskgh->cntkgh', solved, scaled)
  return scores, values, expected, left, end


def run(q, k, v, decay, share, sequence, memory, corrects: bool):
  """Computes (o [N,T,K,G,U], the last memory) of tokens [N,T], in chunks.

  Args:
    sequence: i32 [N,T], rising by one at each new sequence; the memory
      [N,K,G,H,U] belongs to sequence 0.
    corrects: values are corrected by the keys' predictions (the delta rule).
  """
  t = q.shape[1]
  size = min(CHUNK, 1 << (t - 1).bit_length())
  parts = [_by_chunk(x, size) for x in (q, k, v, decay, share)]
  # Leading padding belongs to the sequence of the memory.
  ids = _by_chunk(sequence, size)
  scores, values, expected, left, end = _within(*parts, ids, corrects)
  last = ids[:, :, -1:]
  first = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
  reads = left * (ids == first)[..., None, None]
  if corrects:
    # A sequence that begins in this chunk does not read the state.
    expected = expected * (ids == first)[..., None, None, None]
  xs = {
    'scores': scores,
    'values': values,
    'expected': expected,
    'q': parts[0][..., None, :] * reads[..., None],
    'k': parts[1][..., None, :] * end[..., None],
    'keeps': left[:, :, -1] * (first == last)[..., None],
  }

  def step(memory, x):
    new = x['values']
    if corrects:
      new = new - dot('ntkgh,nkghu->ntkgu', x['expected'], memory)
    out = dot('ntkgh,nkghu->ntkgu', x['q'], memory)
    out += dot('nkgts,nskgu->ntkgu', x['scores'], new)
    memory = memory * x['keeps'][..., None, None]
    return memory + dot('ntkgh,ntkgu->nkghu', x['k'], new), out

  memory, out = jax.lax.scan(step, memory, xs)
  out = jnp.moveaxis(out, 0, 1).reshape(len(q), -1, *out.shape[3:])
  return out[:, -t:], memory
