"""Decoding through a model's layers, unrolled or in loops over repetitions.

A stretch is a period of layers that repeats n times. Each place in the period
is an entry: the range of the layers at that place. The weights and cache of an
entry are those of its layer, or for n > 1 layers have a leading axis [n,...]
that the loop indexes and writes in place.

  12 equal layers            range(0, 12)
  local, global, 6 times     range(0, 12, 2), range(1, 12, 2)
  unrolled                   range(0, 1), range(1, 2), ...

A loop is compiled once for all its repetitions. On a TPU its products read a
layer's weights in place from the stack. XLA's CPU backend would copy the
weights and the layer's cache at every token.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.models.config import Config


def entries(c: Config) -> tuple[range, ...]:
  """Returns the layers of each entry, for the platform compiled for."""
  how = c.decode_layers
  if how == 'unroll' or (how == 'auto' and sharding.platform() != 'tpu'):
    return tuple(range(i, i + 1) for i in range(c.layers))
  stacks = [name for name, _ in c.stack_of_layer]
  read = [c.readers.get(place, ()) for place in c.stack_of_layer]
  sparsity = c.mlp_sparsity or (0.0,) * c.layers
  kinds = list(zip(stacks, c.layer_windows, c.layer_ropes, sparsity, read))
  out, first = [], 0
  while first < c.layers:
    n, long = c.repeated(kinds[first:])
    end = first + n * long
    out += [range(first + i, end, long) for i in range(long)]
    first = end
  return tuple(out)


def take(c: Config, stacked: dict, layers: range) -> Any:
  """Returns the weights or states of the given layers of one stack.

  Args:
    stacked: trees of arrays [layers of the stack,...], by stack.
  """
  name, first = c.stack_of_layer[layers[0]]
  if len(layers) == 1:
    return trees.take(stacked[name], first)
  last = c.stack_of_layer[layers[-1]][1]
  step = (last - first) // (len(layers) - 1)
  return trees.take(stacked[name], slice(first, last + 1, step))


def of_layer(inputs: jax.Array, layers: range, at) -> jax.Array:
  """Returns the inputs [...,E] of one layer of an entry, of all layers'
  [...,L,E]; at: its index in an entry of several layers, or None.
  """
  layer = layers[0] if at is None else layers[0] + layers.step * at
  return jnp.take(inputs, layer, axis=-2)


def mapped(f: Callable, layers: range) -> Callable:
  """Returns f, or f vectorized over layers if the entry has several. Entries of
  layers that are an mlp alone have no arrays.
  """

  def of_each(*entries):
    return (jax.vmap(f) if jax.tree.leaves(entries) else f)(*entries)

  return f if len(layers) == 1 else of_each


def through(layer: Callable, x: jax.Array, where, *entries):
  """Runs all layers.

  Args:
    layer: (x, index of an entry, its weights, its prompts' cache, its rows'
      cache, at) -> (x, (rows' cache, experts used or None)). In a loop, weights
      are those of one layer, and caches those of all n layers, of which it
      reads and writes the at-th.
    where: the layers of every entry.
    entries: weights, prompts' caches and rows' caches.

  Returns:
    (x, the rows' caches, experts used by each entry [n,...] or None).
  """
  own, routes = [], []
  while len(own) < len(where):
    i, n = len(own), len(where[len(own)])
    if n == 1:
      x, (kept, used) = layer(x, i, *(e[i] for e in entries))
      own.append(kept)
      routes.append(used)
    else:
      long = where[i].step
      part = (e[i : i + long] for e in entries)
      x, kept, used = _loop(layer, x, i, n, *part)
      own += kept
      routes += used
  return x, tuple(own), routes


def with_states(layer: Callable, where) -> Callable:
  """Returns the `layer` of `through` for (x, states) in place of x. The keys of
  states are numbers of layers, and their values become x after that layer.
  """

  def of_both(both, i: int, p, prompt, own, at=None):
    x, states = both
    x, rest = layer(x, i, p, prompt, own, at)
    numbers, new = where[i], dict(states)
    for number in states.keys() & {*numbers}:
      is_it = at is None or numbers.index(number) == at
      new[number] = jnp.where(is_it, x, states[number])
    return (x, new), rest

  return of_both


def _loop(layer: Callable, x: jax.Array, first: int, n: int, *entries):
  """Runs `through` over the n periods of the stretch that begins at entry
  `first`.
  """
  params, prompts, own = entries

  def period(state, at):
    (x, own), new, used = state, [], []
    for i, (p, prompt) in enumerate(zip(params, prompts)):
      p = trees.take(p, at)
      x, (kept, routes) = layer(x, first + i, p, prompt, own[i], at)
      new.append(kept)
      used.append(routes)
    return (x, tuple(new)), used

  (x, own), used = jax.lax.scan(period, (x, tuple(own)), jnp.arange(n))
  return x, own, used


def in_order(where, routes: list, axis: int) -> jax.Array:
  """Returns the experts used by all entries, in the order of layers.

  Args:
    where: the layers of every entry.
    routes: for each entry [...,k], for several layers [n,...,k], or None.
    axis: axis of the layers in the result.
  """
  pairs = [(at, x) for at, x in zip(where, routes) if x is not None]
  parts = [x if len(at) > 1 else x[None] for at, x in pairs]
  layers = [i for at, _ in pairs for i in at]
  out = jnp.concatenate(parts)
  if layers != sorted(layers):
    out = out[np.argsort(layers)]
  return jnp.moveaxis(out, 0, axis)
