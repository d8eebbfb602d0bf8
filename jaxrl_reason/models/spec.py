"""The spec tree of a model: shape, sharding and initializer per parameter.

`abstract(specs)` returns shapes, `init(specs, key)` values, and
`sharding.shardings(specs, mesh, rules)` shardings. A parameter's random key is
folded from its path, so adding a parameter does not change the others' values.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import trees


@dataclasses.dataclass(frozen=True)
class Spec:
  """Specification of one parameter.

  Attributes:
    shape: its dimensions.
    axes: a logical name (or None) per dimension; `sharding` maps names to mesh
      axes.
    init: 'normal' (std `scale`, or 1/sqrt(fan_in)), 'zeros' or 'ones'.
    fan_in: number of inputs summed by each output, for 'normal'.
    scale: standard deviation for 'normal', in place of 1/sqrt(fan_in).
    dtype: storage of the values.
  """

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]
  init: str = 'normal'
  fan_in: int = 0
  scale: float | None = None
  dtype: str = 'float32'

  def __post_init__(self):
    if len(self.shape) != len(self.axes):
      raise ValueError(
        f'shape {self.shape} and axes {self.axes} differ in rank'
      )


def is_spec(x: Any) -> bool:
  return isinstance(x, Spec)


def n_stacked(spec: Spec) -> int:
  """Returns the number of leading layer and expert dimensions."""
  return sum(a in ('layers', 'expert') for a in spec.axes)


def stack(specs: Any, n: int) -> Any:
  """Adds a leading 'layers' dimension of n to the specs."""

  def stacked(s: Spec) -> Spec:
    return dataclasses.replace(s, shape=(n, *s.shape), axes=('layers', *s.axes))

  return jax.tree.map(stacked, specs, is_leaf=is_spec)


def abstract(specs: Any, dtype=None) -> Any:
  """Returns the tree of shapes and dtypes, without values.

  Args:
    dtype: of all arrays; None: of each spec.
  """

  def make(s):
    return jax.ShapeDtypeStruct(s.shape, dtype or s.dtype)

  return jax.tree.map(make, specs, is_leaf=is_spec)


def n_params(specs: Any) -> int:
  """Returns the number of parameters of a spec tree."""
  return trees.n_params(abstract(specs))


def _init_leaf(spec: Spec, key: jax.Array) -> jax.Array:
  dtype = jnp.dtype(spec.dtype)
  if spec.init == 'zeros':
    return jnp.zeros(spec.shape, dtype)
  if spec.init == 'ones':
    return jnp.ones(spec.shape, dtype)
  if dtype == jnp.int8:
    raise ValueError('int8 values cannot be sampled: use frozen.init')
  if spec.init != 'normal':
    raise ValueError(
      f'unknown init {spec.init!r}: choose normal, zeros or ones'
    )
  std = spec.scale if spec.scale is not None else 1 / math.sqrt(spec.fan_in)
  # The std of a standard normal truncated at 2 std is 0.8796.
  noise = jax.random.truncated_normal(key, -2, 2, spec.shape, jnp.float32)
  return (noise * (std / 0.87962566)).astype(dtype)


def init(specs: Any, key: jax.Array) -> Any:
  """Samples values for every spec, with keys folded by path."""

  def leaf(path, spec):
    return _init_leaf(spec, trees.named_key(key, path))

  flat, treedef = jax.tree_util.tree_flatten_with_path(specs, is_leaf=is_spec)
  return treedef.unflatten([leaf(trees.path_str(p), s) for p, s in flat])
