"""Generation: prefill of the prompts, then one token per row and step.

Prompts are computed whole or in chunks of columns. Decoding runs the layers
unrolled, or in loops over those that repeat (`stretches`), and updates the
cache in place.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import (
  blocks,
  cache_layout,
  mixed_layers,
  stretches,
)
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts import (
  attention,
  cached,
  cached_cudnn,
  delta,
  indexer,
  kernel_choice,
  latent,
  layers,
  moe,
  residuals,
)


def _prompts(params: Any, c: Config, tokens, valid, max_tokens: int):
  """Computes left-padded prompts [B,P].

  Returns:
    (hidden of the last token [B,D], keys and values by stack [L,B,K,P,H],
    routes [B,P,L,k] or None).
  """
  h, (kv, used) = blocks.forward(
    params, c, tokens, valid, max_tokens, keep=True
  )
  return h[:, -1], kv, used and jnp.moveaxis(used['routes'], 0, 2)


def _prompts_by_width(params: Any, c: Config, tokens, valid, max_tokens: int):
  """Computes `_prompts` without columns that are padding in every prompt.

  The program has several widths, and runs the first that is wide enough.
  """
  length = tokens.shape[1]

  def of_width(n: int):
    rows = tokens[:, length - n :], valid[:, length - n :]
    last, kv, routes = _prompts(params, c, *rows, max_tokens)

    def left(x, axis, fill):
      width = [(length - n if i == axis else 0, 0) for i in range(x.ndim)]
      return jnp.pad(x, width, constant_values=fill)

    kv = delta.outside(lambda x: left(x, 3, 0), kv)
    if routes is not None:
      routes = left(routes, 1, moe.UNKNOWN)
    return last, kv, routes

  widths = cache_lib.spaced(length, c.prefill_sizes['buckets'])
  longest = length - jnp.argmax(jnp.any(valid, axis=0))
  which = jnp.searchsorted(jnp.asarray(widths), longest)
  which = trees.shared_max(which)
  return jax.lax.switch(which, [lambda n=n: of_width(n) for n in widths])


def _chunk(
  params: Any, c: Config, tokens, rows, start, n: int, max_tokens: int, kv
):
  """Runs `blocks.through` on columns start to start + n - 1 of prompts [B,P],
  after the columns whose keys and values are kv, by stack [L,B,K,P,H].
  """

  def part(x):
    return jax.lax.dynamic_slice_in_dim(x, start, n, axis=1)

  own, columns = jax.tree.map(part, rows), jnp.arange(tokens.shape[1])
  ordered = columns <= start + jnp.arange(n)[:, None]

  def attention_of(windows):
    kernel = attention.between(own, rows, ordered, c, windows)

    def attend(q, *kv, which, memory, kv_up=None, taps=None, **beside):
      if taps is not None:
        return delta.over_rows(q, taps, own, c, delta.of(memory))
      new = tuple(sharding.gathered(x).swapaxes(1, 2) for x in kv)
      all_ = [_write(old, x, start, 2) for old, x in zip(memory, new)]
      both = [x.swapaxes(1, 2) for x in all_]
      run = kernel if kv_up is None else latent.over(kernel, kv_up, c, few=True)
      return run(q, *both, which, **beside), new

    return attend

  tokens = part(tokens)
  x = blocks.embed(params, c, tokens)
  how = dict(memory=kv, inputs=residuals.layer_inputs(params, c, tokens, x))
  return blocks.through(params, c, x, own, max_tokens, attention_of, **how)


def _write(all_, new, start, axis: int):
  return jax.lax.dynamic_update_slice_in_dim(all_, new, start, axis)


def _prompts_in_chunks(params: Any, c: Config, tokens, valid, max_tokens: int):
  """Computes `_prompts` a chunk of columns at a time.

  Activations and scores are only those of a chunk, but sharded weights are
  gathered for each. Chunks in which every prompt is padding are skipped.
  """
  (b, length), n = tokens.shape, c.prefill_sizes['chunks']
  extra = -length % n
  tokens, valid = (jnp.pad(x, ((0, 0), (extra, 0))) for x in (tokens, valid))
  rows = attention.describe(valid)
  total = length + extra

  state = {
    'start': jnp.argmax(jnp.any(valid, axis=0)) // n * n,
    'last': sharding.rows(jnp.zeros((b, c.width), c.dtype)),
    'kv': {name: cache_layout.blank(c, name, b, total) for name in c.stacks},
  }
  if c.experts:
    routes = (len(c.routed_layers), b, total, c.experts_per_token)
    dtype = moe.route_dtype(c.experts)
    state['routes'] = jnp.full(routes, moe.UNKNOWN, dtype)

  def step(state):
    start = state['start']
    old = state['kv']
    h, (kv, used) = _chunk(params, c, tokens, rows, start, n, max_tokens, old)
    kv = delta.outside(lambda a, x: _write(a, x, start, 3), old, kv)
    new = {'start': start + n, 'last': h[:, -1], 'kv': kv}
    if used is not None:
      new['routes'] = _write(state['routes'], used['routes'], start, 2)
    return new

  state = jax.lax.while_loop(lambda s: s['start'] < total, step, state)
  kv = delta.outside(lambda x: x[:, :, :, extra:], state['kv'])
  routes = state.get('routes')
  if routes is not None:
    routes = jnp.moveaxis(routes, 0, 2)[:, extra:]
  return state['last'], kv, routes


PREFILLS = {
  'whole': _prompts,
  'buckets': _prompts_by_width,
  'chunks': _prompts_in_chunks,
}


def prefill(
  c: Config,
  params: Any,
  tokens,
  valid,
  n_samples: int,
  max_new: int,
  columns: int | None = None,
):
  """Computes left-padded prompts [B,P] and allocates their completions' cache.

  Args:
    n_samples: rows of a prompt that are decoded at a time.
    max_new: C, maximum tokens of a completion.
    columns: initial columns of the cache (see `grow`); None: C.

  Returns:
    (hidden of the last token [B,D], Cache for B*n_samples rows).
  """
  length, (kind,) = tokens.shape[1], c.prefill_sizes
  last, kv, routes = PREFILLS[kind](params, c, tokens, valid, length + max_new)
  rows = tokens.shape[0] * n_samples
  by_kernel = cached.pays(c, rows, max_new)
  if columns is None or by_kernel:
    columns = max_new
  if routes is not None:
    unknown = jnp.full((rows, *routes.shape[2:]), moe.UNKNOWN, routes.dtype)
    routes = routes, sharding.rows(unknown)
  prompt, own, where = [], [], stretches.entries(c)
  windows = tuple(c.layer_windows[at[0]] for at in where)
  for at, window in zip(where, windows):
    sizes = dict(rows=rows, columns=columns, window=window)
    f = functools.partial(cache_layout.allocated, c, **sizes)
    of_prompt, of_rows = stretches.mapped(f, at)(stretches.take(c, kv, at))
    prompt.append(of_prompt)
    own.append(of_rows)
  return last, cache_lib.Cache(
    prompt=tuple(prompt),
    own=tuple(own),
    prompt_mask=valid[:, None],
    max_tokens=length + max_new,
    layers=where,
    windows=windows,
    by_kernel=by_kernel,
    routes=routes,
  )


def _walk(
  c: Config, params: Any, tokens, cache, positions, t, column, masks, after=()
):
  """Runs the layers on tokens [S,...] at positions [S,...], and writes their
  keys to the cache's columns from `column` on.

  Args:
    t: int [] or as tokens, indices in their completions; -1: no token.
    column: int [], or int [S,O], a column per token.
    masks: by window, as in `cached.attend`.
    after: numbers of layers, from 0.

  Returns:
    (hidden [S,...,D], cache, experts used [S,...,L,k] or None, the states
    [S,...,D] after the layers of `after`).
  """
  tables = blocks.rotary(c, positions, cache.max_tokens)
  # At index NOPE, the last. A rotation may change the order of features.
  tables.append(mixed_layers.still(tables) if c.rope_interleaved else None)
  x = sharding.rows(blocks.embed(params, c, tokens))
  inputs = residuals.layer_inputs(params, c, tokens, x)
  x = residuals.split(x, params, c) if c.streams else x
  passed = {}  # by stack, the cache and the masks that its layers read
  how = dict(scale=c.score_scale, cap=c.attention_cap)
  read = cached.NUMERICS[c.numerics]
  if tokens.ndim == 1 and kernel_choice.cudnn_reads_cache(c):
    read = cached_cudnn.attend
  elif tokens.ndim == 1 and cache.by_kernel:
    read = cached.by_kernel

  def layer(x, i, p, prompt, own, at=None):
    entry = cache.layers[i]
    first, place = entry[0], c.stack_of_layer[entry[0]]

    def attend(q, *new, kv_up=None, taps=None, index=None, **sinks):
      if taps is not None:
        states = cached.of([delta.of(x) for x in (prompt, own)], at)
        out, new = delta.decoded(q, taps, t, c, *states)
        return out, cache_lib.with_states(delta.of(own), new, at)
      kept = tuple(
        cache_lib.put(buffer, x, column, c.cache_dtype, at)
        for buffer, x in zip(own, new)
      )
      seen, both = masks[cache.windows[i]], (prompt[: len(kept)], kept)
      if index is not None:
        both, keys = zip(*(((x,), y) for x, y in both))
        order = cache_layout.order(cache, keys[1], column)
        seen = indexer.of_cache(index, *cached.of(keys, at), seen, order)
      if place[0] in passed:
        before, seen = passed[place[0]]
        both = both if kept else before
      passed.update(dict.fromkeys(c.readers.get(place, ()), (both, seen)))
      if kv_up is not None:
        q = latent.absorbed(q, kv_up, c)
      where = at if kept else None  # the layer that is read is an entry
      out = read(q, *both, where, *seen, **how, **sinks)
      return out if kv_up is None else latent.opened(out, kv_up, c), kept

    angles = tables[c.layer_ropes[first]]
    beside = None if inputs is None else stretches.of_layer(inputs, entry, at)
    others = None, beside, mixed_layers.cutoff(c, first)
    x, (kept, used) = blocks.block(x, p, c, angles, attend, *others)
    return x, (kept, used and used['routes'])

  both, own, routes = stretches.through(
    stretches.with_states(layer, cache.layers),
    (x, {number: jnp.zeros_like(x) for number in after}),
    *(cache.layers, params['layers'], cache.prompt, cache.own),
  )
  if c.streams:
    both = jax.tree.map(lambda x: residuals.joined(x, params, c), both)
  x, states = both
  cache, used = cache.replace(own=own), None
  if cache.routes is not None:
    used = stretches.in_order(cache.layers, routes, tokens.ndim)
    used = used.astype(cache.routes[1].dtype)
  return layers.norm(x, params, 'final_norm', c), cache, used, states


def decode(
  c: Config, params: Any, tokens, cache: cache_lib.Cache, t, step=None
):
  """Computes (hidden [S,D], cache) of `decode_after`, without layers."""
  return decode_after(c, params, (), tokens, cache, t, step)[:2]


def decode_after(
  c: Config,
  params: Any,
  numbers: tuple[int, ...],
  tokens,
  cache: cache_lib.Cache,
  t,
  step=None,
):
  """Decodes one token per row: the t-th of its completion.

  Args:
    params: from `decode_params`.
    numbers: of layers; negative numbers count from the last one.
    tokens: int [S], the tokens at completion index t.
    cache: contains the tokens up to index t - 1.
    t: int [] or [S]; in a gapped cache [S], with -1 for rows that wait.
    step: int [], number of earlier calls, which determines the column of the
      new keys; None: t. In a gapped cache, the column; None: the index of each
      row's token.

  Returns:
    (hidden [S,D], cache with the new keys, the states [S,D] after each layer of
    `numbers`, as of `blocks.hidden_after`).
  """
  if step is None:
    step = t if cache.at is None else t[:, None]
  if cache.at is None:
    positions, masks = cache_lib.context(cache, t, step)
  else:
    cache, positions, masks = cache_lib.place(cache, t[:, None], step)
    positions = positions[:, 0]
  after = [number % c.layers for number in numbers]
  hidden, cache, used, states = _walk(
    c, params, tokens, cache, positions, t, step, masks, after
  )
  if used is not None:
    cache = cache.replace(routes=(cache.routes[0], used))
  return hidden, cache, [states[number] for number in after]


def extend(c: Config, params: Any, tokens, cache: cache_lib.Cache, t, column):
  """Runs given tokens, several per row, in one pass.

  Args:
    params: from `decode_params`.
    tokens: int [S,O].
    cache: gapped.
    t: int [S,O], the index of each token in its completion; -1: a gap, which no
      token attends to.
    column: first column of the new keys; None: each token's index.

  Returns:
    (hidden [S,D] of each row's last token, for rows that have one; experts used
    [S,O,L,k] or None; cache).
  """
  column = t if column is None else column
  cache, positions, masks = cache_lib.place(cache, t, column)
  hidden, cache, used, _ = _walk(
    c, params, tokens, cache, positions, t, column, masks
  )
  last = jnp.argmax(t, axis=1)
  hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
  return hidden, used, cache


def sampled_routes(cache: cache_lib.Cache) -> tuple[jax.Array, jax.Array]:
  """Returns the experts used, int: of the prompts' tokens [B,P,L,k], and of the
  most recent decoded tokens [S,L,k].
  """
  return cache.routes
