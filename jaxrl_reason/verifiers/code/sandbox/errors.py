"""Encodes exceptions between judge and program.

An exception is sent as the names of its classes, its text, and its arguments.
The receiver chooses the class: an exception of the standard library in a module
that it has already imported. A name never imports a module.
"""

import sys

MAX_TEXT = 500
STOPS = (StopIteration, StopAsyncIteration)


class Undecided(BaseException):
  """The judge cannot decide a test, or only by claims of the program."""


class RemoteError(Exception):
  """An exception of the other side whose type is not known here."""


def text_of(error: BaseException) -> str:
  try:
    return str(error)[:MAX_TEXT]
  # A program's __str__ may raise any exception.
  except Exception:
    return ''


def truth_of(x) -> bool:
  try:
    return bool(x)
  # The program's __bool__ or __len__ may raise any exception.
  except Exception:
    return True


def names_of(error: BaseException) -> list[str]:
  """Returns the names of an exception's class and of its bases."""
  return [f'{kind.__module__}.{kind.__name__}' for kind in type(error).__mro__]


def make_exception(names, text='', args=()) -> Exception | SystemExit:
  """Returns an exception of the first known class, or a RemoteError.

  It has the arguments `args` if its text is then `text`. An exception whose
  class the program defines may have another text.
  """
  for kind in filter(None, map(_known, names)):
    for values in (args, (text,)):
      try:
        found = kind(*values)
      # Some classes need other arguments: UnicodeDecodeError has five.
      except Exception:
        continue
      if values is not args or text_of(found) == text:
        return found
  return RemoteError(f'{next(iter(names), "")}: {text}')


def _known(name) -> type | None:
  """Returns an imported exception class of the standard library, or None."""
  module, _, attribute = str(name).rpartition('.')
  if module.partition('.')[0] not in sys.stdlib_module_names:
    return None
  space = getattr(sys.modules.get(module), '__dict__', {})
  kind = space.get(attribute)
  if isinstance(kind, type) and issubclass(kind, (Exception, SystemExit)):
    return kind
  return None
