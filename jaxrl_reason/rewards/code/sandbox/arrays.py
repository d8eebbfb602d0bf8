"""Arrays of numpy between judge and program: their bytes, and no objects."""

import re

# Booleans, numbers, dates, text; no objects, no fields.
TYPE = re.compile(r'[<>|=]?[biufcSUmM][0-9]+(\[[a-zA-Z]+\])?')


def encode(x) -> list:
  """Raises TypeError for an array of objects or of records."""
  kind = x.dtype.str
  if not TYPE.fullmatch(kind):
    raise TypeError(f'an array of {kind} cannot be handed over')
  return ['array', kind, list(x.shape), x.tobytes().hex()]


def decode(kind: str, shape: list, data: str):
  """Makes a new array, or nested lists where numpy is not in use on this
  side.
  """
  if not TYPE.fullmatch(kind):
    raise ValueError(f'no type of an array: {kind!r:.40}')
  import numpy  # here: most programs do without it

  found = numpy.frombuffer(bytes.fromhex(data), numpy.dtype(kind))
  return found.reshape(shape).copy()
