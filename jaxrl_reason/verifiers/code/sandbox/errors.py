"""Exceptions between judge and program: a built-in type's name and a text."""

import builtins


class RemoteError(Exception):
  """An exception of the other side that is no built-in one."""


def text_of(error: BaseException) -> str:
  try:
    return str(error)[:500]
  # So may its __str__.
  except Exception:
    return ''


def builtin_name(error: BaseException) -> str:
  for kind in type(error).__mro__:
    if kind.__module__ == 'builtins':
      return kind.__name__
  return 'Exception'


def make_exception(name, text='') -> Exception:
  """Makes the built-in exception of that name; RemoteError for any other."""
  kind = getattr(builtins, name, None) if isinstance(name, str) else None
  if isinstance(kind, type) and issubclass(kind, Exception):
    try:
      return kind(text)
    except TypeError:  # UnicodeDecodeError wants five arguments
      pass
  return RemoteError(f'{name}: {text}')
