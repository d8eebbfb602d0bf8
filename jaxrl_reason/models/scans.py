"""Scans over the layers of whole rows, which are stacked by kind.

Adjacent layers of one stack are one scan, and runs that repeat are a scan over
scans, so that each kind of layer is compiled once. The keys and values of a
layer that later layers read are constants of the scans over those layers, so a
backward pass stores them once.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import struct

from jaxrl_reason import trees
from jaxrl_reason.models import mixed_layers
from jaxrl_reason.models.config import Config, Runs


@struct.dataclass
class Passed:
  """Keys and values of a layer, for later layers that have none.

  Attributes:
    heads: (k, v), [N,T,K,H] each, or () in a layer without attention.
    memory: the layer's slice of the memory of `blocks.through`.
  """

  heads: tuple
  memory: Any


def over(c: Config, body_of: Callable, x: jax.Array, xs: dict, n_layers: int):
  """Runs the first layers.

  Args:
    body_of: (stack, Passed or None) -> body(x, a layer's slice of xs) -> (x,
      (y, its Passed)).
    xs: by stack, trees of arrays [layers of the stack,...].

  Returns:
    (x, the layers' y, stacked, by stack).
  """
  periods, passed = c.periods_of(n_layers), {}
  if all(n == 1 for n, _ in periods):
    return _runs(c, body_of, x, xs, c.runs_of(n_layers), passed, c.read_by)
  out = {name: [] for name in c.stacks}
  for n, runs in periods:
    if n == 1:
      x, ys = _runs(c, body_of, x, xs, runs, passed, c.read_by)
    else:
      x, ys = _repeated(c, body_of, x, xs, runs, n, passed)
    for name, y in ys.items():
      out[name].append(y)
  # Of a part of the layers, some stacks may have none.
  done = {name: parts for name, parts in out.items() if parts}
  return x, {name: mixed_layers.joined(parts) for name, parts in done.items()}


def _runs(
  c: Config, body_of: Callable, x, xs: dict, runs: Runs, passed: dict, read_by
):
  """Runs `over` over the given runs of layers.

  Args:
    passed: by stack, the keys and values that its layers read; layers in
      `read_by` add theirs.
  """
  out = {}
  for name, run in runs:
    readers = [k for k, at in read_by.items() if at == (name, run.start)]
    n = run.stop - run.start
    everything = n == len(jax.tree.leaves(xs[name])[0])
    part = xs[name] if everything else trees.take(xs[name], run)
    body = _body(body_of(name, passed.get(name)), bool(readers))
    x, (ys, keys) = jax.lax.scan(body, x, part, unroll=1 if c.scan else n)
    passed |= {k: trees.take(keys, 0) for k in readers}
    out.setdefault(name, []).append(ys)
  return x, {name: mixed_layers.joined(parts) for name, parts in out.items()}


def _body(body: Callable, is_read: bool) -> Callable:
  """Returns a body whose Passed is None unless a later layer reads it."""

  def f(x, xs):
    x, (y, keys) = body(x, xs)
    return x, (y, keys if is_read else None)

  return f


def _repeated(
  c: Config, body_of: Callable, x, xs: dict, runs: Runs, n: int, passed: dict
):
  """Runs a period of layers n times; the period is compiled once. Its keys are
  read by no later layer.
  """
  first, size = {}, {}
  for name, run in runs:
    first.setdefault(name, run.start)
    size[name] = size.get(name, 0) + run.stop - run.start

  def split(name):
    every = slice(first[name], first[name] + n * size[name])
    shape = n, size[name]
    return jax.tree.map(
      lambda a: a[every].reshape(*shape, *a.shape[1:]), xs[name]
    )

  inside = [
    (name, slice(run.start - first[name], run.stop - first[name]))
    for name, run in runs
  ]

  def once(x, xs):
    return _runs(c, body_of, x, xs, inside, passed, {})

  parts = {name: split(name) for name in first}
  x, ys = jax.lax.scan(once, x, parts, unroll=1 if c.scan else n)
  return x, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), ys)
