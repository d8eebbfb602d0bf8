"""The gated delta rule: a layer that remembers a matrix per head, not tokens.

  R = e^{g_t} S_{t-1},  S_t = R + k_t b_t (v_t - k_t^T R),  o_t = S_t^T q_t

(https://arxiv.org/abs/2412.06464). q, k, v are projections of x behind a short
causal convolution and SiLU; q and k have length 1; g <= 0 and b within (0, 1)
are projections too. What is kept of a row is S, f32 [K,H,U] for each head of
values, and the last inputs of the convolution, however long the row.

Many tokens go by chunks of CHUNK (`over_rows`): within one the recurrence is a
triangular system, solved by products of matrices, and S is carried from chunk
to chunk. One token takes the recurrence as it stands (`one_token`). Both
compute the same numbers in another order, in float32: errors of S add up over
a row.

A token that is padding has input, g and b zero, which changes nothing. Where
the first token of a sequence stands, what lies before it is forgotten: packed
rows are as if apart.

K heads of queries and keys, of width H, G heads of values for each, of width U.
W = 2 H + G U features of a head pass through the convolution.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import attention, layers

CHUNK = 64  # tokens: a system of 64 unknowns fills a TPU's 128 x 128 as well
EPS = 1e-6  # within the lengths of q and k
NAME = 'qkvz'  # the weight that only layers of this kind have


@struct.dataclass
class State:
  """What a layer remembers of rows [N]."""

  inputs: jax.Array  # [N,taps - 1,K,W], the convolution's last
  memory: jax.Array  # f32 [N,K,G,H,U]


@struct.dataclass
class Heads:
  """What tokens [...] bring."""

  mixed: jax.Array  # [...,K,W], inputs of the convolution
  decay: jax.Array  # f32 [...,K,G], g
  share: jax.Array  # f32 [...,K,G], b


def empty(rows: int, c: Any) -> State:
  """Returns the state of rows of which nothing was read."""
  k, g = c.delta_heads, c.delta_groups
  width = 2 * c.delta_key_dim + g * c.delta_value_dim
  inputs = jnp.zeros((rows, c.delta_taps - 1, k, width), c.dtype)
  shape = rows, k, g, c.delta_key_dim, c.delta_value_dim
  memory = jnp.zeros(shape, jnp.float32)
  return jax.tree.map(sharding.rows, State(inputs, memory))


def heads_of(x: jax.Array, p: dict, c: Any) -> tuple[Heads, jax.Array]:
  """Computes what tokens x [...,D] bring, and the gates [...,K,G,U] of what
  comes out.
  """
  split = 2 * c.delta_key_dim + c.delta_groups * c.delta_value_dim
  mixed, gate = jnp.split(layers.dense(x, p[NAME]), [split], axis=-1)
  gate = gate.reshape(*gate.shape[:-1], c.delta_groups, c.delta_value_dim)
  both = layers.dense(x, p['ba']).astype(jnp.float32)
  share, step = jnp.split(both, 2, axis=-1)

  def of_head(name):
    return p[name].astype(jnp.float32).reshape(c.delta_heads, c.delta_groups)

  step = jax.nn.softplus(step + of_head('step_bias'))
  decay = -jnp.exp(of_head('log_decay')) * step
  return Heads(mixed, decay, jax.nn.sigmoid(share)), gate


def taps(p: dict, c: Any) -> jax.Array:
  """Returns the convolution's weights f32 [taps,K,W], a head's together; on
  disk those of all queries come first, then keys, then values.
  """
  w = p['conv'].astype(jnp.float32)
  n = c.delta_heads * c.delta_key_dim
  parts = jnp.split(w, [n, 2 * n])
  parts = [x.reshape(c.delta_heads, -1, w.shape[-1]) for x in parts]
  return jnp.moveaxis(jnp.concatenate(parts, axis=1), -1, 0)


def gated(out: jax.Array, gate: jax.Array, p: dict, c: Any) -> jax.Array:
  """Normalises what heads say, f32 [...,K,G,U], and multiplies it by the SiLU
  of the gates.
  """
  y = layers.rms_norm(out, p['out_norm'], c.norm_eps)
  return (y * jax.nn.silu(gate.astype(jnp.float32))).astype(gate.dtype)


def _unit(x: jax.Array) -> jax.Array:
  return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + EPS)


def _parts(x: jax.Array, c: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
  """q, k f32 [...,K,H] and v f32 [...,K,G,U] of what the convolution gave."""
  x, h = jax.nn.silu(x), c.delta_key_dim
  q, k, v = jnp.split(x, [h, 2 * h], axis=-1)
  v = v.reshape(*v.shape[:-1], c.delta_groups, c.delta_value_dim)
  return _unit(q) * h**-0.5, _unit(k), v


def _convolved(x: jax.Array, run: jax.Array, weights: jax.Array) -> jax.Array:
  """Sums over the last taps of x [N,taps - 1 + T,K,W], f32 [N,T,K,W], those of
  the same sequence.

  Args:
    run: i32 [N,taps - 1 + T], which sequence a column belongs to.
  """
  n = len(weights)
  t = x.shape[1] - n + 1
  own, out = run[:, n - 1 :], 0.0
  for i, w in enumerate(weights):
    same = run[:, i : i + t] == own
    out += jnp.where(same[..., None, None], x[:, i : i + t], 0) * w
  return out


def _dot(equation: str, *factors: jax.Array) -> jax.Array:
  """An einsum of float32 factors that no platform rounds to bfloat16."""
  return jnp.einsum(equation, *factors, precision=jax.lax.Precision.HIGHEST)


def _inverse(lower: jax.Array) -> jax.Array:
  """The inverses of 1 + lower [...,T,T], strictly lower triangular, T a power
  of 2.

  Of two blocks on the diagonal whose inverses are known, that of the square
  around them: (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1, B^-1). As stable as
  substitution, in products of matrices.
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
  """[N,T,...] -> [chunks,N,size,...], zeros in front where T is too short."""
  x = jnp.pad(x, ((0, 0), (-x.shape[1] % size, 0)) + ((0, 0),) * (x.ndim - 2))
  return jnp.moveaxis(x.reshape(len(x), -1, size, *x.shape[2:]), 1, 0)


def _within(q, k, v, decay, share, run):
  """What chunks [C,N,T,...] compute before they know the state they begin with.

  Returns:
    (scores of queries and keys [C,N,K,G,T,T], new values [C,N,T,K,G,U], what
    keys expect of the state [C,N,T,K,G,H], what is left of the state at each
    token [C,N,T,K,G], of each token at the end of the chunk [C,N,T,K,G]).
  """
  t = q.shape[2]
  total = jnp.cumsum(decay, axis=2)
  past = jnp.tril(jnp.ones((t, t)))
  # What lies between two tokens summed by itself: a difference of two totals
  # has lost the digits of what is small beside them.
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
  asked = k[..., None, :] * (share * left)[..., None]
  expected = _dot('cnkgts,cnskgh->cntkgh', solved, asked)
  return scores, values, expected, left, end


def _rule(q, k, v, decay, share, run, memory):
  """(o [N,T,K,G,U], the last memory) of tokens [N,T], by chunks.

  Args:
    run: i32 [N,T], rising by one with each sequence that begins; the memory
      [N,K,G,H,U] is of sequence 0.
  """
  t = q.shape[1]
  size = min(CHUNK, 1 << (t - 1).bit_length())
  parts = [_by_chunk(x, size) for x in (q, k, v, decay, share)]
  # Padding in front belongs to what the memory is of.
  run = _by_chunk(run, size)
  scores, values, expected, left, end = _within(*parts, run)
  last = run[:, :, -1:]
  first = jnp.concatenate([jnp.zeros_like(last[:1]), last[:-1]])
  reads = left * (run == first)[..., None, None]
  xs = {
    'scores': scores,
    'values': values,
    # A sequence that begins in a chunk expects nothing of the state.
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
    rows: who the tokens are; what begins with position 0 forgets the state.
    state: of what came before.

  Returns:
    (f32 [N,T,K,G,U], the state after the last column).
  """
  # The recurrence has no part of a row to split over a context axis.
  heads = jax.tree.map(sharding.gathered, heads)
  real = rows.segments > 0
  run = jnp.cumsum(real & (rows.positions == 0), axis=1)
  return _passed(heads, weights, real, run, c, state)


def _passed(heads, weights, real, run, c, state):
  mixed, *rates = (
    jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), x, 0)
    for x in (heads.mixed, heads.decay, heads.share)
  )
  n = state.inputs.shape[1]
  inputs = jnp.concatenate([state.inputs, mixed], axis=1)
  runs = jnp.pad(run, ((0, 0), (n, 0)))
  parts = _parts(_convolved(inputs, runs, weights), c)
  out, memory = _rule(*parts, *rates, run, state.memory)
  # Inputs of an earlier sequence are none of the next token's.
  same = runs[:, -n:] == run[:, -1:]
  inputs = jnp.where(same[..., None, None], inputs[:, -n:], 0)
  return out, State(inputs, memory)


def one_token(
  heads: Heads, weights: jax.Array, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over a token of each row [S].

  Args:
    there: bool [S], the rows that have one; the state of others stays.

  Returns:
    (f32 [S,K,G,U], the state after it).
  """
  inputs = jnp.concatenate([state.inputs, heads.mixed[:, None]], axis=1)
  q, k, v = _parts(jnp.sum(inputs * weights, axis=1), c)
  memory = state.memory * jnp.exp(heads.decay)[..., None, None]
  known = _dot('skh,skghu->skgu', k, memory)
  change = (v - known) * heads.share[..., None]
  memory = memory + k[..., None, :, None] * change[..., None, :]
  out = _dot('skh,skghu->skgu', q, memory)
  return out, chosen(there, State(inputs[:, 1:], memory), state)


def some_tokens(
  heads: Heads, weights: jax.Array, there: jax.Array, c: Any, state: State
) -> tuple[jax.Array, State]:
  """Runs the rule over the first tokens of each row, of tokens [S,O].

  Args:
    there: bool [S,O], those that a row has.

  Returns:
    As `over_rows`; the state is that after each row's last token.
  """
  run = jnp.zeros(there.shape, jnp.int32)
  out, after = _passed(heads, weights, there, run, c, state)
  inputs = jnp.concatenate([state.inputs, heads.mixed], axis=1)
  at = there.sum(axis=1)[:, None] + jnp.arange(state.inputs.shape[1])
  inputs = jnp.take_along_axis(inputs, at[..., None, None], axis=1)
  return out, after.replace(inputs=inputs)


def chosen(rows: jax.Array, a: State, b: State) -> State:
  """Returns the state of a for the rows [S] named, of b for the others."""

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
  """Runs the rule over new tokens of rows that go on behind their prompt.

  Args:
    heads: of tokens [S], or O of each row [S,O].
    t: i32 [S] or [S,O], the index of each in its completion; -1: none. A row
      whose token has index 0 begins with the state of its prompt.
    prompt: of B prompts; own: of S rows, those of a prompt adjacent.

  Returns:
    (f32 [S,...,K,G,U], own).
  """
  begins = jnp.any(t.reshape(len(t), -1) == 0, axis=1)
  repeats = len(t) // len(prompt.memory)
  of_rows = functools.partial(jnp.repeat, repeats=repeats, axis=0)
  first = jax.tree.map(of_rows, prompt)
  state = chosen(begins, first, own)
  run = one_token if t.ndim == 1 else some_tokens
  return run(heads, weights, t >= 0, c, state)
