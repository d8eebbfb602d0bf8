"""Settings that differ between the layers of a model, as arrays by stack."""

import math
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.parts.rope import NOPE, Turns


def differing(c: Config, tables: list[Turns], windows: tuple[int, ...]):
  """Returns (flags, f) by stack, of the settings that differ between layers.

  Flags are arrays [layers of the stack] of the settings that differ within the
  stack. f(flags of a layer) returns (angles, index of its window, `cutoff`). If
  all layers of a stack are alike there are no flags, and f returns constants of
  the scan.

  Args:
    tables: of each of `c.rope_tables`.
    windows: the distinct ones.
  """
  if NOPE in c.layer_ropes:  # layers without positions rotate by angle 0
    tables = [*tables, still(tables)]
  flags, of_layer = {}, {}
  for name, stack in c.stacks.items():
    ropes = [c.layer_ropes[i] % len(tables) for i in stack]
    which = [windows.index(c.layer_windows[i]) for i in stack]
    cutoffs = [cutoff(c, i) for i in stack]
    flags[name], of_layer[name] = _of_stack(tables, ropes, which, cutoffs)
  return flags, of_layer


def cutoff(c: Config, layer: int) -> float | None:
  """Returns the number of standard deviations above the mean at which the
  gates of a layer's mlp begin, -inf if it has no such limit; None if no layer
  has one.
  """
  if not c.mlp_sparsity:
    return None
  share = c.mlp_sparsity[layer]
  return statistics.NormalDist().inv_cdf(share) if share else -math.inf


def _of_stack(
  tables: list[Turns], ropes: list[int], which: list[int], cutoffs: list
):
  """Returns `differing` of one stack, from each layer's table, window and
  cutoff.
  """
  flags, distinct = {}, sorted({*ropes})
  if len({*which}) > 1:
    flags['window'] = jnp.asarray(which)
  if len({*cutoffs}) > 1:
    flags['cutoff'] = jnp.asarray(cutoffs, jnp.float32)
  if len(distinct) > 1:
    flags['rope'] = jnp.asarray([distinct.index(i) for i in ropes])
    own = jax.tree.map(lambda *x: jnp.stack(x), *(tables[i] for i in distinct))

  def f(flags):
    angles = tables[ropes[0]]
    if 'rope' in flags:
      angles = trees.take(own, flags['rope'])
    window, limit = flags.get('window', which[0]), cutoffs[0]
    return angles, window, flags.get('cutoff', limit)

  return flags, f


def still(tables: list[Turns]) -> Turns:
  """Returns the changes of angle 0, of layers without positions."""
  first = tables[0]
  return Turns(
    jnp.ones_like(first.cos),
    jnp.zeros_like(first.sin),
    None if first.growth is None else jnp.ones_like(first.growth),
    None if first.unit is None else jnp.asarray(False),
  )


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


def of_stacks(c: Config, x: jax.Array) -> dict:
  """Splits x [L,...] by stack."""
  return {
    name: x if len(stack) == c.layers else x[jnp.asarray(stack)]
    for name, stack in c.stacks.items()
  }


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
