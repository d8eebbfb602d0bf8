"""Tool calls: forms, the tools' schemas, the gold calls, partial credit."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers.text import tool_calls

FEW = settings(max_examples=150, deadline=None, derandomize=True)
TOOLS = [
  {
    'name': 'weather',
    'description': 'The weather of a city.',
    'parameters': {
      'type': 'object',
      'properties': {
        'city': {'type': 'string'},
        'days': {'type': 'integer', 'minimum': 1},
      },
      'required': ['city'],
    },
  },
  {'type': 'function', 'function': {'name': 'now'}},
]
ROME = {'name': 'weather', 'arguments': {'city': 'Rome', 'days': 3}}
OSLO = {'name': 'weather', 'arguments': {'city': 'Oslo', 'days': 3}}
NOW = {'name': 'now', 'arguments': {}}


def hermes(*calls):
  return '\n'.join(f'<tool_call>\n{json.dumps(c)}\n</tool_call>' for c in calls)


def score(completion, gold, tools=None, **knobs):
  example = {'answer': gold} | ({'tools': tools} if tools else {})
  return tool_calls.reward(completion, example, **knobs).score


FORMS = [
  hermes(ROME),
  'I look it up.\n' + hermes(ROME),
  f'<think>{hermes(OSLO)}</think>{hermes(ROME)}',
  json.dumps(ROME),
  json.dumps([ROME]),
  f'```json\n{json.dumps(ROME)}\n```',
  f'I call {json.dumps(ROME)}',
  json.dumps({'tool_calls': [{'type': 'function', 'function': ROME}]}),
  json.dumps({'name': 'weather', 'parameters': ROME['arguments']}),
  json.dumps({'name': 'weather', 'arguments': json.dumps(ROME['arguments'])}),
  hermes({'name': 'weather', 'arguments': {'days': 3.0, 'city': 'Rome'}}),
  hermes([ROME]),
]


@pytest.mark.parametrize('completion', FORMS)
def test_forms(completion):
  for gold in (json.dumps(ROME), [ROME], ROME):
    assert score(completion, gold) == 1.0
    assert score(completion, gold, TOOLS) == 1.0
  assert score(completion, [OSLO]) == 0.0
  assert tool_calls.valid(completion, {'tools': TOOLS}).score == 1.0


@pytest.mark.parametrize(
  ('completion', 'status'),
  [
    ('', 'no_answer'),
    ('It is sunny in Rome.', 'no_answer'),
    ('<think>' + hermes(ROME), 'no_answer'),
    ('<tool_call>' + json.dumps(ROME), 'unparsed'),
    (json.dumps(ROME) + '</tool_call>', 'unparsed'),
    ('<tool_call>weather(Rome)</tool_call>', 'unparsed'),
    ('<tool_call>{"arguments": {}}</tool_call>', 'unparsed'),
    ('<tool_call>{"name": "now", "arguments": 5}</tool_call>', 'unparsed'),
    ('<tool_call>{"name": "now", "name": "x"}</tool_call>', 'unparsed'),
    (hermes(*[NOW] * 11), 'unparsed'),
    ('{"name": "now", "arguments": ', 'no_answer'),
  ],
)
def test_texts_without_a_call(completion, status):
  for verdict in (
    tool_calls.reward(completion, {'answer': [NOW]}),
    tool_calls.valid(completion, {'tools': TOOLS}),
  ):
    assert (verdict.score, verdict.status) == (0.0, status)


def call(**arguments):
  return {'name': 'weather', 'arguments': arguments}


@pytest.mark.parametrize(
  ('item', 'right'),
  [
    (call(city='Rome'), 1),
    (NOW, 1),
    ({'name': 'now', 'arguments': {'zone': 'CET'}}, 1),  # no schema, no limit
    (call(days=3), 0),
    (call(city=5), 0),
    (call(city='Rome', days=0), 0),
    (call(city='Rome', unit='C'), 0),
    ({'name': 'forecast', 'arguments': {}}, 0),
  ],
)
def test_calls_are_validated_by_the_tools(item, right):
  example = {'tools': TOOLS}
  assert tool_calls.valid(hermes(item), example).score == right
  assert tool_calls.valid(hermes(NOW, item), example).score == right
  assert score(hermes(item), [item]) == 1.0
  assert score(hermes(item), [item], TOOLS) == right
  assert score(hermes(item), [item], TOOLS, score='partial') == right


def test_order_and_number():
  assert score(hermes(ROME, OSLO), [OSLO, ROME]) == 1.0
  assert score(hermes(ROME, OSLO), [OSLO, ROME], ordered=True) == 0.0
  assert score(hermes(ROME, OSLO), [ROME, OSLO], ordered=True) == 1.0
  assert score(hermes(ROME), [ROME, OSLO]) == 0.0
  assert score(hermes(ROME, ROME), [ROME]) == 0.0
  assert score(hermes(ROME, ROME), [ROME, OSLO]) == 0.0


def test_no_call_is_correct_without_gold_calls():
  assert score('It is sunny.', []) == 1.0
  assert score('My name: "x". The "name" of a city is [not] JSON.', '[]') == 1.0
  assert score(hermes(ROME), []) == 0.0
  assert score(hermes(ROME), [], score='partial') == 0.0


@pytest.mark.parametrize(
  'completion',
  [
    '{"name": not json',
    '{"name": "weather", "arguments": {"city": "Rome"}',
    "{'name': 'weather', 'arguments': {'city': 'Rome'}}",
    'I call {"name": "weather", "parameters": {broken}} now.',
    '```json\n[{"name": "weather"\n```',
    '<tool_call>{"name": "weather"}',
    '<tool_call {"name": "weather"}>',
    '[TOOL_CALLS] [{"name": "weather"',
    '<|python_tag|>weather(city="Rome")',
    '<function=weather>{"city": "Rome"}</function>',
    '{"tool_calls": [{"function": {"name": "weather"',
    'Sure. ```json\n{"name": "weather"',
    '{"function": {"name": "weather"}',
    '{"tool": "weather", "args": {"city": "Rome"}}',
    '{name: "weather", arguments: {"city": "Rome"}}',
    '{"Name": "weather", "Arguments": {}}',
    '{"action": "weather", "action_input": "Rome"}',
    'Action: weather\nAction Input: Rome',
    '```tool_code\nweather("Rome")\n```',
    '<｜tool▁calls▁begin｜>weather',
    'to=functions.weather <|message|>{"city": "Rome"}',
    '{"function_call": {"weather"',
    '{"recipient_name": "weather", "parameters": {}}',
  ],
)
def test_a_malformed_call_is_wrong_without_gold_calls(completion):
  assert score(completion, []) == 0.0
  assert score(completion, '[]', score='partial') == 0.0


@pytest.mark.parametrize(
  ('completion', 'value'),
  [
    ('get_weather(city="Rome")', 0),
    ('[get_weather(city="Rome")]', 0),
    ('<get_weather>Rome</get_weather>', 0),
    ('get_weather is not needed: 42', 1),
    ('No tool call is needed. My name: Bob. Arguments: none.', 1),
    ('{"answer": 42}', 1),
  ],
)
def test_names_of_tools_begin_a_call(completion, value):
  tools = [{'name': 'get_weather', 'parameters': {}}]
  found = tool_calls.reward(completion, {'answer': [], 'tools': tools})
  assert found.score == value


@pytest.mark.parametrize(
  ('found', 'gold', 'value'),
  [
    ([ROME], [ROME], 1),
    ([OSLO], [ROME], 2 / 3),  # the name and one of two arguments
    ([call(city='Rome')], [ROME], 2 / 3),
    ([call(city='Oslo')], [ROME], 1 / 3),
    ([call(city='Rome', days=3, unit='C')], [ROME], 3 / 4),
    ([NOW], [ROME], 0),
    ([ROME], [ROME, NOW], 1 / 2),
    ([ROME, NOW], [ROME], 1 / 2),
    ([NOW, OSLO], [ROME, NOW], (1 + 2 / 3) / 2),
    ([OSLO, ROME], [ROME, OSLO], 1),
  ],
)
def test_partial_credit(found, gold, value):
  completion = hermes(*found)
  assert score(completion, gold, score='partial') == pytest.approx(value)
  assert score(completion, gold) == float(value == 1)


def test_partial_credit_in_order():
  knobs = {'score': 'partial', 'ordered': True}
  assert score(hermes(ROME, NOW), [ROME, NOW], **knobs) == 1.0
  assert score(hermes(NOW, ROME), [ROME, NOW], **knobs) == 0.5


CALLS = st.lists(
  st.builds(
    tool_calls.Call,
    st.sampled_from('fg'),
    st.dictionaries(st.sampled_from('xyz'), st.integers(0, 1), max_size=3),
  ),
  max_size=4,
)


@FEW
@given(CALLS, CALLS)
def test_the_pairing_is_the_best_one(found, gold):
  long, short = sorted((found, gold), key=len, reverse=True)
  best = max(
    sum(map(tool_calls.similarity, order, short))
    for order in itertools.permutations(long, len(short))
  )
  expected = best / len(long) if long else 1.0
  assert tool_calls.pairing(found, gold) == pytest.approx(expected)
  assert tool_calls.pairing(found, found) == 1.0
  assert tool_calls.pairing(found, gold) >= tool_calls.pairing(
    found, gold, ordered=True
  )


@pytest.mark.parametrize(
  ('example', 'words'),
  [
    ({}, 'answer'),
    ({'answer': '{'}, 'double quotes'),
    ({'answer': [{'arguments': {}}]}, 'name'),
    ({'answer': [NOW], 'tools': [{}]}, 'tools'),
    (
      {'answer': [NOW], 'tools': [{'name': 'f', 'parameters': {'iff': {}}}]},
      "'tools'.*'f'.*iff",
    ),
  ],
)
def test_an_invalid_example_is_an_error(example, words):
  with pytest.raises(ValueError, match=words):
    tool_calls.reward(hermes(NOW), example)


PIECES = st.sampled_from(
  ['<tool_call>', '</tool_call>', *'[]{}:,"', '"name"', '"arguments"', ' ']
)


@FEW
@given(st.one_of(st.text(max_size=40), st.lists(PIECES).map(''.join)))
def test_every_completion_has_a_score(completion):
  for knobs in ({}, {'score': 'partial'}):
    value = score(completion, [ROME], TOOLS, part='all', **knobs)
    assert 0.0 <= value < 1.0


@pytest.mark.parametrize(
  'piece',
  ['<tool_call>', '</tool_call>', '"name"', '{"name": ', '<tool_call>{'],
)
def test_long_completions_are_verified_quickly(piece):
  start = time.process_time()
  score(piece * (150_000 // len(piece)), [ROME], TOOLS)
  score(hermes(*[call(city=str(i)) for i in range(10)]), [ROME] * 10, None)
  assert time.process_time() - start < 5.0
