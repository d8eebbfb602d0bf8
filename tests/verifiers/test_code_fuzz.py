"""Readers of a program's messages and output are total, exact and bounded."""

import json
import socket
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_reason.verifiers import code
from jaxrl_reason.verifiers.code import output
from jaxrl_reason.verifiers.code.sandbox import errors, peer, plain_types
from jaxrl_reason.verifiers.pool import wire

KEYS = st.one_of(
  st.none(), st.booleans(), st.integers(), st.text(), st.binary()
)
LEAVES = KEYS | st.floats() | st.complex_numbers() | st.fractions()
LEAVES |= st.decimals(allow_nan=False) | st.dates() | st.timedeltas()
VALUES = st.recursive(
  LEAVES,
  lambda inner: st.one_of(
    st.lists(inner),
    st.lists(inner).map(tuple),
    st.dictionaries(KEYS, inner),
    st.sets(KEYS),
    st.frozensets(KEYS),
  ),
  max_leaves=20,
)
TAGS = st.sampled_from(
  ['list', 'tuple', 'set', 'dict', 'int', 'bytes', 'built', 'type', 'yours']
  + ['mine', 'ask', 'ok', 'error', 'call', 'get', *plain_types.BUILDERS]
)
JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text() | TAGS,
  lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
  max_leaves=20,
)


def a_peer(exports=callable) -> peer.Peer:
  return peer.Peer(None, iter(()), operations={}, exports=exports)


def same(a, b) -> bool:
  """Returns whether values are equal, with equal types at every level, and nan
  equal to nan.
  """
  if type(a) is not type(b):
    return False
  if isinstance(a, (list, tuple)):
    return len(a) == len(b) and all(map(same, a, b))
  if isinstance(a, dict):
    return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
  return repr(a) == repr(b) or a == b


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_a_value_crosses_unchanged(value):
  sent = json.loads(json.dumps(a_peer().encode(value)))
  assert same(a_peer().decode(sent), value)


@given(JSON)
@settings(max_examples=150, deadline=None)
def test_messages_are_plain_data_or_refused(data):
  try:
    value = a_peer().decode(data)
  except peer.Closed:
    return
  stack = [value]
  while stack:
    x = stack.pop()
    assert x is None or type(x) in (
      bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset,
      dict, type, peer.Remote, *plain_types.BUILT,
    )  # fmt: skip
    if isinstance(x, (list, tuple, set, frozenset)):
      stack.extend(x)


@given(st.lists(st.lists(JSON) | JSON, max_size=4))
@settings(max_examples=60, deadline=None)
def test_no_message_controls_the_judge(messages):
  """Every message ends in a reply, an exception of a test, or the end of the
  connection.
  """
  ours, theirs = socket.socketpair()
  for message in messages:
    theirs.sendall(wire.frame(json.dumps(message).encode()))
  theirs.shutdown(socket.SHUT_WR)
  link = peer.Peer(
    ours, iter(wire.Reader(ours)), operations={}, exports=callable
  )
  called = []
  try:
    link.ask('call', peer.Remote(link, 0, True), (called.append,), {})
  # As in a test, any exception is the program's failure.
  except Exception:
    pass
  asked = [m[:3] for m in messages if isinstance(m, list)]
  assert not called or ['ask', 'call', ['yours', 0]] in asked
  for end in (ours, theirs):
    end.close()


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_end_the_connection(data):
  ours, theirs = socket.socketpair()
  theirs.sendall(data)
  theirs.close()
  frames = iter(wire.Reader(ours, 1000))
  link = peer.Peer(ours, frames, operations={}, exports=callable)
  with pytest.raises((peer.Closed, errors.RemoteError)):
    link.ask('load')
  ours.close()


@pytest.mark.parametrize('name', ['eval', 'exec', 'open', 'type', '__import__'])
def test_types_cannot_be_named_by_messages(name):
  with pytest.raises(peer.Closed):
    a_peer().decode(['type', name])
  with pytest.raises(peer.Closed):
    a_peer().decode(['built', name, '1'])


@pytest.mark.parametrize(
  'name', ['builtins.eval', 'antigravity.Error', 'builtins.KeyboardInterrupt']
  + [f'{peer.__name__}.Overrun', f'{errors.__name__}.Undecided', 'this.s', '.']
)  # fmt: skip
def test_a_message_names_only_imported_exceptions(name):
  link, before = a_peer(), set(sys.modules)
  for args in (['tuple', 'x'], ['tuple', ['mine', 0, True, '']]):
    found = link._exception('call', [name, 'builtins.KeyError'], 'x', args)
    assert type(found) is KeyError and found.args == ('x',)
  assert set(sys.modules) == before


@pytest.mark.parametrize('name', ['StopIteration', 'StopAsyncIteration'])
def test_a_function_cannot_end_a_loop_of_the_test(name):
  program = f'def f(x): raise {name}'
  test = 'assert all(map(lambda x: f(x) == 2, [1, 2]))'
  assert code.run_tests(program, test).score == 0.0
  found = a_peer()._exception('next', [f'builtins.{name}'], '', ['tuple'])
  assert type(found).__name__ == name


@pytest.mark.parametrize(
  ('answer', 'left'), [(None, [2]), (5, [1]), (True, [1])]
)
def test_arguments_change_only_by_functions_that_return_nothing(answer, left):
  ours, theirs = socket.socketpair()
  reply = ['ok', answer, [[0, ['list', 2]]]]
  theirs.sendall(wire.frame(json.dumps(reply).encode()))
  frames = iter(wire.Reader(ours))
  link = peer.Peer(ours, frames, operations={}, exports=callable)
  argument = [1]
  peer.Remote(link, 0, True)(argument)
  assert argument == left
  for end in (ours, theirs):
    end.close()


def test_the_judge_exports_only_objects_of_the_test():
  ours = a_peer()
  with pytest.raises(peer.Closed):
    ours.decode(['yours', 0])
  with pytest.raises(TypeError, match='cannot be handed'):
    ours.encode(object())
  ours.encode(print)
  assert ours.decode(['yours', 0]) is print


# --- output ----------------------------------------------------------------


@pytest.mark.parametrize(
  ('printed', 'expected', 'verdict'),
  [
    ('1\n2\n', '1\n2', True),
    ('1 \r\n2\n\n\n', '1\n2\n', True),
    ('\n1', '1', True),
    ('a   b', 'a b', True),
    ('1\n\n2', '1\n2', False),
    ('1 2', '1\n2', False),
    ('1', '2', False),
    ('', '1', False),
    ('1 1', '1', False),
    ('ab', 'a b', False),
    ('YES', 'Yes', False),
    ('0.3333333', '0.33333333', True),
    ('0.333', '0.333333', False),
    ('2', '2.0', True),
    ('2.0', '2', True),
    ('2.0000001', '2', False),
    ('02', '2', False),  # a whole number is text
    ('1000000.5', '1000000.0', True),
    ('1000002.5', '1000000.0', False),
    ('1e3', '1000.0', True),
    ('nan', '1.0', False),
    ('nan', 'nan', True),
    ('inf', '1e400', False),
    ('1e999', '1e998', False),
    ('-0.0', '0.0', True),
    ('123456789012345678901', '123456789012345678902', False),
    ('123456789012345678901.0', '123456789012345678902', False),
    ('0.1' + '0' * 60, '0.1', False),
  ],
)
def test_output(printed, expected, verdict):
  assert output.same(printed, expected) is verdict


@given(st.text())
def test_output_equals_itself_and_blanks_do_not_count(text):
  assert output.same(text, text)
  assert output.same(text + ' \n\n', text)


@given(st.floats(-1e300, 1e300), st.floats(1e-5, 1))
def test_numbers_that_differ_are_different(x, relative):
  y = x + relative * max(1.0, abs(x))
  assert not output.same(repr(y), repr(x))
  assert output.same(repr(x), repr(x * (1 + 1e-9)))


# --- extraction ------------------------------------------------------------


@given(st.text(alphabet='`~\n adef():pyton#1', max_size=200), st.text())
@settings(max_examples=300)
def test_extraction_is_total(text, prompt):
  for name in (None, 'f', 'd'):
    found = code.extract(text, prompt, name)
    assert found is None or isinstance(found, str)


@given(st.text(alphabet='\n abc()=:#', min_size=1).filter(str.strip))
def test_a_fenced_program_is_extracted_unchanged(program):
  for fence in ('```', '~~~', '````'):
    text = f'Text.\n{fence}python\n{program}\n{fence}\nMore text.'
    assert code.extract(text) == program + '\n'


PROGRAM, EMPTY = '```python\ng = 1\n```\n', '```python\n\n```\n'
PLAIN = '```\ng = 1\n```\n'
DEFINES = '```python\ndef f(): pass\n```\n'


@pytest.mark.parametrize(
  'text, program',
  [
    (EMPTY + PROGRAM, 'g = 1\n'),
    (PROGRAM + EMPTY, 'g = 1\n'),
    (EMPTY + PLAIN, 'g = 1\n'),
    (PLAIN + EMPTY, 'g = 1\n'),
    (PROGRAM + '```\n1\n```', 'g = 1\n'),  # an output
    ('g = 1\n' + EMPTY, None),
    (PROGRAM + '```python\n', None),  # cut off before the program
    (DEFINES + PROGRAM, 'def f(): pass\n'),
    (DEFINES + DEFINES.replace('pass', '0') + PROGRAM, 'def f(): 0\n'),
    (DEFINES.replace('f()', 'g()') + PROGRAM, 'g = 1\n'),
    (DEFINES + PROGRAM.replace('g =', 'f ='), 'f = 1\n'),
    (DEFINES.replace('def f()', 'class f') + PROGRAM, 'class f: pass\n'),
    (DEFINES + '```python\nf(', 'def f(): pass\n'),
  ],
)
def test_the_block_that_is_the_program(text, program):
  assert code.extract(text, names={'f'}) == program


@pytest.mark.parametrize(
  'unit', ['```\n', '`', 'def f(', ' ', '\n', '```py\n', 'x']
)
def test_extraction_takes_linear_time(unit):
  text = unit * (2_000_000 // len(unit))
  code.extract(text, 'def f(x):\n', 'f')
