"""Makes classes and exceptions of the program usable in tests.

`isinstance`, `issubclass` and `type` of tests accept objects of both sides. An
exception of the program is raised in the tests as a class of `raised`.
"""

import contextlib
import inspect

from jaxrl_reason.verifiers.code.sandbox import objects, peer


class _Kind(type):
  """The type of a `raised` class. A call makes an exception of the program."""

  def __call__(cls, *args, **kwargs):
    return cls.of(cls.theirs(*args, **kwargs))

  def of(cls, remote):
    """Returns the tests' exception for an exception of the program."""
    args = remote.args
    found = cls.__new__(cls, *(args if type(args) is tuple else [str(remote)]))
    object.__setattr__(found, 'remote', remote)
    for name in _built_in_attributes(cls):
      # The program's exception may lack it, or have a value of another type.
      with contextlib.suppress(AttributeError, TypeError, ValueError):
        value = remote._peer.ask('getattr', remote, name)
        if not isinstance(value, peer.Remote):
          setattr(found, name, value)
    return found

  def __getattr__(cls, name):
    if name.startswith('__'):
      raise AttributeError(name)
    return getattr(cls.theirs, name)


def _built_in_attributes(kind: type) -> set[str]:
  """Returns the attributes of built-in exceptions, such as `SystemExit.code`.

  Their values are not among the arguments of all exceptions.
  """
  return {
    name
    for base in kind.__mro__
    if base.__module__ == 'builtins'
    for name, value in vars(base).items()
    if inspect.ismemberdescriptor(value) or inspect.isgetsetdescriptor(value)
    if base not in (BaseException, Exception, object)
  }


class _Raised:
  """The base class of the tests' exceptions for those of the program."""

  def __getattr__(self, name):
    if name.startswith('__') or name == 'remote':
      raise AttributeError(name)
    return getattr(self.remote, name)

  def __str__(self):
    return str(self.remote)


def raised(name: str, theirs: objects.Object) -> type:
  """Returns a class that tests can catch, for an exception class of the
  program.
  """
  return _Kind(name, (_Raised, Exception), {'theirs': theirs})


def exception(error: Exception, remote, kinds: list[type]) -> Exception:
  """Returns `error` as an instance of the classes in `kinds` that apply
  to it.
  """
  own = tuple(k for k in kinds if remote._ask('isinstance', k.theirs) is True)
  if not own:
    return error
  kind = type(error)
  bases = own if kind is Exception else (*own, kind)
  return _Kind('Raised', bases, {}).of(remote)


def is_instance(x, kinds) -> bool:
  """Implements isinstance for objects and classes of both sides."""
  return any(_is_one(x, kind) for kind in _flat(kinds))


def _is_one(x, kind) -> bool:
  theirs = getattr(kind, 'theirs', kind) if type(kind) is _Kind else kind
  if isinstance(theirs, peer.Remote):
    x = x.remote if isinstance(x, _Raised) else x
    return (
      isinstance(x, objects.Object) and x._ask('isinstance', theirs) is True
    )
  if isinstance(x, objects.Object):
    return kind is object or kind.__name__ in x._ask('mro')
  return isinstance(x, kind)


def is_subclass(x, kinds) -> bool:
  """Implements issubclass for classes of both sides."""
  x = x.theirs if type(x) is _Kind else x
  for kind in _flat(kinds):
    kind = kind.theirs if type(kind) is _Kind else kind
    if isinstance(x, objects.Object) and isinstance(kind, peer.Remote):
      found = x._ask('issubclass', kind) is True
    elif isinstance(x, objects.Object):
      found = kind.__name__ in x._ask('bases')
    else:
      found = not isinstance(kind, peer.Remote) and issubclass(x, kind)
    if found:
      return True
  return False


def type_of(x, *rest):
  """Implements type. The type of a program's object is the program's class."""
  if rest or not isinstance(x, objects.Object):
    return type(x, *rest)
  return x._ask('type')


def _flat(kinds) -> list:
  if isinstance(kinds, tuple):
    return [k for kind in kinds for k in _flat(kind)]
  return [kinds]
