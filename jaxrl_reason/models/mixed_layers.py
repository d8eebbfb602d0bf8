"""Settings that differ between the layers of a model, as arrays by stack."""

import jax
import jax.numpy as jnp

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
  cos, sin = tables[0]
  tables = [*tables, (jnp.ones_like(cos), jnp.zeros_like(sin))]
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
