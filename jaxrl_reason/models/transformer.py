"""A decoder-only transformer as a pytree of weights and pure functions.

tokens [N,T] -> embed -> L x (x + attention(norm x); x + mlp(norm x)) -> norm
-> hidden [N,T,D]; `unembed` gives logits. One transformer for all families:
what differs is in `Config`. Training scans over layers stacked on a leading
axis (one compiled layer, however deep); what differs between layers (windows,
rotary tables) is scanned with them. Decoding walks the layers one by one over
a cache of one array per layer, updated in place: a scan would copy the whole
cache every token.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model
from jaxrl_reason.models import attention, layers, moe, rope
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import ACTIVATIONS, NOPE, REMAT, Config
from jaxrl_reason.models.weights import flops_per_token, specs


def build(c: Config) -> Model:
  """The policy's functions, with the config bound."""
  bind = lambda f: lambda params, *args: f(params, c, *args)
  return Model(
    specs=specs(c),
    hidden=bind(hidden),
    unembed=bind(unembed),
    decode_params=bind(decode_params),
    prefill=bind(prefill),
    decode=bind(decode),
    flops_per_token=lambda context: flops_per_token(c, context),
    hidden_routed=bind(hidden_routed) if c.experts else None,
    grow=cache_lib.grow,
    sampled_routes=sampled_routes if c.experts else None,
  )


def embed(params: Any, c: Config, tokens: jax.Array) -> jax.Array:
  """Token embeddings [..., D]."""
  x = params['embed'][tokens].astype(c.dtype)
  # The scale is rounded too, as in the published bf16 models.
  return x if c.embed_scale == 1 else x * jnp.asarray(c.embed_scale, x.dtype)


def unembed(params: Any, c: Config, hidden: jax.Array) -> jax.Array:
  """Logits [..., V], float32: log-probabilities are built on them."""
  head = params['embed'].T if c.tied else params['head']
  logits = jnp.einsum(
    '...d,dv->...v',
    hidden,
    head.astype(hidden.dtype),
    preferred_element_type=jnp.float32,
  )
  return layers.soft_cap(logits, c.logit_cap)


def _norm(x, p: dict, name: str, c: Config) -> jax.Array:
  """The norm of that name; x where the family has none there."""
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
      y = _norm(y.reshape(*flat, -1), p, name + '_norm', c).reshape(y.shape)
    rotated = name != 'v' and angles is not None
    out.append(rope.rotate(y, *angles) if rotated else y)
  return out


def block(x, p, c: Config, angles, attend, routes=None):
  """One layer; `attend(q, k, v) -> (out, kv)` is what differs between
  training, prefill and decoding. x: [...,D]; returns (x, (kv, used)), where
  used are the routes and router probabilities of experts, if any.
  """
  h = _norm(x, p, 'attn_norm', c)
  out, kv = attend(*_qkv(h, p['attn'], c, angles))
  o = p['attn']['o'].reshape(-1, c.width)
  out = out.reshape(*x.shape[:-1], -1)
  y = layers.dense(out, o, p['attn'].get('o_bias'))
  x = x + _norm(y, p, 'attn_post_norm', c)
  h, used, act = _norm(x, p, 'mlp_norm', c), None, ACTIVATIONS[c.activation]
  if c.experts:
    y, used = moe.mlp(h, p['mlp'], c, act, routes)
  else:
    y = layers.gated_mlp(h, p['mlp'], act)
  x = x + _norm(y, p, 'mlp_post_norm', c)
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
  of_layers = [c.window(i) for i in range(c.layers)]
  windows = tuple(dict.fromkeys(of_layers))
  # Index of a layer's table; layers without positions turn by nothing.
  index = [c.rope_index(i) % (len(tables) + 1) for i in range(c.layers)]
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
      angles = jax.tree.map(lambda x: x[flags['rope']], stacked)
    return angles, flags.get('window', 0)

  return windows, flags, f


def _forward(params, c: Config, tokens, valid, room, keep_cache, routes=None):
  """(hidden [N,T,D], (kv, used)), the latter stacked over layers [L,...]; of
  experts, used is {'routes': [L,N,T,k], 'load_balance': f32 [L]}.

  Args:
    valid: as `attention.describe` takes it.
    room: tokens a row may have in this program, completion included.
    routes: int [L,N,T,k] to replay, or None.
  """
  rows = attention.describe(valid)
  # Padding becomes zeros here, so whatever its ids embed to (NaN included)
  # never meets a real token, not even times a zero weight.
  x = embed(params, c, tokens)
  x = jnp.where(rows.segments[..., None] > 0, x, 0)
  windows, flags, of_layer = _of_layer(c, rows.positions, room)
  kernel = attention.make(rows, c, windows)

  def body(x, xs):
    p, flags, routes = xs
    angles, which = of_layer(flags)

    def attend(q, k, v):
      kv = (k.swapaxes(1, 2), v.swapaxes(1, 2)) if keep_cache else None
      return kernel(q, k, v, which), kv

    x, (kv, used) = block(x, p, c, angles, attend, routes)
    if used is not None:
      # Summed up here: probabilities [L,N,T,E] need never exist.
      used = {
        'routes': used['routes'].astype(moe.route_dtype(c.experts)),
        'load_balance': moe.load_balance(
          used['routes'], used['probs'], rows.segments > 0
        ),
      }
    return sharding.tokens(x), (kv, used)

  if c.remat != 'none':
    body = jax.checkpoint(body, policy=REMAT[c.remat])
  x, aux = jax.lax.scan(
    body,
    sharding.tokens(x),
    (params['layers'], flags, routes),
    unroll=1 if c.scan else c.layers,
  )
  return _norm(x, params, 'final_norm', c), aux


def hidden(params: Any, c: Config, tokens, valid):
  """Final hidden states [N,T,D] of tokens [N,T], valid bool [N,T].

  Positions count the valid tokens of a row, so left, right or no padding give
  the same values at the real tokens. Rows that hold several sequences have
  segment ids for `valid` (`attention.describe`): each sequence is then as if
  alone.
  """
  return _forward(params, c, tokens, valid, tokens.shape[1], False)[0]


def hidden_routed(params: Any, c: Config, tokens, valid, routes=None):
  """`hidden` of a mixture of experts, with what its routers did.

  Args:
    routes: int [N,T,L,k], the experts to use (`sampled_routes`), where they
      are not `moe.UNKNOWN`; None: the router's own choice.

  Returns:
    (hidden [N,T,D], {'routes': int [N,T,L,k], 'load_balance': f32 [], the
    mean over layers}).
  """
  if routes is not None:
    routes = jnp.moveaxis(routes, 2, 0)
  h, (_, used) = _forward(
    params, c, tokens, valid, tokens.shape[1], False, routes
  )
  routes = jnp.moveaxis(used['routes'], 0, 2)
  return h, {'routes': routes, 'load_balance': used['load_balance'].mean()}


def decode_params(params: Any, c: Config) -> Any:
  """Weights as decoding reads them: cast and gathered once per generation, not
  once per token, and one tree per layer. Norms stay float32, as in training.
  """
  cast = trees.map_with_path(
    lambda path, x: x if path.endswith('norm') else layers.cast(x, c.dtype),
    params,
    is_leaf=layers.is_weight,
  )
  cast = sharding.constrain(cast, specs(c), sharding.DECODE_RULES)
  layer = lambda i: jax.tree.map(lambda x: x[i], cast['layers'])
  return cast | {'layers': [layer(i) for i in range(c.layers)]}


def _prompts(params: Any, c: Config, tokens, valid, room: int):
  """(hidden of the last token [B,D], keys and values [L,B,K,P,H], routes
  [B,P,L,k] or None) of prompts [B,P], left-padded.

  Columns in which every prompt is padding are not computed: the program holds
  `c.prompt_buckets` widths and runs the first that is wide enough.
  """
  length = tokens.shape[1]

  def of_width(n: int):
    rows = tokens[:, length - n :], valid[:, length - n :]
    h, (kv, used) = _forward(params, c, *rows, room, keep_cache=True)
    left = lambda x, axis, fill: jnp.pad(
      x,
      [(length - n if i == axis else 0, 0) for i in range(x.ndim)],
      constant_values=fill,
    )
    kv = jax.tree.map(lambda x: left(x, 3, 0), kv)
    routes = used and left(jnp.moveaxis(used['routes'], 0, 2), 1, moe.UNKNOWN)
    return h[:, -1], kv, routes

  widths = cache_lib.spaced(length, c.prompt_buckets)
  longest = length - jnp.argmax(jnp.any(valid, axis=0))
  which = jnp.searchsorted(jnp.asarray(widths), longest)
  return jax.lax.switch(which, [lambda n=n: of_width(n) for n in widths])


def prefill(
  params: Any,
  c: Config,
  tokens,
  valid,
  n_samples: int,
  max_new: int,
  columns: int | None = None,
):
  """Runs prompts [B,P] (left-padded) once; makes room for their completions.

  Args:
    n_samples: rows of a prompt that are decoded at a time.
    max_new: C, tokens a completion may have.
    columns: that the cache has room for at first (`grow`); None: C.

  Returns:
    (hidden of the last token [B,D], Cache for B*n_samples rows).
  """
  b, length = tokens.shape
  columns = max_new if columns is None else columns
  last, (k, v), routes = _prompts(params, c, tokens, valid, length + max_new)
  shape = b * n_samples, c.kv_heads, columns, c.head_dim
  keep = lambda x: cache_lib.keep(x, c.cache_dtype)
  # [B,K,P,H] by rows: every token decoded reads all of a prompt's keys.
  place = lambda x: sharding.gathered(x.swapaxes(1, 2)).swapaxes(1, 2)
  prompt = tuple(
    (keep(place(k[i])), keep(place(v[i]))) for i in range(c.layers)
  )
  empty = lambda: cache_lib.empty(*shape, prompt[0][0].values.dtype)
  if routes is not None:
    own = (shape[0], *routes.shape[2:])
    own = jnp.full(own, moe.UNKNOWN, routes.dtype)
    routes = routes, sharding.rows(own)
  return last, cache_lib.Cache(
    prompt=prompt,
    own=tuple((empty(), empty()) for _ in range(c.layers)),
    prompt_mask=valid,
    room=length + max_new,
    routes=routes,
  )


def decode(
  params: Any, c: Config, tokens, cache: cache_lib.Cache, t, column=None
):
  """One token per row: the t-th of its completion.

  Args:
    params: from `decode_params`.
    tokens: int [S], the tokens at completion index t.
    cache: filled up to index t - 1.
    t: int [] or [S].
    column: int [], where in the cache their keys go; None: t.

  Returns:
    (hidden [S,D], cache with the column written).
  """
  column = t if column is None else column
  windows = [c.window(i) for i in range(c.layers)]
  positions, masks = cache_lib.context(cache, t, column, windows)
  tables = [
    rope.angles(r, positions, c.head_dim, cache.room) for r in c.rope_tables
  ]
  x = sharding.rows(embed(params, c, tokens))
  own, routes = [], []
  for i, p in enumerate(params['layers']):

    def attend(q, k, v, i=i):
      kv = tuple(
        cache_lib.put(buffer, new, column, c.cache_dtype)
        for buffer, new in zip(cache.own[i], (k, v))
      )
      out = layers.attend_cached(
        q,
        cache.prompt[i],
        kv,
        *masks[windows[i]],
        scale=c.score_scale,
        cap=c.attention_cap,
      )
      return out, kv

    index = c.rope_index(i)
    angles = None if index == NOPE else tables[index]
    x, (kv, used) = block(x, p, c, angles, attend)
    own.append(kv)
    routes.append(used and used['routes'])
  cache = cache.replace(own=tuple(own))
  if cache.routes is not None:
    used = jnp.stack(routes, axis=1).astype(cache.routes[1].dtype)
    cache = cache.replace(routes=(cache.routes[0], used))
  return _norm(x, params, 'final_norm', c), cache


def sampled_routes(cache: cache_lib.Cache) -> tuple[jax.Array, jax.Array]:
  """The experts used, int: by the prompts' tokens [B,P,L,k], and by the tokens
  decoded last [S,L,k].
  """
  return cache.routes
