"""The gated delta rule: a layer whose state is one matrix per head.

  R = e^{g_t} S_{t-1},  S_t = R + k_t b_t (v_t - k_t^T R),  o_t = S_t^T q_t

(https://arxiv.org/abs/2412.06464). q, k, v are projections of x followed by a
short causal convolution and SiLU; q and k have length 1; g <= 0 and b in (0, 1)
are projections too. The state of a row is S, f32 [K,H,U] for each head of
values, and the last inputs of the convolution, whatever the row's length.

Many tokens are computed in chunks (`chunked_rule`). Within a chunk the
recurrence is a triangular system, solved by products of matrices, and S is
carried from chunk to chunk. One token uses the recurrence itself (`one_token`).
Both compute the same numbers in a different order, in float32: errors of S add
up over a row.

Padding has input, g and b zero, so it does not change the state. The first
token of a sequence discards the state before it, so that packed sequences are
independent.

K heads of queries and keys, of width H, G heads of values for each, of width U.
W = 2 H + G U features of a head pass through the convolution.

Mamba-2 (`delta_rule`) is the same without the correction
(https://arxiv.org/abs/2405.21060): S_t = R + k_t b_t v_t^T, o_t = S_t^T q_t +
d v_t, with b_t = softplus(step), g_t = -a b_t, a learned d per head of values,
and q and k of any length. q, k and v are its C, B and x.

If H is 0, there is no matrix, and the layer is a short convolution (LFM2):
o_t = c_t conv(b v)_t, with projections b, v and c of x. The state is then the
last inputs of the convolution alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import attention, chunked_rule, layers

EPS = 1e-6  # in the norms of q and k
NAME = 'conv'  # a weight that only layers of this kind have
SCALED = ('z', 'v', 'k', 'q', 'step', 'o')  # weights of `Config.delta_scales`
MAMBA = 'mamba2'  # the other value of `Config.delta_rule` is delta


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


@struct.dataclass
class Taps:
  """Weights between the projections and the output of the rule."""

  weights: jax.Array  # f32 [taps,K,W], of the convolution
  bias: jax.Array | None = None  # f32 [K,W], of the convolution
  skip: jax.Array | None = None  # f32 [K,G,1], d of Mamba-2


def empty(rows: int, c: Any) -> State:
  """Returns the initial state of rows."""
  k, g = c.delta_heads, c.delta_groups
  width = 2 * c.delta_key_dim + g * c.delta_value_dim
  inputs = jnp.zeros((rows, c.delta_taps - 1, k, width), c.dtype)
  shape = rows, k, g, c.delta_key_dim, c.delta_value_dim
  memory = jnp.zeros(shape, jnp.float32) if c.delta_key_dim else None
  return jax.tree.map(sharding.rows, State(inputs, memory))


def begun(prompt: State, rows: int) -> State:
  """Returns the states of rows that continue prompts [B], those of a prompt
  adjacent.
  """
  repeats = rows // len(prompt.inputs)
  return jax.tree.map(
    lambda x: sharding.rows(jnp.repeat(x, repeats, axis=0)), prompt
  )


def heads_of(x: jax.Array, p: dict, c: Any) -> tuple[Heads, jax.Array]:
  """Computes the rule's inputs for tokens x [...,D], and the gates [...,K,G,U]
  of its output; of a convolution alone [...,K,U].
  """
  if not c.delta_key_dim:
    k, z, v = (layers.dense(x, p[name]) for name in ('k', 'z', 'v'))
    return Heads(k * v), z

  def projected(*names):
    parts = {n: layers.dense(x, p[n]) for n in names}
    parts = [y * scales[n] if scales else y for n, y in parts.items()]
    return jnp.concatenate(parts, axis=-1)

  scales = dict(zip(SCALED, c.delta_scales))
  split = 2 * c.delta_key_dim + c.delta_groups * c.delta_value_dim
  all_, both = ('qkvz',), ('ba',)
  if c.delta_split or c.delta_rule == MAMBA:
    all_, both = ('q', 'k', 'v', 'z'), ('share', 'step')
  both = both[1:] if c.delta_rule == MAMBA else both
  mixed, gate = jnp.split(projected(*all_), [split], axis=-1)
  gate = gate.reshape(*gate.shape[:-1], c.delta_groups, c.delta_value_dim)
  rates = projected(*both).astype(jnp.float32)
  share, step = rates[..., : -c.delta_groups], rates[..., -c.delta_groups :]
  step = jax.nn.softplus(step + _of_values(p['step_bias'], c))
  decay = -jnp.exp(_of_values(p['log_decay'], c)) * step
  share = step if c.delta_rule == MAMBA else jax.nn.sigmoid(share)
  return Heads(mixed, decay, share), gate


def _of_values(x: jax.Array, c: Any) -> jax.Array:
  """Reshapes numbers of each head of values to f32 [K,G,...]."""
  shape = c.delta_heads, c.delta_groups, *x.shape[1:]
  return x.astype(jnp.float32).reshape(shape)


def taps(p: dict, c: Any) -> Taps:
  """Returns the weights of the convolution, grouped by head. On disk those of
  all queries come first, then keys, then values; in Mamba-2 in reverse.
  """

  def by_head(w):
    n = c.delta_heads * c.delta_key_dim
    mamba = c.delta_rule == MAMBA
    parts = jnp.split(w, [len(w) - 2 * n, len(w) - n] if mamba else [n, 2 * n])
    parts = [x.reshape(c.delta_heads, -1, *w.shape[1:]) for x in parts]
    parts = parts[::-1] if mamba else parts
    return jnp.concatenate(parts, axis=1).astype(jnp.float32)

  weights = jnp.moveaxis(by_head(p['conv']), -1, 0)
  if c.delta_rule != MAMBA:
    return Taps(weights)
  skip = _of_values(p['skip'], c)[..., None]
  return Taps(weights, by_head(p['conv_bias']), skip)


def gated(out: jax.Array, gate: jax.Array, p: dict, c: Any) -> jax.Array:
  """Normalizes the heads' output, f32 [...,K,G,U], and multiplies it by the
  SiLU of the gates; the output of a convolution alone by the gates themselves.
  In Mamba-2 the gates come first, and all values of a key's head have one norm,
  or none.
  """
  if not c.delta_key_dim:
    return (out * gate.astype(jnp.float32)).astype(gate.dtype)
  if c.delta_rule == MAMBA:
    y = out * jax.nn.silu(gate.astype(jnp.float32))
    y = y.reshape(*y.shape[:-2], -1)
    if not c.delta_norm:
      return y.astype(gate.dtype)
    weight = p['out_norm'].reshape(c.delta_heads, -1)
    return layers.rms_norm(y, weight, c.norm_eps).astype(gate.dtype)
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
  if c.delta_rule == MAMBA:
    return q, k, v
  return _unit(q) * h**-0.5, _unit(k), v


def _skipped(out: jax.Array, v: jax.Array, taps: Taps) -> jax.Array:
  return out if taps.skip is None else out + taps.skip * v


def _convolved(x: jax.Array, run: jax.Array, taps: Taps) -> jax.Array:
  """Computes the convolution f32 [N,T,K,W] of x [N,taps - 1 + T,K,W], within
  each sequence.

  Args:
    run: i32 [N,taps - 1 + T], the sequence of each column.
  """
  n = len(taps.weights)
  t = x.shape[1] - n + 1
  own, out = run[:, n - 1 :], 0.0 if taps.bias is None else taps.bias
  for i, w in enumerate(taps.weights):
    same = run[:, i : i + t] == own
    out = out + jnp.where(same[..., None, None], x[:, i : i + t], 0) * w
  return out


def over_rows(
  heads: Heads, taps: Taps, rows: attention.Rows, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over whole rows, or parts of them.

  Args:
    heads: of tokens [N,T].
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
  return _passed(heads, taps, real, run, c, state)


def _passed(heads, taps, real, run, c, state):
  heads = jax.tree.map(
    lambda x: jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, 0),
    heads,
  )
  n = state.inputs.shape[1]
  inputs = jnp.concatenate([state.inputs, heads.mixed], axis=1)
  runs = jnp.pad(run, ((0, 0), (n, 0)))
  out, memory = _convolved(inputs, runs, taps), None
  if c.delta_key_dim:
    q, k, v = _parts(out, c)
    corrects = c.delta_rule != MAMBA
    rates = heads.decay, heads.share
    out, memory = chunked_rule.run(q, k, v, *rates, run, state.memory, corrects)
    out = _skipped(out, v, taps)
  # The next token must not read inputs of an earlier sequence.
  same = runs[:, -n:] == run[:, -1:]
  inputs = jnp.where(same[..., None, None], inputs[:, -n:], 0)
  return out, State(inputs, memory)


def one_token(
  heads: Heads, taps: Taps, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over one token per row [S].

  Args:
    there: bool [S], the rows with a token; the state of others is unchanged.

  Returns:
    (f32 [S,K,G,U], or [S,K,U] of a convolution alone; the new state).
  """
  inputs = jnp.concatenate([state.inputs, heads.mixed[:, None]], axis=1)
  mixed = jnp.sum(inputs * taps.weights, axis=1)
  mixed = mixed if taps.bias is None else mixed + taps.bias
  if not c.delta_key_dim:
    return mixed, chosen(there, State(inputs[:, 1:], None), state)
  q, k, v = _parts(mixed, c)
  decay = jnp.exp(heads.decay)[..., None]
  change, old = v, state.memory
  if c.delta_rule != MAMBA:
    # One product reads the old state for both k^T R and R^T q. The new state
    # depends on it, so XLA overwrites the old one without a copy.
    seen = chunked_rule.dot('jskh,skghu->jskgu', jnp.stack([k, q]), old) * decay
    change = v - seen[0]
  change = change * heads.share[..., None]
  memory = old * decay[..., None] + k[..., None, :, None] * change[..., None, :]
  if c.delta_rule == MAMBA:
    out = chunked_rule.dot('skh,skghu->skgu', q, memory)
  else:
    out = seen[1] + jnp.sum(q * k, axis=-1)[..., None, None] * change
  out = _skipped(out, v, taps)
  return out, chosen(there, State(inputs[:, 1:], memory), state)


def some_tokens(
  heads: Heads, taps: Taps, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over the first tokens of each row, among tokens [S,O].

  Args:
    there: bool [S,O], the tokens that a row has.

  Returns:
    As `over_rows`, with the state after each row's last token.
  """
  run = jnp.zeros(there.shape, jnp.int32)
  out, after = _passed(heads, taps, there, run, c, state)
  inputs = jnp.concatenate([state.inputs, heads.mixed], axis=1)
  at = there.sum(axis=1)[:, None] + jnp.arange(state.inputs.shape[1])
  inputs = jnp.take_along_axis(inputs, at[..., None, None], axis=1)
  return out, after.replace(inputs=inputs)


def of(entry: Any) -> Any:
  """Returns the state in an entry of a cache, where keys may precede it."""
  return entry if isinstance(entry, State) else entry[-1]


def outside(f: Callable, *entries: Any) -> Any:
  """Applies f to the keys and values of entries. A state is not passed to f:
  that of the last entry is returned.
  """

  def each(*x):
    return x[-1] if isinstance(x[0], State) else f(*x)

  return jax.tree.map(each, *entries, is_leaf=lambda x: isinstance(x, State))


def chosen(rows: jax.Array, a: State, b: State) -> State:
  """Returns the state of a for the given rows [S], and of b for the others."""

  def pick(x, y):
    return jnp.where(rows.reshape(-1, *[1] * (x.ndim - 1)), x, y)

  return jax.tree.map(pick, a, b)


def decoded(
  heads: Heads,
  taps: Taps,
  t: jax.Array,
  c: Any,
  prompt: State,
  own: State,
) -> tuple[jax.Array, State]:
  """Runs the rule over new tokens of rows that continue their prompt.

  Args:
    heads: of tokens [S], or of O tokens per row [S,O].
    t: i32 [S] or [S,O], the index of each in its completion; -1: no token. A
      row whose token has index 0 begins with the state of its prompt. []: that
      of every row; the rows' states are `begun` before the first of them.
    prompt: state of B prompts; own: state of S rows, those of a prompt
      adjacent.

  Returns:
    (f32 [S,...,K,G,U], or [S,...,K,U] of a convolution alone; the new own).
  """
  if not jnp.ndim(t):  # a choice would read the prompts' states at every token
    return one_token(heads, taps, jnp.ones(len(own.inputs), bool), c, own)
  begins = jnp.any(t.reshape(len(t), -1) == 0, axis=1)
  state = chosen(begins, begun(prompt, len(t)), own)
  run = one_token if t.ndim == 1 else some_tokens
  return run(heads, taps, t >= 0, c, state)
