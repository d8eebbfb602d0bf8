"""Stated confidences on the device: the verdicts of the host, byte by byte."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.data import tokenizers
from jaxrl_reason.rewards.kernels import device, stated
from jaxrl_reason.verifiers import compose, confidence, tasks
from jaxrl_reason.verifiers.verdict import judge

WIDTH = 96
KERNEL = jax.jit(stated.stated)
PIECES = [
  b'confidence', b'Confidence', b'CONFIDENCE', b'<confidence>', b'<Confidence>',
  b'</confidence>', b'confidence: ', b'confidence =', b' ', b'\n\t', b':', b'=',
  b'%', b'.', b'0', b'1', b'100', b'85', b'0.5', b'.25', b'1.0',
  b'87.5', b'<', b'>',
  b'_', b'x', b'*', b'/', b',', b'e-', b'\xc3\xa9', b'\xd9\xa3',
  b'\x00', b'\xff',
]  # fmt: skip


def both(texts):
  """Returns the shares by the kernel and by the host; NaN: none."""
  rows = np.full((len(texts), WIDTH), ord('9'), np.uint8)  # not read
  for row, text in zip(rows, texts):
    row[: len(text)] = np.frombuffer(text, np.uint8)
  length = np.array([len(text) for text in texts])
  found = np.asarray(KERNEL(rows, length))
  host = [confidence.stated(x.decode('utf-8', 'replace')) for x in texts]
  return found, np.array([np.nan if x is None else x for x in host])


def test_written_cases_are_read_as_on_the_host():
  texts = [
    '<confidence>0.8</confidence>', '<confidence> 75 % </confidence>',
    'Confidence: 80%.', 'confidence = 0.3. Then <confidence>1</confidence>',
    'Confidence: 90', 'Confidence: 0.9...', 'I am confident.', '',
    'Confidence: 1.2.3', 'Confidence: 700', '<confidence>1..</confidence>',
    '<confidence>.5</confidence>', 'Confidence: .', 'Confidence: 1.00000000001',
    'Confidence: 1.0', 'Confidence: 100%', 'Confidence: 100.5%',
    'overconfidence: 0.5', 'my_confidence: 0.5', '<confidence>0.5</confidenc>',
    'Confidence: 0.4 confidence: x', 'Confidence: 0.4 confidence: 2.2.',
    '**Confidence:** 80%', 'Confidence * = * 0.8', 'Confidence: 8/10', '8/10',
    'Confidence: 8 / 10', 'Confidence: 1e-1', 'Confidence: 0,8', '**Confidence',
    'Confidence: 0.8, 5', 'Confidence: 0.8 / x', 'Confidence: 1.2', 'x/',
    'Confidence: 87.5', 'Confidence: 9.99', 'Confidence: 10.5',
    'Confidence: 99.9', 'Confidence: 100.5', '<confidence>12.25</confidence>',
    'Confidence: 010.5', 'Confidence: 87.5%',
    '<confidence>8/10</confidence>', 'Confidence: 0.8/',
    '<confidence>* 1</confidence>', 'Confidence: 0.4 Confidence: 0.5_',
    'confidence: ' + '0' * 60 + '1', 'confidence: 0.' + '0' * 50 + '1',
    'confidence: ' + '9' * 60, 'é' + 'confidence:0.5', 'confidence:' + '7' * 85,
  ]  # fmt: skip
  found, host = both([t.encode()[:WIDTH] for t in texts])
  np.testing.assert_allclose(found, host, rtol=1e-6, atol=1e-30)
  assert np.isnan(host).sum() > 5 and (~np.isnan(host)).sum() > 10


def test_random_bytes_are_read_as_on_the_host():
  rng, texts = np.random.default_rng(0), []
  for _ in range(6000):
    pieces = rng.choice(len(PIECES), rng.integers(1, 16))
    texts.append(b''.join(PIECES[i] for i in pieces)[:WIDTH])
  found, host = both(texts)
  np.testing.assert_allclose(found, host, rtol=1e-6, atol=1e-30)
  assert (~np.isnan(host)).sum() > 200


@pytest.mark.parametrize('name', ['brier', 'calibrated'])
def test_scores_are_those_of_the_host(name):
  tokenizer = tokenizers.ByteTokenizer()
  texts = ['Confidence: 0.75#2', 'Confidence: 75%#3', '#2', '#3', 'x']
  example = {'answer': '2', 'task': 'arithmetic'}
  spec = {'part': {'reward': name, 'kwargs': {'correct': 'task'}}}
  kernel = tasks.get('arithmetic').kernel
  score = device._kernel('part', spec['part'], kernel).score
  rows = np.zeros((len(texts), 32), np.uint8)
  for row, text in zip(rows, texts):
    row[: len(text)] = np.frombuffer(text.encode(), np.uint8)
  encode, _ = device.make(spec, kernel, tokenizer, 32)
  answer = jax.tree.map(
    lambda x: jnp.stack([x] * len(texts)), encode(example)['part']
  )
  length = jnp.array([len(t) for t in texts])
  got = jax.jit(score)(jnp.asarray(rows), length, answer)
  host = compose.compose({'part': {'reward': name}})
  want = [judge(host, t, example).score for t in texts]
  np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize('width', [1, 9, 12])
def test_a_row_that_is_shorter_than_a_statement_has_none(width):
  text = np.frombuffer(b'Confidence: 0.75'[:width], np.uint8)[None]
  found = stated.stated(jnp.asarray(text), jnp.array([width]))
  assert found.shape == (1,) and np.isnan(found[0])


def test_a_verifier_without_a_kernel_is_named():
  for correct in ('math', {'a': 'math'}):
    part = {'reward': 'brier', 'kwargs': {'correct': correct}}
    with pytest.raises(ValueError, match='no device kernel for .*math'):
      device._kernel('part', part, 'integer')


def test_a_task_without_a_kernel_gets_no_suggestion():
  with pytest.raises(ValueError, match='runs in Python. Set rl.path') as error:
    device._kernel('part', {'reward': 'task'}, None)
  assert 'Did you mean' not in str(error.value)
