"""The calculator equals Python's integers, for any bytes."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.envs import calculator

STEP = jax.jit(jax.vmap(lambda text, n: calculator.ENV.step((), text, n)))
W = calculator.ENV.width


def asked(texts):
  rows = np.zeros((len(texts), W), np.uint8)
  for row, text in zip(rows, texts):
    data = text.encode()[:W]
    row[: len(data)] = np.frombuffer(data, np.uint8)
  out = STEP(jnp.asarray(rows), jnp.asarray([len(t.encode()) for t in texts]))
  answers = [
    bytes(np.asarray(x[:n])).decode()
    for x, n in zip(np.asarray(out.observation), np.asarray(out.length))
  ]
  return answers, out


def expected(a: int, op: str, b: int) -> str:
  """Computes the result by Python's integers; division truncates, as in C."""
  if op == '/':
    if b == 0:
      return 'error zero'
    q, r = divmod(abs(a), abs(b))
    q, r = (-q if (a < 0) != (b < 0) else q), (-r if a < 0 else r)
    return f'{q}r{r}' if r else str(q)
  return str({'+': a + b, '-': a - b, '*': a * b}[op])


def test_exact_to_eighteen_digits():
  rng = random.Random(0)
  numbers = [0, 1, -1, 9, 10, 10**18 - 1, 1 - 10**18, 2**32, 10**9]
  cases = [(a, op, b) for a in numbers for b in numbers for op in '+-*/']
  for _ in range(400):
    a, b = (rng.randrange(10 ** rng.randint(1, 18)) for _ in 'ab')
    a, b = a * rng.choice((1, -1)), b * rng.choice((1, -1))
    cases.append((a, rng.choice('+-*/'), b))
  answers, out = asked([f'so <<{a}{op}{b}=' for a, op, b in cases])
  assert answers == [expected(*case) + '>>' for case in cases]
  zero = [op == '/' and b == 0 for _, op, b in cases]
  np.testing.assert_array_equal(out.malformed, zero)
  assert not np.any(out.done)
  np.testing.assert_allclose(out.reward, -calculator.PRICE)


@pytest.mark.parametrize(
  'text, answer',
  [
    ('<<2*=', 'error syntax>>'),
    ('<<1+2+3+4+5+6+7+8+9+10+11=', 'error syntax>>'),
    ('<<*2=', 'error syntax>>'),
    ('<<2=', 'error syntax>>'),
    ('<<=', 'error syntax>>'),
    ('=', 'error syntax>>'),
    ('12*7=', 'error syntax>>'),
    ('<12*7=', 'error syntax>>'),
    ('<<1+2+3=', 'error syntax>>'),
    ('<<1 + 2=', 'error syntax>>'),
    ('<<1.5*2=', 'error syntax>>'),
    ('<<--1*2=', 'error syntax>>'),
    ('<<\u0661*2=', 'error syntax>>'),
    ('<<1234567890123456789*2=', 'error digits>>'),
    ('<<0000000000000000012*2=', 'error digits>>'),
    ('<<' + '1' * 60 + '*2=', 'error syntax>>'),  # longer than is read
    ('<<1*1= <<2*3=', '6>>'),  # the last call counts
    ('<<<2*3=', '6>>'),
    ('<<007*8=', '56>>'),
    ('<<-0*8=', '0>>'),
  ],
)
def test_an_invalid_call_returns_an_error_message(text, answer):
  (said,), out = asked([text])
  assert said == answer
  assert bool(out.malformed[0]) == said.startswith('error')
  assert not out.done[0]


@pytest.mark.parametrize('text', ['', '#84', '<<12*7', '<<12*7=84>>#84'])
def test_a_turn_without_a_call_ends_the_episode(text):
  _, out = asked([text])
  assert out.done[0] and not out.malformed[0] and out.reward[0] == 0


def test_observations_use_only_the_alphabet():
  rng = random.Random(1)
  letters = '0123456789+-*/<=# \n\0'
  texts = [
    ''.join(rng.choices(letters, k=rng.randint(0, 60))) for _ in range(3000)
  ]
  answers, _ = asked([t + '=' for t in texts])
  assert set(''.join(answers)) <= set(calculator.ENV.alphabet)
