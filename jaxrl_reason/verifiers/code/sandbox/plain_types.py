"""Lists the types of plain data, sent by value between judge and program.

Values of other types stay in their process. A path is such a value: the judge
must not open files that the program names.
"""

import collections
import datetime
import decimal
import fractions

CONTAINERS = {
  'list': list,
  'tuple': tuple,
  'set': set,
  'frozenset': frozenset,
}
CLOCK = ('hour', 'minute', 'second', 'microsecond', 'tzinfo')
# Types that are rebuilt by a call with these attributes, or with the value as
# another type.
BUILT = {
  complex: ('real', 'imag'),
  range: ('start', 'stop', 'step'),
  fractions.Fraction: ('numerator', 'denominator'),
  decimal.Decimal: str,
  collections.deque: list,
  collections.Counter: dict,
  collections.OrderedDict: lambda x: list(x.items()),
  datetime.date: ('year', 'month', 'day'),
  datetime.time: CLOCK,
  datetime.datetime: ('year', 'month', 'day', *CLOCK),
  datetime.timedelta: ('days', 'seconds', 'microseconds'),
  datetime.timezone: lambda x: x.utcoffset(None),
  type({}.keys()): list,
  type({}.items()): list,
}
BUILDERS = {kind.__name__: kind for kind in BUILT} | {
  'dict_keys': lambda keys: dict.fromkeys(keys).keys(),
  'dict_items': lambda items: dict(items).items(),
}
BASES = (int, float, str, bytes, bytearray, *CONTAINERS.values(), dict)
PLAIN = (type(None), bool, *BUILT, *BASES)
# A call may change arguments of these types in place.
CHANGEABLE = (list, dict, set, bytearray, collections.deque)
# A type may itself be an argument (`keep_only(values, int)`).
TYPES = {
  kind.__name__: kind for kind in (type(None), bool, complex, object, *BASES)
}


def arguments(x) -> list | None:
  """Returns the arguments that rebuild `x`, or None if nothing can."""
  if type(x) not in BUILT:
    return None
  zone = getattr(x, 'tzinfo', None)
  if type(zone) not in (type(None), datetime.timezone):
    return None  # other time zones are read from files
  how = BUILT[type(x)]
  if isinstance(how, tuple):
    return [getattr(x, name) for name in how]
  return [how(x)]


def holds_object(data) -> bool:
  """Returns whether encoded data contain an object, which is not plain."""
  if type(data) is not list:
    return False
  return data[:1] in (['mine'], ['yours']) or any(map(holds_object, data))
