"""Functions of trees, also by `a/b/c` paths, which regex rules over parameters
match.
"""

import functools
import operator
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def path_str(path) -> str:
  """Writes a jax key path as 'layers/attn/q'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def flatten(tree: Any, is_leaf: Callable | None = None) -> dict[str, Any]:
  """Returns the leaves by path, in jax's own leaf order."""
  leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf)[0]
  return {path_str(path): leaf for path, leaf in leaves}


def unflatten(leaves: dict[str, Any]) -> dict[str, Any]:
  """Nests leaves by path in dictionaries; the inverse of `flatten`."""
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    *outer, last = path.split('/')
    node = tree
    for name in outer:
      node = node.setdefault(name, {})
    node[last] = leaf
  return tree


def map_with_path(
  f: Callable, tree: Any, *rest: Any, is_leaf: Callable | None = None
) -> Any:
  """Maps `f(path, leaf, *rest_leaves)` over a tree; path as 'a/b/c'."""

  def named(path, *leaves):
    return f(path_str(path), *leaves)

  return jax.tree_util.tree_map_with_path(named, tree, *rest, is_leaf=is_leaf)


def at_most(name: str, trips: int):
  """Names the loops traced inside this context, and records their largest
  number of iterations in the name. A plan of the compiled program reads it
  (`planning.hlo.trips`) if the condition of a loop does not show the number.
  """
  return jax.named_scope(f'{name}_at_most_{trips}')


def branches(counts: Sequence[int]):
  """Names the conditional traced inside this context, and records how often
  each of its branches runs (of `jax.lax.cond`: false, then true). A plan of the
  compiled program reads it (`planning.hlo.shares`).
  """
  return jax.named_scope('_'.join(['branches', *map(str, counts)]))


def own_rows(spare: int):
  """Names the grouped products traced inside this context, and records that a
  share 1/spare of their rows is multiplied. A plan of the compiled program
  reads it (`planning.kernels.flops`).
  """
  return jax.named_scope(f'own_rows_of_{spare}')


def where_due(due: jax.Array, f: Callable[[Any], Any], state: Any) -> Any:
  """Returns f(state) if `due`, a bool [], and the state otherwise, by a loop of
  at most one iteration. XLA's conditional copies the results of its branches,
  such as a cache; its loop does not.
  """

  def body(carry):
    _, state = carry
    return jnp.bool_(False), f(state)

  return jax.lax.while_loop(lambda carry: carry[0], body, (due, state))[1]


def match(rules, path: str) -> Any:
  """Returns the value of the first (regex, value) rule that matches the whole
  path.

  Raises:
    ValueError: no rule covers the path (a silent default would hide a
      misspelt rule).
  """
  for pattern, value in rules:
    if re.fullmatch(pattern, path):
      return value
  raise ValueError(
    f'No rule covers parameter {path!r}; rules: '
    f'{[pattern for pattern, _ in rules]}. Add one, or a last ".*" rule.'
  )


def split(tree: Any, pattern: str) -> tuple[Any, Any]:
  """Returns (leaves whose path the regex matches, the other leaves): two trees
  of the same form, None for leaves of the other tree; (the tree, None) for
  '.*'.

  Raises:
    ValueError: the pattern matches nothing.
  """
  if pattern == '.*':
    return tree, None
  matched = {p for p in flatten(tree) if re.fullmatch(pattern, p)}
  if not matched:
    raise ValueError(f'{pattern!r} matches none of {list(flatten(tree))[:8]}')

  def keep(inside):
    return map_with_path(
      lambda path, x: x if (path in matched) is inside else None, tree
    )

  return keep(True), keep(False)


def join(a: Any, b: Any) -> Any:
  """Joins the two trees that `split` returned."""
  if b is None:
    return a
  return jax.tree.map(
    lambda x, y: y if x is None else x, a, b, is_leaf=lambda x: x is None
  )


def identity(tree: Any) -> Any:
  """Returns its argument."""
  return tree


def stacked(rows: Sequence[Any]) -> Any:
  """Stacks trees of numpy arrays [...] to one of [n,...]."""
  return jax.tree.map(lambda *x: np.stack(x), *rows)


def where(condition: jax.Array, new: Any, old: Any) -> Any:
  """Selects between two trees, leaf by leaf, by a condition."""
  return jax.tree.map(functools.partial(jnp.where, condition), new, old)


def where_rows(rows: jax.Array, new: Any, old: Any) -> Any:
  """Selects lines of one of two trees of arrays [n,...] by rows, bool [n]."""

  def pick(new, old):
    return jnp.where(rows.reshape(-1, *[1] * (old.ndim - 1)), new, old)

  return jax.tree.map(pick, new, old)


def take(tree: Any, index: Any) -> Any:
  """Returns x[index] for every array x of a tree."""
  return jax.tree.map(operator.itemgetter(index), tree)


def n_params(tree: Any) -> int:
  """Counts the elements of the arrays (or shapes) of a tree."""
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def n_bytes(tree: Any) -> int:
  """Counts the bytes of the arrays (or shapes) of a tree."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def first_nonfinite(tree: Any) -> jax.Array:
  """Finds the first leaf (in `flatten` order) with a NaN or an infinity: its
  index, i32 []; -1 when all are finite.
  """
  # A sum is non-finite if any element is, and reads each leaf once. If the sum
  # overflows, the run has to stop as well.
  bad = jnp.stack([~jnp.isfinite(jnp.sum(x)) for x in jax.tree.leaves(tree)])
  return jnp.where(jnp.any(bad), jnp.argmax(bad), -1)


def named_key(key: jax.Array, name: str) -> jax.Array:
  """Folds a name into a key, so that the random numbers of different uses are
  independent.
  """
  return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)


@jax.custom_batching.custom_vmap
def shared_max(x: jax.Array) -> jax.Array:
  """Computes the largest value of an array (for flags: whether any is set).
  Runs side by side (`vmap`) share one value, the largest of all runs.

  Conditions of loops and branches use this function if all runs may execute the
  iterations that one of them needs. With a condition per run, every iteration
  would copy the loop's state, and every branch would run.
  """
  return jnp.max(x)


@shared_max.def_vmap
def _(n: int, batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
  """Reduces over the axis of the runs too, so the result is not batched."""
  del n, batched
  return shared_max(x), False


def row_keys(key: jax.Array, ids: jax.Array) -> jax.Array:
  """Returns the key of each row [N], from its id (int [N]) or its numbers (int
  [N,k]).
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))
  if ids.ndim == 1:
    return keys(key, ids)
  keys = keys(key, ids[:, 0])
  for column in range(1, ids.shape[1]):
    keys = jax.vmap(jax.random.fold_in)(keys, ids[:, column])
  return keys
