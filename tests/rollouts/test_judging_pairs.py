"""Comparisons of completions inside the compiled step."""

import types

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.rewards.kernels import asked
from jaxrl_reason.rollouts import judging, views
from jaxrl_reason.rollouts.own_verdicts import Verdicts
from jaxrl_reason.verifiers.judges import pairwise
from jaxrl_reason.verifiers.verdict import Verdict

STOP = int(L.STOP[0])
BETWEEN, AFTER, YES, NO = [3, 4], [6, 7, 3], 5, 8
TEXTS = [L.TOKENIZER.decode(ids) for ids in (BETWEEN, AFTER)]
ASK = '{other}'.join(TEXTS)


def forged(rollout):
  """Replaces completions by imitations of the question and its answer: with a
  stop token, with one after the first token, and without one.
  """
  tokens = [[*BETWEEN, *AFTER, YES, STOP], [STOP], [*AFTER, YES, *AFTER, YES]]
  for i, row in enumerate(tokens):
    n = len(row)
    row = jnp.array(row + [0] * (L.C - n))
    turn = (jnp.arange(L.C) < n).astype(jnp.int32)
    rollout = rollout.replace(
      tokens=rollout.tokens.at[i].set(row), turn=rollout.turn.at[i].set(turn)
    )
  return rollout


@pytest.fixture(scope='module')
def sampled():
  params = L.model_and_params()[1]
  prompts = L.prompts()
  question = asked.Question(ASK)
  encode = asked.encoder(question, L.TOKENIZER, L.C)
  own = jax.tree.map(
    lambda x: jnp.repeat(jnp.asarray(x)[None], L.B, axis=0), encode({})
  )
  prompts = prompts.replace(answer={'better': own})
  return prompts, forged(L.sample(params, prompts))


def texts_of(rollout):
  """Returns the tokens of every completion, with its stop token."""
  out = []
  for row, there in zip(np.asarray(rollout.tokens), np.asarray(rollout.valid)):
    ids = row[there].tolist()
    out.append(ids if ids[-1:] == [STOP] else [*ids, STOP])
  return out


def by_hand(prompts, rollout):
  """Computes p(a, b) of all pairs of a problem from rows without padding."""
  params = L.model_and_params()[1]
  texts, out = texts_of(rollout), {}
  size = L.P + 2 * (L.C + 1) + len(BETWEEN) + len(AFTER)
  for i, own in enumerate(texts):
    start = np.asarray(prompts.tokens[i // L.G])
    start = start[np.asarray(prompts.valid[i // L.G])].tolist()
    first = i // L.G * L.G
    for j in range(first, first + L.G):
      out[i, j] = [*start, *own, *BETWEEN, *texts[j], *AFTER]
  rows = np.zeros((len(out), size), np.int32)
  ends = np.array([len(row) for row in out.values()])
  for row, ids in zip(rows, out.values()):
    row[: len(ids)] = ids
  valid = np.arange(size) < ends[:, None]
  x = L.MODEL.hidden(params, jnp.array(rows), jnp.array(valid))
  logits = L.MODEL.unembed(params, x[np.arange(len(rows)), ends - 1])
  p = jax.nn.sigmoid(logits[:, YES] - logits[:, NO])
  return out, dict(zip(out, np.asarray(p)))


def scores(sampled, rivals, verdicts=None):
  prompts, rollout = sampled
  question = asked.Question(ASK, rivals)
  room = sum(judging.widths(question, L.TOKENIZER, L.C))
  verdicts = verdicts or Verdicts(L.MODEL, (), YES, NO, room=room)
  judge = judging.Judge(question, 'better', verdicts, (STOP,))
  of = {question: judge}
  seen = views.Views(L.MODEL, ('verdict',), L.P, parts=2, verdict=of)
  params = L.model_and_params()[1]
  compute = jax.jit(lambda *x: seen(*x, None).views['verdict'][question])
  return np.asarray(compute(params, prompts, rollout))


@pytest.mark.parametrize('rivals', [0, 1, 3])
def test_comparisons_are_those_of_the_host_with_whole_rows(sampled, rivals):
  """Completions that contain the question, the verdict or nothing take part."""
  _, p = by_hand(*sampled)
  names = [str(i) for i in range(L.B * L.G)]

  def judge(cases):
    return [Verdict(float(p[int(a), int(x['other'])])) for a, x in cases]

  compare = pairwise.Pairwise(judge, rivals, part='all')
  groups = [names[i : i + L.G] for i in range(0, len(names), L.G)]
  cases = [
    (name, {'others': others})
    for group in groups
    for name, others in zip(group, pairwise.others(group))
  ]
  want = [verdict.score for verdict in compare(cases)]
  got = scores(sampled, rivals)
  np.testing.assert_allclose(got, want, rtol=2e-5)
  assert np.ptp(got) > 1e-3


def test_no_completion_moves_the_borders_of_its_row(sampled):
  """Every row that is judged falls apart at its stop tokens: into the first
  completion, the second one after its text, and the question.
  """
  prompts, rollout = sampled
  rows_of, texts, pairs = batch_lib.rows_of(prompts, rollout), [], []

  def probability(params, rows, question):
    for i, n in enumerate(question['n_tokens'].tolist()):
      own = rows.tokens[i][rows.valid[i]].tolist()
      texts.append([*own, *question['tokens'][i, :n].tolist()])
    return jnp.zeros(len(rows.tokens))

  fake = types.SimpleNamespace(probability=probability)
  judge = judging.Judge(asked.Question(ASK), 'better', fake, (STOP,))
  encoded = jax.tree.map(
    lambda x: jnp.repeat(x, L.G, axis=0), prompts.answer['better']
  )
  with jax.disable_jit():
    judge(None, rollout, encoded, L.G, lambda f, *rest: f(rows_of, *rest))
  own, n = texts_of(rollout), L.B * L.G
  pairs = [
    (i, i // L.G * L.G + (i + d) % L.G) for d in (1, 2, 3) for i in range(n)
  ]
  for (i, j), row in zip(pairs, texts, strict=True):
    first, second = (k for k, token in enumerate(row) if token == STOP)
    assert row[: first + 1][-len(own[i]) :] == own[i]
    assert row[first + 1 : second + 1] == [*BETWEEN, *own[j]]
    assert row[second + 1 :] == AFTER


def test_a_preference_for_a_position_cancels(sampled):
  """A judge that prefers the first answer, or the one with more tokens."""

  def always(params, rows, question):
    return jnp.full(len(rows.tokens), 0.9)

  def longer(params, rows, question):
    texts = len(BETWEEN) + len(AFTER)
    return 0.5 + 0.01 * (question['n_tokens'] - texts) + 0.1

  fake = types.SimpleNamespace(probability=always)
  np.testing.assert_allclose(scores(sampled, 0, fake), 0.5, rtol=1e-6)
  fake = types.SimpleNamespace(probability=longer)
  got = scores(sampled, 0, fake).reshape(L.B, L.G)
  np.testing.assert_allclose(got.mean(axis=1), 0.5, rtol=1e-5)
  assert np.ptp(got) > 0.01


def answer(params, ids):
  """Computes the logits after tokens."""
  row = jnp.array([ids])
  x = L.MODEL.hidden(params, row, jnp.ones_like(row, bool))
  return np.asarray(L.MODEL.unembed(params, x[:, -1])[0])


@pytest.mark.parametrize('ask', ['{}{{thought}}{}', '{{thought}}{}{{other}}{}'])
def test_a_thought_is_greedy_and_before_the_verdict(sampled, ask):
  """Its rows are those without padding. Completions that contain the question
  take part.
  """
  prompts, rollout = sampled
  params, most = L.model_and_params()[1], 3
  question = asked.Question(ask.format(*TEXTS), thought_len=most)
  encode = asked.encoder(question, L.TOKENIZER, L.C)
  texts = jax.tree.map(
    lambda x: jnp.repeat(jnp.asarray(x)[None], L.B, axis=0), encode({})
  )
  prompts = prompts.replace(answer={'j': texts})
  widths = judging.widths(question, L.TOKENIZER, L.C)
  verdicts = Verdicts(L.MODEL, (), YES, NO, room=sum(widths))
  judge = judging.Judge(question, 'j', verdicts, (STOP,), widths)
  of = {question: judge}
  seen = views.Views(L.MODEL, ('verdict',), L.P, parts=2, verdict=of)
  compute = jax.jit(lambda *x: seen(*x, None).views['verdict'][question])
  got = np.asarray(compute(params, prompts, rollout))
  own = texts_of(rollout)

  def p(i, j):
    start = np.asarray(prompts.tokens[i // L.G])
    ids = start[np.asarray(prompts.valid[i // L.G])].tolist() + own[i]
    paired = '{other}' in question.ask
    ids, n = ids if paired else [*ids, *BETWEEN], 0
    while n < most and (n == 0 or ids[-1] != STOP):
      ids, n = [*ids, int(np.argmax(answer(params, ids)))], n + 1
    ids = ids if ids[-1] == STOP else [*ids, STOP]
    ids = [*ids, *BETWEEN, *own[j]] if paired else ids
    logits = answer(params, [*ids, *AFTER])
    return 1 / (1 + np.exp(logits[NO] - logits[YES]))

  for i in (0, 2, 5):
    group = range(i // L.G * L.G, i // L.G * L.G + L.G)
    want = p(i, i)
    if '{other}' in question.ask:
      pairs = [0.5 + (p(i, j) - p(j, i)) / 2 for j in group if j != i]
      want = np.mean(pairs)
    np.testing.assert_allclose(got[i], want, rtol=1e-4)


def test_a_stop_token_closes_rows_without_one():
  tokens = jnp.array([[5, STOP, 0], [5, 6, 7], [0, 0, 0]])
  got, n = judging.closed(tokens, jnp.array([2, 3, 0]), (STOP, 9))
  want = [[5, STOP, 0, 0], [5, 6, 7, STOP], [STOP, 0, 0, 0]]
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(n, [2, 4, 1])


@pytest.mark.parametrize('g, rivals, want', [(4, 0, 3), (4, 1, 2), (8, 2, 4)])
def test_passes_are_counted(g, rivals, want):
  judge = judging.Judge(asked.Question(ASK, rivals), '', None, ())
  assert judge.passes(g) == want
