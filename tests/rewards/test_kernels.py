"""Device kernels return the verdicts of their host twins, for any bytes."""

import itertools
import math
import random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.data import tokenizers
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import countdown as countdown_kernel
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import countdown

W = 72  # bytes
N = 2000

# Texts that stress a definition; {} is the right answer.
SHAPES = [
  '#{}', '{}', '#{}#', '##{}', '1 2#{}', '# {}', '#  {}', '#{} ', '#+{}',
  '#-{}', '#0{}', '#000{}', '#0000{}', '#-0', '#0', '#+', '#', '', '#{}.0',
  '#{},0',
  '#({})', '#(({}))', '#((({})))', '#{}\n', '\x00#{}', '#{}\x00', '#\x00{}',
  '#{}+0', '#0+{}', '#{}*1', '#{}/1', '#{}/0', '#1/(1-1)+{}', '#{} {}',
  'caf\u00e9#{}', '#\u0661', '\ud800#{}', '#--{}', '#{}-', '#+-{}',
]  # fmt: skip
# Answers of which '#1' is a beginning, and the last byte a repetition.
CUT = {
  'integer': {'answer': '11'},
  'text': {'answer': '11'},
  'format': {'task': 'arithmetic'},
  'countdown': {'meta': {'numbers': [1], 'target': 1, 'use': 'all'}},
}
CHARS = '0123456789+-*/() #.,abcKN\x00\n\u00e9'


def completion(rng, example, other):
  """Returns bytes that are correct, nearly correct, or arbitrary."""
  draw = rng.random()
  if draw < 0.05:
    return rng.randbytes(rng.randrange(W + 1))
  if draw < 0.1:
    return ''.join(rng.choices(CHARS, k=rng.randrange(W))).encode()[:W]
  if draw < 0.35:
    text = rng.choice(SHAPES).replace('{}', example['answer'])
    return text.encode('utf-8', 'replace')[:W]
  if draw < 0.4:
    text = other['solution']
  else:
    text = example['solution'][-W:]
  for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 5))):
    at = rng.randrange(len(text) + 1)
    added = rng.choice(CHARS) if rng.random() < 0.6 else ''
    text = text[:at] + added + text[at + rng.randrange(2) :]
  return text.encode()[:W]


def batch(rows, encoded):
  # Bytes after the length must have no effect: markers, digits, any bytes.
  text = np.resize(np.frombuffer(b'#26 (\x00', np.uint8), (len(rows), W)).copy()
  for out, row in zip(text, rows):
    out[: len(row)] = np.frombuffer(row, np.uint8)
  length = np.array([len(row) for row in rows], np.int32)
  answer = {k: np.stack([e[k] for e in encoded]) for k in encoded[0]}
  return text, length, answer


def random_expression(rng, numbers):
  """Returns a random tree over the numbers, with needless parentheses and
  spaces.
  """
  if len(numbers) == 1:
    text = str(numbers[0])
    return f'({text})' if rng.random() < 0.1 else text
  cut = rng.randrange(1, len(numbers))
  left = random_expression(rng, numbers[:cut])
  right = random_expression(rng, numbers[cut:])
  text = left + rng.choice(['', ' ']) + rng.choice('+-*/') + right
  return f'({text})' if rng.random() < 0.5 else text


def random_countdown(rng):
  """Returns a problem whose answer may be any expression: intermediate
  fractions, negative values, divisions by zero, numbers of four digits.
  """
  top = rng.choice((3, 9, 99, 9999))
  numbers = [rng.randrange(top + 1) for _ in range(rng.randrange(1, 7))]
  use = rng.choice(('all', 'subset'))
  used = (
    numbers if use == 'all' else rng.sample(numbers, (len(numbers) + 1) // 2)
  )
  answer = random_expression(rng, used)
  value = countdown.evaluate(countdown.tokenize(answer, 99))
  if value is not None and value.denominator == 1 and 0 <= value <= 9999:
    target = int(value)
  else:
    target = rng.randrange(30)
  numbers = rng.sample(numbers, len(numbers))
  meta = {'numbers': numbers, 'target': target, 'use': use}
  return {
    'answer': answer, 'solution': f'1+1=2#{answer}', 'meta': meta,
    'task': 'countdown',
  }  # fmt: skip


def random_integer(rng):
  answer = rng.choice([0, rng.randrange(10), rng.randrange(10**20)])
  answer = str(rng.choice((-1, 1)) * answer)
  return {'answer': answer, 'solution': f'3 4#{answer}', 'task': 'arithmetic'}


def from_task(name, **knobs):
  def draw(rng):
    return tasks.example(
      name, 0, rng.randrange(1000), split='train', knobs=knobs
    )

  return draw


CASES = {
  'integer': ('integer', random_integer, tasks.check),
  'arithmetic': ('integer', from_task('arithmetic'), tasks.check),
  'strings': ('text', from_task('string_functions'), tasks.check),
  'countdown': ('countdown', from_task('countdown', max_numbers=6, ops='+-*/'),
                tasks.check),
  'expressions': ('countdown', random_countdown, tasks.check),
  'format': ('format', from_task('arithmetic'), tasks.check_format),
  'format_countdown': ('format', from_task('countdown'), tasks.check_format),
}  # fmt: skip


@pytest.mark.parametrize('case', CASES)
def test_kernel_equals_host_twin(case):
  name, draw, twin = CASES[case]
  kernel = kernels.KERNELS[name]
  rng = random.Random(case)
  examples = [draw(rng) for _ in range(N)]
  encoded = [kernel.encode(ex) for ex in examples]
  traced = []

  def counted(*args):
    traced.append(case)
    return kernel.score(*args)

  score, n_right = jax.jit(counted), 0
  for _ in range(2):
    rows = [completion(rng, ex, rng.choice(examples)) for ex in examples]
    host = [
      twin(r.decode('utf-8', 'replace'), e) for r, e in zip(rows, examples)
    ]
    device = np.asarray(score(*batch(rows, encoded)))
    wrong = [
      (row, ex['answer'], ex.get('meta'), h)
      for row, ex, h, d in zip(rows, examples, host, device)
      if h != d
    ]
    assert not wrong, wrong[:5]
    n_right += sum(host)
  assert 0.1 * N < n_right < 1.9 * N  # both verdicts are well represented
  assert traced == [case]  # once


# Those that read a step's views are in test_likelihood.
@pytest.mark.parametrize(
  'name', sorted(k for k, v in kernels.KERNELS.items() if not v.reads)
)
def test_kernels_vmap_and_score_cut_text_zero(name):
  kernel = kernels.KERNELS[name]
  task = next((t for t in tasks.TASKS.values() if t.kernel == name), None)
  task = task.name if task else 'arithmetic'
  examples = [tasks.example(task, 0, i, split='train') for i in range(6)]
  rows = [f'#{ex["answer"]}'.encode() for ex in examples]
  rows[1] = b''
  text, length, answer = batch(rows, [kernel.encode(ex) for ex in examples])
  run = jax.jit(kernel.score)
  score = run(text, length, answer)
  assert score.dtype == jnp.float32 and list(score) == [1, 0, 1, 1, 1, 1]
  fold = jax.tree.map(
    lambda x: x.reshape(2, 3, *x.shape[1:]), (text, length, answer)
  )
  np.testing.assert_array_equal(
    jax.jit(jax.vmap(kernel.score))(*fold).reshape(-1), score
  )
  assert not run(text, length + W, answer).any()


def test_every_task_with_a_kernel_can_be_encoded():
  for task in tasks.TASKS.values():
    for split in tasks.SPLITS:
      ex = tasks.example(task.name, 0, 0, split=split)
      shapes = [
        {k: v.shape for k, v in kernels.KERNELS[name].encode(ex).items()}
        for name in (task.kernel, 'format')
      ]
      assert all(shapes)


@pytest.mark.parametrize(
  ('name', 'example', 'size', 'word'),
  [
    ('integer', {'answer': '123456'}, {'max_digits': 5}, 'max_digits'),
    ('integer', {'answer': '1.5'}, {}, '1.5'),
    ('text', {'answer': 'abcdef'}, {'max_bytes': 5}, 'max_bytes'),
    ('countdown', {'meta': {'numbers': [1, 2, 3], 'target': 3, 'use': 'all'}},
     {'max_numbers': 2}, 'max_numbers'),
    ('countdown', {'meta': {'numbers': [1], 'target': 10**4, 'use': 'all'}},
     {}, '9999'),
  ],
)  # fmt: skip
def test_answers_that_do_not_fit_are_refused(name, example, size, word):
  with pytest.raises(ValueError, match=word):
    kernels.KERNELS[name].encode(example, **size)


def test_the_primes_distinguish_all_values():
  primes = countdown_kernel.PRIMES
  for prime in primes:
    assert prime < 2**16 and prime > countdown_kernel.MAX_VALUE
    assert all(prime % d for d in range(2, math.isqrt(prime) + 1))
  assert len(set(primes)) == len(primes)
  # The product of the primes exceeds the largest value of n numbers.
  for n in range(1, 9):
    product = math.prod(primes[: countdown_kernel.n_primes(n)])
    assert product > Fraction(9999) ** n * 2 ** (n - 1) * 10_000


@pytest.mark.parametrize(
  ('numbers', 'target'), [([1], 1), ([1, 2], 1), ([1, 2], 3), ([1, 1], 2)]
)
def test_every_short_expression(numbers, target):
  """Compares all 19,608 texts of up to five characters, and two deep ones."""
  meta = {'numbers': numbers, 'target': target, 'use': 'all'}
  answers = [
    ''.join(chars)
    for size in range(6)
    for chars in itertools.product('12+-/()', repeat=size)
  ]
  answers += ['((1+2))', '((1+1))']
  rows = [f'#{answer}'.encode() for answer in answers]
  encoded = kernels.KERNELS['countdown'].encode(
    {'meta': meta}, max_numbers=len(numbers)
  )
  text, length, answer = batch(rows, [encoded] * len(rows))
  device = jax.jit(countdown_kernel.score)(text[:, :8], length, answer)
  host = [countdown.check(row.decode(), {'meta': meta}) for row in rows]
  wrong = [a for a, h, d in zip(answers, host, np.asarray(device)) if h != d]
  assert not wrong, wrong[:5]
  assert sum(host) >= 2


def test_a_cut_answer_is_never_read_past_the_end():
  for name, examples in CUT.items():
    kernel = kernels.KERNELS[name]
    text, _, answer = batch([b'#1'], [kernel.encode(examples)])
    score = jax.jit(kernel.score)(text[:, :2], np.array([3]), answer)
    assert list(score) == [0.0]


def spelled_numbers(value):
  """Returns five numbers of at most four digits with a*b*c + d*e = value."""
  for a in range(2000, 9999, 7):
    for b in range(a, a + 50):
      c = min(value // (a * b), 9999)
      rest = value - a * b * c
      for d in range(9999, 5000, -1):
        if rest % d == 0 and rest // d <= 9999:
          return [a, b, c, d, rest // d]
  raise AssertionError(f'no spelling of {value}')


def test_values_equal_modulo_some_primes_are_distinguished():
  first, second = countdown_kernel.PRIMES[:2]
  assert 9360 * 7 + 1 == first
  a, b, c, d, e = spelled = spelled_numbers(first * second + 24)
  prime = [9360, 7, 1]
  cases = [  # numbers, an expression that should reach 24, whether it does
    ([*prime, 24], '9360*7+1+24', 0.0),  # 24 modulo the first prime
    (spelled, f'{a}*{b}*{c}+{d}*{e}', 0.0),  # and modulo the second
    ([*prime, *prime, 24], '24*((9360*7+1)/(9360*7+1))', 1.0),  # not 0/0
  ]
  kernel = kernels.KERNELS['countdown']
  metas = [{'numbers': n, 'target': 24, 'use': 'all'} for n, _, _ in cases]
  encoded = [kernel.encode({'meta': meta}, max_numbers=7) for meta in metas]
  rows = [f'#{answer}'.encode() for _, answer, _ in cases]
  scores = [score for _, _, score in cases]
  assert list(jax.jit(kernel.score)(*batch(rows, encoded))) == scores
  for row, meta, score in zip(rows, metas, scores):
    assert countdown.check(row.decode(), {'meta': meta}) == score


# --- tokens to bytes ----------------------------------------------------------


class Pieces:
  """Tokens of zero to five bytes; two of them are halves of one character."""

  def token_bytes(self):
    return [b'', b'', b'a', b'26', b'#1', b'\xc3', b'\xa9', b'hello', b' ']


@pytest.mark.parametrize('max_bytes', [60, 7])
def test_to_bytes_joins_the_bytes_of_tokens(max_bytes):
  table, lengths = kernels.token_bytes_table(Pieces())
  rng = np.random.default_rng(0)
  # Ids beyond the table, and negative ones, have no bytes.
  tokens = rng.integers(-2, 12, (200, 12)).astype(np.int32)
  n_tokens = rng.integers(0, 13, 200)
  run = jax.jit(kernels.to_bytes, static_argnames='max_bytes')
  sampled = np.arange(12) < n_tokens[:, None]
  text, length = run(tokens, sampled, table, lengths, max_bytes=max_bytes)
  pieces = Pieces().token_bytes()
  for i in range(200):
    ids = tokens[i, : n_tokens[i]]
    joined = b''.join(pieces[t] for t in ids if 0 <= t < len(pieces))
    assert length[i] == len(joined)
    assert bytes(np.asarray(text[i])) == joined[:max_bytes].ljust(
      max_bytes, b'\0'
    )


def test_a_completion_scores_the_same_as_tokens_and_as_text():
  tokenizer = tokenizers.CharTokenizer(tasks.get('countdown').alphabet)
  table, lengths = kernels.token_bytes_table(tokenizer)
  rng = np.random.default_rng(1)
  examples = [
    tasks.example('countdown', 0, i, split='train') for i in range(64)
  ]
  tokens = rng.integers(0, tokenizer.vocab_size, (64, 48)).astype(np.int32)
  n_tokens = rng.integers(0, 49, 64)
  for i in range(0, 64, 2):
    ids = tokenizer.encode(examples[i]['solution'])
    tokens[i, : len(ids)], n_tokens[i] = ids, len(ids)
  sampled = np.arange(48) < n_tokens[:, None]
  text, length = kernels.to_bytes(tokens, sampled, table, lengths, max_bytes=48)
  kernel = kernels.KERNELS['countdown']
  encoded = [kernel.encode(ex, max_numbers=3) for ex in examples]
  answer = {k: np.stack([e[k] for e in encoded]) for k in encoded[0]}
  device = jax.jit(kernel.score)(text, length, answer)
  host = [
    tasks.check(tokenizer.decode(row[:n]), ex)
    for row, n, ex in zip(tokens, n_tokens, examples)
  ]
  assert list(device) == host and sum(host) >= 32
