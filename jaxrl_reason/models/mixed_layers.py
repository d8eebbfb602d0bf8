"""Settings that differ between the layers of a model, as arrays by stack."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.models.config import Config


def differing(c: Config, tables: list, windows: tuple[int, ...]):
  """Returns (flags, f) of `blocks._of_layer` for layers that differ or have no
  positions.

  Args:
    tables: (cos, sin) of each of `c.rope_tables`.
  """
  # Index of each layer's table. Layers without positions rotate by angle 0.
  index = [i % (len(tables) + 1) for i in c.layer_ropes]
  tables = [*tables, still(tables)]
  flags = {}
  if len(windows) > 1:
    flags['window'] = jnp.asarray([windows.index(w) for w in c.layer_windows])
  if len(set(index)) > 1:
    flags['rope'] = jnp.asarray(index)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *tables)

  def f(flags):
    angles = tables[index[0]]
    if 'rope' in flags:
      angles = trees.take(stacked, flags['rope'])
    return angles, flags.get('window', 0)

  of_stack = {
    name: {
      k: x if len(stack) == c.layers else x[jnp.asarray(stack)]
      for k, x in flags.items()
    }
    for name, stack in c.stacks.items()
  }
  return of_stack, f


def still(tables: list) -> tuple[jax.Array, jax.Array]:
  """Returns (cos, sin) of angle 0, of layers without positions."""
  cos, sin = tables[0][:2]
  return jnp.ones_like(cos), jnp.zeros_like(sin)


def unturned(c: Config, tables: list) -> tuple[jax.Array, jax.Array] | None:
  """Returns the angles of layers without positions in decoding: none, unless
  a rotation changes the order of features, as it does in training.
  """
  return still(tables) if c.rope_interleaved else None


def by_stack(c: Config, routes: jax.Array) -> dict:
  """Splits routes [layers with experts,...] by stack."""
  out = {}
  at = {layer: i for i, layer in enumerate(c.routed_layers)}
  for name, stack in c.stacks.items():
    mine = [at[layer] for layer in stack if layer in at]
    if mine:
      everything = len(mine) == len(at)
      out[name] = routes if everything else routes[jnp.asarray(mine)]
  return out


def joined(parts: list):
  """Concatenates the arrays of several trees."""
  if len(parts) == 1:
    return parts[0]
  return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def in_order(c: Config, aux: dict):
  """Returns the routers' outputs [layers of a stack,...] in the order of
  layers.
  """
  names = c.routed_stacks
  if len(names) == 1:
    return aux[names[0]][1]
  order = np.argsort([i for name in names for i in c.stacks[name]])
  return trees.take(joined([aux[name][1] for name in names]), order)
