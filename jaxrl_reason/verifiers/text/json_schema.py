"""Validates JSON against JSON Schema, draft 2020-12, by `jsonschema`.

  check(schema)               raises SchemaError for unsupported schemas
  first_error(value, schema)  returns the first error of a value, or None

All assertion keywords of the draft are applied, and annotations (title,
description, ...) are ignored. Any other keyword raises an error, also 'format',
because a rule that is silently ignored makes a wrong reward. Nothing is
downloaded: a $ref must refer to the schema itself, or to the draft's
meta-schema. https://json-schema.org/draft/2020-12

At most `MAX_STEPS` keywords are applied to a value. A value that needs more is
invalid. Patterns are applied by Python's `re.search`. The author of the schema
is trusted, as in `structure.matches_pattern`: only the time limit of the pool
stops a pattern that backtracks.
"""

import contextvars
import functools
import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction

import jsonschema
import jsonschema_specifications
import referencing.exceptions
from jsonschema.exceptions import ValidationError
from referencing.jsonschema import DRAFT202012

MAX_STEPS = 20_000
STEP_CHARS = 1_000  # characters of a message that count as one keyword
MAX_SCHEMA_DEPTH = 64
MAX_PATTERN_TEXT = 10_000
MAX_CACHED = 256  # cached schemas
IN_DICTS = frozenset(
  '$defs definitions properties patternProperties dependentSchemas'.split()
)
IN_LISTS = frozenset('allOf anyOf oneOf prefixItems'.split())
INSIDE = frozenset(
  'items additionalProperties contains if then else not propertyNames '
  'unevaluatedItems unevaluatedProperties'.split()
)
PLAIN = frozenset(
  'type enum const minimum maximum exclusiveMinimum exclusiveMaximum '
  'multipleOf minLength maxLength pattern minItems maxItems uniqueItems '
  'minContains maxContains minProperties maxProperties required '
  'dependentRequired $ref $dynamicRef $dynamicAnchor $anchor $id'.split()
)
KEYWORDS = IN_DICTS | IN_LISTS | INSIDE | PLAIN
ANNOTATIONS = frozenset(
  '$schema $comment title description default examples deprecated readOnly '
  'writeOnly'.split()
)
# Keywords with another meaning in older drafts are mostly unknown here.
DRAFT = re.compile(
  r'https?://json-schema\.org/(draft/(2019-09|2020-12)|draft-0[4-7])/schema#?'
)


class SchemaError(ValueError):
  """A schema with a keyword that is unknown, or whose value is wrong."""


class _TooMuch(Exception):
  """Validation took too many steps. `not` must not catch this error."""


def is_number(value) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def canonical(value):
  """Makes JSON values hashable. Equality is that of JSON: 1 is 1.0, not
  true.
  """
  if isinstance(value, dict):
    return 'object', frozenset((k, canonical(v)) for k, v in value.items())
  if isinstance(value, list):
    return 'array', tuple(map(canonical, value))
  if is_number(value):
    return 'number', value
  return type(value).__name__, value


# --- the schema itself ---------------------------------------------------


def check(schema) -> None:
  """Raises SchemaError, with the path, for an unsupported schema."""
  _validator(_text(schema))


def _text(schema) -> str:
  try:
    return json.dumps(schema, allow_nan=False, default=dict)
  except RecursionError:
    raise SchemaError(f'# is nested deeper than {MAX_SCHEMA_DEPTH}') from None
  except (TypeError, ValueError) as e:
    raise SchemaError(f'# is not JSON: {e}') from e


@functools.lru_cache(MAX_CACHED)
def _validator(text: str) -> 'jsonschema.protocols.Validator':
  """Checks a schema's JSON text and returns its validator."""
  schema = json.loads(text)
  _check(schema, '#', 0)
  meta = jsonschema.Draft202012Validator(_META)
  problem = next(meta.iter_errors(schema), None)
  if problem is not None:
    place = ''.join(f'/{part}' for part in problem.absolute_path)
    raise SchemaError(f'#{place}: {problem.message}'[:300])
  try:
    root = DRAFT202012.create_resource(schema)
    base = root.id() or ''
    registry = _REGISTRY.with_resource(base, root)
    _check_references(root, registry.crawl().resolver(base))
  except ValueError as e:
    raise SchemaError(f'# has an $id or a $ref that is not a URI: {e}') from e
  return _Bounded(schema, registry=registry)


def _check(schema, place: str, depth: int):
  """Checks keywords, depth and patterns. The meta-schema checks the rest.

  Removes '$schema' in place. Every draft is read as 2020-12, and with '$schema'
  jsonschema would use another validator without our limits.
  """
  if not isinstance(schema, dict):
    return
  if depth > MAX_SCHEMA_DEPTH:
    raise SchemaError(f'{place} is nested deeper than {MAX_SCHEMA_DEPTH}')
  dialect = schema.pop('$schema', '')
  if dialect and not (isinstance(dialect, str) and DRAFT.fullmatch(dialect)):
    raise SchemaError(f'{place}/$schema: {dialect!r:.80} is not a known draft')
  for keyword, value in schema.items():
    here = f'{place}/{keyword}'
    if keyword not in KEYWORDS and keyword not in ANNOTATIONS:
      raise SchemaError(f'{here}: this keyword is not supported')
    for pattern in _patterns(keyword, value):
      try:
        re.compile(pattern)
      except (re.error, OverflowError, RecursionError) as e:
        raise SchemaError(
          f'{here}: {pattern!r:.60} is not a pattern: {e}'
        ) from e
    for name, inner in _inner(keyword, value):
      _check(inner, here + name, depth + 1)


def _patterns(keyword: str, value) -> list[str]:
  if keyword == 'pattern':
    return [value] if isinstance(value, str) else []
  return list(value) if keyword == 'patternProperties' else []


def _inner(keyword: str, value) -> Iterator[tuple[str, object]]:
  """Yields (path, schema) of the schemas in a keyword's value."""
  if keyword in IN_DICTS and isinstance(value, Mapping):
    yield from ((f'/{name}', inner) for name, inner in value.items())
  elif keyword in IN_LISTS and isinstance(value, list):
    yield from ((f'/{i}', inner) for i, inner in enumerate(value))
  elif keyword in INSIDE:
    yield '', value


def _check_references(resource, resolver):
  for keyword in ('$ref', '$dynamicRef'):
    if isinstance(resource.contents, dict) and keyword in resource.contents:
      _resolve(keyword, resource.contents[keyword], resolver)
  for inner in resource.subresources():
    _check_references(inner, resolver.in_subresource(inner))


def _resolve(keyword: str, reference: str, resolver):
  try:
    resolver.lookup(reference)
  except referencing.exceptions.Unresolvable as e:
    raise SchemaError(
      f'{keyword} {reference!r:.80}: no such path in the schema; nothing is '
      'downloaded, so write a path such as #/$defs/name'
    ) from e


# --- a value against it --------------------------------------------------


def first_error(value, schema) -> str | None:
  """Returns path and kind of the first error of a JSON value, or None.

  Raises:
    SchemaError: as `check`, and if a $ref refers to itself.
  """
  validator = _validator(_text(schema))
  token = _RUN.set(_Run())
  try:
    error = next(validator.iter_errors(value), None)
  except _TooMuch:
    return f'needs more than {MAX_STEPS} checks'
  except RecursionError:
    return 'is nested too deep'
  finally:
    _RUN.reset(token)
  return None if error is None else f'{error.json_path}: {error.message}'[:200]


class _Run:
  """The state of one validation: its steps, and the references it follows."""

  def __init__(self):
    self.steps = 0
    self.active: set[tuple[int, int]] = set()

  def spend(self, steps: int):
    self.steps += steps
    if self.steps > MAX_STEPS:
      raise _TooMuch


_RUN: contextvars.ContextVar[_Run] = contextvars.ContextVar('run')


def _bounded(keyword: str, rule):
  """Returns a keyword's rule that counts its steps and refuses cycles of
  references.
  """

  def counted(validator, value, instance, schema):
    run = _RUN.get()
    run.spend(1)
    for error in rule(validator, value, instance, schema) or ():
      run.spend(len(error.message) // STEP_CHARS)  # messages quote the value
      yield error

  def followed(validator, value, instance, schema):
    active, here = _RUN.get().active, (id(schema), id(instance))
    if here in active:
      raise SchemaError(f'{keyword} {value!r:.60} refers to itself')
    active.add(here)
    yield from counted(validator, value, instance, schema)
    active.remove(here)

  return followed if keyword in ('$ref', '$dynamicRef') else counted


def _multiple_of(validator, of, instance, schema):
  """Applies multipleOf to decimal numbers: 0.3 is a multiple of 0.1."""
  if is_number(instance):
    share = Fraction(repr(instance)) / Fraction(repr(of))
    if share.denominator != 1:
      yield ValidationError(f'{instance!r} is not a multiple of {of!r}')


def _unique_items(validator, value, instance, schema):
  """Applies uniqueItems in linear time. That of jsonschema is quadratic."""
  if value and isinstance(instance, list):
    if len(set(map(canonical, instance))) < len(instance):
      yield ValidationError('an item occurs twice')


def _pattern(validator, pattern, instance, schema):
  if isinstance(instance, str):
    short = len(instance) <= MAX_PATTERN_TEXT
    if not (short and re.search(pattern, instance)):
      yield ValidationError(f'{instance!r:.80} does not match {pattern!r}')


_META = jsonschema.Draft202012Validator.META_SCHEMA
_REGISTRY = jsonschema_specifications.REGISTRY
_OWN = {
  'multipleOf': _multiple_of,
  'uniqueItems': _unique_items,
  'pattern': _pattern,
}
_Bounded = jsonschema.validators.extend(
  jsonschema.Draft202012Validator,
  {
    keyword: _bounded(keyword, _OWN.get(keyword, rule))
    for keyword, rule in jsonschema.Draft202012Validator.VALIDATORS.items()
  },
)
