"""Rewards by the likelihood of the reference answer: scores equal those of
logits of rows without padding.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Rollout, Trajectories
from jaxrl_reason.parts import Step
from jaxrl_reason.rewards.kernels import device, reference, token_bytes
from jaxrl_reason.rollouts.answer_tokens import AnswerTokens
from jaxrl_reason.rollouts.views import Views

SPEC = {
  'prob': {'reward': 'reference_prob'},
  'mean': {'reward': 'reference_mean_prob'},
  'gain': {'reward': 'reference_gain'},
  'logp': {'reward': 'reference_logp', 'kwargs': {'floor': -50.0}},
  'mean_logp': {'reward': 'reference_mean_logp'},
  'group_logp': {'reward': 'reference_group_logp'},
}
# The last three texts have no answer that the reference could replace.
TEXTS = ['2 1#1', '#', '12 3#44', '1#2', '3', '#1#', '']
ANSWERS = ['13', '2', '0']
B, G = 3, 7


def completions():
  """Returns every text after every prompt, as the rollout of B prompts."""
  ids = [[*L.TOKENIZER.encode(t), int(L.STOP[0])] for t in TEXTS] * B
  length = jnp.array([len(x) for x in ids])
  sampled = jnp.arange(L.C) < length[:, None]
  zeros = jnp.zeros((B * G, L.C), int)
  return Rollout(
    jnp.array([np.pad(x, (0, L.C - len(x))) for x in ids]),
    sampled,
    length,
    logp=jnp.zeros((B * G, L.C)),
    truncated=jnp.zeros(B * G, bool),
    temperature=jnp.linspace(0.5, 2, B * G),
    version=zeros,
    turn=sampled.astype(jnp.int32),
    node=zeros,
  )


def prompts(encode):
  answers = [encode({'answer': a, 'task': 'arithmetic'}) for a in ANSWERS]
  return dataclasses.replace(L.prompts(n=B), answer=trees.stacked(answers))


def rewards(spec=SPEC, **how):
  """Returns the rewards of `completions`, as the fused source computes them."""
  encode, reward_fn = device.make(spec, None, L.TOKENIZER, L.C)
  table, _ = token_bytes.token_bytes_table(L.TOKENIZER)
  views = Views(L.MODEL, device.reads(spec, None), L.P, table=table, **how)

  @jax.jit
  def of(params, prompts, out):
    seen = views(params, prompts, out, L.ROOT)
    answers = jax.tree.map(lambda x: jnp.repeat(x, G, 0), prompts.answer)
    return reward_fn(seen, answers)

  return of(L.model_and_params()[1], prompts(encode), completions())


def alone(prompt, text, answer):
  """Returns the log-probs of an answer and the stop token after a text."""
  model, params = L.model_and_params()
  ids = [*L.TOKENIZER.encode(answer), int(L.STOP[0])]
  row = jnp.array([[*prompt, *L.TOKENIZER.encode(text), *ids]])
  hidden = model.hidden(params, row, jnp.ones(row.shape, bool))
  logits = np.asarray(model.unembed(params, hidden)[0], np.float64)
  logits = logits[-len(ids) - 1 : -1]
  logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return logp[np.arange(len(ids)), ids]


def test_scores_are_those_of_whole_logits():
  got = dict(zip(SPEC, np.asarray(rewards().parts).T, strict=True))
  given = L.prompts(n=B)
  want = []
  for tokens, valid, answer in zip(given.tokens, given.valid, ANSWERS):
    prompt = np.asarray(tokens)[np.asarray(valid)]
    direct = np.exp(alone(prompt, '#', answer)).mean()
    for text in TEXTS:
      logp = np.full(1, -np.inf)
      if text.count('#') == 1:
        logp = alone(prompt, text.partition('#')[0] + '#', answer)
      prob = np.exp(logp)
      want.append({
        'prob': prob.prod(),
        'mean': prob.mean(),
        'gain': np.clip(prob.mean() - direct, 0, 1),
        'logp': max(logp.sum(), -50),
        'mean_logp': max(logp.mean(), -5),
        'probs': np.exp(max(logp.sum(), -20)),
      })  # fmt: skip
  for i, row in enumerate(want):
    group = [x['probs'] for x in want[i // G * G :][:G]]
    others = (sum(group) - row['probs']) / (G - 1)
    row['group_logp'] = np.log(np.mean(group) / others)
  for name in SPEC:
    x = [row[name] for row in want]
    np.testing.assert_allclose(got[name], x, rtol=1e-3, atol=1e-5)
  assert (got['gain'] > 0).any() and (got['gain'] == 0).any()
  assert (got['mean_logp'] > -5).any()


def test_micro_batches_and_chunks_change_nothing():
  L.assert_close(rewards(parts=7, chunk=3), rewards())


def test_only_the_requested_log_probs_are_computed():
  spec = {'mean': SPEC['mean']}
  views = Views(L.MODEL, device.reads(spec, None), L.P)
  assert views.names == ('reference',)
  np.testing.assert_allclose(
    rewards(spec).parts[:, 0], rewards().parts[:, 1], rtol=1e-6
  )


class Spaced:
  """A tokenizer that begins each text with a space, as Llama 2's does."""

  eos_ids = (1,)

  def encode(self, text):
    return [ord(c) for c in ' ' + text]


class Joined(Spaced):
  """A tokenizer with a token of the marker and a digit."""

  def encode(self, text):
    return [ord(c) for c in text] if text[:2] != '#4' else [7]


def test_a_reference_begins_right_after_the_marker():
  for tokenizer, marker in ((Spaced(), ' #'), (Joined(), '#')):
    found = reference.encode({'answer': '42'}, tokenizer, 8)
    assert found['tokens'].tolist() == [ord('4'), ord('2'), 1, 0, 0, 0, 0, 0]
    assert found['n_tokens'] == 3
    assert found['marker'].tolist() == [ord(c) for c in marker]


@pytest.mark.parametrize(
  'answer, message',
  [
    (None, 'answer=None: .* need a text'),
    ('', "answer='': .* need a text"),
    ('1' * 8, 'has 9 tokens with its stop token, .* at most 8'),
  ],
)
def test_answers_without_a_likelihood_are_refused(answer, message):
  with pytest.raises(ValueError, match=message):
    reference.encode({'answer': answer}, L.TOKENIZER, 8)


def test_the_name_of_the_encoded_answers_is_taken():
  spec = {'reference': SPEC['mean']}
  with pytest.raises(ValueError, match='rl.rewards.reference: that name'):
    device.make(spec, None, L.TOKENIZER, L.C)


def answered(puts_reference):
  """Returns the batch of `completions` before and after `AnswerTokens`."""
  encode, reward_fn = device.make(SPEC, None, L.TOKENIZER, L.C)
  table, _ = token_bytes.token_bytes_table(L.TOKENIZER)
  names = device.reads(SPEC, None)
  views = Views(
    L.MODEL, names, L.P, table=table, trains_reference=puts_reference
  )
  given, params = prompts(encode), L.model_and_params()[1]
  seen = views(params, given, completions(), L.ROOT)
  answers = jax.tree.map(lambda x: jnp.repeat(x, G, 0), given.answer)
  reward = reward_fn(seen, answers)
  seen = seen.replace(views={k: seen.views[k] for k in views.kept} or None)
  batch = batch_lib.make_batch(Trajectories(given, seen, reward))
  part = AnswerTokens(L.P, table, puts_reference)
  step = Step(None, None, None, batch, batch, batch_lib.outcomes(batch))
  return batch, part.before(None, step)[1].batch


def texts_of(batch, where):
  """Decodes the marked tokens of each row, the stop token as '.'."""
  stop = int(L.STOP[0])
  return [
    ''.join('.' if t == stop else L.TOKENIZER.decode([int(t)]) for t in row[m])
    for row, m in zip(np.asarray(batch.tokens), np.asarray(where))
  ]


@pytest.mark.parametrize('puts_reference', [False, True])
def test_the_loss_trains_on_the_reasoning_alone(puts_reference):
  before, batch = answered(puts_reference)
  completion = jnp.arange(batch.tokens.shape[1]) >= L.P
  whole = texts_of(before, before.mask)
  trained = texts_of(batch, batch.mask)
  rows = texts_of(batch, batch.valid & completion)
  observed = texts_of(batch, batch.observed)
  for i, text in enumerate(TEXTS * B):
    reasoning, marker, _ = text.partition('#')
    has_one = text.count('#') == 1
    assert trained[i] == (reasoning + marker if has_one else whole[i])
    put = ANSWERS[i // G] + '.' if has_one and puts_reference else ''
    assert observed[i] == put
    assert rows[i] == (trained[i] + put if put else whole[i])
  assert (np.asarray(batch.turn > 0) == (batch.valid & completion)).all()
  assert batch.views is None
  L.assert_close(batch.reward, before.reward)


def test_an_answer_without_room_is_not_put():
  _, batch = answered(True)
  table, _ = token_bytes.token_bytes_table(L.TOKENIZER)
  long = jnp.ones((B * G, L.C), bool)
  views = {'reference_tokens': batch.tokens[:, -L.C :], 'reference_mask': long}
  step = Step(None, None, None, None, batch.replace(views=views), None)
  after = AnswerTokens(L.P, table, True).before(None, step)[1].batch
  assert not after.observed.any()
  np.testing.assert_array_equal(after.tokens, batch.tokens)
  np.testing.assert_array_equal(after.valid, batch.valid)
