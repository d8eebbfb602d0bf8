"""Executes operations on the program's objects, for requests of the tests.

This runs in the program process. `Remote` and `objects.Object` send the
requests.
"""

import asyncio
import builtins
import functools
import io
import itertools
import operator
import random
import sys

from jaxrl_reason.verifiers.code.sandbox import errors, peer, plain_types

MAX_PRINTED = 1 << 20  # characters of a call's output that are sent
BINARY = (
  'add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor'
).split()
PLAIN = (
  'abs neg pos invert index lt le gt ge contains getitem setitem delitem'
).split()  # as in `operator`


def _reflected(run):
  def call(a, b):
    return run(b, a)

  return call


def _waited_for(f):
  """Returns f with its result awaited."""

  def call(*args):
    return _run(f(*args))

  return call


def _items(x) -> list:
  return list(itertools.islice(x, peer.MAX_ITEMS))


def _reversed(x) -> list:
  return list(reversed(x))


def _same(a, b) -> bool:
  return bool(a == b)


def _kin(a, b) -> bool:
  return type(a) is type(b)


def _altered(x, number: int) -> list:
  """Returns copies of an object whose plain attributes have other values.

  The last copy has empty values, so it is false if its truth depends on them.
  No methods of the class are called. Returns [] if this is impossible.
  """
  names = [n for k in type(x).__mro__ for n in getattr(k, '__slots__', ())]
  values = dict(getattr(x, '__dict__', {}))
  values |= {n: getattr(x, n) for n in names if hasattr(x, n)}
  if not any(_other(v) is not v for v in values.values()):
    return []
  copies = []
  for i in range(number + 1):
    change = _empty if i == number else _other
    try:
      copy = object.__new__(type(x))
      for name, value in values.items():
        object.__setattr__(copy, name, change(value))
    except (TypeError, AttributeError):
      return []  # a built-in type, or a descriptor of the class
    copies.append(copy)
  return copies


def _other(value):
  """Returns another plain value; `value` itself if it is not plain."""
  kind, step = type(value), random.randrange(1, 1000)
  if kind is bool:
    return not value
  if kind in (int, float):
    return value + step
  if kind is str:
    return f'{value}{step}'
  if kind in (list, tuple):
    return kind([*map(_other, value), step])
  if kind is dict:
    return {**value, step: step}
  return {*value, step} if kind is set else value


def _empty(value):
  """Returns 0, '', [] and the like for a plain value."""
  return value if _other(value) is value else type(value)()


def _enter(x):
  return type(x).__enter__(x)


def _exit(x, *error):
  return type(x).__exit__(x, *_raised(*error))


def _aenter(x):
  return type(x).__aenter__(x)


def _aexit(x, *error):
  return type(x).__aexit__(x, *_raised(*error))


def _raised(name: str = '', text: str = '') -> tuple:
  """Returns the arguments of `__exit__` for an exception in the tests."""
  if not name:
    return None, None, None
  error = errors.make_exception([f'builtins.{name}'], text)
  return type(error), error, None


def _run(coroutine):
  return _loop().run_until_complete(_awaited(coroutine))


def _heart(x):
  """Returns (value,) for an object of a subclass of a plain type, else ()."""
  for base in plain_types.BASES:
    if isinstance(x, base):
      return (base(x),)
  return ()


@functools.cache
def _loop():
  return asyncio.new_event_loop()


async def _awaited(x):
  return await x


def _names(kind: type) -> list[str]:
  return [each.__name__ for each in kind.__mro__]


def _mro(x) -> list[str]:
  return _names(type(x))


OPERATIONS = {
  'getattr': getattr,
  'setattr': setattr,
  'delattr': delattr,
  'items': _items,
  'reversed': _reversed,
  'next': next,
  'len': len,
  'str': str,
  'repr': repr,
  'hash': hash,
  'bool': bool,
  'int': int,
  'float': float,
  'complex': complex,
  'round': round,
  'format': format,
  'same': _same,
  'kin': _kin,
  'altered': _altered,
  'heart': _heart,
  'type': type,
  'isinstance': isinstance,
  'issubclass': issubclass,
  'mro': _mro,
  'bases': _names,
  'enter': _enter,
  'exit': _exit,
  'await': _run,
  'aenter': _waited_for(_aenter),
  'aexit': _waited_for(_aexit),
  'aiter': aiter,
  'anext': _waited_for(anext),
  **{name: getattr(operator, name) for name in (*PLAIN, *BINARY)},
  **{f'r{name}': _reflected(getattr(operator, name)) for name in BINARY},
  **{f'i{name}': getattr(operator, f'i{name.rstrip("_")}') for name in BINARY},
}


class Watch:
  """Input and output of one call, if the tests replace them."""

  def __init__(self):
    self.old = []

  def watch(self, given: str | None, captures: bool, patched: dict):
    """Replaces standard input, output if `captures`, and patched functions."""
    self.old.append((sys.stdin, sys.stdout, {}))
    if given is not None:
      sys.stdin = io.StringIO(given)
    if captures:
      sys.stdout = io.StringIO()
    for name, function in patched.items():
      self.old[-1][2][name] = getattr(builtins, name)
      setattr(builtins, name, function)

  def seen(self) -> tuple[str, int]:
    """Returns the printed text and the number of characters read."""
    stdin, stdout, functions = self.old.pop()
    for name, function in functions.items():
      setattr(builtins, name, function)
    read, printed = 0, ''
    if sys.stdin is not stdin:
      read, sys.stdin = sys.stdin.tell(), stdin
    if sys.stdout is not stdout:
      printed, sys.stdout = sys.stdout.getvalue()[:MAX_PRINTED], stdout
    return printed, read
