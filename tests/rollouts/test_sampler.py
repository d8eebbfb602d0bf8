"""The sampler equals the trainer, is deterministic, and never recompiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import logits as logits_lib
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Automaton, Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import sampler

B, G, P, C = 3, 4, 6, 5
STOP = jnp.array([1, -1])


def prompts(seed=0):
  tokens = jax.random.randint(jax.random.key(seed), (B, P), 2, 16)
  valid = jnp.arange(P) >= P - jnp.array([[6], [4], [1]])
  return tokens, valid


def make(model, **static):
  @jax.jit
  def f(params, key, sampling, stop, row_ids=None):
    f.traces += 1
    return sampler.generate(
      model,
      params,
      *prompts(),
      key,
      sampling,
      stop,
      n_samples=G,
      max_new=C,
      row_ids=row_ids,
      **static,
    )

  f.traces = 0
  return f


@pytest.fixture(scope='module')
def generate(tiny):
  return make(tiny[1], policy_logp=True)


def whole(out):
  """Returns rows [N,T], valid and mask of prompts and completions."""
  tokens, valid = (jnp.repeat(x, G, axis=0) for x in prompts())
  sampled = jnp.arange(C) < out.length[:, None]
  return (
    jnp.concatenate([tokens, out.tokens], 1),
    jnp.concatenate([valid, sampled], 1),
    sampled,
  )


SETTINGS = {
  'neutral': {},
  'hot': {'temperature': 0.7},
  'top_p': {'temperature': 0.7, 'top_p': 0.8},
  'top_k': {'top_k': 3},
  'min_p': {'min_p': 0.2},
  'all': {'temperature': 1.3, 'top_k': 8, 'top_p': 0.9, 'min_p': 0.02},
}
BIAS = np.where(np.arange(15) == 5, 1.5, 0)  # one token fewer than the model's
# A random grammar of four states; every state allows the stop token, and no
# state the last token of the model.
EDGES = np.random.default_rng(0).integers(-6, 4, (4, 15)).clip(-1)
EDGES[:, 1] = 2
GRAMMAR = Automaton(jnp.asarray(EDGES, jnp.int32), jnp.zeros(4, bool))
PENALTIES = {
  'repetition': {'repetition_penalty': 1.7},
  'encouraged': {'repetition_penalty': 0.6, 'frequency_penalty': -1.0},
  'both counts': {'presence_penalty': 0.9, 'frequency_penalty': 0.4},
  'bias': {'logit_bias': BIAS},
  'grammar': {'automaton': GRAMMAR},
  'grammar and more': {
    'automaton': GRAMMAR, 'top_p': 0.8, 'temperature': 0.7,
    'frequency_penalty': 0.7, 'logit_bias': BIAS,
  },
  'and filters': {
    'temperature': 0.7, 'top_p': 0.9, 'repetition_penalty': 1.3,
    'presence_penalty': 0.5, 'frequency_penalty': 0.5, 'logit_bias': BIAS,
  },
}  # fmt: skip


@pytest.mark.parametrize('name', [*SETTINGS, *PENALTIES])
@pytest.mark.parametrize('chunk', [0, 2])
def test_log_probs_equal_the_trainers(tiny, generate, name, chunk):
  _, model, params = tiny
  if name in SETTINGS:
    sampling = Sampling.make(**SETTINGS[name])
  else:
    sampling = Sampling.fixed(**PENALTIES[name])
  out = generate(params, jax.random.key(3), sampling, STOP)
  tokens, valid, mask = whole(out)

  def score(temperature, s):
    return logprobs.score(
      model, params, Rows(tokens, valid, temperature), s, start=P, chunk=chunk
    )[0][:, P:]

  gap = jnp.where(mask, score(out.temperature, sampling) - out.logp, 0)
  assert float(jnp.abs(gap).max()) < 1e-5
  gap = jnp.where(mask, score(1.0, Sampling.make()) - out.policy_logp, 0)
  assert float(jnp.abs(gap).max()) < 1e-5
  assert (
    float(jnp.abs(out.logp).max()) > 0.01
  )  # the distribution is not degenerate


def test_a_grammar_renormalises_over_the_tokens_that_it_allows(tiny):
  _, model, params = tiny
  sampling = Sampling.fixed(automaton=GRAMMAR)
  out = make(model)(params, jax.random.key(3), sampling, STOP)
  tokens, valid, mask = whole(out)
  logits = model.unembed(params, model.hidden(params, tokens, valid))
  logits, tokens = np.asarray(logits, np.float64), np.asarray(tokens)
  least = np.inf
  for row, n in enumerate(np.asarray(mask.sum(1))):
    state = 0
    for t in range(P, P + n):
      free = np.flatnonzero(EDGES[state] >= 0)
      token, x = tokens[row, t], logits[row, t - 1]
      assert token in free
      want = x[token] - np.log(np.exp(x[free]).sum())
      np.testing.assert_allclose(out.logp[row, t - P], want, atol=1e-5)
      state, least = EDGES[state][token], min(least, len(free))
  assert least < 14
  with pytest.raises(ValueError, match='automaton needs a slot for every row'):
    make(model, slots=2)(params, jax.random.key(3), sampling, STOP)


def by_hand(logits, prompt, before, settings):
  """Computes logits [V] of a row's next token, by the definitions of
  transformers (repetition) and of OpenAI's API (presence, frequency), token by
  token.
  """
  out = logits.astype(np.float64)
  out[: len(BIAS)] += settings.get('logit_bias', 0)
  for v in {*prompt, *before}:
    by = settings.get('repetition_penalty', 1.0)
    out[v] = out[v] / by if out[v] > 0 else out[v] * by
  for v in before:
    out[v] -= settings.get('frequency_penalty', 0.0)
  for v in set(before):
    out[v] -= settings.get('presence_penalty', 0.0)
  return out / settings.get('temperature', 1.0)


@pytest.mark.parametrize('slots', [0, 2])
@pytest.mark.parametrize('name', ['repetition', 'encouraged', 'both counts'])
def test_penalties_count_the_earlier_tokens(tiny, name, slots):
  _, model, params = tiny
  settings = PENALTIES[name]
  sampling = Sampling.fixed(**settings)
  out = make(model, slots=slots)(params, jax.random.key(3), sampling, STOP)
  tokens, valid, mask = map(np.asarray, whole(out))
  hidden = model.hidden(params, jnp.asarray(tokens), jnp.asarray(valid))
  logits = np.asarray(model.unembed(params, hidden))
  repeats = 0
  for row, there, on, logp, z in zip(tokens, valid, mask, out.logp, logits):
    prompt = row[:P][there[:P]]
    for t in np.flatnonzero(on):
      before, own = row[P : P + t], row[P + t]
      shaped = by_hand(z[P + t - 1], prompt, before, settings)
      want = shaped[own] - np.log(np.exp(shaped).sum())
      np.testing.assert_allclose(logp[t], want, atol=1e-5)
      repeats += own in before
  assert repeats > 0 or name == 'both counts'


def test_slots_draw_the_same_tokens_with_penalties(tiny):
  _, model, params = tiny
  sampling = Sampling.fixed(**PENALTIES['and filters'])
  given = params, jax.random.key(3), sampling, STOP
  want, got = make(model)(*given), make(model, slots=2)(*given)
  np.testing.assert_array_equal(want.tokens, got.tokens)
  np.testing.assert_allclose(want.logp, got.logp, atol=1e-6)


def test_penalties_of_packed_rows_are_refused(tiny):
  _, model, params = tiny
  tokens, valid = prompts()
  rows, packing = Rows(tokens, valid), object()
  with pytest.raises(ValueError, match='need the earlier tokens of a row'):
    sampling = Sampling.fixed(presence_penalty=1.0)
    shape, beside = logprobs.shaping(model, rows, sampling, packing, start=2)
    shape(jnp.zeros((B, P, 16)), tokens, *beside)


@pytest.mark.parity
@pytest.mark.parametrize('penalty', [0.5, 1.3])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
  torch, library = map(pytest.importorskip, ('torch', 'transformers'))
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(20, 50)).astype(np.float32)
  prompt, before = rng.integers(0, 50, (20, 7)), rng.integers(0, 50, (20, 4))
  theirs = library.RepetitionPenaltyLogitsProcessor(penalty)
  ids = torch.tensor(np.concatenate([prompt, before], axis=1))
  want = theirs(ids, torch.tensor(logits)).numpy()
  given = (jnp.ones(prompt.shape, bool), 50), (jnp.ones(before.shape, bool), 50)
  seen = logits_lib.Seen(
    logits_lib.counts(prompt, *given[0]) > 0,
    logits_lib.counts(before, *given[1]),
  )
  sampling = Sampling.fixed(repetition_penalty=penalty)
  got = logits_lib.shaped(jnp.asarray(logits), sampling, seen=seen)
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_scores_of_all_columns_agree_with_scores_from_start(tiny, generate):
  _, model, params = tiny
  out = generate(params, jax.random.key(3), Sampling.make(), STOP)
  tokens, valid, mask = whole(out)
  of = model, params, Rows(tokens, valid), Sampling.make()
  a, ea, _ = logprobs.score(*of, start=P)
  b, eb, _ = logprobs.score(*of, chunk=4)
  assert float(jnp.abs(b[:, 1:P]).max()) > 0 and not jnp.any(a[:, :P])
  np.testing.assert_allclose(a[:, P:], b[:, P:], atol=1e-5)
  np.testing.assert_allclose(ea[:, P:], eb[:, P:], atol=1e-5)


def test_nothing_recompiles(tiny, generate):
  _, _, params = tiny
  generate(params, jax.random.key(0), Sampling.make(), STOP)
  before = generate.traces
  for settings in SETTINGS.values():
    generate(params, jax.random.key(0), Sampling.make(**settings), STOP)
  generate(params, jax.random.key(9), Sampling.make(), jnp.array([3, 5]))
  assert generate.traces == before


def test_same_step_same_samples_next_step_others(tiny, generate):
  _, _, params = tiny

  def run(key):
    return np.asarray(generate(params, key, Sampling.make(), STOP).tokens)

  root = jax.random.key(7)

  def step(i):
    return jax.random.fold_in(root, i)

  np.testing.assert_array_equal(run(step(4)), run(step(4)))
  assert not np.array_equal(run(step(4)), run(step(5)))
  rows = run(step(4)).reshape(B, G, C)
  assert len({r.tobytes() for r in rows[0]}) > 1  # samples differ in a group


def test_noise_belongs_to_the_row(tiny):
  """A part of the batch with the ids of its rows samples the same tokens."""
  _, model, params = tiny
  tokens, valid = prompts()
  args = (jax.random.key(3), Sampling.make(), STOP)

  def run(pick, ids):
    return sampler.generate(
      model,
      params,
      tokens[pick],
      valid[pick],
      *args,
      n_samples=G,
      max_new=C,
      row_ids=ids,
    )

  all_rows = run(jnp.arange(B), None)
  part = run(jnp.array([2, 0]), jnp.r_[8:12, 0:4])
  for i, j in ((0, 2), (1, 0)):
    np.testing.assert_array_equal(
      part.tokens[i * G : i * G + G], all_rows.tokens[j * G : j * G + G]
    )


def test_greedy_and_sampled_rows_can_share_a_batch(tiny, generate):
  _, model, params = tiny
  temperature = jnp.where(jnp.arange(B * G) % G == 0, 0.0, 1.0)
  out = generate(params, jax.random.key(3), Sampling.make(temperature), STOP)
  tokens, valid, mask = whole(out)
  hidden = model.hidden(params, tokens, valid)[:, P - 1 : -1]
  best = jnp.argmax(model.unembed(params, hidden), -1)
  hit = np.asarray((best == out.tokens) | ~mask)
  assert hit[::G].all() and not hit.all()


def test_stops_are_kept_and_end_rows(tiny):
  _, model, params = tiny
  # Every token stops: completions are one token long, and not truncated.
  out = make(model)(params, jax.random.key(0), Sampling.make(), jnp.arange(16))
  assert np.all(out.length == 1) and not np.any(out.truncated)
  assert np.all(out.tokens[:, 1:] == 0) and np.all(out.logp[:, 1:] == 0)
  never = jnp.array([-1])
  out = make(model)(params, jax.random.key(0), Sampling.make(), never)
  assert np.all(out.length == C) and np.all(out.truncated)
  # Either of two stop tokens ends a row, and is its last token.
  out = make(model)(
    params, jax.random.key(0), Sampling.make(), jnp.array([4, 9])
  )
  rows = zip(np.asarray(out.tokens), np.asarray(out.length), out.truncated)
  for row, n, cut in rows:
    inside = row[: n - 1]
    assert not np.isin(inside, [4, 9]).any()
    assert bool(cut) == (row[n - 1] not in (4, 9))


def kept(probs, **settings):
  shaped = logits_lib.shaped(
    jnp.log(jnp.asarray(probs)), Sampling.make(**settings)
  )
  return (np.asarray(jax.nn.softmax(shaped)) > 0).tolist()


def test_filters_by_hand():
  p = [0.5, 0.25, 0.15, 0.1]
  assert kept(p) == [True] * 4
  assert kept(p, top_k=2) == [True, True, False, False]
  # 0.5 alone is below 0.6, so the next is needed; 0.75 is enough.
  assert kept(p, top_p=0.6) == [True, True, False, False]
  assert kept(p, top_p=0.76) == [True, True, True, False]
  assert kept(p, top_p=1e-6) == [True, False, False, False]
  assert kept(p, min_p=0.3) == [True, True, True, False]
  assert kept(p, top_k=3, min_p=0.4) == [True, True, False, False]
  # top-k first: the first two are 2/3 and 1/3 then, and 0.6 takes one alone.
  assert kept(p, top_k=2, top_p=0.6) == [True, False, False, False]
  assert kept(p, top_k=2, top_p=0.7) == [True, True, False, False]


@pytest.mark.parity
@pytest.mark.parametrize(
  'settings',
  [
    dict(top_k=40, top_p=0.9),
    dict(top_k=200, top_p=0.5, min_p=0.02),
    dict(top_p=0.95, min_p=0.05),
    dict(temperature=0.6, top_k=20, top_p=0.95),
  ],
)
def test_filters_keep_the_tokens_that_transformers_keeps(settings):
  torch, library = map(pytest.importorskip, ('torch', 'transformers'))
  logits = 3 * np.random.default_rng(0).normal(size=(200, 500))
  logits = logits.astype(np.float32)
  config = library.GenerationConfig(do_sample=True, **{'top_k': 0} | settings)
  model = library.LlamaForCausalLM(
    library.LlamaConfig(
      vocab_size=500, hidden_size=8, intermediate_size=8,
      num_hidden_layers=1, num_attention_heads=1,
    )
  )  # fmt: skip
  theirs = model._get_logits_processor(config)(None, torch.tensor(logits))
  ours = logits_lib.shaped(jnp.asarray(logits), Sampling.make(**settings))
  kept = np.asarray(ours) > logits_lib.OUT
  same = (kept == np.isfinite(theirs.numpy())).all(axis=1)
  # A row may differ where a sum of probabilities is top_p to the last bit.
  assert same.mean() > 0.99 and 1 < kept.sum(axis=1).mean() < 200


@pytest.mark.parametrize('vocab', [4, 30, 512, 1000])
def test_draw_follows_the_distribution(vocab):
  """The chi-square of 40,000 draws is at most 6 deviations above its mean (p <
  1e-6). Filtered tokens are never drawn.
  """
  n, rng = 40_000, np.random.default_rng(vocab)
  p = rng.exponential(size=vocab) + 0.05
  p[rng.random(vocab) < 0.3] = 0
  p[-1] = 0
  p /= p.sum()
  keys = jax.random.split(jax.random.key(0), n)
  row = jnp.where(p > 0, jnp.log(jnp.maximum(p, 1e-9)), logits_lib.OUT)
  logits = jnp.broadcast_to(row, (n, vocab))
  tokens, logp = logits_lib.draw(logits, Sampling.make(jnp.ones(n)), keys)
  np.testing.assert_allclose(
    logp, np.log(np.maximum(p, 1e-9))[tokens], atol=1e-5
  )
  counts = np.bincount(np.asarray(tokens), minlength=vocab)
  assert counts[p == 0].sum() == 0
  kept = p > 0
  dof = kept.sum() - 1
  chi2 = ((counts - n * p)[kept] ** 2 / (n * p[kept])).sum()
  assert chi2 < dof + 6 * np.sqrt(2 * dof)


def test_draw_skips_weights_of_zero_despite_rounding():
  """Rounding may increase the cumulative sum at a weight of 0, but this token
  is not drawn.
  """
  n = 20_000
  logits = jnp.full((n, 16), logits_lib.OUT).at[:, ::3].set(-jnp.arange(6.0))
  keys = jax.random.split(jax.random.key(1), n)
  tokens, _ = logits_lib.draw(logits, Sampling.make(jnp.ones(n)), keys)
  assert set(np.asarray(tokens).tolist()) <= set(range(0, 16, 3))


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_a_row_of_nan_is_not_hidden(temperature):
  """Filters compare with NaN, and the row must not become valid."""
  logits = jnp.zeros((2, 30)).at[0, 3].set(jnp.nan)
  for top_p in (1.0, 0.5):
    s = Sampling.make(jnp.full(2, temperature), top_p=top_p)
    shaped = logits_lib.shaped(logits, s)
    _, logp = logits_lib.draw(shaped, s, jax.random.split(jax.random.key(0)))
    assert np.isnan(logp).tolist() == [True, False]
    assert np.isnan(logits_lib.token_logp(shaped, jnp.zeros(2, int))[0])


@pytest.mark.parametrize('vocab', [4, 30, 1000])
def test_greedy_takes_the_first_of_the_likeliest(vocab):
  rng = np.random.default_rng(vocab)
  logits = jnp.asarray(rng.integers(0, 4, (50, vocab)), jnp.float32)
  s = Sampling.make(jnp.zeros(50))
  keys = jax.random.split(jax.random.key(0), 50)
  tokens, logp = logits_lib.draw(logits, s, keys)
  np.testing.assert_array_equal(tokens, np.argmax(logits, axis=1))
  want = logits_lib.token_logp(logits, tokens)
  np.testing.assert_allclose(logp, want, atol=1e-5)


def test_taken_token_keeps_a_finite_log_prob():
  """After the policy has changed, the token is outside of the nucleus."""
  logits = jnp.log(jnp.array([[0.9, 0.09, 0.01]]))
  s = Sampling.make(jnp.ones(1), top_p=0.5)
  taken = jnp.array([2])
  out = logits_lib.token_logp(logits_lib.shaped(logits, s, taken), taken)
  np.testing.assert_allclose(out, np.log(0.01 / 0.91), rtol=1e-5)
