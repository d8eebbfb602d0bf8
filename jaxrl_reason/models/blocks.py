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

from jaxrl_reason import sharding
from jaxrl_reason.models import mixed_layers, scans
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import (
  attention,
  delta,
  latent,
  layers,
  moe,
  residuals,
  rope,
)

# Attention weights that `attend` takes as keyword arguments.
BESIDE_HEADS = 'sinks', 'kv_up'


def embed(params: Any, c: Config, tokens: jax.Array) -> jax.Array:
  """Returns token embeddings [..., D]."""
  x = c.ops.to(params['embed'][tokens], c.dtype)
  if c.embed_scale == 1:
    return x
  dtype = x.dtype if c.embed_rounded else jnp.float32
  return c.ops.times(x, jnp.asarray(c.embed_scale, dtype))


def unembed(c: Config, params: Any, hidden: jax.Array) -> jax.Array:
  """Computes logits [..., V] in float32, for accurate log-probabilities."""
  head = params['head'] if 'head' in params else params['embed'].T
  logits = c.ops.wide(hidden, head)
  if c.logit_divisor != 1:
    logits = logits / c.logit_divisor
  return c.ops.soft_cap(logits, c.logit_cap)


def _qkv(x, p, c: Config, angles):
  """Computes rotated q [...,Q,H] and k, v [...,K,H] of x [...,D], and gates
  [...,Q,H] of the attention's output if the model has them. A layer that reads
  the keys of another one has q only.
  """
  out, gates = [], []
  for name in ('q', 'k', 'v'):
    if name not in p and 'k' not in p:
      continue  # keys and values are those of an earlier layer
    made = name if name in p else 'k'
    y = c.ops.dense(x, p[made], p.get(made + '_bias'))
    if name == 'v' and c.value_norm:
      y = c.ops.rms_norm(y, jnp.ones(y.shape[-1]), c.norm_eps)
    if c.out_gate and name == 'q':
      y, *gates = jnp.split(y, 2, axis=-1)
    if name != 'v' and c.qk_norm_over == 'projection':
      flat = y.reshape(*y.shape[:-2], -1)
      y = layers.norm(flat, p, name + '_norm', c).reshape(y.shape)
    if c.qk_norm_over in ('head', 'own head'):
      y = layers.norm(y, p, name + '_norm', c)
    if name != 'v' and angles is not None:
      y = _turned(y, c, angles, name == 'q')
    if c.qk_norm_over == 'rotated':
      y = layers.norm(y, p, name + '_norm', c)
    out.append(y)
  return out + gates


def _turned(y, c: Config, turns: rope.Turns, is_query: bool) -> jax.Array:
  """Changes queries or keys [...,heads,H] by their positions."""
  y = c.ops.rotate(y, turns.cos, turns.sin, interleaved=c.rope_interleaved)
  if turns.unit is not None:
    unit = c.ops.rms_norm(y, jnp.ones(y.shape[-1]), c.norm_eps)
    y = jnp.where(turns.unit, unit, y)
  if turns.growth is not None and is_query:
    y = c.ops.times(y, turns.growth)
  return y


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
  if c.out_gate or delta.NAME in p:
    out, kv = _gated(h, p, c, angles, attend, **beside)
  elif c.kv_rank:
    heads, index = latent.heads_of(h, p, c, angles)
    out, kv = attend(*heads, **beside, **index)
  else:
    out, kv = attend(*_qkv(h, p, c, angles), **beside)
  out = out.reshape(*h.shape[:-1], -1)
  return c.ops.dense(out, p['o'].reshape(-1, c.width), p.get('o_bias')), kv


def block(
  x, p, c: Config, angles, attend, routes=None, inputs=None, cutoff=None
):
  """Computes one layer, of attention or a state, an mlp, or both.

  Args:
    x: [...,D], or streams [...,S,D] (`residuals`).
    attend: attend(q, k, v) -> (out, kv), which differs between training,
      prefill and decoding. Its other forms are: sinks= for a layer with sinks,
      (q, kept, kv_up=) for a latent layer, (q, kept, key, kv_up=, index=) if
      it has an indexer, (heads, taps=) for a layer of the delta rule. A layer
      that reads keys of an earlier one leaves them out.
    inputs: [...,E] of this layer (`residuals.layer_inputs`), or None.
    cutoff: of the mlp's gates (`layers.sparse`), or None.

  Returns:
    (x, (kv, used)); used: routes and router probabilities of experts, or None.
  """
  streams = residuals.predicted(x, p['streams'], c) if c.streams else None
  x = x if streams is None else streams[..., 0, :]
  x, kv, used = _sublayers(x, p, c, angles, attend, routes, cutoff)
  if streams is not None:
    x = residuals.corrected(streams, x, p['streams'], c)
  if inputs is not None:
    x = residuals.with_inputs(x, p, c, inputs)
  if 'factor' in p:  # a constant of the weights, which is not trained
    x = c.ops.times(x, c.ops.to(jax.lax.stop_gradient(p['factor']), x.dtype))
  if 'steer' in p:  # models.steering
    x = c.ops.added(x, c.ops.to(p['steer'], x.dtype))
  return x, (kv, used)


def _sublayers(x, p: dict, c: Config, angles, attend, routes, cutoff):
  """Adds attention and the mlp of a layer to x [...,D].

  Returns:
    (x, kv, used), see `block`.
  """
  kv, used, h = (), None, layers.norm(x, p, 'attn_norm', c)
  if 'attn' in p:
    y, kv = _mixed(h, p['attn'], c, angles, attend)
    if 'state' in p:
      of_state, state = _mixed(h, p['state'], c, angles, attend)
      y = y * c.attention_scale + of_state * (c.delta_scales or (1,))[-1]
      kv = kv and (*kv, state)
    y = layers.norm(y, p, 'attn_post_norm', c)
    x = c.ops.added(x, y, c.residual_scale)
    if 'low_rank' in p:
      x = residuals.low_rank(x, h, p, c)
  if 'mlp' in p:
    h = h if c.norm_place == 'parallel' else layers.norm(x, p, 'mlp_norm', c)
    y, used = _mlps(x, h, p, c, routes, cutoff)
    y = layers.norm(y, p, 'mlp_post_norm', c)
    x = c.ops.added(x, y, c.residual_scale)
  return x, kv, used


def _mlps(x, h, p: dict, c: Config, routes, cutoff):
  """Computes the mlp of the normalised h [...,D], or the experts and the mlp
  beside them. If experts have norms of their own, they and their router read x
  [...,D].

  Returns:
    (y [...,D], routes and probabilities as of `moe.mlp`, or None).
  """
  if 'router' not in p['mlp']:
    return layers.mlp(h, p['mlp'], c, cutoff), None
  if not c.expert_norms:
    return moe.of_layer(h, p, c, routes)
  own = layers.norm(x, p, 'expert_norm', c)
  y, used = moe.mlp(own, p['mlp'], c, routes, moe.routed(x, p['mlp'], c))
  beside = layers.norm(
    moe.shared(h, p['shared_mlp'], c), p, 'shared_post_norm', c
  )
  return c.ops.added(beside, layers.norm(y, p, 'expert_post_norm', c)), used


def rotary(
  c: Config, positions: jax.Array, max_tokens: int
) -> list[rope.Turns]:
  """Computes the changes by position of each of a model's rotary tables. All
  have the same arrays, because layers select their table inside a scan.
  """
  tables = c.rope_tables
  grows, units = any(r.growth for r in tables), any(r.unit for r in tables)
  return [
    rope.Turns(
      *c.ops.angles(r, positions, width, max_tokens),
      rope.grown(r, positions) if grows else None,
      jnp.asarray(r.unit) if units else None,
    )
    for r, width in zip(tables, c.rope_widths)
  ]


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
  inputs: jax.Array | None = None,
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
    inputs: [N,T,L,E] of each layer (`residuals.layer_inputs`), or None.

  Returns:
    (hidden [N,T,D], (kept, used)): kept by stack, [layers of the stack,...];
    used of the layers with experts, {'routes': int [L,N,T,k], 'load_balance':
    f32 [L]}.
  """
  # Padding becomes zeros, so that its embedding (even NaN) never reaches a real
  # token, not even with weight zero.
  real = rows.segments > 0
  x = jnp.where(real[..., None], x, 0)
  x = residuals.split(x, params, c) if c.streams else x
  windows = tuple(dict.fromkeys(c.layer_windows))
  tables = rotary(c, rows.positions, max_tokens)
  flags, of_layer = mixed_layers.differing(c, tables, windows)
  body_of = _bodies(c, of_layer, attention_of(windows), real, weights)
  if inputs is not None:
    inputs = jnp.where(real[..., None, None], inputs, 0)
  xs = _slices(params, c, flags, memory, routes, inputs)
  x = sharding.tokens(x)
  x, aux = scans.over(c, body_of, x, xs, layers_run or c.layers)
  x = residuals.joined(x, params, c) if c.streams else x
  if layers_run is not None:
    return x, (None, None)
  kept = {name: kept for name, (kept, _) in aux.items()}
  used = mixed_layers.in_order(c, aux) if c.experts else None
  return layers.norm(x, params, 'final_norm', c), (kept, used)


def _bodies(
  c: Config, of_layer: dict, attend: Callable, real, weights
) -> Callable:
  """Returns the argument `body_of` of `scans.over`, which computes one layer.

  Args:
    of_layer: of `mixed_layers.differing`; real: bool [N,T].
    attend, weights: see `through`.
  """

  def body(x, xs, stack, passed):
    p, flags, memory, routes, inputs = xs
    angles, which, cutoff = of_layer[stack](flags)
    own = scans.LayerAttention(attend, which, memory, passed)
    others = routes, inputs, cutoff
    x, (kept, used) = block(x, p, c, angles, own, *others)
    if used is not None:
      counted = real if weights is None else jnp.where(real, weights, 0)
      used = moe.summary(used, counted, c.experts)
    return sharding.tokens(x), ((kept, used), own.keys)

  def of_stack(stack, passed):
    f = functools.partial(body, stack=stack, passed=passed)
    if c.remat == 'none':
      return f
    return jax.checkpoint(f, policy=layers.REMAT[c.remat])

  return of_stack


def _slices(params: Any, c: Config, flags: dict, memory, routes, inputs):
  """Returns, by stack, the arrays that differ between its layers: (weights,
  flags, memory, routes, inputs), stacked; None for arrays that it lacks.
  """
  routed = {} if routes is None else mixed_layers.by_stack(c, routes)
  own = {}
  if inputs is not None:
    own = mixed_layers.of_stacks(c, jnp.moveaxis(inputs, 2, 0))
  others = memory or {}, routed, own
  return {
    name: (params[name], flags[name], *(x.get(name) for x in others))
    for name in c.stacks
  }


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

    def attend(q, *kv, which, memory, kv_up=None, taps=None, **beside):
      if taps is not None:
        state = delta.empty(len(tokens), c)
        out, state = delta.over_rows(q, taps, rows, c, state)
        return out, state if keep else None
      kept = tuple(x.swapaxes(1, 2) for x in kv) if keep else None
      over = kernel if kv_up is None else latent.over(kernel, kv_up, c)
      return over(q, *kv, which, **beside), kept

    return attend

  x = embed(params, c, tokens)
  own = dict(routes=routes, layers_run=layers_run)
  own['inputs'] = residuals.layer_inputs(params, c, tokens, x)
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
  from the end), before any norm; of several streams, their mean
  (`residuals.joined`). Later layers are not computed, and routers choose the
  experts.
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
