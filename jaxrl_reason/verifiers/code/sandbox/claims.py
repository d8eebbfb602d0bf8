"""Checks a program's claims about equality, order and truth of its objects.

Only the program can compute whether two of its objects are equal, in which
order they are, and whether an object is true. Each result that a test reads is
a claim. `settle` accepts a claim only if the program also returns the opposite:
for another object of the same class in the tests, or for a copy with other
values. So an object that equals everything, has no order (as NaN) or is true
for all values is `Undecided`.
"""

import secrets

from jaxrl_reason.verifiers.code.sandbox import errors, peer

MAX_KEPT = 64  # most objects that one object is compared with
COPIES = 3  # copies with other values, besides one with empty values


def equal(a, b) -> bool:
  """Returns the program's claim that a and b are equal."""
  same = _consistent(a, b) and _consistent(b, a)
  if same:
    a._peer.claims.append(('same', True, a, b))
  return same


def ordered(operation: str, a, b) -> bool:
  """Returns the program's claim about the order of a and b, computed twice."""
  found = a._ask(operation, b) is True
  if found is not (a._ask(operation, b) is True):
    raise AssertionError('the order of two objects changes')
  if not found:
    a._peer.claims.append((operation, False, a, b))
  elif a._peer.ask(f'{operation}!', b, a) is True:
    # For <= and >= they are equal, which the program has to prove as well.
    if operation in ('lt', 'gt'):
      raise AssertionError('two objects are each less than the other')
    a._peer.claims.append(('same', True, a, b))
  return found


def true(a) -> bool:
  """Returns the program's claim about `bool(a)`, computed twice."""
  found = a._ask('bool') is True
  if found is not (a._ask('bool') is True):
    raise AssertionError('the truth of an object changes')
  latest, origin = a._peer.latest
  origin = (
    origin if latest is a else a._origin
  )  # a method may return its object
  a._peer.claims.append(('bool', found, a, origin))
  return found


def settle(link):
  """Raises Undecided for a claim whose opposite the program never returns."""
  moving = set()  # (operation, object) with an answer of True
  for operation, answer, a, b in link.claims:
    if operation == 'bool':
      if b not in link.shown and not _truth_varies(a, answer):
        raise errors.Undecided(
          'only the program says that one of its objects is '
          f'{"true" if answer else "false"}'
        )
    elif operation == 'same':
      if not (_tells(a, b) and _tells(b, a)):
        raise errors.Undecided(
          'only the program says that two of its objects are equal'
        )
    else:
      for x in (a, b):
        if (operation, id(x)) not in moving and not _in_order(operation, x, b):
          raise errors.Undecided(
            'an object of the program is ordered with no other'
          )
        moving.add((operation, id(x)))


def _consistent(a, b) -> bool:
  """Returns whether `a == b` has the same result in repeated requests.

  The requests are in random order among requests about copies of b with other
  values. So an `__eq__` with state cannot detect the request that counts.
  """
  asked = 2 * [b, *_copies(b)]
  secrets.SystemRandom().shuffle(asked)
  answers: dict[int, set] = {}
  for x in asked:
    # A copy's values may be wrong for its class.
    answer = a._ask('same', x) if x is b else _answer(a, 'same', x)
    answers.setdefault(id(x), set()).add(answer is True)
  if any(len(both) > 1 for both in answers.values()):
    return False
  return answers[id(b)] == {True}


def _tells(a, b) -> bool:
  """Returns whether a differs from some other object, and from a copy of b."""
  others = _kin(a, b)
  copies = _copies(b)
  return any(_differs(a, x) for x in others) and (
    not copies or any(_differs(a, x) for x in copies)
  )


def _differs(a, b) -> bool:
  """Returns whether two objects differ, in both directions."""
  return not (_answer(a, 'same', b) is True or _answer(b, 'same', a) is True)


def _in_order(operation: str, a, b) -> bool:
  """Returns whether some object is before or after a."""
  return any(
    _answer(a, operation, x) is True or _answer(x, operation, a) is True
    for x in (*_kin(a), *_copies(a), *_copies(b))
  )


def _truth_varies(a, answer: bool) -> bool:
  others = (*_kin(a), *_copies(a))
  return any(_answer(x, 'bool') is (not answer) for x in others)


def _answer(a, operation: str, *args):
  """Returns the program's result, or None if it raises an exception.

  Raises:
    Closed: the program has ended, so it claims nothing.
  """
  try:
    return a._ask(operation, *args)
  except peer.Closed:
    raise
  except (Exception, SystemExit):
    return None


def _kin(a, *but) -> list:
  """Returns other objects of a's class in the tests."""
  others = [
    x for x in a._peer.kept[:MAX_KEPT] if not any(x is y for y in (a, *but))
  ]
  return [x for x in others if a._ask('kin', x) is True]


def _copies(a) -> list:
  """Returns copies of an object with other values, [] if there can be none."""
  if type(a) is not a._peer.rich:
    return []
  found = a._peer.ask('altered!', a, COPIES)
  copies = list(found) if type(found) is list else []
  kept = a._peer.kept  # of the tests' objects; copies are none of them
  kept[:] = [x for x in kept if not any(x is copy for copy in copies)]
  return [x for x in copies if type(x) is a._peer.rich]
