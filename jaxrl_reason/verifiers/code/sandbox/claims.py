"""Answers of a program about its own objects, and the check of these answers.

A program decides whether two of its objects are equal, in which order they
are, and whether one is true. Each answer that a test reads is a claim.
`settle` accepts a claim only if the program also gives the opposite answer:
for another object of the same class in the tests, or for a copy with other
values. An object that equals everything, is ordered with nothing (as NaN) or
is true whatever it holds is therefore `Undecided`.
"""

import secrets

MAX_KEPT = 64  # objects of the tests that one object is compared with
COPIES = 3  # with other values, beside one with empty values


class Undecided(BaseException):
  """Only the program could say whether the test holds."""


def equal(a, b) -> bool:
  """Returns whether the program says that a and b are equal."""
  same = _consistent(a, b) and _consistent(b, a)
  if same:
    a._peer.claims.append(('same', True, a, b))
  return same


def ordered(operation: str, a, b) -> bool:
  """Returns the program's answer to `a < b` and the like, asked twice."""
  found = a._ask(operation, b) is True
  if found is not (a._ask(operation, b) is True):
    raise AssertionError('the order of two objects changes')
  if not found:
    a._peer.claims.append((operation, False, a, b))
  elif a._peer.ask(f'{operation}!', b, a) is True:
    # Equal, for <= and >=: then the program has to tell others apart.
    if operation in ('lt', 'gt'):
      raise AssertionError('two objects are each less than the other')
    a._peer.claims.append(('same', True, a, b))
  return found


def true(a) -> bool:
  """Returns the program's answer to `bool(a)`, asked twice."""
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
  """Raises Undecided for a claim whose opposite the program never gives."""
  moving = set()  # (operation, object) with an answer of True
  for operation, answer, a, b in link.claims:
    if operation == 'bool':
      if b not in link.shown and not _truth_varies(a, answer):
        raise Undecided(
          'only the program says that one of its objects is '
          f'{"true" if answer else "false"}'
        )
    elif operation == 'same':
      if not (_tells(a, b) and _tells(b, a)):
        raise Undecided(
          'only the program says that two of its objects are equal'
        )
    else:
      for x in (a, b):
        if (operation, id(x)) not in moving and not _in_order(operation, x, b):
          raise Undecided('an object of the program is ordered with no other')
        moving.add((operation, id(x)))


def _consistent(a, b) -> bool:
  """Returns whether a says twice that it equals b, and never changes its mind.

  The questions come in random order among the same questions about copies of b
  with other values: an `__eq__` that answers by what it was asked before cannot
  know which of them counts.
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
  """Returns whether the program tells two objects apart, asked both ways."""
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
  """Returns what the program answers, None for an exception of it."""
  try:
    return a._ask(operation, *args)
  except Exception:
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
