"""Proposals of problems: the values, the prompts, the rewards and the masks."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Prompts, Reward, Rollout, Trajectories
from jaxrl_reason.rewards.kernels import (
  final,
  left_to_right,
  string_chain,
  to_bytes,
  token_bytes_table,
)
from jaxrl_reason.rollouts import proposals, sampler
from jaxrl_reason.run.rl import part_chain
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.tasks import string_functions

B, G, P, C = 2, 3, 9, 8
WORDS = [b'', b'', *[c.encode() for c in '0123456789+-*%=#? ']]
ID = {word: i for i, word in enumerate(WORDS) if word}


class Toy:
  """A tokenizer with one token for each character."""

  def token_bytes(self):
    return WORDS


def value_of(text):
  """Returns the value of an expression, or None if it is none."""
  if not re.fullmatch(r'[0-9]{1,2}([+*-][0-9]{1,2})+(%[0-9]{1,2})?=', text):
    return None
  body, _, modulus = text[:-1].partition('%')
  first, *rest = re.findall(r'[+*-]?[0-9]+', body)
  total = int(first)
  for x in rest:
    number = int(x[1:])
    total = {'+': total + number, '-': total - number}.get(x[0], total * number)
    if abs(total) > 10**6:
      return None
  if modulus:
    return total % int(modulus) if int(modulus) else None
  return total


def as_bytes(texts):
  width = max(map(len, texts))
  data = [
    np.frombuffer(x.encode().ljust(width, b'\0'), np.uint8) for x in texts
  ]
  return jnp.asarray(np.stack(data)), jnp.asarray([len(x) for x in texts])


def test_values_equal_those_of_python():
  rng = np.random.default_rng(0)
  texts = [
    tasks.example('arithmetic', 0, i, split='train')['prompt']
    for i in range(20)
  ]
  texts += ['', '=', '7=', '7+=', '+7=', '7+5', '7+5==', '7+5=1', '123+1=']
  texts += ['7+5%0=', '7+5%3%2=', '7%3=', '7+5%3+1=', '3-9%10=', '99*99*99*99=']
  texts += [
    ''.join(rng.choice(list('0123456789+-*%= '), rng.integers(3, 9)))
    for _ in range(300)
  ]
  for _ in range(300):
    chain = ''.join(
      f'{rng.integers(0, 100)}{rng.choice(list("+-*"))}' for _ in range(4)
    )
    end = f'%{rng.integers(0, 100)}=' if rng.random() < 0.5 else '='
    texts.append(chain[:-1] + end)
  value, fine = jax.jit(left_to_right.evaluate)(*as_bytes(texts))
  want = [value_of(x) for x in texts]
  assert [bool(x) for x in fine] == [x is not None for x in want]
  assert value.tolist() == [x or 0 for x in want]
  kept = [x for x in want if x is not None]
  assert len(kept) > 150 and min(kept) < 0 and len(kept) < len(want) - 100


def result_of(text):
  """Returns the string after all functions, or None if it is no chain."""
  match = re.fullmatch('([a-i]{1,16})[|]([RSLXIUTD]+)=', text)
  if match is None:
    return None
  result = match[1]
  for name in match[2]:
    result = string_functions.apply(name, result)
    if not 0 < len(result) <= 16:
      return None
  return result


def test_strings_equal_those_of_python():
  rng = np.random.default_rng(0)
  texts = ['', '=', 'a|=', '|R=', 'ab|R', 'ab|R==', 'ab|Rc=', 'ab|R|S=', 'ab=']
  texts += ['a|T=', 'aR=', 'j|R=', 'abc|RZ=', 'a' * 17 + '|R=', 'abc|DDD=']
  for _ in range(400):
    letters = ''.join(rng.choice(list('abchi'), rng.integers(1, 9)))
    chain = ''.join(rng.choice(list('RSLXIUTD'), rng.integers(1, 6)))
    texts.append(f'{letters}|{chain}=')
  for _ in range(200):
    texts.append(''.join(rng.choice(list('ab|RT='), rng.integers(3, 8))))
  found, size, fine = jax.jit(string_chain.evaluate)(*as_bytes(texts))
  want = [result_of(x) for x in texts]
  assert [bool(x) for x in fine] == [x is not None for x in want]
  got = [bytes(row[:n]).decode() for row, n in zip(np.asarray(found), size)]
  assert got == [x or '' for x in want]
  assert 300 < len(want) - want.count(None) < len(want) - 100


def test_answers_of_strings_are_encoded_as_those_of_the_data():
  texts = ['abca|RS=', 'ab|D=', 'ab|']
  answers = [final.encode_text({'answer': x}) for x in ('aabc', 'abab', '')]
  want = jax.tree.map(lambda *x: np.stack(x), *answers)
  got, fine = proposals.strings(*as_bytes(texts), want)
  jax.tree.map(np.testing.assert_array_equal, got, want)
  assert fine.tolist() == [True, True, False]


def encoded(answers):
  rows = [final.encode_integer({'answer': str(x)}) for x in answers]
  return {'answer': jax.tree.map(lambda *x: np.stack(x), *rows)}


def scripted(texts):
  """Returns the rollout of texts; `.` is a stop token."""
  n = len(texts)
  tokens = np.zeros((n, C), np.int32)
  for row, text in zip(tokens, texts):
    ids = [1 if c == '.' else ID[c.encode()] for c in text]
    row[: len(ids)] = ids
  size = np.array([len(x) for x in texts])
  sampled = jnp.asarray(np.arange(C) < size[:, None])
  truncated = jnp.asarray([not x.endswith('.') for x in texts])
  return Rollout(
    tokens=jnp.asarray(tokens), sampled=sampled, length=jnp.asarray(size),
    logp=-1.0 * sampled, truncated=truncated, temperature=jnp.ones(n),
    version=0 * tokens, turn=sampled.astype(jnp.int32),
    node=sampler.nodes(sampled, G),
  )  # fmt: skip


def text_of(row, valid):
  return b''.join(WORDS[i] for i, ok in zip(row.tolist(), valid) if ok).decode()


PROPOSED = ['7-9=.', '2*6%5=.', '7+.', '4+4=.', '9*9=', '1+2+3=.']
ANSWERS = [
  '#-2.', '#2.', '#-2.', '1#2.', '#2.', '#2.', '#7.', '#7.', '#7.',
  '#9.', '#1.', '#2.', '#9.', '#9.', '#9.', '#6.', '#7.', '#8.',
]  # fmt: skip
RATES = [2 / 3, 1, None, 0, None, 1 / 3]


@functools.cache
def play():
  """Returns (trajectories, prompts of each call) of the scripted samples."""
  table, calls = token_bytes_table(Toy()), []

  def source(params, control, prompts, root, step, sampling, stop):
    calls.append(prompts)
    out = scripted(PROPOSED if len(calls) == 1 else ANSWERS)
    n = out.tokens.shape[0]
    text, size = to_bytes(out.tokens, out.sampled, *table, max_bytes=C)
    answers = jax.tree.map(
      lambda x: batch_lib.per_row(x, n), prompts.answer['answer']
    )
    score = final.score_integer(text, size, answers)
    ids = final.answer_ids(text, size)
    return Trajectories(
      prompts, out, Reward(score, score[:, None], score >= 0, ids)
    )

  problems = ['5+4=', '11+22+33=']
  tokens = np.zeros((B, P), np.int32)
  for row, text in zip(tokens, problems):
    row[P - len(text) :] = [ID[c.encode()] for c in text]
  prompts = Prompts(
    jnp.asarray(tokens), jnp.asarray(tokens > 0), jnp.arange(B) + 5,
    encoded([9, 66]),
  )  # fmt: skip
  both = proposals.ProposalSource(source, source, ID[b'?'], *table)
  key, stop = jax.random.key(0), jnp.array([1, -1])
  found = both(None, None, prompts, key, jnp.int32(0), None, stop)
  return found, calls


def test_tokens_without_bytes_make_no_problem():
  """The solver would read them, and the value of the problem does not."""
  out = scripted(['7-9=.'] + ['7+-9=.'] * 5)
  tokens = out.tokens.at[1, 1].set(0).at[2, 1].set(len(WORDS))
  prompts = Prompts(
    jnp.zeros((B, P), jnp.int32), jnp.ones((B, P), bool), jnp.arange(B),
    encoded([9, 66]),
  )  # fmt: skip
  table = token_bytes_table(Toy())
  source = proposals.ProposalSource(None, None, ID[b'?'], *table)
  rollout = out.replace(tokens=tokens)
  _, fine = source.problems(prompts, rollout, jnp.array([1, -1]))
  assert fine.tolist() == [True] + 5 * [False]


def test_prompts_ask_for_problems_and_then_have_them():
  _, (asked, tasks_) = play()
  got = [text_of(*x) for x in zip(asked.tokens, asked.valid)]
  assert got == ['5+4=?', '1+22+33=?']
  got = [text_of(*x) for x in zip(tasks_.tokens, tasks_.valid)]
  old = ['5+4='] * 3 + ['11+22+33='] * 3
  want = [
    new[:-1] if rate is not None else before
    for new, rate, before in zip(PROPOSED, RATES, old)
  ]
  assert got == want
  values = [value_of(x) for x in want]
  jax.tree.map(np.testing.assert_array_equal, tasks_.answer, encoded(values))


def test_rewards_are_learnability_and_right_answers():
  found, _ = play()
  n = B * G
  reward, mask = np.asarray(found.reward.total), found.rollout.sampled
  want = [-1 if s is None else 1 - s if 0 < s < 1 else 0 for s in RATES]
  np.testing.assert_allclose(reward[:n], want, atol=1e-6)
  for i, rate in enumerate(RATES):
    rows = slice(n + i * G, n + (i + 1) * G)
    assert np.asarray(mask[rows]).any() == (rate is not None)
    assert reward[rows].mean() == np.float32(rate or 0)
  batch = batch_lib.make_batch(found)
  assert batch.group.tolist() == np.repeat(np.arange(B + n), G).tolist()
  assert batch.mask.shape == (n + n * G, P + C)
  np.testing.assert_array_equal(batch.reward, reward)
  np.testing.assert_array_equal(found.account.seen.reward[0], reward)
  told = {
    k.removeprefix('role/'): float(x) for k, x in found.account.metrics.items()
  }
  rates = [x for x in RATES if x is not None]
  assert np.isclose(told['proposer/valid'], 4 / 6)
  assert np.isclose(told['proposer/learnable'], 2 / 4)
  assert np.isclose(told['proposer/reward'], np.mean(want))
  assert np.isclose(told['solver/rate'], np.mean(rates))
  assert np.isclose(told['solver/reward'], np.mean(rates))


WHITENED = {'name': 'dr_grpo', 'whiten': 'rows'}


@pytest.mark.parametrize('settings', ['lite_ppo', 'gpg', WHITENED], ids=str)
def test_answers_to_invalid_proposals_change_no_advantage(settings):
  """Advantages that read the whole batch are those without these answers."""
  c = config_lib.Run().changed({'rl.propose': '?'}).rl
  kept = part_chain._selection(c, C).filter(batch_lib.make_batch(play()[0]))
  there = np.asarray(kept.mask.any(axis=1))
  assert there.sum() == B * G + 4 * G

  def advantages(batch):
    given = {'mask': batch.mask, 'reward_valid': batch.reward_valid}
    return losses.advantages(settings, batch.reward, batch.group, **given)

  got, want = advantages(kept), advantages(trees.take(kept, there))
  np.testing.assert_allclose(got[there], want, rtol=1e-6)
  assert np.any(want) and not np.any(got[~there])


def test_answers_to_invalid_proposals_are_in_no_mean():
  """These answers do not count as failures of the verifier either."""
  found = play()[0]
  batch = batch_lib.make_batch(found)
  there = np.asarray(batch.mask.any(axis=1))
  seen = trees.take(found.account.seen, 0)
  got = batch_lib.summary(seen, ('task',))
  own = batch_lib.outcomes(trees.take(batch, there))
  want = batch_lib.summary(own, ('task',))
  assert got == pytest.approx({k: float(x) for k, x in want.items()})
  assert got['reward_invalid'] == 0 and batch.reward_valid.all()
  (got,) = batch_lib.answer_spread(batch).values()
  (want,) = batch_lib.answer_spread(trees.take(batch, there)).values()
  assert got == pytest.approx(float(want)) and want > 0
