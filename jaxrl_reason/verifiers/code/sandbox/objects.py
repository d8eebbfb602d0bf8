"""Objects of the program's classes, for tests that use them as objects.

A function under test may answer with an object whose `==` is always true, so a
plain `peer.Remote` computes and compares nothing. Tests of a class need more:
operators, order, `in`, `with`, hashes. An `Object` stands for what a test gets
from a name that it uses as a class (`asserts.Plan.objects`: the test's text
says so, not the program), and asks the program to do these things.

The program must not decide on expected values, though. So

  - compared with plain data it counts as the built-in value that it holds (a
    list, for a subclass of list); without one the test is `Undecided` if the
    program claims that the two are equal (and not that it equals any value),
    and always for an order;
  - what the program computes from a test's own value by subtraction or division
    does not become plain: expected values are compared so (`abs(x - 1.5)`);
  - `x in c` is also asked of values beside x, in random order: it counts if
    one of them is not in c;
  - two objects are equal if the program says so twice in each direction, among
    copies with other values and in random order, and if it also tells one of
    them from some other object of its class in the tests.

`Undecided` makes the verdict an error: right or wrong, nobody could say.
"""

import numbers
import operator
import secrets

from jaxrl_reason.verifiers.code.sandbox import peer

MAX_KEPT = 64  # objects that equal ones are compared with afterwards
DECOYS = 6
COPIES = 3  # with other values, that an object is also compared with
UNARY = {
  'abs': '__abs__', 'neg': '__neg__', 'pos': '__pos__', 'invert': '__invert__',
  'int': '__int__', 'float': '__float__', 'complex': '__complex__',
  'index': '__index__',
}  # fmt: skip
BINARY = (
  'add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor'
).split()
# The distance to an expected value, or whether there is one.
TELLING = frozenset(('sub', 'truediv', 'floordiv', 'mod', 'xor'))
ORDER = ('lt', 'le', 'gt', 'ge')
SHOWN = frozenset(('__name__', '__qualname__', '__doc__', '__dict__'))
CONVERSIONS = frozenset((*UNARY, 'round', 'heart'))


class Undecided(BaseException):
  """Only the program could say whether the test holds."""


class Object(peer.Remote):
  """An object of a class under test: what it is asked, the program does."""

  __slots__ = ('_near',)

  def __init__(self, link, number: int, truth: bool):
    super().__init__(link, number, truth)
    object.__setattr__(self, '_near', False)

  def _ask(self, operation: str, *args):
    told = _core(operation) in TELLING and any(
      isinstance(x, numbers.Number) for x in args
    )
    near = told or self._near
    result = self._peer.ask(f'{operation}!', self, *args)
    if type(result) is Object:
      object.__setattr__(result, '_near', near)
    elif told or (near and operation in CONVERSIONS):
      raise Undecided(f'the program computes {operation} of an expected value')
    return result

  def __getattr__(self, name):
    if name.startswith('__') and name not in SHOWN:
      raise AttributeError(name)
    return self._ask('getattr', name)

  def __delattr__(self, name):
    self._ask('delattr', name)

  def __delitem__(self, key):
    self._ask('delitem', key)

  def __bool__(self):
    return self._ask('bool') is True

  def __repr__(self):
    return self._ask('repr')

  def __format__(self, spec):
    return self._ask('format', spec)

  def __hash__(self):
    return self._ask('hash')

  def _heart(self) -> tuple:
    """(value,) of a subclass of a plain type, else ()."""
    found = self._ask('heart')
    return found if type(found) is tuple else ()

  def __round__(self, digits=None):
    return self._ask('round', digits)

  def __reversed__(self):
    return iter(self._ask('reversed'))

  def __eq__(self, other):
    if isinstance(other, peer.Remote):
      if self is other:
        return True
      same = _consistent(self, other) and _consistent(other, self)
      if same:
        self._peer.claims.append((self, other))
      return same
    heart = self._heart()
    if heart:
      return heart[0] == other
    same = self._ask('same', other) is True
    # One that is equal to anything is equal to nothing.
    if same and not any(self._ask('same', x) is True for x in _beside(other)):
      raise Undecided('an object of the program is compared with plain data')
    return False

  def __contains__(self, x):
    asked = [x, x, *_beside(x)]
    secrets.SystemRandom().shuffle(asked)
    answers = {}
    for i, value in enumerate(asked):
      try:
        answers[i] = self._ask('contains', value) is True
      except TypeError:
        if value is x:
          raise
        answers[i] = False  # not of its kind
    found = all(a for i, a in answers.items() if asked[i] is x)
    if found and all(answers.values()):
      raise Undecided('an object of the program contains everything')
    return found

  def __enter__(self):
    return self._ask('enter')

  def __exit__(self, kind, error, trace):
    return self._leave('exit', error)

  async def __aenter__(self):
    return self._ask('aenter')

  async def __aexit__(self, kind, error, trace):
    return self._leave('aexit', error)

  def _leave(self, operation: str, error) -> bool:
    """Returns whether the program stops the exception; never an assert's."""
    args = () if error is None else (type(error).__name__, str(error)[:500])
    stops = self._ask(operation, *args) is True and error is not None
    self._peer.suppressed |= stops
    return stops and not isinstance(error, AssertionError)


def _consistent(a: Object, b) -> bool:
  """Returns whether a says twice that it equals b, and never changes its mind.

  The questions come in random order among the same questions about copies of b
  with other values: an `__eq__` that answers by what it was asked before cannot
  know which of them counts.
  """
  copies = a._peer.ask('altered!', b, COPIES) if type(b) is Object else []
  others = list(copies) if type(copies) is list else []
  kept = a._peer.kept  # of the tests' objects; copies are none of them
  kept[:] = [x for x in kept if not any(x is copy for copy in others)]
  asked = 2 * [b, *others]
  secrets.SystemRandom().shuffle(asked)
  answers: dict[int, set[bool]] = {}
  for x in asked:
    answers.setdefault(id(x), set()).add(_says_equal(a, x, strict=x is b))
  if any(len(both) > 1 for both in answers.values()):
    return False
  return answers[id(b)] == {True}


def _says_equal(a: Object, b, *, strict: bool) -> bool:
  try:
    return a._ask('same', b) is True
  except Exception:  # a copy's values may be wrong for its class
    if strict:
      raise
    return False


def _beside(x) -> list:
  """Values of x's kind that are not x."""
  if isinstance(x, (int, float)) and not isinstance(x, bool):
    steps = secrets.SystemRandom().sample(range(1, 100), DECOYS)
    return [x + (-step if i % 2 else step) for i, step in enumerate(steps)]
  return [secrets.token_hex(8) for _ in range(DECOYS)]


def _core(operation: str) -> str:
  """The operator of a reflected or augmented one."""
  return operation if operation in BINARY else operation[1:]


def _unary(name: str):
  def run(self):
    return self._ask(name)

  return run


def _binary(name: str):
  def run(self, other):
    return self._ask(name, other)

  return run


def _order(name: str):
  def run(self, other):
    if isinstance(other, peer.Remote):
      found = self._ask(name, other) is True
      if found is not (self._ask(name, other) is True):
        raise AssertionError('the order of two objects changes')
      if found and self._peer.ask(f'{name}!', other, self) is True:
        # Equal, for <= and >=: then the program has to tell others apart.
        if name in ('lt', 'gt'):
          raise AssertionError('two objects are each less than the other')
        self._peer.claims.append((self, other))
      return found
    heart = self._heart()
    if heart:
      return getattr(operator, name)(heart[0], other)
    raise Undecided('an object of the program is ordered with plain data')

  return run


for _name, _dunder in UNARY.items():
  setattr(Object, _dunder, _unary(_name))
for _name in BINARY:
  _plain = _name.rstrip('_')
  setattr(Object, f'__{_plain}__', _binary(_name))
  setattr(Object, f'__r{_plain}__', _binary(f'r{_name}'))
  setattr(Object, f'__i{_plain}__', _binary(f'i{_name}'))
for _name in ORDER:
  setattr(Object, f'__{_name}__', _order(_name))


# --- exceptions, types ---------------------------------------------------


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


def raised(name: str, theirs: Object) -> type:
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
    return isinstance(x, Object) and x._ask('isinstance', theirs) is True
  if isinstance(x, Object):
    return kind is object or kind.__name__ in x._ask('mro')
  return isinstance(x, kind)


def is_subclass(x, kinds) -> bool:
  """Does what the built-in function does, for classes of either side."""
  x = x.theirs if type(x) is _Kind else x
  for kind in _flat(kinds):
    kind = kind.theirs if type(kind) is _Kind else kind
    if isinstance(x, Object) and isinstance(kind, peer.Remote):
      found = x._ask('issubclass', kind) is True
    elif isinstance(x, Object):
      found = kind.__name__ in x._ask('bases')
    else:
      found = not isinstance(kind, peer.Remote) and issubclass(x, kind)
    if found:
      return True
  return False


def type_of(x, *rest):
  """Does what the built-in function does: of an object, the program's class."""
  if rest or not isinstance(x, Object):
    return type(x, *rest)
  return x._ask('type')


def _flat(kinds) -> list:
  if isinstance(kinds, tuple):
    return [k for kind in kinds for k in _flat(kind)]
  return [kinds]


def settle(link: peer.Peer):
  """Raises Undecided, unless the program can tell equal objects from some
  other.
  """
  for a, b in link.claims:
    others = [x for x in link.kept[:MAX_KEPT] if x is not a and x is not b]
    kin = [x for x in others if a._ask('kin', x) is True]
    if not any(_differs(a, x) or _differs(b, x) for x in kin):
      raise Undecided('only the program says that two of its objects are equal')


def _differs(a, b) -> bool:
  """Returns whether the program tells two objects apart, asked twice."""
  try:
    return a._ask('same', b) is not True and b._ask('same', a) is not True
  except Exception:  # of the program's; it tells them apart
    return True
