"""Episodes with an environment: log-probs equal the trainer's for any
observations, and observations are data.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Prompts
from jaxrl_reason.batch import rows_of
from jaxrl_reason.envs import Env, Step
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, logprobs
from jaxrl_reason.models import spec as spec_lib
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.rollouts import turns
from jaxrl_reason.rollouts.draw import NONE

B, G, P, C, MOST = 4, 6, 4, 26, 4
STOP = jnp.array([1, -1])
VALID = np.arange(P) >= P - np.array([[3], [2], [1], [4]])
GEMMA = dict(windows=(3, 0, 5), attention_cap=2.0)
EXPERTS = dict(experts=4, experts_per_token=2, bias=False)


class Toy:
  """A tokenizer with sixteen tokens, some of several bytes."""

  def token_bytes(self):
    return [b'', b'', *[c.encode() for c in 'abcdefg#;'], b'ab', b'a;', b'x;y']


def _reset(encoded, key):
  return {'left': encoded['turns'] + jax.random.randint(key, (), 0, 2)}


def _step(state, text, length):
  """Returns up to seven bytes, with stop bytes and marker; the number depends
  on the turn.
  """
  said = jnp.where(jnp.arange(text.shape[0]) < length, text, 0).sum()
  reply = jnp.asarray(np.frombuffer(b'd;#e;fg', np.uint8))
  left = state['left'] - 1
  return Step(
    {'left': left}, reply, said % 8, said * 0.01, left <= 0, said % 3 == 0
  )


ENV = Env(
  encode=lambda example: {'turns': np.int32(example['turns'])},
  reset=_reset,
  step=_step,
  alphabet='d;#efg',
  stop=b';',
  width=8,
)
LIMITS = dict(most=MOST, tokens=5, observation=7, chunk=0, weight=1.0)


def how(**changes):
  return turns.make(ENV, Toy(), **LIMITS | changes)


def prompts():
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 14)
  ids = jnp.arange(B)
  encoded = {turns.PART: {'turns': jnp.array([1, 2, 3, 9])}}
  return Prompts(tokens, jnp.asarray(VALID), ids, encoded)


def play(
  model, params, given=None, stop=STOP, settings=None, asked=None, **static
):
  asked = asked or prompts()

  def f(params):
    return turns.generate(
      given or how(),
      model,
      params,
      asked.tokens,
      asked.valid,
      asked.answer[turns.PART],
      jax.random.key(3),
      Sampling.make(**settings or {}),
      stop,
      **dict(n_samples=G, max_new=C, policy_logp=True) | static,
    )

  return jax.jit(f)(params)


@functools.cache
def played():
  """Returns (Model, params, episodes) of the plain model."""
  _, model, params = small_model()
  return model, params, play(model, params)


def gaps(model, params, out, settings=None) -> np.ndarray:
  """Computes |sampler - trainer| of every sampled token."""
  settings = Sampling.make(**settings or {})
  score = jax.jit(
    lambda params, rows: logprobs.score(model, params, rows, settings, start=P)
  )
  logp = score(params, rows_of(prompts(), out))[0][:, P:]
  return np.asarray(jnp.abs(jnp.where(out.sampled, logp - out.logp, 0)))


def assert_varied(out):
  """Asserts that rows differ in the cases of the layout."""
  assert len(set(np.asarray(out.valid.sum(1)).tolist())) > 5
  n_turns = np.isfinite(out.episode.reward).sum(1)
  assert set(n_turns.tolist()) >= {1, 2, MOST}
  observed = np.asarray(out.valid & ~out.sampled)
  assert observed.any() and np.asarray(out.sampled).any()


SHAPES = {
  'plain': {},
  'windows': GEMMA,
  'experts': EXPERTS,
  'chunked': dict(prefill='chunks:3'),
  'windows, chunked': dict(prefill='chunks:2', **GEMMA),
}


@pytest.mark.parametrize('name', SHAPES)
def test_log_probs_equal_the_trainers(name):
  shape = SHAPES[name]
  _, model, params = small_model(**shape)
  settings = dict(temperature=0.8, top_p=0.9)
  routes = 'experts' in shape
  static = dict(settings=settings, segments=2, routes=routes)
  out = play(model, params, how(chunk=3), **static)
  assert_varied(out)
  assert gaps(model, params, out, settings).max() < 1e-5
  if routes:  # known for all tokens but the last ones, which are not decoded
    known = np.asarray(out.routes != -1).all((2, 3))
    own = np.asarray(out.valid)
    assert (known[:, P:] <= own).all()
    assert (own & ~known[:, P:]).sum(1).max() == 1


def test_log_probs_with_adapters_and_other_layouts():
  """The model has LoRA. Chunks, segments and lengths change no sample."""
  _, base, params = small_model()
  model = adapters.attach(base, lora=lora.Lora(rank=2, alpha=4.0))
  extra = spec_lib.init(model.specs[lora.KEY], jax.random.key(5))
  extra = jax.tree.map(
    lambda x: x + 0.3 * jax.random.normal(jax.random.key(6), x.shape), extra
  )
  params = params | {lora.KEY: extra}
  want = play(model, params)
  assert gaps(model, params, want).max() < 1e-5
  for given, static in ((how(chunk=2), {}), (how(), dict(segments=4))):
    got = play(model, params, given, **static)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.turn, want.turn)
    np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
    np.testing.assert_allclose(got.episode.reward, want.episode.reward)


def test_int8_cache_stays_close():
  _, model, params = small_model(cache_dtype='int8')
  out = play(model, params)
  assert 1e-6 < gaps(model, params, out).max() < 0.15


def test_eight_devices_play_as_one_does():
  shape = dict(kv_heads=4, tied=False)
  _, model, params = small_model(**shape)
  want = play(model, params)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = play(model, params)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


def test_an_observation_is_data():
  """Its stop bytes end nothing, and its tokens do not count as sampled."""
  out = played()[2]
  text = {2 + i: c for i, c in enumerate('abcdefg#;')}
  text |= {11: 'ab', 12: 'a;', 13: 'x;y'}
  tokens, turn, own = (
    np.asarray(x) for x in (out.tokens, out.turn, out.sampled)
  )
  seen = 0
  for row in range(B * G):
    for i in range(MOST):
      drawn = tokens[row][(turn[row] == i + 1) & own[row]]
      said = tokens[row][(turn[row] == i + 1) & ~own[row]]
      words = [text.get(t, '') for t in drawn]
      # A turn continues until a stop, so only its last token may be one.
      assert not any(';' in w for w in words[:-1])
      assert not any(t == 1 for t in drawn[:-1])
      reply = ''.join(text[t] for t in said)
      want = sum(''.join(words).encode()) % 8
      if len(said):
        assert reply == 'd;#e;fg'[:want]
        seen += reply.count(';')
  assert seen > 10
  np.testing.assert_array_equal(out.length, own.sum(1))
  # The tokens of a row are contiguous: only its end is padding.
  there = np.asarray(out.valid)
  assert (there[:, :-1] >= there[:, 1:]).all()
  assert (np.diff(np.where(there, turn, MOST + 1), axis=1) >= 0).all()
  np.testing.assert_array_equal(np.asarray(out.logp)[~own], 0)


def test_events_and_ends_are_counted():
  _, model, params = small_model()
  out = play(model, params, how(observation=3))
  events = {k: np.asarray(v) for k, v in out.episode.events.items()}
  n_turns = np.isfinite(np.asarray(out.episode.reward)).sum(1)
  done = np.asarray(out.episode.done)
  np.testing.assert_array_equal(out.truncated, ~done)
  for name in ('malformed', 'cut', 'long', 'too_many'):
    assert events[name].any(), name
  assert (events['too_many'] <= (n_turns == MOST)).all()
  assert not (events['too_many'].astype(bool) & done).any()
  # If an episode is not done, one of these events is the reason.
  why = events['too_many'] + events['no_room'] + events['long']
  assert ((why > 0) | done).all()


def test_a_turn_that_does_not_fit_ends_the_row():
  _, model, params = small_model()
  out = play(model, params, max_new=9)
  assert np.asarray(out.episode.events['no_room']).any()
  assert gaps(model, params, out).max() < 1e-5


@pytest.mark.parametrize('shape', [{}, GEMMA, dict(cache_dtype='int8')])
@pytest.mark.parametrize(
  'at', [[[2], [1]], [[2, 0, -1], [1, 2, 0]]], ids=['one', 'each']
)
def test_children_of_a_fork_share_the_keys(shape, at):
  """Tokens decoded after a fork equal those without a fork. A child shares the
  tokens up to that of its row, or to its own one.
  """
  _, model, params = small_model(**shape)
  asked, n = prompts(), 3
  weights = model.decode_params(params)

  def begun(rows):
    _, cache = model.prefill(params, asked.tokens, asked.valid, rows, C, 1)
    return model.gapped(cache, 9)

  tokens = jax.random.randint(jax.random.key(1), (B * 2, 5), 2, 14)
  index = jnp.arange(5)
  length = jnp.array([[5], [3]] * B)
  t = jnp.where(index < length, index, NONE)
  at = jnp.array(at * B)  # the last token in common
  _, _, cache = model.extend(weights, tokens, begun(2), t, 0)
  forked = model.fork(cache, at, n)
  assert forked.prompt[0][0].values.shape[-4] == B * 2  # not one per child
  more = jax.random.randint(jax.random.key(2), (B * 2 * n, 4), 2, 14)
  after = jnp.broadcast_to(jnp.arange(4), more.shape)
  got, _, _ = model.extend(weights, more, forked, after, 0)
  # The same rows, never forked.
  first = jnp.broadcast_to(at + 1, (B * 2, n)).reshape(-1, 1)
  whole = jnp.concatenate([jnp.repeat(tokens, n, axis=0), more], axis=1)
  kept = jnp.where(index < first, index, NONE)
  place = jnp.concatenate([kept, first + after], axis=1)
  want, _, _ = model.extend(weights, whole, begun(2 * n), place, 0)
  np.testing.assert_allclose(got, want, atol=3e-5)


def test_a_tokenizer_without_a_byte_is_refused():
  env = dataclasses.replace(ENV, alphabet='dz')
  with pytest.raises(ValueError, match="rl.turns.env: .* 'z' alone"):
    turns.make(env, Toy(), **LIMITS)


def test_nothing_of_a_row_depends_on_the_others():
  """A part of the batch with the ids of its rows plays the same episodes."""
  model, params, want = played()
  pick = slice(1, 3)
  asked = jax.tree.map(lambda x: x[pick], prompts())
  rows = np.arange(B * G).reshape(B, G)[pick].reshape(-1)
  got = play(model, params, asked=asked, row_ids=jnp.asarray(rows))
  np.testing.assert_array_equal(got.tokens, want.tokens[rows])
  np.testing.assert_allclose(got.logp, want.logp[rows], atol=1e-5)
