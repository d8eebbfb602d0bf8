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
  - what the program says of its objects alone (equality, order, truth) counts
    if it also gives the opposite answer (`claims`).

`Undecided` makes the verdict an error: right or wrong, nobody could say.
"""

import numbers
import operator
import secrets

from jaxrl_reason.verifiers.code.sandbox import claims, nan, peer

DECOYS = 6
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
# What the tests check of an object beside its truth.
READ = frozenset(('getattr', 'getitem', 'items', 'len', 'str', 'repr'))


class Object(peer.Remote):
  """An object of a class under test: what it is asked, the program does."""

  __slots__ = ('_near', '_origin')  # near an expected value; which function

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
      raise claims.Undecided(
        f'the program computes {operation} of an expected value'
      )
    self._note(operation, args, result)
    return result

  def _note(self, operation: str, args: tuple, result):
    """Notes which functions of the program the tests check by more than truth,
    and which one made an object.
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
    """Returns which function or attribute of the program has a result."""
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
    """(value,) of a subclass of a plain type, else ()."""
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
    # One that is equal to anything is equal to nothing.
    if same and not any(self._ask('same', x) is True for x in _beside(other)):
      raise claims.Undecided(
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
        answers[i] = False  # not of its kind
    found = all(a for i, a in answers.items() if asked[i] is x)
    if found and all(answers.values()):
      raise claims.Undecided('an object of the program contains everything')
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
      return claims.ordered(name, self, other)
    heart = self._heart()
    if heart:
      return getattr(operator, name)(nan.orderable(heart[0]), other)
    raise claims.Undecided(
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
