"""Represents objects of the program's classes in tests.

A function under test may return an object whose `==` is always true, so a plain
`peer.Remote` supports no operators and comparisons. Tests of a class need
operators, order, `in`, `with` and hashes. An `Object` is the result of a name
that the test uses as a class (`asserts.Plan.objects`, by the test's source).
The program executes its operations, with these limits, so that it cannot
compute expected values:

  - In comparisons with plain data, an object counts as its built-in value (a
    list, for a subclass of list). If it has none, the test is `Undecided` if
    the program claims that the two are equal (but not that the object equals
    any value), and always for an order.
  - The result of a subtraction from or division by a test's value is not
    converted to plain data, because tests compare so: `abs(x - 1.5)`.
  - `x in c` is also requested for other values than x, in random order. It
    counts if one of them is not in c.
  - Claims of the program about only its own objects (equality, order, truth)
    count if it also returns the opposite (`claims`).

With `Undecided` the verdict is an error.
"""

import numbers
import operator
import secrets

from jaxrl_reason.verifiers.code.sandbox import claims, errors, nan, peer

DECOYS = 6
UNARY = {
  'abs': '__abs__', 'neg': '__neg__', 'pos': '__pos__', 'invert': '__invert__',
  'int': '__int__', 'float': '__float__', 'complex': '__complex__',
  'index': '__index__',
}  # fmt: skip
BINARY = (
  'add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor'
).split()
# Operations that compute the distance to an expected value.
TELLING = frozenset(('sub', 'truediv', 'floordiv', 'mod', 'xor'))
ORDER = ('lt', 'le', 'gt', 'ge')
SHOWN = frozenset(('__name__', '__qualname__', '__doc__', '__dict__'))
CONVERSIONS = frozenset((*UNARY, 'round', 'heart'))
# Operations by which tests check an object, besides its truth.
READ = frozenset(('getattr', 'getitem', 'items', 'len', 'str', 'repr'))


class Object(peer.Remote):
  """An object of a class under test. The program executes its operations."""

  # _near: computed from an expected value. _origin: function that returned it.
  __slots__ = ('_near', '_origin')

  def __init__(self, link, number: int, truth: bool):
    super().__init__(link, number, truth)
    object.__setattr__(self, '_near', False)
    object.__setattr__(self, '_origin', None)

  def _ask(self, operation: str, *args):
    told = _core(operation) in TELLING and any(
      isinstance(x, numbers.Number) for x in args
    )
    near = told or self._near
    result = self._peer.ask(f'{operation}!', self, *args)
    if type(result) is Object:
      object.__setattr__(result, '_near', near)
    elif told or (near and operation in CONVERSIONS):
      raise errors.Undecided(
        f'the program computes {operation} of an expected value'
      )
    self._note(operation, args, result)
    return result

  def _note(self, operation: str, args: tuple, result):
    """Records the functions whose results tests check by more than truth, and
    the function that made an object.
    """
    origin = self._origin_of(operation, args)
    if operation in READ:
      self._peer.shown.add(self._origin)
    if result is None or result is False:
      self._peer.shown.add(origin)
    if type(result) is Object:
      self._peer.latest = result, origin
      if result._origin is None:
        object.__setattr__(result, '_origin', origin)

  def _origin_of(self, operation: str, args: tuple):
    """Returns the function or attribute of the program that has a result."""
    if operation == 'getattr':
      return args[0]
    if operation == 'call':
      return self._origin or self._number
    return operation

  def __getattr__(self, name):
    if name.startswith('__') and name not in SHOWN:
      raise AttributeError(name)
    return self._ask('getattr', name)

  def __delattr__(self, name):
    self._ask('delattr', name)

  def __delitem__(self, key):
    self._ask('delitem', key)

  def __bool__(self):
    return claims.true(self)

  def __repr__(self):
    return self._ask('repr')

  def __format__(self, spec):
    return self._ask('format', spec)

  def __hash__(self):
    return self._ask('hash')

  def _heart(self) -> tuple:
    """Returns (value,) for a subclass of a plain type, else ()."""
    found = self._ask('heart')
    return found if type(found) is tuple else ()

  def __round__(self, digits=None):
    return self._ask('round', digits)

  def __reversed__(self):
    return iter(self._ask('reversed'))

  def __eq__(self, other):
    if isinstance(other, peer.Remote):
      return self is other or claims.equal(self, other)
    heart = self._heart()
    if heart:
      return heart[0] == other
    same = self._ask('same', other) is True
    # An object that equals any value counts as unequal.
    if same and not any(self._ask('same', x) is True for x in _beside(other)):
      raise errors.Undecided(
        'an object of the program is compared with plain data'
      )
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
        answers[i] = False  # another type
    found = all(a for i, a in answers.items() if asked[i] is x)
    if found and all(answers.values()):
      raise errors.Undecided('an object of the program contains everything')
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
    """Returns whether the program suppresses an exception, except asserts'."""
    args = () if error is None else (type(error).__name__, str(error)[:500])
    stops = self._ask(operation, *args) is True and error is not None
    self._peer.suppressed |= stops
    return stops and not isinstance(error, AssertionError)


def _beside(x) -> list:
  """Returns values of x's type that differ from x."""
  if isinstance(x, (int, float)) and not isinstance(x, bool):
    steps = secrets.SystemRandom().sample(range(1, 100), DECOYS)
    return [x + (-step if i % 2 else step) for i, step in enumerate(steps)]
  return [secrets.token_hex(8) for _ in range(DECOYS)]


def _core(operation: str) -> str:
  """Returns the operator of a reflected or augmented operation."""
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
      return claims.ordered(name, self, other)
    heart = self._heart()
    if heart:
      return getattr(operator, name)(nan.orderable(heart[0]), other)
    raise errors.Undecided(
      'an object of the program is ordered with plain data'
    )

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
