"""Compact storage of weights that are not trained.

  bfloat16   two bytes per number, like most published weights
  int8       one byte per number, and a scale per output: W ~ int8 * scale,
             scale = max |W| over the inputs / 127, so |error| <= scale / 2

(int8 is symmetric and per channel, like the weights of
https://arxiv.org/abs/2208.07339 without the outliers.) Only projections are
stored as int8; they are nearly all of a model. The other matrices (embedding,
head, router) are then bfloat16. Norms and biases are few and stay float32. A
projection W at 'a/b' becomes the arrays 'a/b/int8' and 'a/b/scale', sharded as
W and as W's outputs.

Products read int8 and scale their results (`layers.dense`) in the forward pass,
the backward pass and decoding. So W is never materialized in full size, except
for experts, one layer at a time. Gradients flow to the input, never to W.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.models import spec, weights
from jaxrl_reason.models.parts import layers

DTYPES = ('float32', 'bfloat16', 'int8')
INT8, SCALE = 'int8', 'scale'
EXACT = rf'.*({"|".join((*weights.EXACT, "bias"))})'  # small arrays


def specs(base: Any, dtype: str, trainable: str) -> dict:
  """Returns the spec tree of a model with frozen weights stored as `dtype`.

  Args:
    trainable: regex over the paths of the weights that are not frozen.
  """
  flat = {}
  for p, s in jax.tree_util.tree_leaves_with_path(base, is_leaf=spec.is_spec):
    path = trees.path_str(p)
    kept = re.fullmatch(trainable, path) or re.fullmatch(EXACT, path)
    flat[path] = s if kept else _smaller(path, s, dtype)
  return trees.unflatten(flat)


def _smaller(path: str, s: spec.Spec, dtype: str):
  if dtype != INT8 or path.rpartition('/')[2] not in weights.N_INPUTS:
    less = 'bfloat16' if dtype == INT8 else dtype
    return dataclasses.replace(s, dtype=less)
  lead, n = weights.split(path, s)

  def rest(x):
    return x[:lead] + x[lead + n :]

  scale = spec.Spec(rest(s.shape), rest(s.axes), 'ones')
  return {INT8: dataclasses.replace(s, dtype=INT8), SCALE: scale}


def is_pair(x: Any) -> bool:
  """Returns whether a tree node is a projection stored as int8."""
  return isinstance(x, dict) and INT8 in x


def is_stored(x: Any) -> bool:
  """Returns whether a node of a spec tree is one weight, or a pair of it."""
  return is_pair(x) or spec.is_spec(x)


def plain(tree: Any) -> Any:
  """Returns the float32 specs of the same weights, for `spec.init`."""

  def undo(s):
    return dataclasses.replace(s[INT8] if is_pair(s) else s, dtype='float32')

  return jax.tree.map(undo, tree, is_leaf=is_stored)


def keep(s: Any, w: jax.Array) -> Any:
  """Converts a weight to the storage of its spec, or pair of specs.

  Args:
    w: array of the spec's shape, or one layer of it.
  """
  if not is_pair(s):
    return w.astype(s.dtype)
  lead = spec.n_stacked(s[INT8])
  n_out = len(s[SCALE].shape) - lead
  n_in = len(s[INT8].shape) - lead - n_out
  # The axes count from the end, so they fit one layer and a whole stack.
  return quantize(w, tuple(range(-n_in - n_out, -n_out)))


def quantize(w: jax.Array, inputs: tuple[int, ...]) -> dict[str, jax.Array]:
  """Quantizes a weight to {'int8', 'scale'}; inputs: the axes summed over."""
  w = w.astype(jnp.float32)
  scale = jnp.max(jnp.abs(w), axis=inputs) / 127
  step = jnp.expand_dims(jnp.where(scale > 0, scale, 1), inputs)
  return {INT8: jnp.round(w / step).astype(jnp.int8), SCALE: scale}


def init(tree: Any, key: jax.Array) -> Any:
  """Samples the values of a spec tree, equal to `spec.init` of `plain`
  specs.
  """
  full = spec.init(plain(tree), key)
  return jax.tree.map(keep, tree, full, is_leaf=is_stored)


def _map_pairs(f, tree: Any) -> Any:
  def leaf(x):
    return f(x[INT8], x[SCALE]) if is_pair(x) else x

  return jax.tree.map(leaf, tree, is_leaf=is_pair)


def wrapped(params: Any) -> Any:
  """Returns the parameters with each int8 pair as a `layers.Quantized`."""
  return _map_pairs(layers.Quantized, params)


def restored(params: Any, tree: Any) -> Any:
  """Returns the parameters with each int8 pair dequantized to float32.

  Args:
    tree: the model's float32 specs.
  """
  by_path = trees.flatten(tree, spec.is_spec)

  def leaf(path, x):
    if not is_pair(x):
      return x
    lead, n = weights.split(path, by_path[path])
    scale = jnp.expand_dims(x[SCALE], tuple(range(lead, lead + n)))
    return x[INT8] * scale

  return trees.map_with_path(leaf, params, is_leaf=is_pair)
