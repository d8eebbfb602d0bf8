"""Exchanges values and calls between the processes of tests and program.

Both sides are a `Peer` on a stream socket. Plain data (numbers, text, lists,
dicts ...) is sent by value and rebuilt on the other side from exact built-in
types, without classes, methods or comparisons of the program. For any other
object, the other side has a `Remote`, whose calls and attributes are requests.
While a side waits for a reply it serves requests, so a test can pass a function
to the program.

A message is JSON: ['ask', operation, ...], ['ok', value, changes] or ['error',
names, text, arguments]. A plain value is itself, everything else a list headed
by a tag.
"""

import contextlib
import inspect
import itertools
import json

from jaxrl_reason.verifiers.code.sandbox import (
  array_bytes,
  errors,
  in_place,
  plain_types,
)
from jaxrl_reason.verifiers.pool import wire

# Larger whole numbers are sent in hexadecimal, since parsing decimals is
# quadratic.
MAX_INT = 10**18
MAX_ITEMS = 1_000_000  # most items of a remote iterator
MAX_ARGUMENTS = 1 << 16  # characters of the arguments of an exception
# Requests to the program, not to one of its objects.
APART = ('get', 'get!', 'load', 'watch', 'seen')
MALFORMED = (ValueError, TypeError, LookupError, ArithmeticError)


class Closed(Exception):
  """The other side ended or sent an invalid message."""


class Overrun(BaseException):
  """The time limit is over. A timer raises it at any point of the tests."""


class Remote:
  """An object of the other side.

  Two remote objects are equal if the other side claims so. A remote object
  never equals plain data, and has no operators. `in` iterates over it.
  """

  __slots__ = ('_peer', '_number', '_truth')

  def __init__(self, peer, number: int, truth: bool):
    for name, value in zip(Remote.__slots__, (peer, number, truth)):
      object.__setattr__(self, name, value)

  def _ask(self, operation: str, *args):
    return self._peer.ask(operation, self, *args)

  def __call__(self, *args, **kwargs):
    return self._ask('call', args, kwargs, self._peer.watches)

  def __getattr__(self, name):
    if name.startswith('__'):
      raise AttributeError(name)
    return self._ask('getattr', name)

  def __setattr__(self, name, value):
    self._ask('setattr', name, value)

  def __getitem__(self, key):
    return self._ask('getitem', key)

  def __setitem__(self, key, value):
    self._ask('setitem', key, value)

  def __iter__(self):
    return iter(self._ask('items'))

  def __next__(self):
    return self._ask('next')

  def __aiter__(self):
    return self._ask('aiter')

  async def __anext__(self):
    return self._ask('anext')

  def __len__(self):
    return self._ask('len')

  def __str__(self):
    return self._ask('str')

  def __bool__(self):
    return self._truth

  def __eq__(self, other):
    if isinstance(other, Remote):
      return self._ask('same', other) is True
    # A program's object whose type is that of the expected value.
    kind = type(other).__name__
    if not isinstance(other, plain_types.PLAIN) and kind in self._ask('mro'):
      raise errors.Undecided(f'objects of {kind} cannot be compared')
    return False

  def __hash__(self):
    return hash(self._number)


class Awaitable(Remote):
  """A coroutine of the other side, which runs when it is awaited."""

  __slots__ = ('_mark',)

  def __await__(self):
    return self._ask(f'await{self._mark}')
    yield  # makes this a generator

  def send(self, value):
    raise StopIteration(self._ask(f'await{self._mark}'))

  def __next__(self):  # called by asyncio's tasks instead of `send(None)`
    self.send(None)

  def throw(self, *error):
    raise error[0]

  def close(self):
    """Does nothing. asyncio calls it."""


class NotPlain(TypeError):
  """An object of the tests that must not be sent to a program."""


class Peer:
  """One side of a connection. It reads `frames` and writes to `sock`.

  Args:
    operations: operations that the other side may request, besides calls of
      received objects.
    exports: returns whether an object may be sent to the other side.
  """

  def __init__(self, sock, frames, *, operations: dict, exports):
    self._sock, self._frames = sock, frames
    self.waiting = True  # this side waits for the other
    self._operations = operations
    self._exports = exports
    self._given: list = []  # objects that were sent to the other side
    self._numbers: dict[int, int] = {}  # id of an object -> its number
    self._as_object = False  # send subclasses of plain types as objects
    self.stand_in = Remote  # class for objects of the other side
    self.kept: list = []  # objects of other classes than `Remote`
    self.claims: list = []  # claims of the other side about them (`claims`)
    self.shown: set = set()  # remote functions whose results the tests check
    self.latest = None, None  # last returned object, and the function
    self.suppressed = False  # the other side suppressed a local exception
    self.watches = False  # whether calls report changed arguments
    self.changed = False  # a call that returned a value changed its arguments
    self.used = False  # there was a request other than for names
    self.context = contextlib.nullcontext  # entered for every request
    self.rich = Remote  # class of objects for operations with '!'
    self.caught = None  # converts an exception of the other side
    self.stops = False  # whether calls may raise StopIteration
    self.exits: list = []  # exceptions of the other side that end a process

  def ask(self, operation: str, *args):
    """Sends a request and returns the reply, or raises its exception.

    If the operation ends in '!', the result is a `rich` object, also if its
    class is a subclass of a plain type.
    """
    if operation in APART:
      return self._asked(operation, args)
    self.used = True
    with self.context():
      return self._asked(operation, args)

  def _asked(self, operation: str, args: tuple):
    sent = [self.encode(a) for a in args]
    self._send(['ask', operation, *sent])
    while True:
      kind, *rest = self._receive()
      if kind == 'ask':
        self._serve(*rest)
        continue
      self.stand_in = self.rich if operation.endswith('!') else Remote
      if kind != 'ok':
        raise self._exception(operation, *rest)
      result = self.decode(rest[0])
      if result is None and len(rest) > 1 and operation in ('call', 'call!'):
        self._apply(rest[1], _passed(*args[1:3]))
      elif len(rest) > 1 and rest[1]:
        self.changed = True
      return result

  def _exception(self, operation, names, text, args, error=None):
    """Returns the exception of a reply.

    A StopIteration of a function would end the loop of a test that calls it, as
    in `all(map(f, cases))`.
    """
    # No class is called with an object of the other side.
    values = (text,) if plain_types.holds_object(args) else self.decode(args)
    if type(names) is not list or type(values) is not tuple:
      raise Closed(f'not an exception: {names!r:.80}')
    found = errors.make_exception(names, text, values)
    if isinstance(found, errors.STOPS) and not (
      self.stops or operation.strip('!') in ('next', 'anext')
    ):
      found = RuntimeError(f'the program raised {type(found).__name__}')
    if error is not None and self.caught is not None:
      self.stand_in = self.rich
      remote = self.decode(error)
      if type(remote) is not self.rich:
        raise Closed(f'not an exception: {error!r:.80}')
      found = self.caught(found, remote)
    if isinstance(found, SystemExit):
      self.exits.append(found)
    return found

  def serve(self):
    """Serves requests until the other side ends."""
    while True:
      kind, *rest = self._receive()
      if kind != 'ask':
        raise Closed(f'an answer without a question: {kind!r:.80}')
      self._serve(*rest)

  def _serve(self, operation: str, *args):
    # A program may raise any exception, also SystemExit. It is sent back.
    try:
      if operation not in APART and args[0][0] != 'yours':
        raise Closed(f'{operation} of {args[0]!r:.80}')
      self._as_object = operation.endswith('!')
      operation = operation.removesuffix('!')
      self._as_object &= operation != 'heart'  # 'heart' returns plain values
      self.stand_in = Remote
      values = [self.decode(a) for a in args]
      if operation == 'call':
        result = values[0](*values[1], **values[2])
      else:
        result = self._operations[operation](*values)
      answer = ['ok', self.encode(result), None]
      if operation == 'call' and (result is None or values[3:] == [True]):
        before = args[1][1:] + args[2][2::2]  # without tags and keywords
        after = _passed(*values[1:3])
        answer[2] = in_place.changes(before, after, self.encode)
    except (Closed, Overrun):
      raise
    except BaseException as e:
      answer = ['error', errors.names_of(e), errors.text_of(e)]
      answer.append(self._arguments_of(e))
      if type(e).__module__ != 'builtins' and self._exports(e):
        answer.append(['mine', self._number(e), True, ''])
    self._as_object = False
    self._send(answer)

  def _arguments_of(self, error: BaseException) -> list:
    try:
      found = self.encode(tuple(error.__reduce__()[1]))
      return found if len(json.dumps(found)) <= MAX_ARGUMENTS else ['tuple']
    # They may be objects that must not be sent, or raise any exception.
    except Exception:
      return ['tuple']

  def _apply(self, changes: list | None, arguments: list):
    for i, data in changes or ():
      new = self.decode(data)
      try:
        in_place.replace(arguments[i], new)
      except TypeError as e:
        raise Closed(str(e)) from e

  def _send(self, message: list):
    try:
      self._sock.sendall(wire.frame(json.dumps(message).encode()))
    except OSError as e:
      raise Closed('the other side ended') from e

  def _receive(self) -> list:
    try:
      self.waiting = True
      data = next(self._frames, None)
      self.waiting = False
      message = None if data is None else json.loads(data)
    except (OSError, ValueError, RecursionError) as e:
      raise Closed(f'not a message: {e!r:.200}') from e
    if message is None:
      raise Closed('the other side ended')
    if type(message) is not list or len(message) < 2:
      raise Closed(f'not a message: {message!r:.80}')
    return message

  def encode(self, x):
    kind = type(x)
    if x is None or kind in (bool, str, float):
      return x
    if kind is int:
      return x if -MAX_INT < x < MAX_INT else ['int', hex(x)]
    if plain_types.CONTAINERS.get(kind.__name__) is kind:
      return [kind.__name__, *map(self.encode, x)]
    if kind is dict:
      pairs = itertools.chain.from_iterable(x.items())
      return ['dict', *map(self.encode, pairs)]
    return self._encode_rare(x, kind)

  def _encode_rare(self, x, kind: type):
    if kind in (bytes, bytearray):
      return [kind.__name__, x.hex()]
    if (parts := plain_types.arguments(x)) is not None:
      return ['built', kind.__name__, *map(self.encode, parts)]
    if isinstance(x, Remote):
      return ['yours', x._number]
    if kind is type and plain_types.TYPES.get(x.__name__) is x:
      return ['type', x.__name__]
    if kind.__module__ == 'numpy' and getattr(x, 'shape', None) == ():
      return self.encode(x.item())
    if array_bytes.is_array(x):
      return array_bytes.encode(x)
    for base in plain_types.BASES:  # a subclass is sent as its plain value
      if not self._as_object and isinstance(x, base):
        return self.encode(base(x))
    if not self._exports(x):
      raise NotPlain(f'a {kind.__name__} cannot be handed to the program')
    if (date := plain_types.with_offset(x)) is not None:
      return self.encode(date)
    runs = 'await' if inspect.isawaitable(x) else ''
    return ['mine', self._number(x), errors.truth_of(x), runs]

  def _number(self, x) -> int:
    if id(x) not in self._numbers:
      self._numbers[id(x)] = len(self._given)
      self._given.append(x)  # keeps x alive, so that its id is not reused
    return self._numbers[id(x)]

  def decode(self, data):
    """Decodes untrusted data: any malformed part raises Closed."""
    try:
      return self._decode(data)
    except (*MALFORMED, RecursionError) as e:
      raise Closed(f'not a value: {e!r:.200}') from e

  def _decode(self, data):
    if type(data) is not list:
      if type(data) is dict:
        raise ValueError('a bare object')
      return data
    tag, *rest = data
    if tag in plain_types.CONTAINERS:
      return plain_types.CONTAINERS[tag](map(self._decode, rest))
    if tag == 'dict':
      values = map(self._decode, rest)
      return dict(zip(values, values))
    if tag == 'int':
      return int(rest[0], 16)
    if tag in ('bytes', 'bytearray'):
      return plain_types.TYPES[tag](bytes.fromhex(rest[0]))
    if tag == 'built':
      return plain_types.BUILDERS[rest[0]](*map(self._decode, rest[1:]))
    if tag == 'type':
      return plain_types.TYPES[rest[0]]
    if tag == 'yours':
      return self._given[rest[0]]
    if tag == 'array':
      return array_bytes.decode(*rest)
    if tag == 'mine':
      return self._proxy(*rest)
    raise ValueError(f'unknown tag {tag!r:.40}')

  def _proxy(self, number: int, truth: bool, runs: str) -> Remote:
    if runs == 'await':
      found = Awaitable(self, int(number), True)
      object.__setattr__(found, '_mark', '!' * (self.stand_in is not Remote))
      return found
    found = self.stand_in(self, int(number), truth is True)
    if self.stand_in is Remote:
      return found
    for known in self.kept:  # one object per number, for `a is b` in tests
      if known._number == found._number:
        return known
    self.kept.append(found)
    return found


def _passed(args: tuple, kwargs: dict) -> list:
  return [*args, *kwargs.values()]
