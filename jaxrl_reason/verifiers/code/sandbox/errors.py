"""Encodes exceptions between judge and program: a built-in type and a text."""

import builtins


class RemoteError(Exception):
  """An exception of the other side whose type is not built-in."""


def text_of(error: BaseException) -> str:
  try:
    return str(error)[:500]
  # A program's __str__ may raise any exception.
  except Exception:
    return ''


def builtin_name(error: BaseException) -> str:
  for kind in type(error).__mro__:
    if kind.__module__ == 'builtins':
      return kind.__name__
  return 'Exception'


def make_exception(name, text='') -> Exception:
  """Returns the built-in exception of a name, or a RemoteError."""
  kind = getattr(builtins, name, None) if isinstance(name, str) else None
  if isinstance(kind, type) and issubclass(kind, Exception):
    try:
      return kind(text)
    except TypeError:  # UnicodeDecodeError needs five arguments
      pass
  return RemoteError(f'{name}: {text}')
