"""The layers of the transformer over tokens [N,T]: training, prompts and
decoding are made of these pieces.

One transformer for all families: what differs is in `Config`. Whole rows go
through a scan over layers stacked on a leading axis (one compiled layer,
however deep); what differs between layers (windows, rotary tables) is scanned
with them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.config import ACTIVATIONS, REMAT, Config
from jaxrl_reason.models.parts import attention, layers, moe, rope


def embed(params: Any, c: Config, tokens: jax.Array) -> jax.Array:
  """Looks up token embeddings [..., D]."""
  x = params['embed'][tokens].astype(c.dtype)
  # The scale is rounded too, as in the published bf16 models.
  return x if c.embed_scale == 1 else x * jnp.asarray(c.embed_scale, x.dtype)


def unembed(c: Config, params: Any, hidden: jax.Array) -> jax.Array:
  """Computes logits [..., V], float32: log-probabilities are built on them."""
  head = params['embed'].T if c.tied else params['head']
  logits = jnp.einsum(
    '...d,dv->...v',
    hidden,
    head.astype(hidden.dtype),
    preferred_element_type=jnp.float32,
  )
  if c.logit_divisor != 1:
    logits = logits / c.logit_divisor
  return layers.soft_cap(logits, c.logit_cap)


def norm(x, p: dict, name: str, c: Config) -> jax.Array:
  """Applies the norm of that name; x where the family has none there."""
  if name not in p:
    return x
  weight = p[name]
  if c.norm_offset:
    weight = weight.astype(jnp.float32) + c.norm_offset
  return layers.rms_norm(x, weight, c.norm_eps)


def _qkv(x, p, c: Config, angles):
  """q [...,Q,H] and k, v [...,K,H] of x [...,D], rotated."""
  out = []
  for name in ('q', 'k', 'v'):
    y = layers.dense(x, p[name], p.get(name + '_bias'))
    if c.qk_norm and name != 'v':
      flat = y.shape[:-2] if c.qk_norm_over == 'projection' else y.shape[:-1]
      y = norm(y.reshape(*flat, -1), p, name + '_norm', c).reshape(y.shape)
    rotated = name != 'v' and angles is not None
    out.append(rope.rotate(y, *angles) if rotated else y)
  return out


def _scaled(y: jax.Array, c: Config) -> jax.Array:
  """What is added to the residual stream."""
  return y if c.residual_scale == 1 else y * c.residual_scale


def block(x, p, c: Config, angles, attend, routes=None):
  """Computes one layer; `attend(q, k, v) -> (out, kv)` is what differs between
  training, prefill and decoding. x: [...,D]; returns (x, (kv, used)), where
  used are the routes and router probabilities of experts, if any.
  """
  h = norm(x, p, 'attn_norm', c)
  out, kv = attend(*_qkv(h, p['attn'], c, angles))
  o = p['attn']['o'].reshape(-1, c.width)
  out = out.reshape(*x.shape[:-1], -1)
  y = layers.dense(out, o, p['attn'].get('o_bias'))
  x = x + _scaled(norm(y, p, 'attn_post_norm', c), c)
  h, used, act = norm(x, p, 'mlp_norm', c), None, ACTIVATIONS[c.activation]
  if c.experts:
    y, used = moe.mlp(h, p['mlp'], c, act, routes)
  else:
    y = layers.gated_mlp(h, p['mlp'], act)
  x = x + _scaled(norm(y, p, 'mlp_post_norm', c), c)
  if 'steer' in p:  # models.steering
    x = x + p['steer'].astype(x.dtype)
  return x, (kv, used)


def _of_layer(c: Config, positions, room: int):
  """What layers differ in: (windows, flags, f). Windows are the distinct ones;
  f(flags of a layer) -> (angles, index of its window). Flags are arrays [L]
  of what differs between layers; where all are alike there are none, and f
  gives constants of the scan.
  """
  tables = [rope.angles(r, positions, c.head_dim, room) for r in c.rope_tables]
  of_layers = c.layer_windows
  windows = tuple(dict.fromkeys(of_layers))
  # Index of a layer's table; layers without positions turn by nothing.
  index = [i % (len(tables) + 1) for i in c.layer_ropes]
  cos, sin = tables[0]
  tables.append((jnp.ones_like(cos), jnp.zeros_like(sin)))
  flags = {}
  if len(windows) > 1:
    flags['window'] = jnp.asarray([windows.index(w) for w in of_layers])
  if len(set(index)) > 1:
    flags['rope'] = jnp.asarray(index)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *tables)

  def f(flags):
    angles = tables[index[0]]
    if 'rope' in flags:
      angles = trees.take(stacked, flags['rope'])
    return angles, flags.get('window', 0)

  return windows, flags, f


def through(
  params: Any,
  c: Config,
  x: jax.Array,
  rows: attention.Rows,
  room: int,
  attention_of: Callable,
  memory: Any = None,
  routes: jax.Array | None = None,
  weights: jax.Array | None = None,
):
  """Runs all layers over embeddings x [N,T,D]: of tokens (`embed`), or of what
  is not text (soft prompts, images).

  Args:
    rows: who the embeddings are.
    room: tokens a row may have in this program, completion included.
    attention_of: windows -> attend(q, k, v, which, memory) -> (out, kept), with
      the distinct windows of layers, a layer's index among them, and its part
      of `memory`.
    memory: arrays [L,...], or None.
    routes: int [L,N,T,k] to replay, or None.
    weights: [N,T], how often a token counts in the experts' load; None: once.

  Returns:
    (hidden [N,T,D], (kept, used)), the latter stacked over layers [L,...]; of
    experts, used is {'routes': int [L,N,T,k], 'load_balance': f32 [L]}.
  """
  # Padding becomes zeros here, so whatever it embeds to (NaN included) never
  # meets a real token, not even times a zero weight.
  real = rows.segments > 0
  x = jnp.where(real[..., None], x, 0)
  counted = real if weights is None else jnp.where(real, weights, 0)
  windows, flags, of_layer = _of_layer(c, rows.positions, room)
  attend = attention_of(windows)

  def body(x, xs):
    p, flags, memory, routes = xs
    angles, which = of_layer(flags)

    def of_this(q, k, v):
      return attend(q, k, v, which, memory)

    x, (kept, used) = block(x, p, c, angles, of_this, routes)
    if used is not None:
      # Summed up here: probabilities [L,N,T,E] need never exist.
      used = {
        'routes': used['routes'].astype(moe.route_dtype(c.experts)),
        'load_balance': moe.load_balance(
          used['routes'], used['probs'], counted
        ),
      }
    return sharding.tokens(x), (kept, used)

  if c.remat != 'none':
    body = jax.checkpoint(body, policy=REMAT[c.remat])
  x, aux = jax.lax.scan(
    body,
    sharding.tokens(x),
    (params['layers'], flags, memory, routes),
    unroll=1 if c.scan else c.layers,
  )
  return norm(x, params, 'final_norm', c), aux


def forward(
  params: Any, c: Config, tokens, valid, room: int, keep: bool, routes=None
):
  """Runs `through` on whole rows of tokens [N,T], by the kernel of
  `c.attention`.

  Args:
    valid: as `attention.describe` takes it.
    keep: also return keys and values [L,N,K,T,H] as kept.
  """
  rows = attention.describe(valid)

  def attention_of(windows):
    kernel = attention.make(rows, c, windows)

    def attend(q, k, v, which, _):
      kept = (k.swapaxes(1, 2), v.swapaxes(1, 2)) if keep else None
      return kernel(q, k, v, which), kept

    return attend

  x = embed(params, c, tokens)
  return through(params, c, x, rows, room, attention_of, routes=routes)


def hidden(c: Config, params: Any, tokens, valid):
  """Computes final hidden states [N,T,D] of tokens [N,T], valid bool [N,T].

  Positions count the valid tokens of a row, so left, right or no padding give
  the same values at the real tokens. Rows that hold several sequences have
  segment ids for `valid` (`attention.describe`): each sequence is then as if
  alone.
  """
  return forward(params, c, tokens, valid, tokens.shape[1], False)[0]


def hidden_routed(c: Config, params: Any, tokens, valid, routes=None):
  """Computes `hidden` of a mixture of experts, with what its routers did.

  Args:
    routes: int [N,T,L,k], the experts to use (`sampled_routes`), where they
      are not `moe.UNKNOWN`; None: the router's own choice.

  Returns:
    (hidden [N,T,D], {'routes': int [N,T,L,k], 'load_balance': f32 [], the
    mean over layers}).
  """
  if routes is not None:
    routes = jnp.moveaxis(routes, 2, 0)
  h, (_, used) = forward(
    params, c, tokens, valid, tokens.shape[1], False, routes
  )
  routes = jnp.moveaxis(used['routes'], 0, 2)
  return h, {'routes': routes, 'load_balance': used['load_balance'].mean()}
