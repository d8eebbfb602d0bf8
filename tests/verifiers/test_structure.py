"""JSON, schemas and patterns: correct and incorrect values, invalid
examples.
"""

import json
import math
import socket
import time
import urllib.request

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers import pool
from jaxrl_reason.verifiers.text import json_schema, structure
from jaxrl_reason.verifiers.text.json_schema import SchemaError

FEW = settings(max_examples=200, deadline=None, derandomize=True)
SCALARS = st.one_of(
  st.none(),
  st.booleans(),
  st.integers(-(10**20), 10**20),
  st.floats(allow_nan=False, allow_infinity=False),
  st.text(max_size=8),
)
VALUES = st.recursive(
  SCALARS,
  lambda inner: st.one_of(
    st.lists(inner, max_size=4),
    st.dictionaries(st.text(max_size=4), inner, max_size=4),
  ),
  max_leaves=12,
)


@FEW
@given(VALUES)
def test_every_json_value_is_read_back(value):
  string = json.dumps(value)
  assert structure.loads(string) == value
  assert structure.valid_json(string, {}, part='all').score == 1.0
  # A value equals itself, and satisfies itself as a constant.
  assert json_schema.canonical(value) == json_schema.canonical(value)
  example = {'answer': string, 'schema': {'const': value}}
  assert structure.equal_json(string, example, part='all').score == 1.0
  assert structure.matches_schema(string, example, part='all').score == 1.0


@FEW
@given(VALUES, VALUES)
def test_equal_values_are_those_with_equal_texts(a, b):
  def plain(value):  # 1.0 and 1 are one number, True is another value
    if isinstance(value, dict):
      return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
      return [*map(plain, value)]
    if isinstance(value, float) and value == math.floor(value):
      return int(value)
    return value

  same = json.dumps(plain(a), sort_keys=True) == json.dumps(
    plain(b), sort_keys=True
  )
  assert (json_schema.canonical(a) == json_schema.canonical(b)) == same


PIECES = st.sampled_from(
  [*'[]{}:,"\\', '"a":', '1', 'null', '1e999', ' ', '\n']
)


@FEW
@given(st.one_of(st.text(max_size=40), st.lists(PIECES).map(''.join)))
def test_reading_is_total_and_stricter_than_pythons(string):
  try:
    value = structure.loads(string)
  except structure.JsonError:
    return
  assert json.loads(string) == value


@pytest.mark.parametrize(
  'string',
  [
    '',
    '{',
    '[1,]',
    "{'a': 1}",
    'NaN',
    '[Infinity]',
    '[-Infinity]',
    '1e999',
    '{"a": 1, "a": 2}',
    '{"b": {"a": 1, "a": 1}}',
    '1 2',
    '"\n"',
    '[' * 65 + ']' * 65,
    '[' * 100_000,
    '{"a":' * 100_000,
    '9' * 1_000,
    '[' + ' ' * 300_000 + ']',
  ],
)
def test_invalid_json(string):
  with pytest.raises(structure.JsonError):
    structure.loads(string)
  assert structure.valid_json(string, {}, strict=True).score == 0.0


def test_brackets_in_texts_do_not_nest():
  assert structure.loads(json.dumps(['[' * 500, '\\"' + '{' * 500]))
  assert structure.loads('[' * 64 + ']' * 64)


@pytest.mark.parametrize(
  ('completion', 'loose', 'strict'),
  [
    ('{"a": 1}', 1, 1),
    (' [1]\n', 1, 1),
    ('<think>x</think>{"a": 1}', 1, 1),
    ('<answer>{"a": 1}</answer>', 1, 1),
    ('```json\n{"a": 1}\n```', 1, 0),
    ('Here it is:\n```\n[1]\n```\nDone.', 1, 0),
    ('The object is {"a": {"b": 2}}.', 1, 0),
    ('No {object}', 0, 0),
    ('', 0, 0),
    ('<think>{"a": 1}', 0, 0),
  ],
)
def test_positions_of_the_json(completion, loose, strict):
  assert structure.valid_json(completion, {}).score == loose
  assert structure.valid_json(completion, {}, strict=True).score == strict


# (schema, values it allows, values it does not)
RULES = [
  ({}, [None, 1, 'a', [], {}], []),
  (True, [None], []),
  (False, [], [None, {}]),
  ({'type': 'integer'}, [1, -5, 2.0], [1.5, True, '1', None]),
  ({'type': 'number'}, [1, 1.5], [True, '1']),
  ({'type': ['string', 'null']}, ['a', None], [1, []]),
  ({'type': 'boolean'}, [True, False], [0, 1]),
  ({'enum': [1, 'a', [2]]}, [1, 1.0, 'a', [2]], [True, 'b', [2.5], '1']),
  ({'const': {'a': [1]}}, [{'a': [1.0]}], [{'a': [True]}, {'a': [1], 'b': 2}]),
  ({'minimum': 2, 'maximum': 3}, [2, 3, 2.5, 'a'], [1.9, 4]),
  ({'exclusiveMinimum': 2, 'exclusiveMaximum': 3}, [2.5], [2, 3]),
  ({'multipleOf': 0.1}, [0.3, 1, 0, 'a'], [0.35]),
  ({'multipleOf': 3}, [9, -3, 6.0], [10, 1.5]),
  ({'minLength': 2, 'maxLength': 3}, ['ab', 'äöü', 1], ['a', 'abcd']),
  ({'pattern': '^a+$'}, ['aa', 5], ['ab', '']),
  ({'minItems': 1, 'maxItems': 2}, [[1], [1, 2], 'abc'], [[], [1, 2, 3]]),
  ({'uniqueItems': True}, [[1, 2], [1, True]], [[1, 1.0], [{}, {}]]),
  (
    {'minProperties': 1, 'maxProperties': 1},
    [{'a': 1}],
    [{}, {'a': 1, 'b': 2}],
  ),
  ({'items': {'type': 'integer'}}, [[], [1, 2], 'a'], [[1, 'a']]),
  (
    {'prefixItems': [{'type': 'string'}], 'items': {'type': 'integer'}},
    [[], ['a'], ['a', 1, 2]],
    [[1], ['a', 'b']],
  ),
  ({'prefixItems': [{'type': 'string'}], 'items': False}, [['a']], [['a', 1]]),
  (
    {'properties': {'a': {'type': 'integer'}}, 'required': ['a']},
    [{'a': 1}, {'a': 1, 'b': 'x'}, 'text'],
    [{}, {'a': 'x'}, {'b': 1}],
  ),
  (
    {'properties': {'a': {}}, 'additionalProperties': False},
    [{}, {'a': 1}],
    [{'b': 1}],
  ),
  ({'additionalProperties': {'type': 'integer'}}, [{'x': 1}], [{'x': 'a'}]),
  ({'anyOf': [{'type': 'integer'}, {'minLength': 2}]}, [1, 'ab'], ['a']),
  ({'oneOf': [{'type': 'integer'}, {'minimum': 2}]}, [1, 2.5], [2, 1.5]),
  ({'allOf': [{'minimum': 1}, {'maximum': 2}]}, [1, 2], [0, 3]),
  ({'not': {'type': 'integer'}}, ['a', 1.5], [1]),
  (
    {
      '$ref': '#/$defs/node',
      '$defs': {
        'node': {
          'type': 'object',
          'properties': {'next': {'$ref': '#/$defs/node'}},
          'additionalProperties': False,
        }
      },
    },
    [{}, {'next': {'next': {}}}],
    [{'next': 1}, {'next': {'next': {'x': 1}}}],
  ),
  (
    {'properties': {'inner': {'$ref': '#'}}, 'required': ['n']},
    [{'n': 1, 'inner': {'n': 2}}],
    [{'n': 1, 'inner': {}}],
  ),
  ({'title': 'T', 'description': 'D', 'default': 5}, [1, 'a'], []),
  (
    {
      'patternProperties': {'^x': {'type': 'integer'}},
      'propertyNames': {'maxLength': 2},
      'additionalProperties': False,
    },
    [{}, {'x': 1, 'xy': 2}, 5],
    [{'x': 'a'}, {'xyz': 1}, {'y': 1}],
  ),
  (
    {
      'if': {'required': ['a']},
      'then': {'required': ['b']},
      'else': {'required': ['c']},
    },
    [{'a': 1, 'b': 2}, {'c': 3}, 'text'],
    [{'a': 1}, {'b': 2}, {'a': 1, 'c': 3}],
  ),
  (
    {'contains': {'const': 1}, 'minContains': 2, 'maxContains': 3},
    [[1, 1], [1, 0, 1.0, 1], 'text'],
    [[], [1, True], [1, 1, 1, 1]],
  ),
  ({'contains': {'type': 'string'}}, [['a'], [1, 'a']], [[], [1]]),
  (
    {
      'dependentRequired': {'a': ['b']},
      'dependentSchemas': {'c': {'maxProperties': 1}},
    },
    [{}, {'a': 1, 'b': 2}, {'c': 1}, {'b': 1}],
    [{'a': 1}, {'c': 1, 'd': 2}],
  ),
  (
    {
      'allOf': [{'properties': {'a': {}}}],
      'properties': {'b': {}},
      'unevaluatedProperties': False,
    },
    [{}, {'a': 1, 'b': 2}, []],
    [{'c': 1}, {'a': 1, 'c': 2}],
  ),
  (
    {'allOf': [{'prefixItems': [{}]}], 'unevaluatedItems': {'type': 'null'}},
    [[], [1], [1, None], 'text'],
    [[1, 2], [None, None, 0]],
  ),
  (
    {
      '$schema': 'http://json-schema.org/draft-07/schema#',
      'definitions': {'whole': {'type': 'integer', '$anchor': 'w'}},
      'properties': {'a': {'$ref': '#/definitions/whole'}},
      'additionalProperties': {'$ref': '#w'},
    },
    [{'a': 1, 'b': 2}],
    [{'a': 'x'}, {'b': 'x'}],
  ),
  (
    {
      '$id': 'https://example.com/list',
      'items': {'$ref': '/deep#/$defs/n'},
      '$defs': {'d': {'$id': '/deep', '$defs': {'n': {'minimum': 1}}}},
    },
    [[1, 2], 0],
    [[0], [1, 0]],
  ),
  (  # An extensible tree: the draft's own example of the two keywords.
    {
      '$id': 'https://example.com/strict-tree',
      '$dynamicAnchor': 'node',
      '$ref': 'tree',
      'unevaluatedProperties': False,
      '$defs': {
        'tree': {
          '$id': 'tree',
          '$dynamicAnchor': 'node',
          'properties': {
            'data': True,
            'children': {'items': {'$dynamicRef': '#node'}},
          },
        }
      },
    },
    [{'children': [{'data': 1}]}],
    [{'daat': 1}, {'children': [{'daat': 1}]}],
  ),
  # A property may have the name of a keyword, an unknown one too.
  (
    {'properties': {'$schema': {'type': 'string'}, 'format': {'minimum': 1}}},
    [{'$schema': 'a', 'format': 1}],
    [{'$schema': 1}, {'format': 0}],
  ),
]


@pytest.mark.parametrize('rule', RULES, ids=lambda rule: str(rule[0])[:40])
def test_schemas(rule):
  schema, allowed, refused = rule
  for value, right in [(v, 1) for v in allowed] + [(v, 0) for v in refused]:
    example = {'schema': schema}
    verdict = structure.matches_schema(json.dumps(value), example)
    assert verdict.score == right, (value, verdict.detail)
    assert bool(verdict.detail) != bool(right)
    example = {'meta': {'schema': json.dumps(schema)}}
    assert structure.matches_schema(json.dumps(value), example).score == right


def test_every_keyword_has_a_rule_in_the_tests():
  used = set()
  for schema, _, _ in RULES:
    used |= set(json.dumps(schema).replace('"', ' ').split())
  assert {k for k in json_schema.KEYWORDS if k not in used} == set()


@FEW
@given(VALUES)
def test_schemas_agree_with_an_independent_validator(value):
  fastjsonschema = pytest.importorskip('fastjsonschema')  # draft 7
  newer = ('prefixItems', 'dependent', 'unevaluated', 'Contains', '$id', '$an')
  for schema, _, _ in RULES:
    # fastjsonschema divides floats, and does not distinguish 1 from True.
    skipped = (*newer, 'multipleOf', 'enum', 'const', 'unique')
    if isinstance(schema, bool) or any(k in str(schema) for k in skipped):
      continue
    ours = json_schema.first_error(value, schema) is None
    try:
      fastjsonschema.validate(schema, value, use_default=False)
      theirs = True
    except fastjsonschema.JsonSchemaValueException:
      theirs = False
    assert ours == theirs, (schema, value)


@pytest.mark.parametrize(
  ('schema', 'words'),
  [
    ({'not': 5}, '#/not'),
    ({'format': 'email'}, '#/format'),
    ({'properties': {'a': {'requird': ['b']}}}, '#/properties/a/requird'),
    ({'$defs': {'x': {'dependencies': {}}}}, r'#/\$defs/x/dependencies'),
    ({'if': {'else': {'contentEncoding': 'base64'}}}, '#/if/else/contentEnc'),
    ({'items': {'$recursiveRef': '#'}}, '#/items/.recursiveRef'),
    ({'patternProperties': {'(': {}}}, '#/patternProperties'),
    ({'patternProperties': {'a': 5}}, '#/patternProperties/a'),
    ({'$schema': 'https://example.com/own'}, r'#/\$schema'),
    ({'const': math.nan}, 'JSON'),
    ({'const': {1, 2}}, 'JSON'),
    ({'$ref': 'http://[/'}, 'ref'),
    ({'$dynamicRef': 'other.json#x'}, 'other.json'),
    ({'items': {'$ref': '#none'}}, 'none'),
    ({'$ref': 'file:///etc/hostname'}, 'file:'),
    ({'type': 'text'}, '#/type'),
    ({'minimum': '3'}, '#/minimum'),
    ({'multipleOf': 0}, '#/multipleOf'),
    ({'minLength': -1}, '#/minLength'),
    ({'pattern': '('}, '#/pattern'),
    ({'required': 'a'}, '#/required'),
    ({'items': [{}]}, '#/items'),
    ({'anyOf': []}, '#/anyOf'),
    ({'$ref': 'http://example.com'}, 'http'),
    ({'$ref': '#/$defs/none'}, 'none'),
    ({'$ref': '#/$defs/x', '$defs': 5}, 'defs'),
    (json.loads('{"not":' * 70 + 'true' + '}' * 70), 'deeper'),
  ],
)
def test_a_bad_schema_is_an_error_that_names_the_place(schema, words):
  with pytest.raises(SchemaError, match=words):
    structure.matches_schema('1', {'schema': schema})


def test_references_are_never_downloaded(monkeypatch):
  """Other references raise an error before a socket is opened."""
  monkeypatch.setattr(urllib.request, 'urlopen', None)
  monkeypatch.setattr(socket, 'socket', None)
  url = 'http://json-schema.org/none'
  for schema in ({'$ref': url}, {'$dynamicRef': url}, {'not': {'$ref': url}}):
    with pytest.raises(SchemaError, match='nothing is downloaded'):
      structure.matches_schema('1', {'schema': schema})
  meta = {'$ref': 'https://json-schema.org/draft/2020-12/schema'}
  example = {'schema': meta}
  assert structure.matches_schema('{"minimum": 1}', example).score == 1.0
  assert structure.matches_schema('{"minimum": "1"}', example).score == 0.0


@pytest.mark.parametrize(
  'schema',
  [
    {'allOf': [{'$ref': '#'}]},
    {'not': {'$ref': '#/$defs/a'}, '$defs': {'a': {'not': {'$ref': '#'}}}},
    {'$dynamicRef': '#a', '$dynamicAnchor': 'a'},
    {'$ref': '#/$defs/a', '$defs': {'a': {'if': {'$ref': '#/$defs/a'}}}},
  ],
)
def test_every_circle_of_references_is_an_error(schema):
  with pytest.raises(SchemaError, match='itself'):
    structure.matches_schema('{}', {'schema': schema})


def test_a_circle_of_references_is_an_error():
  with pytest.raises(SchemaError, match='itself'):
    structure.matches_schema('1', {'schema': {'$ref': '#'}})


def test_validation_has_a_budget():
  """Each level tries two branches: 2^60 checks without a budget."""
  schema = {'anyOf': [{'allOf': [{'items': {'$ref': '#'}}, False]}] * 2}
  start = time.process_time()
  verdict = structure.matches_schema('[' * 60 + ']' * 60, {'schema': schema})
  assert verdict.score == 0.0 and 'more than' in verdict.detail
  # Without a limit, a message would quote the whole value for each broken rule.
  text = '[' * 60 + '"' + 'x' * 199_000 + '"' + ']' * 60
  verdict = structure.matches_schema(text, {'schema': schema})
  assert verdict.score == 0.0 and 'more than' in verdict.detail
  schema = {'not': schema}  # `not` must not negate the end of the budget
  verdict = structure.matches_schema('[' * 60 + ']' * 60, {'schema': schema})
  assert verdict.score == 0.0
  assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
  ('a', 'b', 'same'),
  [
    ('{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1}', 1),
    ('[1, 2]', '[2, 1]', 0),
    ('1', 'true', 0),
    ('"1"', '1', 0),
    ('null', '0', 0),
    ('none', '0', 0),
  ],
)
def test_equal_json(a, b, same):
  assert structure.equal_json(a, {'answer': b}).score == same


def pattern(completion, expression, **knobs):
  example = {'pattern': expression}
  return structure.matches_pattern(completion, example, **knobs).score


def test_patterns():
  assert pattern(' AB-12\n', r'[A-Z]{2}-\d+') == 1
  assert pattern('code AB-12', r'[A-Z]{2}-\d+') == 0
  assert pattern('code AB-12', r'[A-Z]{2}-\d+', whole=False) == 1
  assert pattern('<think>x</think>ok', 'ok') == 1
  assert pattern('<think>ok', 'ok') == 0
  assert pattern('', '') == 1
  assert pattern('a' * structure.MAX_PATTERN_TEXT, 'a*') == 1
  assert pattern('a' * (structure.MAX_PATTERN_TEXT + 1), 'a*') == 0
  with pytest.raises(ValueError, match='pattern'):
    pattern('a', '(')


def test_the_pool_ends_a_pattern_that_backtracks():
  cases = [('a' * 40 + 'b', {'pattern': '(a+)+'}), ('aa', {'pattern': '(a+)+'})]
  with pool.VerifierPool('regex', workers=1, timeout_s=0.5) as verifiers:
    slow, quick = verifiers.map(cases)
  assert (slow.status, slow.valid) == ('timeout', False)
  assert quick.score == 1.0


@pytest.mark.parametrize('piece', ['"', '\\"', '[', '{"', '```\n', '```', '1,'])
def test_long_completions_are_verified_quickly(piece):
  text = piece * (150_000 // len(piece))
  start = time.process_time()
  structure.valid_json(text, {})
  structure.matches_schema(f'[{text}]', {'schema': {'uniqueItems': True}})
  assert time.process_time() - start < 5.0
