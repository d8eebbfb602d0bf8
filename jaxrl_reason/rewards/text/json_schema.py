"""A bounded part of JSON Schema, draft 2020-12.

  check(schema)               raises SchemaError on what this cannot hold to
  first_error(value, schema)  where and how the value breaks it, or None

Keywords: type, properties, required, additionalProperties, items, prefixItems,
enum, const, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf,
minLength, maxLength, pattern, minItems, maxItems, uniqueItems, minProperties,
maxProperties, anyOf, oneOf, allOf, not, $ref ('#' and '#/$defs/name'), $defs.
Annotations (title, description, ...) are passed over. Every other keyword is
an error: a rule that is silently not held to is a wrong reward.
https://json-schema.org/draft/2020-12

Patterns are Python's `re.search` and the schema's author is trusted, as in
`structure.matches_pattern`. At most `MAX_STEPS` schemas are applied to a
value; a value that needs more breaks its schema.
"""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from numbers import Real

MAX_STEPS = 20_000
MAX_REFS = 64  # $refs into each other without a step into the value
MAX_SCHEMA_DEPTH = 64
MAX_PATTERN_TEXT = 10_000
ANNOTATIONS = frozenset(
  '$schema $id $comment title description default examples deprecated '
  'readOnly writeOnly'.split()
)
LOCAL = re.compile(r'#(?:/\$defs/([^/~%]+))?')
TYPES = {
  'null': lambda v: v is None,
  'boolean': lambda v: isinstance(v, bool),
  'object': lambda v: isinstance(v, dict),
  'array': lambda v: isinstance(v, list),
  'string': lambda v: isinstance(v, str),
  'number': lambda v: is_number(v),
  'integer': lambda v: is_number(v) and v == v // 1,
}


class SchemaError(ValueError):
  """A schema with a keyword that is unknown, or whose value is wrong."""


class _TooMuch(Exception):
  """The budget is spent; no `not` above may take that for a failure."""


def is_number(value) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def canonical(value):
  """Hashable, and equal exactly where JSON values are: 1 is 1.0, not true."""
  if isinstance(value, dict):
    return 'object', frozenset((k, canonical(v)) for k, v in value.items())
  if isinstance(value, list):
    return 'array', tuple(map(canonical, value))
  if is_number(value):
    return 'number', value
  return type(value).__name__, value


# --- the schema itself ---------------------------------------------------


def check(schema) -> None:
  """Raises SchemaError, naming the place, unless all of it is understood."""
  _check(schema, schema, '#', 0)


def _check(schema, root, place: str, depth: int):
  if isinstance(schema, bool):
    return
  if not isinstance(schema, Mapping):
    raise SchemaError(f'{place} is {schema!r:.60}, no schema')
  if depth > MAX_SCHEMA_DEPTH:
    raise SchemaError(f'{place} is nested deeper than {MAX_SCHEMA_DEPTH}')
  for keyword, value in schema.items():
    if keyword in ANNOTATIONS:
      continue
    here = f'{place}/{keyword}'
    if keyword not in SHAPES:
      raise SchemaError(f'{here}: this keyword is not supported')
    if not SHAPES[keyword](value):
      raise SchemaError(f'{here} cannot be {value!r:.60}')
    if keyword == '$ref':
      _resolve(value, root)
    for name, inner in _inner(keyword, value):
      _check(inner, root, here + name, depth + 1)


def _inner(keyword: str, value) -> Iterator[tuple[str, object]]:
  """The schemas inside a keyword's value, with their places."""
  if keyword in ('properties', '$defs'):
    yield from ((f'/{name}', inner) for name, inner in value.items())
  elif keyword in ('anyOf', 'oneOf', 'allOf', 'prefixItems'):
    yield from ((f'/{i}', inner) for i, inner in enumerate(value))
  elif keyword in ('items', 'additionalProperties', 'not'):
    yield '', value


def _resolve(ref: str, root):
  match = LOCAL.fullmatch(ref)
  if match is None:
    raise SchemaError(f"$ref {ref!r:.60} is neither '#' nor '#/$defs/name'")
  if match[1] is None:
    return root
  definitions = root.get('$defs')
  if not isinstance(definitions, Mapping) or match[1] not in definitions:
    raise SchemaError(f'$ref {ref!r:.60}: there is no such definition')
  return definitions[match[1]]


def _is_type(value) -> bool:
  names = [value] if isinstance(value, str) else value
  return isinstance(names, list) and all(
    isinstance(name, str) and name in TYPES for name in names
  )


def _is_schemas(value) -> bool:
  return isinstance(value, list) and bool(value)


def _is_names(value) -> bool:
  return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _is_size(value) -> bool:
  return is_number(value) and value >= 0 and value == value // 1


def _is_pattern(value) -> bool:
  try:
    return isinstance(value, str) and re.compile(value) is not None
  except re.error:
    return False


def _is_schema(value) -> bool:
  return isinstance(value, (Mapping, bool))


SHAPES = {
  'type': _is_type,
  'enum': lambda v: isinstance(v, list),
  'const': lambda v: True,
  'multipleOf': lambda v: is_number(v) and v > 0,
  **dict.fromkeys(
    ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'), is_number
  ),
  **dict.fromkeys(
    (
      'minLength',
      'maxLength',
      'minItems',
      'maxItems',
      'minProperties',
      'maxProperties',
    ),
    _is_size,
  ),
  'pattern': _is_pattern,
  'uniqueItems': lambda v: isinstance(v, bool),
  'required': _is_names,
  **dict.fromkeys(('properties', '$defs'), lambda v: isinstance(v, Mapping)),
  **dict.fromkeys(('items', 'additionalProperties', 'not'), _is_schema),
  **dict.fromkeys(('anyOf', 'oneOf', 'allOf', 'prefixItems'), _is_schemas),
  '$ref': lambda v: isinstance(v, str),
}


# --- a value against it --------------------------------------------------


def first_error(value, schema) -> str | None:
  """Where and how a JSON value breaks a checked schema; None if it does not.

  Raises SchemaError where the schema's $refs go round in a circle.
  """
  try:
    return next(_Run(schema).errors(value, schema, '$', 0), None)
  except _TooMuch:
    return f'takes more than {MAX_STEPS} checks'


class _Run:
  """One validation: the root for $ref, and the budget."""

  def __init__(self, root):
    self.root = root
    self.steps = 0

  def errors(self, value, schema, place: str, refs: int) -> Iterator[str]:
    self.steps += 1
    if self.steps > MAX_STEPS:
      raise _TooMuch
    if isinstance(schema, bool):
      if not schema:
        yield f'{place} is not allowed'
      return
    for keyword, rule in RULES.items():
      if keyword in schema and not rule(value, schema[keyword]):
        yield f'{place} breaks {keyword} {schema[keyword]!r:.60}'
    yield from self.combined(value, schema, place, refs)
    if isinstance(value, dict):
      yield from self.members(value, schema, place)
    if isinstance(value, list):
      yield from self.elements(value, schema, place)

  def holds(self, value, schema, place: str, refs: int) -> bool:
    return next(self.errors(value, schema, place, refs), None) is None

  def combined(self, value, schema, place: str, refs: int) -> Iterator[str]:
    if '$ref' in schema:
      if refs >= MAX_REFS:
        raise SchemaError(f'$ref {schema["$ref"]!r:.60} refers to itself')
      target = _resolve(schema['$ref'], self.root)
      yield from self.errors(value, target, place, refs + 1)
    for inner in schema.get('allOf', ()):
      yield from self.errors(value, inner, place, refs + 1)
    for keyword in ('anyOf', 'oneOf'):
      if keyword in schema:
        n = sum(
          self.holds(value, inner, place, refs + 1) for inner in schema[keyword]
        )
        if n == 0 or (n > 1 and keyword == 'oneOf'):
          yield f'{place} is {n} of {keyword}'
    if 'not' in schema and self.holds(value, schema['not'], place, refs + 1):
      yield f'{place} is what it must not be'

  def members(self, value: dict, schema, place: str) -> Iterator[str]:
    properties = schema.get('properties', {})
    for name in schema.get('required', ()):
      if name not in value:
        yield f'{place} has no {name!r:.60}'
    rest = schema.get('additionalProperties', True)
    for name, member in value.items():
      inner = properties.get(name, rest)
      yield from self.errors(member, inner, f'{place}.{name:.40}', 0)

  def elements(self, value: list, schema, place: str) -> Iterator[str]:
    first = schema.get('prefixItems', ())
    rest = schema.get('items', True)
    if rest is True:
      value = value[: len(first)]
    for i, element in enumerate(value):
      inner = first[i] if i < len(first) else rest
      yield from self.errors(element, inner, f'{place}[{i}]', 0)


def _is_multiple(value: Real, of: Real) -> bool:
  """Of the decimal numbers as written: 0.3 is a multiple of 0.1."""
  return (Fraction(repr(value)) / Fraction(repr(of))).denominator == 1


def _for(kind, rule):
  """A keyword says nothing about values of another type."""
  return lambda value, limit: not kind(value) or rule(value, limit)


RULES = {
  'type': lambda v, names: any(
    TYPES[name](v) for name in ([names] if isinstance(names, str) else names)
  ),
  'enum': lambda v, options: canonical(v) in map(canonical, options),
  'const': lambda v, only: canonical(v) == canonical(only),
  'minimum': _for(is_number, lambda v, limit: v >= limit),
  'maximum': _for(is_number, lambda v, limit: v <= limit),
  'exclusiveMinimum': _for(is_number, lambda v, limit: v > limit),
  'exclusiveMaximum': _for(is_number, lambda v, limit: v < limit),
  'multipleOf': _for(is_number, _is_multiple),
  'minLength': _for(TYPES['string'], lambda v, n: len(v) >= n),
  'maxLength': _for(TYPES['string'], lambda v, n: len(v) <= n),
  'pattern': _for(
    TYPES['string'],
    lambda v, p: len(v) <= MAX_PATTERN_TEXT and bool(re.search(p, v)),
  ),
  'minItems': _for(TYPES['array'], lambda v, n: len(v) >= n),
  'maxItems': _for(TYPES['array'], lambda v, n: len(v) <= n),
  'uniqueItems': _for(
    TYPES['array'],
    lambda v, wanted: not wanted or len(set(map(canonical, v))) == len(v),
  ),
  'minProperties': _for(TYPES['object'], lambda v, n: len(v) >= n),
  'maxProperties': _for(TYPES['object'], lambda v, n: len(v) <= n),
}
