"""Scans over the layers of whole rows, which are stacked by kind.

Adjacent layers of one stack are one scan, and runs that repeat are a scan over
scans, so that each kind of layer is compiled once. A CPU unrolls the scans of a
shallow model (`scan`). The keys and values of a
layer that later layers read, and the inputs of its indexer's choice, are
constants of the scans over those layers, so a backward pass stores them once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import mixed_layers
from jaxrl_reason.models.config import Config, Runs

# A CPU compiles this many layers about as fast unrolled as in a loop
# (docs/performance_cpu.md).
SHALLOW = 4


@struct.dataclass
class Passed:
  """Arrays of a layer, for later layers that lack some of them.

  Attributes:
    heads: those that `attend` takes beside queries, [N,T,K,H] each, or () in a
      layer without attention.
    memory: the layer's slice of the memory of `blocks.through`.
    index: `indexer.Index` of the layer, or None.
  """

  heads: tuple
  memory: Any
  index: Any = None

  def completed(self, own: 'Passed') -> 'Passed':
    """Returns the arrays of a later layer, with those that it lacks."""
    n = len(own.heads)
    memory = self.memory and (*own.memory, *self.memory[n:])
    return Passed((*own.heads, *self.heads[n:]), memory, self.index)


@dataclasses.dataclass
class LayerAttention:
  """Computes `attend` for one layer, with the arrays that the layer lacks.

  Attributes:
    attend: `attention_of(windows)` of `blocks.through`.
    which: index of the layer's window; memory: the layer's slice.
    passed: of the earlier layer that this layer reads, or None.
    keys: of this layer, complete after the call.
  """

  attend: Callable
  which: Any
  memory: Any
  passed: Passed | None
  keys: Passed = dataclasses.field(init=False)

  def __post_init__(self):
    self.keys = Passed((), self.memory)

  def __call__(self, q, *kv, index=None, **beside):
    keys, passed = Passed(kv, self.memory, index), self.passed
    self.keys = keys = passed.completed(keys) if passed else keys
    if keys.index is not None:
      beside['index'] = keys.index
    how = dict(which=self.which, memory=keys.memory, **beside)
    out, kept = self.attend(q, *keys.heads, **how)
    return out, kept[: len(kv)] if passed and kept else kept


def scan(c: Config, body: Callable, x, xs, n: int):
  """Scans n layers, in a loop or unrolled, for the platform compiled for."""
  how = c.train_layers
  if how == 'auto':
    shallow = c.layers <= SHALLOW and sharding.platform() == 'cpu'
    how = 'unroll' if shallow else 'scan'
  return jax.lax.scan(body, x, xs, unroll=n if how == 'unroll' else 1)


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
    runs = c.runs_of(n_layers)
    return _runs(c, body_of, x, xs, runs, _readers(c, runs), passed)
  out = {name: [] for name in c.stacks}
  for n, runs in periods:
    if n == 1:
      x, ys = _runs(c, body_of, x, xs, runs, _readers(c, runs), passed)
    else:
      x, ys = _repeated(c, body_of, x, xs, runs, n, passed)
    for name, y in ys.items():
      out[name].append(y)
  # Of a part of the layers, some stacks may have none.
  done = {name: parts for name, parts in out.items() if parts}
  return x, {name: mixed_layers.joined(parts) for name, parts in done.items()}


def _readers(c: Config, runs: Runs) -> list[tuple[str, ...]]:
  """Returns `Config.readers` of each run's first layer."""
  return [c.readers.get((name, run.start), ()) for name, run in runs]


def _runs(
  c: Config, body_of: Callable, x, xs: dict, runs: Runs, readers: list, passed
):
  """Runs `over` over the given runs of layers.

  Args:
    readers: of each run, the stacks whose layers read its layer.
    passed: by stack, the Passed that its layers read; layers with readers add
      theirs.
  """
  out = {}
  for (name, run), stacks in zip(runs, readers, strict=True):
    n = run.stop - run.start
    everything = n == len(jax.tree.leaves(xs[name])[0])
    part = xs[name] if everything else trees.take(xs[name], run)
    body = _body(body_of(name, passed.get(name)), bool(stacks))
    x, (ys, keys) = scan(c, body, x, part, n)
    passed |= {k: trees.take(keys, 0) for k in stacks}
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
  """Runs a period of layers n times; the period is compiled once. No layer
  outside a repetition reads the keys of its layers.
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

  readers = _readers(c, runs)

  def once(x, xs):
    return _runs(c, body_of, x, xs, inside, readers, dict(passed))

  parts = {name: split(name) for name in first}
  x, ys = scan(c, once, x, parts, n)
  return x, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), ys)
