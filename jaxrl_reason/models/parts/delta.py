"""The gated delta rule: a layer whose state is one matrix per head.

  R = e^{g_t} S_{t-1},  S_t = R + k_t b_t (v_t - k_t^T R),  o_t = S_t^T q_t

(https://arxiv.org/abs/2412.06464). q, k, v are projections of x followed by a
short causal convolution and SiLU; q and k have length 1; g <= 0 and b in (0, 1)
are projections too. The state of a row is S, f32 [K,H,U] for each head of
values, and the last inputs of the convolution, whatever the row's length.

Many tokens are computed in chunks of CHUNK (`over_rows`). Within a chunk the
recurrence is a triangular system, solved by products of matrices, and S is
carried from chunk to chunk. One token uses the recurrence itself (`one_token`).
Both compute the same numbers in a different order, in float32: errors of S add
up over a row.

Padding has input, g and b zero, so it does not change the state. The first
token of a sequence discards the state before it, so that packed sequences are
independent.

K heads of queries and keys, of width H, G heads of values for each, of width U.
W = 2 H + G U features of a head pass through the convolution.

If H is 0, there is no matrix, and the layer is a short convolution (LFM2):
o_t = c_t conv(b v)_t, with projections b, v and c of x. The state is then the
last inputs of the convolution alone.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import attention, layers

CHUNK = 64  # tokens: a system of 64 unknowns fills a TPU's 128 x 128 as well
EPS = 1e-6  # in the norms of q and k
NAME = 'conv'  # a weight that only layers of this kind have


@struct.dataclass
class State:
  """State of a layer for rows [N]."""

  inputs: jax.Array  # [N,taps - 1,K,W], the convolution's last inputs
  memory: jax.Array | None  # f32 [N,K,G,H,U]; None: a convolution alone


@struct.dataclass
class Heads:
  """Per-token inputs of the rule, for tokens [...]. A convolution alone has
  the first.
  """

  mixed: jax.Array  # [...,K,W], inputs of the convolution
  decay: jax.Array | None = None  # f32 [...,K,G], g
  share: jax.Array | None = None  # f32 [...,K,G], b


def empty(rows: int, c: Any) -> State:
  """Returns the initial state of rows."""
  k, g = c.delta_heads, c.delta_groups
  width = 2 * c.delta_key_dim + g * c.delta_value_dim
  inputs = jnp.zeros((rows, c.delta_taps - 1, k, width), c.dtype)
  shape = rows, k, g, c.delta_key_dim, c.delta_value_dim
  memory = jnp.zeros(shape, jnp.float32) if c.delta_key_dim else None
  return jax.tree.map(sharding.rows, State(inputs, memory))


def heads_of(x: jax.Array, p: dict, c: Any) -> tuple[Heads, jax.Array]:
  """Computes the rule's inputs for tokens x [...,D], and the gates [...,K,G,U]
  of its output; of a convolution alone [...,K,U].
  """
  if not c.delta_key_dim:
    k, z, v = (layers.dense(x, p[name]) for name in ('k', 'z', 'v'))
    return Heads(k * v), z

  def projected(*names):
    return jnp.concatenate([layers.dense(x, p[n]) for n in names], axis=-1)

  split = 2 * c.delta_key_dim + c.delta_groups * c.delta_value_dim
  all_, both = ('qkvz',), ('ba',)
  if c.delta_split:
    all_, both = ('q', 'k', 'v', 'z'), ('share', 'step')
  mixed, gate = jnp.split(projected(*all_), [split], axis=-1)
  gate = gate.reshape(*gate.shape[:-1], c.delta_groups, c.delta_value_dim)
  share, step = jnp.split(projected(*both).astype(jnp.float32), 2, axis=-1)

  def of_head(name):
    return p[name].astype(jnp.float32).reshape(c.delta_heads, c.delta_groups)

  step = jax.nn.softplus(step + of_head('step_bias'))
  decay = -jnp.exp(of_head('log_decay')) * step
  return Heads(mixed, decay, jax.nn.sigmoid(share)), gate


def taps(p: dict, c: Any) -> jax.Array:
  """Returns the convolution's weights f32 [taps,K,W], grouped by head. On disk
  those of all queries come first, then keys, then values.
  """
  w = p['conv'].astype(jnp.float32)
  n = c.delta_heads * c.delta_key_dim
  parts = jnp.split(w, [n, 2 * n])
  parts = [x.reshape(c.delta_heads, -1, w.shape[-1]) for x in parts]
  return jnp.moveaxis(jnp.concatenate(parts, axis=1), -1, 0)


def gated(out: jax.Array, gate: jax.Array, p: dict, c: Any) -> jax.Array:
  """Normalizes the heads' output, f32 [...,K,G,U], and multiplies it by the
  SiLU of the gates; the output of a convolution alone by the gates themselves.
  """
  if not c.delta_key_dim:
    return (out * gate.astype(jnp.float32)).astype(gate.dtype)
  y = layers.rms_norm(out, p['out_norm'], c.norm_eps)
  return (y * jax.nn.silu(gate.astype(jnp.float32))).astype(gate.dtype)


def _unit(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPS)


def _parts(x: jax.Array, c: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Splits the convolution's output into q, k f32 [...,K,H] and v f32
  [...,K,G,U].
  """
  x, h = jax.nn.silu(x), c.delta_key_dim
  q, k, v = jnp.split(x, [h, 2 * h], axis=-1)
  v = v.reshape(*v.shape[:-1], c.delta_groups, c.delta_value_dim)
  return _unit(q) * h**-0.5, _unit(k), v


def _convolved(x: jax.Array, run: jax.Array, weights: jax.Array) -> jax.Array:
  """Computes the convolution f32 [N,T,K,W] of x [N,taps - 1 + T,K,W], within
  each sequence.

  Args:
    run: i32 [N,taps - 1 + T], the sequence of each column.
  """
  n = len(weights)
  t = x.shape[1] - n + 1
  own, out = run[:, n - 1 :], 0.0
  for i, w in enumerate(weights):
    same = run[:, i : i + t] == own
    out += jnp.where(same[..., None, None], x[:, i : i + t], 0) * w
  return out


def _dot(equation: str, *factors: jax.Array) -> jax.Array:
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
    out = out - _dot('...ij,...jk,...kl->...il', out, part, out)
    size *= 2
  return out


def _by_chunk(x: jax.Array, size: int) -> jax.Array:
  """Splits [N,T,...] into [chunks,N,size,...], with leading zeros to fill T."""
  x = jnp.pad(x, ((0, 0), (-x.shape[1] % size, 0)) + ((0, 0),) * (x.ndim - 2))
  return jnp.moveaxis(x.reshape(len(x), -1, size, *x.shape[2:]), 1, 0)


def _within(q, k, v, decay, share, run):
  """Computes the part of chunks [C,N,T,...] that does not depend on the state
  at their beginning.

  Returns:
    (scores of queries and keys [C,N,K,G,T,T], new values [C,N,T,K,G,U], the
    keys' predictions from the state [C,N,T,K,G,H], the state's remaining weight
    at each token [C,N,T,K,G], each token's weight at the end of the chunk
    [C,N,T,K,G]).
  """
  t = q.shape[2]
  total = jnp.cumsum(decay, axis=2)
  past = jnp.tril(jnp.ones((t, t)))
  # The decay between two tokens is summed separately: a difference of two
  # totals would lose the digits of a small sum.
  between = jnp.moveaxis(decay, 2, -1)[..., None] * jnp.tril(past, -1)
  between = _dot('il,cnkglj->cnkgij', past, between)
  seen = (past > 0) & (run[..., :, None] == run[..., None, :])
  kept = jnp.exp(between) * seen[:, :, None, None]
  scores = _dot('cntkh,cnskh->cnkts', q, k)[:, :, :, None] * kept
  alike = _dot('cntkh,cnskh->cnkts', k, k)[:, :, :, None] * kept
  alike = alike * jnp.moveaxis(share, 2, -1)[..., None]
  solved = _inverse(jnp.tril(alike, -1))
  values = _dot('cnkgts,cnskgu->cntkgu', solved, v * share[..., None])
  left, end = jnp.exp(total), jnp.moveaxis(kept[..., -1, :], -1, 2)
  scaled = k[..., None, :] * (share * left)[..., None]
  expected = _dot('cnkgts,cnskgh->cntkgh', solved, scaled)
  return scores, values, expected, left, end


def _rule(q, k, v, decay, share, run, memory):
  """Computes (o [N,T,K,G,U], the last memory) of tokens [N,T], in chunks.

  Args:
    run: i32 [N,T], sequence numbers, rising by one at each new sequence; the
      memory [N,K,G,H,U] belongs to sequence 0.
  """
  t = q.shape[1]
  size = min(CHUNK, 1 << (t - 1).bit_length())
  parts = [_by_chunk(x, size) for x in (q, k, v, decay, share)]
  # Leading padding belongs to the sequence of the memory.
  run = _by_chunk(run, size)
  scores, values, expected, left, end = _within(*parts, run)
  last = run[:, :, -1:]
  first = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
  reads = left * (run == first)[..., None, None]
  xs = {
    'scores': scores,
    'values': values,
    # A sequence that begins in this chunk does not read the state.
    'expected': expected * (run == first)[..., None, None, None],
    'q': parts[0][..., None, :] * reads[..., None],
    'k': parts[1][..., None, :] * end[..., None],
    'keeps': left[:, :, -1] * (first == last)[..., None],
  }

  def step(memory, x):
    new = x['values'] - _dot('ntkgh,nkghu->ntkgu', x['expected'], memory)
    out = _dot('ntkgh,nkghu->ntkgu', x['q'], memory)
    out += _dot('nkgts,nskgu->ntkgu', x['scores'], new)
    memory = memory * x['keeps'][..., None, None]
    return memory + _dot('ntkgh,ntkgu->nkghu', x['k'], new), out

  memory, out = jax.lax.scan(step, memory, xs)
  out = jnp.moveaxis(out, 0, 1).reshape(len(q), -1, *out.shape[3:])
  return out[:, -t:], memory


def over_rows(
  heads: Heads, weights: jax.Array, rows: attention.Rows, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over whole rows, or parts of them.

  Args:
    heads: of tokens [N,T].
    weights: from `taps`.
    rows: segments and positions of the tokens; position 0 resets the state.
    state: before the first column.

  Returns:
    (f32 [N,T,K,G,U], or [N,T,K,U] of a convolution alone; the state after the
    last column).
  """
  # The recurrence cannot be split over a context axis.
  heads = jax.tree.map(sharding.gathered, heads)
  real = rows.segments > 0
  run = jnp.cumsum(real & (rows.positions == 0), axis=1)
  return _passed(heads, weights, real, run, c, state)


def _passed(heads, weights, real, run, c, state):
  heads = jax.tree.map(
    lambda x: jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, 0),
    heads,
  )
  n = state.inputs.shape[1]
  inputs = jnp.concatenate([state.inputs, heads.mixed], axis=1)
  runs = jnp.pad(run, ((0, 0), (n, 0)))
  out, memory = _convolved(inputs, runs, weights), None
  if c.delta_key_dim:
    rates = heads.decay, heads.share
    out, memory = _rule(*_parts(out, c), *rates, run, state.memory)
  # The next token must not read inputs of an earlier sequence.
  same = runs[:, -n:] == run[:, -1:]
  inputs = jnp.where(same[..., None, None], inputs[:, -n:], 0)
  return out, State(inputs, memory)


def one_token(
  heads: Heads, weights: jax.Array, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over one token per row [S].

  Args:
    there: bool [S], the rows with a token; the state of others is unchanged.

  Returns:
    (f32 [S,K,G,U], or [S,K,U] of a convolution alone; the new state).
  """
  inputs = jnp.concatenate([state.inputs, heads.mixed[:, None]], axis=1)
  mixed = jnp.sum(inputs * weights, axis=1)
  if not c.delta_key_dim:
    return mixed, chosen(there, State(inputs[:, 1:], None), state)
  q, k, v = _parts(mixed, c)
  memory = state.memory * jnp.exp(heads.decay)[..., None, None]
  known = _dot('skh,skghu->skgu', k, memory)
  change = (v - known) * heads.share[..., None]
  memory = memory + k[..., None, :, None] * change[..., None, :]
  out = _dot('skh,skghu->skgu', q, memory)
  return out, chosen(there, State(inputs[:, 1:], memory), state)


def some_tokens(
  heads: Heads, weights: jax.Array, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over the first tokens of each row, among tokens [S,O].

  Args:
    there: bool [S,O], the tokens that a row has.

  Returns:
    As `over_rows`, with the state after each row's last token.
  """
  run = jnp.zeros(there.shape, jnp.int32)
  out, after = _passed(heads, weights, there, run, c, state)
  inputs = jnp.concatenate([state.inputs, heads.mixed], axis=1)
  at = there.sum(axis=1)[:, None] + jnp.arange(state.inputs.shape[1])
  inputs = jnp.take_along_axis(inputs, at[..., None, None], axis=1)
  return out, after.replace(inputs=inputs)


def chosen(rows: jax.Array, a: State, b: State) -> State:
  """Returns the state of a for the given rows [S], and of b for the others."""

  def pick(x, y):
    return jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y)

  return jax.tree.map(pick, a, b)


def decoded(
  heads: Heads,
  weights: jax.Array,
  t: jax.Array,
  c: Any,
  prompt: State,
  own: State,
) -> tuple[jax.Array, State]:
  """Runs the rule over new tokens of rows that continue their prompt.

  Args:
    heads: of tokens [S], or of O tokens per row [S,O].
    t: i32 [S] or [S,O], the index of each in its completion; -1: no token. A
      row whose token has index 0 begins with the state of its prompt.
    prompt: state of B prompts; own: state of S rows, those of a prompt
      adjacent.

  Returns:
    (f32 [S,...,K,G,U], or [S,...,K,U] of a convolution alone; the new own).
  """
  begins = jnp.any(t.reshape(len(t), -1) == 0, axis=1)
  repeats = len(t) // len(prompt.inputs)
  of_rows = functools.partial(jnp.repeat, repeats=repeats, axis=0)
  first = jax.tree.map(of_rows, prompt)
  state = chosen(begins, first, own)
  run = one_token if t.ndim == 1 else some_tokens
  return run(heads, weights, t >= 0, c, state)
