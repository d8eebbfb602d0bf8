"""The layers of the transformer over tokens [N,T], shared by training, prefill
and decoding.

One transformer serves all families; `Config` has their differences. Whole rows
pass through a scan over layers that are stacked on a leading axis, so one layer
is compiled whatever the depth. Windows and rotary tables that differ between
layers are scanned too.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import mixed_layers
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import (
  attention,
  delta,
  latent,
  layers,
  moe,
  rope,
)

# Attention weights that `attend` takes as keyword arguments.
BESIDE_HEADS = 'sinks', 'kv_up'


def embed(params: Any, c: Config, tokens: jax.Array) -> jax.Array:
  """Returns token embeddings [..., D]."""
  x = c.ops.to(params['embed'][tokens], c.dtype)
  # The scale is rounded too, as in the published bf16 models.
  if c.embed_scale == 1:
    return x
  return c.ops.times(x, jnp.asarray(c.embed_scale, x.dtype))


def unembed(c: Config, params: Any, hidden: jax.Array) -> jax.Array:
  """Computes logits [..., V] in float32, for accurate log-probabilities."""
  head = params['head'] if 'head' in params else params['embed'].T
  logits = c.ops.wide(hidden, head)
  if c.logit_divisor != 1:
    logits = logits / c.logit_divisor
  return c.ops.soft_cap(logits, c.logit_cap)


def norm(x, p: dict, name: str, c: Config) -> jax.Array:
  """Applies the named norm; returns x if the family has no such norm."""
  if name not in p:
    return x
  weight = p[name]
  if c.norm_offset:
    weight = weight.astype(jnp.float32) + c.norm_offset
  normed = layers.layer_norm if c.norm_centered else c.ops.rms_norm
  return normed(x, weight, c.norm_eps)


def _qkv(x, p, c: Config, angles):
  """Computes rotated q [...,Q,H] and k, v [...,K,H] of x [...,D], and gates
  [...,Q,H] of the attention's output if the model has them.
  """
  out, gates = [], []
  for name in ('q', 'k', 'v'):
    y = c.ops.dense(x, p[name], p.get(name + '_bias'))
    if c.out_gate and name == 'q':
      y, *gates = jnp.split(y, 2, axis=-1)
    if name != 'v' and c.qk_norm_over == 'projection':
      flat = y.reshape(*y.shape[:-2], -1)
      y = norm(flat, p, name + '_norm', c).reshape(y.shape)
    if c.qk_norm_over == 'head':
      y = norm(y, p, name + '_norm', c)
    if name != 'v' and angles is not None:
      y = c.ops.rotate(y, *angles[:2], interleaved=c.rope_interleaved)
      y = c.ops.times(y, angles[2]) if angles[2:] and name == 'q' else y
    if c.qk_norm_over == 'rotated':
      y = norm(y, p, name + '_norm', c)
    out.append(y)
  return out + gates


def _gated(h, p: dict, c: Config, angles, attend: Callable, **beside):
  """Computes the gated attention or delta-rule output of h [...,D] and its
  cache entry.
  """
  if delta.NAME in p:
    heads, gate = delta.heads_of(h, p, c)
    out, kept = attend(heads, taps=delta.taps(p, c))
    return delta.gated(out, gate, p, c), kept
  *heads, gate = _qkv(h, p, c, angles)
  out, kept = attend(*heads, **beside)
  return out * jax.nn.sigmoid(gate.astype(jnp.float32)).astype(out.dtype), kept


def _mixed(h, p: dict, c: Config, angles, attend: Callable):
  """Computes the projected output [...,D] of attention or of the delta rule for
  h [...,D], and its cache entry.
  """
  beside = {k: v for k, v in p.items() if k in BESIDE_HEADS}
  heads = latent.heads_of if c.kv_rank else _qkv
  if c.out_gate or delta.NAME in p:
    out, kv = _gated(h, p, c, angles, attend, **beside)
  else:
    out, kv = attend(*heads(h, p, c, angles), **beside)
  out = out.reshape(*h.shape[:-1], -1)
  return c.ops.dense(out, p['o'].reshape(-1, c.width), p.get('o_bias')), kv


def block(x, p, c: Config, angles, attend, routes=None):
  """Computes one layer, of attention or a state, an mlp, or both.

  Args:
    x: [...,D].
    attend: attend(q, k, v) -> (out, kv), which differs between training,
      prefill and decoding. Its other forms are: sinks= for a layer with sinks,
      (q, kept, kv_up=) for a latent layer, (heads, taps=) for a layer of the
      delta rule.

  Returns:
    (x, (kv, used)); used: routes and router probabilities of experts, or None.
  """
  kv, used, h = (), None, norm(x, p, 'attn_norm', c)
  if 'attn' in p:
    y, kv = _mixed(h, p['attn'], c, angles, attend)
    if 'state' in p:
      of_state, state = _mixed(h, p['state'], c, angles, attend)
      y = y * c.attention_scale + of_state * (c.delta_scales or (1,))[-1]
      kv = kv and (*kv, state)
    y = norm(y, p, 'attn_post_norm', c)
    x = c.ops.added(x, y, c.residual_scale)
  if 'mlp' in p:
    h = h if c.norm_place == 'parallel' else norm(x, p, 'mlp_norm', c)
    y, used = moe.of_layer(h, p, c, routes)
    y = norm(y, p, 'mlp_post_norm', c)
    x = c.ops.added(x, y, c.residual_scale)
  if 'steer' in p:  # models.steering
    x = c.ops.added(x, c.ops.to(p['steer'], x.dtype))
  return x, (kv, used)


def rotary(c: Config, positions: jax.Array, max_tokens: int) -> list:
  """Computes (cos, sin), and a factor of queries if it has one, of each of a
  model's rotary tables.
  """
  return [
    (
      *c.ops.angles(r, positions, c.rotary_dim, max_tokens),
      *rope.grown(r, positions),
    )
    for r in c.rope_tables
  ]


def _of_layer(c: Config, positions, max_tokens: int):
  """Returns (windows, flags, f) that describe the differences between layers.

  Windows are the distinct ones. Flags are, by stack, arrays [layers of the
  stack] of the settings that differ between layers. f(flags of a layer) returns
  (angles, index of its window). If all layers are alike there are no flags, and
  f returns constants of the scan.
  """
  tables = rotary(c, positions, max_tokens)
  windows = tuple(dict.fromkeys(c.layer_windows))
  if len(windows) == 1 and set(c.layer_ropes) == {0}:
    return windows, dict.fromkeys(c.stacks, {}), lambda flags: (tables[0], 0)
  return windows, *mixed_layers.differing(c, tables, windows)


def _scan(c: Config, body: Callable, x: jax.Array, xs: dict, n_layers: int):
  """Runs body(x, a layer's slice of xs) -> (x, y) over the first layers.

  Args:
    xs: by stack, trees of arrays [layers of the stack,...].

  Returns:
    (x, the layers' y, stacked, by stack).
  """
  periods = c.periods_of(n_layers)
  if all(n == 1 for n, _ in periods):
    return _runs(c, body, x, xs, c.runs_of(n_layers))
  out = {name: [] for name in c.stacks}
  for n, runs in periods:
    if n == 1:
      x, ys = _runs(c, body, x, xs, runs)
    else:
      x, ys = _repeated(c, body, x, xs, runs, n)
    for name, y in ys.items():
      out[name].append(y)
  return x, {name: mixed_layers.joined(parts) for name, parts in out.items()}


def _runs(c: Config, body: Callable, x: jax.Array, xs: dict, runs):
  """Runs `_scan` over the given runs of layers."""
  out = {}
  for name, run in runs:
    n = run.stop - run.start
    everything = n == len(jax.tree.leaves(xs[name])[0])
    part = xs[name] if everything else trees.take(xs[name], run)
    x, ys = jax.lax.scan(body, x, part, unroll=1 if c.scan else n)
    out.setdefault(name, []).append(ys)
  return x, {name: mixed_layers.joined(parts) for name, parts in out.items()}


def _repeated(c: Config, body: Callable, x, xs: dict, runs, n: int):
  """Runs `_scan` over runs of layers that repeat n times, compiled once."""
  first, size = {}, {}
  for name, run in runs:
    first.setdefault(name, run.start)
    size[name] = size.get(name, 0) + run.stop - run.start

  def split(name):
    every = slice(first[name], first[name] + n * size[name])
    shape = n, size[name]
    return jax.tree.map(
      lambda a: a[every].reshape(*shape, *a.shape[1:]), xs[name]
    )

  inside = [
    (name, slice(run.start - first[name], run.stop - first[name]))
    for name, run in runs
  ]

  def once(x, xs):
    return _runs(c, body, x, xs, inside)

  parts = {name: split(name) for name in first}
  x, ys = jax.lax.scan(once, x, parts, unroll=1 if c.scan else n)
  return x, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), ys)


def through(
  params: Any,
  c: Config,
  x: jax.Array,
  rows: attention.Rows,
  max_tokens: int,
  attention_of: Callable,
  memory: Any = None,
  routes: jax.Array | None = None,
  weights: jax.Array | None = None,
  layers_run: int | None = None,
):
  """Runs all layers over embeddings x [N,T,D], of tokens (`embed`) or of other
  inputs (soft prompts, images).

  Args:
    rows: segments and positions of the embeddings.
    max_tokens: maximum tokens of a row in this program, completion included.
    attention_of: windows -> attend(q, k, v, which=, memory=) -> (out, kept),
      with the distinct windows, the index of a layer's window among them, and
      the layer's slice of `memory`.
    memory: by stack of layers, arrays [layers of the stack,...]; or None.
    routes: int [L,N,T,k] of the layers with experts to replay, or None.
    weights: [N,T], weight of each token in the experts' load; None: 1.
    layers_run: number of first layers to run; None: all, and the final norm.

  Returns:
    (hidden [N,T,D], (kept, used)): kept by stack, [layers of the stack,...];
    used of the layers with experts, {'routes': int [L,N,T,k], 'load_balance':
    f32 [L]}.
  """
  # Padding becomes zeros, so that its embedding (even NaN) never reaches a real
  # token, not even with weight zero.
  real = rows.segments > 0
  x = jnp.where(real[..., None], x, 0)
  windows, flags, of_layer = _of_layer(c, rows.positions, max_tokens)
  attend = attention_of(windows)

  def body(x, xs):
    p, flags, memory, routes = xs
    angles, which = of_layer(flags)

    of_this = functools.partial(attend, which=which, memory=memory)
    x, (kept, used) = block(x, p, c, angles, of_this, routes)
    if used is not None:
      counted = real if weights is None else jnp.where(real, weights, 0)
      # Reduced here, so that probabilities [L,N,T,E] need not exist.
      used = {
        'routes': used['routes'].astype(moe.route_dtype(c.experts)),
        'load_balance': moe.load_balance(
          used['routes'], used['probs'], counted
        ),
      }
    return sharding.tokens(x), (kept, used)

  if c.remat != 'none':
    body = jax.checkpoint(body, policy=layers.REMAT[c.remat])
  memory, routed = memory or {}, {}
  if routes is not None:
    routed = mixed_layers.by_stack(c, routes)
  xs = {
    name: (params[name], flags[name], memory.get(name), routed.get(name))
    for name in c.stacks
  }
  x, aux = _scan(c, body, sharding.tokens(x), xs, layers_run or c.layers)
  if layers_run is not None:
    return x, (None, None)
  kept = {name: kept for name, (kept, _) in aux.items()}
  used = mixed_layers.in_order(c, aux) if c.experts else None
  return norm(x, params, 'final_norm', c), (kept, used)


def forward(
  params: Any,
  c: Config,
  tokens,
  valid,
  max_tokens: int,
  keep: bool,
  routes=None,
  layers_run: int | None = None,
):
  """Runs `through` on whole rows of tokens [N,T], with the kernel of
  `c.attention`.

  Args:
    valid: bool or segment ids, see `attention.describe`.
    keep: also return, by stack, keys and values [L,N,K,T,H], or states of the
      delta rule.
  """
  rows = attention.describe(valid)

  def attention_of(windows):
    kernel = attention.make(rows, c, windows)

    def attend(q, *kv, which, memory, kv_up=None, taps=None, **sinks):
      if taps is not None:
        state = delta.empty(len(tokens), c)
        out, state = delta.over_rows(q, taps, rows, c, state)
        return out, state if keep else None
      kept = tuple(x.swapaxes(1, 2) for x in kv) if keep else None
      return latent.attended(kernel, q, kv, kv_up, which, c, **sinks), kept

    return attend

  x = embed(params, c, tokens)
  own = dict(routes=routes, layers_run=layers_run)
  return through(params, c, x, rows, max_tokens, attention_of, **own)


def hidden(c: Config, params: Any, tokens, valid):
  """Computes final hidden states [N,T,D] of tokens [N,T], valid bool [N,T].

  Positions count the valid tokens of a row, so that left, right or no padding
  yield the same values at the real tokens. For rows with several sequences,
  `valid` is an array of segment ids (`attention.describe`), and each sequence
  is computed independently.
  """
  return forward(params, c, tokens, valid, tokens.shape[1], False)[0]


def hidden_after(c: Config, params: Any, tokens, valid, layer: int):
  """Computes the states [N,T,D] after layer `layer` (static, from 0, or below 0
  from the end), before any norm. Later layers are not computed, and routers
  choose the experts.
  """
  own = tokens.shape[1], False, None, layer % c.layers + 1
  return forward(params, c, tokens, valid, *own)[0]


def hidden_routed(c: Config, params: Any, tokens, valid, routes=None):
  """Computes `hidden` of a mixture of experts, and its routers' outputs.

  Args:
    routes: int [N,T,L,k], the experts to use (`sampled_routes`); the router
      chooses at entries equal to `moe.UNKNOWN`. None: the router chooses all.

  Returns:
    (hidden [N,T,D], {'routes': int [N,T,L,k], 'load_balance': f32 [], the mean
    over layers}).
  """
  if routes is not None:
    routes = jnp.moveaxis(routes, 2, 0)
  h, (_, used) = forward(
    params, c, tokens, valid, tokens.shape[1], False, routes
  )
  routes = jnp.moveaxis(used['routes'], 0, 2)
  return h, {'routes': routes, 'load_balance': used['load_balance'].mean()}
