"""Encodes numpy arrays as bytes, between judge and program.

An empty array of shape (0, 3) broadcasts against any array of shape (3,), and
every comparison of the two is vacuously true. After `guard`, such comparisons
raise errors in the judge, and so do comparisons of the order of a NaN.
"""

import contextlib
import functools
import inspect
import re

from jaxrl_reason.verifiers.code.sandbox import nan

# Booleans, numbers, dates, text; no objects, no fields.
TYPE = re.compile(r'[<>|=]?[biufcSUmM][0-9]+(\[[a-zA-Z]+\])?')


def is_array(x) -> bool:
  return type(x).__module__ == 'numpy' and type(x).__name__ == 'ndarray'


def encode(x) -> list:
  """Encodes an array.

  Raises:
    TypeError: an array of objects or of records.
  """
  kind = x.dtype.str
  if not TYPE.fullmatch(kind):
    raise TypeError(f'an array of {kind} cannot be handed over')
  return ['array', kind, list(x.shape), x.tobytes().hex()]


def decode(kind: str, shape: list, data: str):
  """Decodes an array, or nested lists if this process has not imported
  numpy.
  """
  if not TYPE.fullmatch(kind):
    raise ValueError(f'no type of an array: {kind!r:.40}')
  import numpy  # imported here, because most programs do not use it

  array = numpy.frombuffer(bytes.fromhex(data), numpy.dtype(kind))
  return _guarded(array.reshape(shape).copy())


@functools.cache
def _empty_class() -> type:
  import numpy

  comparisons = {
    inspect.unwrap(getattr(numpy, name))
    for name in ('equal', 'not_equal', *nan.ORDERS)
  }

  class Empty(numpy.ndarray):
    """An empty array. Operations with arrays of another shape raise errors."""

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
      shapes = {numpy.shape(x) for x in inputs}
      if ufunc not in comparisons:
        shapes -= {()}  # as in rtol * abs(x)
      if method == '__call__' and len(shapes) > 1:
        raise ValueError(f'an empty array against another shape: {shapes}')
      plain = [
        x.view(numpy.ndarray) if isinstance(x, Empty) else x for x in inputs
      ]
      return _guarded(getattr(ufunc, method)(*plain, **options))

  return Empty


def _guarded(x):
  """Returns an array. An empty array does not broadcast."""
  import numpy

  if type(x) is numpy.ndarray and x.size == 0:
    return x.view(_empty_class())
  return x


def guard():
  """Replaces numpy's functions: no empty array broadcasts, no NaN is
  ordered.
  """
  with contextlib.suppress(ImportError):  # tests that need numpy report it
    import numpy

    for name in ('array', 'asarray', 'asanyarray'):
      setattr(numpy, name, _wrapped(getattr(numpy, name)))
    for name in ('allclose', 'isclose'):
      setattr(numpy, name, _compared(getattr(numpy, name)))
    for name in (*nan.ORDERS, 'fmax', 'fmin'):
      setattr(numpy, name, nan.checked(getattr(numpy, name)))


def _wrapped(function):
  @functools.wraps(function)
  def run(*args, **kwargs):
    return _guarded(function(*args, **kwargs))

  return run


def _compared(function):
  @functools.wraps(function)
  def run(a, b, *args, **kwargs):
    import numpy

    return function(numpy.asarray(a), numpy.asarray(b), *args, **kwargs)

  return run
