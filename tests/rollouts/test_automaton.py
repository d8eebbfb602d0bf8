"""Automata over tokens equal the definitions of their texts."""

import json
import re

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest

from jaxrl_reason.rollouts import automaton

TOKENS = [b'', b'a', b'b', b'ab', b'ba', b'aab', b'\xc3', b'\xa9', b'bbab']
EOS = 0


def states_of(a, ids):
  """Returns the state after each token, from the first state."""
  state, found = 0, []
  for i in ids:
    state = after(a, state, i)
    found.append(state)
  return found


def allowed(a, state, vocab):
  return np.flatnonzero(~np.asarray(a.refused(state, vocab)[0]))


def after(a, state, token):
  return int(a.next(jnp.asarray([state]), jnp.asarray([token]))[0])


@pytest.mark.parametrize('stops', [['ab'], ['aa', 'bab'], ['b', 'aab'], ['é']])
def test_a_stop_is_found_anywhere_in_the_text(stops):
  """A stop may span tokens, or be within one. The model has more tokens than
  the automaton.
  """
  a = automaton.of_stops(stops, TOKENS, len(TOKENS) + 3)
  rng = np.random.default_rng(0)
  n = 0
  for _ in range(100):
    ids = rng.integers(len(TOKENS) + 2, size=8)
    pieces = [TOKENS[i] if i < len(TOKENS) else b'' for i in ids]
    for at, state in enumerate(states_of(a, ids)):
      text = b''.join(pieces[: at + 1])
      n += (there := any(s.encode() in text for s in stops))
      assert bool(a.ended[state]) == there, (text, stops)
  assert n > 20


def test_an_expression_allows_the_tokens_that_continue_it():
  pytest.importorskip('outlines_core')
  expression = 'a(ba)*b?'
  a = automaton.of_expression(expression, TOKENS, len(TOKENS) + 1, [EOS])
  continues = re.compile('(a(ba)*b?)?').fullmatch
  todo, seen = [('', 0)], set()
  while todo:
    text, state = todo.pop()
    free = set(allowed(a, jnp.asarray([state]), len(TOKENS) + 3).tolist())
    # These texts are all ASCII, and every prefix of a match is one or empty.
    fits = {
      i
      for i, t in enumerate(TOKENS)
      if t.isascii() and t and continues(text + t.decode())
    }
    ends = {EOS} if re.fullmatch(expression, text) else set()
    assert free == fits | ends, text
    if len(text) < 6:
      todo += [(text + TOKENS[i].decode(), after(a, state, i)) for i in fits]
    seen.add(state)
  assert len(seen) > 2


def test_texts_of_a_schema_are_valid():
  pytest.importorskip('outlines_core')
  schema = {
    'type': 'object',
    'properties': {'n': {'type': 'integer'}, 'ok': {'type': 'boolean'}},
    'required': ['n', 'ok'],
  }
  expression = automaton.of_schema(json.dumps(schema))
  tokens = [b''] + [bytes([i]) for i in range(32, 127)]
  a = automaton.of_expression(expression, tokens, len(tokens), [EOS])
  rng, whole = np.random.default_rng(0), 0
  for _ in range(20):
    state, text = jnp.zeros(1, jnp.int32), b''
    for _ in range(60):
      token = rng.choice(allowed(a, state, len(tokens)))
      if token == EOS:
        jsonschema.validate(json.loads(text), schema)
        whole += 1
        break
      text += tokens[token]
      state = a.next(state, jnp.asarray([token]))
  assert whole > 10


@pytest.mark.parametrize(
  'make, words',
  [
    (lambda: automaton.of_stops([''], TOKENS, 9), 'is empty'),
    (lambda: automaton.of_expression('a(', TOKENS, 9, [EOS]), r"'a\('"),
    (lambda: automaton.of_schema('{'), 'the JSON schema'),
    (lambda: automaton.of_schema('{"anyOf": 3}'), 'the JSON schema is malf'),
    (
      lambda: automaton.of_schema('{"type": "string", "format": "ipv4"}'),
      'the JSON schema: Format ipv4',
    ),
  ],
)
def test_unsupported_patterns_are_refused(make, words):
  pytest.importorskip('outlines_core')
  with pytest.raises(ValueError, match=words):
    make()


INTEGER, NODE = {'type': 'integer'}, {'$ref': '#/$defs/node'}
TREE = {'type': 'object', 'properties': {'next': NODE}, 'required': ['next']}


@pytest.mark.parametrize(
  'schema, words',
  [
    (INTEGER | {'minimum': 3}, '#: minimum beside type is'),
    ({'properties': {'a': INTEGER | {'multipleOf': 2}}}, '#/properties/a: mul'),
    ({'type': 'array', 'uniqueItems': True}, 'uniqueItems beside type'),
    ({'type': 'array', 'items': {'not': {}}}, '#/items: not is not'),
    (
      {'type': 'string', 'pattern': 'a+', 'minLength': 3},
      'pattern beside type',
    ),
    ({'properties': {}, 'dependentRequired': {}}, 'dependentRequired beside'),
    ({'properties': {'a': INTEGER}, 'required': ['b']}, "required has 'b'"),
    ({'oneOf': [INTEGER, {'type': 'number'}]}, 'oneOf with schemas that may'),
    ({'allOf': [INTEGER, {'type': 'number'}]}, 'allOf with several'),
    ({'anyOf': [INTEGER], 'type': 'integer'}, 'type beside anyOf'),
    ({'type': 'string', 'properties': {}}, 'beside properties must be object'),
    ({'prefixItems': [INTEGER], 'items': INTEGER}, 'items beside prefixItems'),
    ({'properties': {'a': {'$ref': '#'}}}, "ref='#' must be in this file"),
    (NODE | {'$defs': {'node': TREE}}, 'not lead to itself'),
    ({'$ref': '#/$defs/x'}, 'names no schema'),
    ({'anyOf': [True]}, '#/anyOf/0: true is no object'),
  ],
)
def test_keywords_that_texts_may_violate_are_refused(schema, words):
  pytest.importorskip('outlines_core')
  with pytest.raises(
    ValueError, match=f'the JSON schema at .*{words}'
  ) as error:
    automaton.of_schema(json.dumps(schema))
  assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  'schema',
  [
    {'type': ['integer', 'null'], 'title': 'A number'},
    {'oneOf': [INTEGER, {'type': 'string', 'maxLength': 3}]},
    {'allOf': [INTEGER]},
    {'type': 'integer', 'enum': [1, 2]},
    {'$ref': '#/$defs/x', '$defs': {'x': INTEGER}},
    {'prefixItems': [INTEGER, INTEGER], 'items': False},
    {
      'type': 'object',
      'properties': {'a': {'anyOf': [INTEGER, {'type': 'null'}]}},
      'required': ['a'],
      'additionalProperties': False,
    },
  ],
)
def test_supported_schemas_are_compiled(schema):
  pytest.importorskip('outlines_core')
  assert re.compile(automaton.of_schema(json.dumps(schema)))


def test_a_table_without_a_bound_is_refused(monkeypatch):
  pytest.importorskip('outlines_core')

  def make(n):
    return automaton.of_expression(f'a{{{n}}}', TOKENS, 9, [EOS])

  make(5)
  monkeypatch.setattr(automaton, 'MOST_BYTES', 9 * 4 * 10)
  make(5)
  with pytest.raises(ValueError, match='21 states of 9 tokens need a table of'):
    make(20)
