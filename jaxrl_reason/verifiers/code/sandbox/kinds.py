"""Classes and exceptions of the program, as the tests use them.

`isinstance`, `issubclass` and `type` of tests work on objects of either side.
An exception of the program is raised in the tests as one of `raised`.
"""

from jaxrl_reason.verifiers.code.sandbox import objects, peer


class _Kind(type):
  """The type of a `raised` class: called, it makes one of the program's."""

  def __call__(cls, *args, **kwargs):
    return cls.of(cls.theirs(*args, **kwargs))

  def of(cls, remote):
    """An exception of the tests that stands for one of the program."""
    found = cls.__new__(cls, str(remote))
    object.__setattr__(found, 'remote', remote)
    return found

  def __getattr__(cls, name):
    if name.startswith('__'):
      raise AttributeError(name)
    return getattr(cls.theirs, name)


class _Raised:
  """The base of the exceptions that stand for the program's."""

  def __getattr__(self, name):
    if name.startswith('__') or name == 'remote':
      raise AttributeError(name)
    return getattr(self.remote, name)

  def __str__(self):
    return str(self.remote)


def raised(name: str, theirs: objects.Object) -> type:
  """Makes a class that tests can catch, for an exception class of the
  program's.
  """
  return _Kind(name, (_Raised, Exception), {'theirs': theirs})


def exception(error: Exception, remote, kinds: list[type]) -> Exception:
  """Returns `error` as an instance of those of `kinds` that the program's one
  is.
  """
  own = tuple(k for k in kinds if remote._ask('isinstance', k.theirs) is True)
  if not own:
    return error
  kind = type(error)
  bases = own if kind is Exception else (*own, kind)
  return _Kind('Raised', bases, {}).of(remote)


def is_instance(x, kinds) -> bool:
  """Does what the built-in function does, for objects and classes of either
  side.
  """
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
  """Does what the built-in function does, for classes of either side."""
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
  """Does what the built-in function does: of an object, the program's class."""
  if rest or not isinstance(x, objects.Object):
    return type(x, *rest)
  return x._ask('type')


def _flat(kinds) -> list:
  if isinstance(kinds, tuple):
    return [k for kind in kinds for k in _flat(kind)]
  return [kinds]
