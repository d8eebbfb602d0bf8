"""Generation: prompts once, then a token per row and step.

Prompts go through whole, or in chunks of columns. Decoding walks the layers one
by one over a cache of one array per layer, updated in place: a scan would copy
the whole cache every token.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import blocks
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import NOPE, Config
from jaxrl_reason.models.parts import attention, layers, moe, rope
from jaxrl_reason.models.weights import specs


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
    h, (kv, used) = blocks.forward(params, c, *rows, room, keep=True)
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


def _chunk(params: Any, c: Config, tokens, rows, start, n: int, room: int, kv):
  """`blocks.through` of columns start to start + n - 1 of prompts [B,P], after
  those whose keys and values kv [L,B,K,P,H] holds.
  """
  part = lambda x: jax.lax.dynamic_slice_in_dim(x, start, n, axis=1)
  own, columns = jax.tree.map(part, rows), jnp.arange(tokens.shape[1])
  ordered = columns <= start + jnp.arange(n)[:, None]

  def attention_of(windows):
    kernel = attention.between(own, rows, ordered, c, windows)

    def attend(q, k, v, which, memory):
      new = tuple(sharding.gathered(x).swapaxes(1, 2) for x in (k, v))
      all_ = [_write(old, x, start, 2) for old, x in zip(memory, new)]
      return kernel(q, *(x.swapaxes(1, 2) for x in all_), which), new

    return attend

  return blocks.through(
    params, c, part(tokens), own, room, attention_of, memory=kv
  )


def _write(all_, new, start, axis: int):
  return jax.lax.dynamic_update_slice_in_dim(all_, new, start, axis)


def _prompts_in_chunks(params: Any, c: Config, tokens, valid, room: int):
  """What `_prompts` gives, `c.prefill_chunk` columns at a time: activations
  and scores are those of a chunk, and weights that are sharded are gathered for
  each. Chunks in which every prompt is padding are left out.
  """
  (b, length), n = tokens.shape, c.prefill_chunk
  extra = -length % n
  pad = lambda x: jnp.pad(x, ((0, 0), (extra, 0)))
  tokens, valid = pad(tokens), pad(valid)
  rows = attention.describe(valid)
  total = length + extra
  shape = c.layers, b, c.kv_heads, total, c.head_dim
  blank = lambda: sharding.rows(jnp.zeros(shape, c.dtype), axis=1)
  state = {
    'start': jnp.argmax(jnp.any(valid, axis=0)) // n * n,
    'last': sharding.rows(jnp.zeros((b, c.width), c.dtype)),
    'kv': (blank(), blank()),
  }
  if c.experts:
    routes = (c.layers, b, total, c.experts_per_token)
    dtype = moe.route_dtype(c.experts)
    state['routes'] = jnp.full(routes, moe.UNKNOWN, dtype)

  def step(state):
    start = state['start']
    h, (kv, used) = _chunk(params, c, tokens, rows, start, n, room, state['kv'])
    new = {
      'start': start + n,
      'last': h[:, -1],
      'kv': tuple(_write(*x, start, 3) for x in zip(state['kv'], kv)),
    }
    if used is not None:
      new['routes'] = _write(state['routes'], used['routes'], start, 2)
    return new

  state = jax.lax.while_loop(lambda s: s['start'] < total, step, state)
  kv = jax.tree.map(lambda x: x[:, :, :, extra:], state['kv'])
  routes = state.get('routes')
  if routes is not None:
    routes = jnp.moveaxis(routes, 0, 2)[:, extra:]
  return state['last'], kv, routes


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
  prompts = _prompts_in_chunks if c.prefill_chunk else _prompts
  last, (k, v), routes = prompts(params, c, tokens, valid, length + max_new)
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
  x = sharding.rows(blocks.embed(params, c, tokens))
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
    x, (kv, used) = blocks.block(x, p, c, angles, attend)
    own.append(kv)
    routes.append(used and used['routes'])
  cache = cache.replace(own=tuple(own))
  if cache.routes is not None:
    used = jnp.stack(routes, axis=1).astype(cache.routes[1].dtype)
    cache = cache.replace(routes=(cache.routes[0], used))
  return blocks.norm(x, params, 'final_norm', c), cache


def sampled_routes(cache: cache_lib.Cache) -> tuple[jax.Array, jax.Array]:
  """The experts used, int: by the prompts' tokens [B,P,L,k], and by the tokens
  decoded last [S,L,k].
  """
  return cache.routes
