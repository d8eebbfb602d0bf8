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
  collections.defaultdict: lambda x: (x.default_factory, dict(x)),
  datetime.date: ('year', 'month', 'day'),
  datetime.time: CLOCK,
  datetime.datetime: ('year', 'month', 'day', *CLOCK),
  datetime.timedelta: ('days', 'seconds', 'microseconds'),
  datetime.timezone: lambda x: x.__getinitargs__(),
  type({}.keys()): list,
  type({}.items()): list,
}


def _defaultdict(parts: tuple) -> collections.defaultdict:
  function, items = parts
  if type(items) is not dict or not _makes_plain(function):
    raise ValueError('not the parts of a defaultdict')
  return collections.defaultdict(function, items)


BUILDERS = {kind.__name__: kind for kind in BUILT} | {
  'defaultdict': _defaultdict,
  'timezone': lambda parts: datetime.timezone(*parts),
  'dict_keys': lambda keys: dict.fromkeys(keys).keys(),
  'dict_items': lambda items: dict(items).items(),
}
BASES = (int, float, str, bytes, bytearray, *CONTAINERS.values(), dict)
PLAIN = (type(None), bool, *BUILT, *BASES)
# A call may change arguments of these types in place.
CHANGEABLE = (
  list,
  dict,
  set,
  bytearray,
  collections.deque,
  collections.Counter,
  collections.OrderedDict,
  collections.defaultdict,
)
# A type may itself be an argument (`keep_only(values, int)`).
TYPES = {
  kind.__name__: kind for kind in (type(None), bool, complex, object, *BASES)
}


def _makes_plain(function) -> bool:
  """Returns whether a function is None or a type of `TYPES`."""
  return any(function is kind for kind in (None, *TYPES.values()))


def with_offset(x) -> datetime.datetime | datetime.time | None:
  """Returns a datetime or time of any zone with its offset from UTC.

  Returns None for other values.
  """
  if type(x) not in (datetime.datetime, datetime.time):
    return None
  offset, name = x.utcoffset(), x.tzname()
  parts = (offset,) if name is None else (offset, name)
  return x.replace(tzinfo=None if offset is None else datetime.timezone(*parts))


def arguments(x) -> list | None:
  """Returns the arguments that rebuild `x`, or None if nothing can."""
  if type(x) not in BUILT:
    return None
  zone = getattr(x, 'tzinfo', None)
  if type(zone) not in (type(None), datetime.timezone):
    return None  # other time zones are read from files
  if not _makes_plain(getattr(x, 'default_factory', None)):
    return None
  how = BUILT[type(x)]
  if isinstance(how, tuple):
    return [getattr(x, name) for name in how]
  return [how(x)]


def holds_object(data) -> bool:
  """Returns whether encoded data contain an object, which is not plain."""
  if type(data) is not list:
    return False
  return data[:1] in (['mine'], ['yours']) or any(map(holds_object, data))
