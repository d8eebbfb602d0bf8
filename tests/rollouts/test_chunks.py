"""Completions in chunks with a carried tail: log-probs equal the trainer's for
each chunk alone, and memory does not grow with their number.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Prompts, Rows
from jaxrl_reason.batch import rows_of
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rollouts import chunks as chunks_lib
from jaxrl_reason.rollouts import fused, sampler
from jaxrl_reason.update import chunked, packing

B, G, P, ROOM = 4, 4, 4, 21
HOW = Chunks(tokens=8, carry=3)  # four chunks, the last of three new tokens
STOP = jnp.array([1, -1])
VALID = np.arange(P) >= P - np.array([[3], [2], [1], [4]])
GEMMA = dict(windows=(3, 0, 5), attention_cap=2.0)
EXPERTS = dict(experts=4, experts_per_token=2, bias=False)


def prompts():
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 14)
  return Prompts(tokens, jnp.asarray(VALID), jnp.arange(B), {})


def think(model, params, how=HOW, f=chunks_lib.generate, **changes):
  asked = prompts()
  given = asked.tokens, asked.valid, jax.random.key(3)
  settings = changes.pop('settings', {})
  rest = dict(n_samples=G, max_new=ROOM) | changes
  how = () if how is None else (how,)

  def run(params):
    sampling = Sampling.make(**settings)
    return f(*how, model, params, *given, sampling, STOP, **rest)

  return jax.jit(run)(params)


def chunk_logp(model, params, out, how=HOW, settings=None):
  """Computes [N,C] log-probs of sampled tokens, with each chunk as its own
  sequence, without functions of the package.
  """
  asked, n = prompts(), out.tokens.shape[0]
  tokens, drawn = np.asarray(out.tokens), np.asarray(out.sampled)
  found, chunks = np.zeros(tokens.shape, np.float32), []
  begin, end, first = 0, how.tokens, 0
  while first < tokens.shape[1]:
    chunks.append((begin, min(end, tokens.shape[1]), first))
    begin, first, end = end - how.carry, end, end + how.tokens - how.carry
  settings = Sampling.make(**settings or {})
  for begin, end, first in chunks:
    repeated = (np.repeat(x, G, axis=0) for x in (asked.tokens, asked.valid))
    own = tokens[:, begin:end], drawn[:, begin:end]
    both = [np.concatenate(x, 1) for x in zip(repeated, own)]
    temperature = jnp.full(n, settings.temperature)
    rows = Rows(*map(jnp.asarray, both), temperature)
    logp = logprobs.score(model, params, rows, settings, start=P)[0]
    found[:, first:end] = np.asarray(logp)[:, P + first - begin :]
  return np.where(drawn, found, 0)


def of_update(model, params, out, how=HOW, length=0, settings=None):
  """Computes [N,C] log-probs as the update does."""
  rows = rows_of(prompts(), out)
  packed = packing.Packing(length or P + how.tokens, 2 if length else 1)
  how = chunked.Chunked(P, how, packed)

  def f(rows, packed):
    given = Sampling.make(**settings or {}), packed
    return logprobs.score(model, params, rows, *given, start=P)[0]

  logp = jax.jit(lambda rows: packing.fit(how, rows, rows, f))(rows)
  return np.where(np.asarray(out.sampled), np.asarray(logp)[:, P:], 0)


SHAPES = {
  'plain': {},
  'windows, prompts in pieces': dict(prefill='chunks:2', **GEMMA),
  'experts': EXPERTS,
}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(x, marks=pytest.mark.slow if x == 'experts' else ())
    for x in SHAPES
  ],
)
def test_log_probs_of_every_chunk_are_the_trainers(name):
  _, model, params = small_model(**SHAPES[name])
  settings = dict(temperature=0.8, top_p=0.9)
  out = think(model, params, settings=settings)
  lengths = set(np.asarray(out.length).tolist())
  assert ROOM in lengths and min(lengths) < HOW.tokens < 13 < max(lengths)
  want = chunk_logp(model, params, out, settings=settings)
  np.testing.assert_allclose(out.logp, want, atol=1e-5)
  got = of_update(model, params, out, settings=settings)
  np.testing.assert_allclose(got, want, atol=1e-5)
  if name == 'plain':  # several chunks in a row of the update
    got = of_update(model, params, out, length=29, settings=settings)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.fixture(scope='module')
def plain():
  """Returns (model, params, Rollout) of the default settings."""
  _, model, params = small_model(layers=2)
  return model, params, think(model, params)


def test_layout_of_a_rollout(plain):
  _, _, out = plain
  tokens, drawn = np.asarray(out.tokens), np.asarray(out.sampled)
  at = np.arange(ROOM)
  np.testing.assert_array_equal(drawn, at < np.asarray(out.length)[:, None])
  chunk = 1 + (at >= 8) + (at >= 13) + (at >= 18)
  np.testing.assert_array_equal(out.turn, np.where(drawn, chunk, 0))
  stops = drawn & (tokens == 1)
  last = at == np.asarray(out.length)[:, None] - 1
  assert not (stops & ~last).any()  # a stop in any chunk ends the completion
  np.testing.assert_array_equal(out.truncated, ~stops.any(1))
  assert {1, 2, 3, 4} <= set((np.asarray(out.turn).max(1)).tolist())


def test_the_first_chunk_equals_the_samplers_tokens(plain):
  """One chunk is a whole completion, and rows end independently."""
  model, params, out = plain
  want = think(model, params, None, sampler.generate)
  own = slice(0, HOW.tokens)
  np.testing.assert_array_equal(out.tokens[:, own], want.tokens[:, own])
  np.testing.assert_allclose(out.logp[:, own], want.logp[:, own], atol=1e-6)
  assert (np.asarray(out.tokens) != np.asarray(want.tokens)).any()
  whole = think(model, params, Chunks(ROOM, 3))
  np.testing.assert_array_equal(whole.tokens, want.tokens)
  np.testing.assert_array_equal(whole.sampled, want.sampled)
  ids = jnp.arange(B * G).at[5].set(99)  # other noise for one row
  other = think(model, params, row_ids=ids)
  same = np.delete(np.arange(B * G), 5)
  np.testing.assert_array_equal(other.tokens[same], out.tokens[same])
  assert (other.tokens[5] != out.tokens[5]).any()


def test_eight_devices_sample_as_one_does():
  _, model, params = small_model(layers=2, kv_heads=4, tied=False)
  want = think(model, params)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = think(model, params)
    logp = of_update(model, params, got)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  np.testing.assert_allclose(logp, want.logp, atol=1e-5)


def test_gradients_are_those_of_chunks_written_out(plain):
  """Context has no loss, so carried tokens are trained on once."""
  model, params, out = plain
  rows, weight = rows_of(prompts(), out), jnp.asarray(out.logp) ** 2
  how = chunked.Chunked(P, HOW, packing.Packing(P + HOW.tokens, 1))

  def loss(params, rows, packed):
    logp = logprobs.score(
      model, params, rows, Sampling.make(), packed, start=P
    )[0]
    return jnp.sum(weight * jnp.where(out.sampled, logp[:, P:], 0))

  got = jax.jit(
    lambda params: packing.fit(
      how, rows, rows, lambda *given: jax.grad(loss)(params, *given)
    )
  )(params)

  def of_chunk(params, k):
    begin, room = k * HOW.fresh, min(HOW.tokens, ROOM - k * HOW.fresh)
    own = slice(begin, begin + room)
    columns = np.r_[0:P, P + begin : P + begin + room]
    part = Rows(rows.tokens[:, columns], rows.valid[:, columns])
    logp = logprobs.score(model, params, part, Sampling.make(), start=P)[0]
    fresh = jnp.arange(room) >= (HOW.carry if k else 0)
    on = out.sampled[:, own] & fresh
    return jnp.sum(weight[:, own] * jnp.where(on, logp[:, P:], 0))

  def written_out(params):
    return sum(of_chunk(params, k) for k in range(HOW.count(ROOM)))

  want = jax.jit(jax.grad(written_out))(params)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    largest = jnp.abs(b).max()
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=4e-6 * largest)


def compiled(n_chunks: int, tokens=64, carry=16):
  """Compiles the program that samples this number of chunks of 64 tokens."""
  _, model, params = small_model(layers=1, heads=8, kv_heads=8, head_dim=16)
  room, asked = tokens + (n_chunks - 1) * (tokens - carry), prompts()

  def f(params):
    given = asked.tokens, asked.valid, jax.random.key(3), Sampling.make(), STOP
    how = Chunks(tokens, carry)
    rest = dict(n_samples=G, max_new=room)
    return chunks_lib.generate(how, model, params, *given, **rest)

  return jax.jit(f).lower(params).compile(), room


def test_memory_is_constant_and_work_linear():
  """Measures generation with 1, 4 and 16 chunks: temporaries without the output
  tokens, and FLOPs of one iteration.
  """
  found = {n: compiled(n) for n in (1, 4, 16)}
  cache = 2 * 8 * 16 * 4 * B * G  # bytes of a column: keys and values
  rest = {}
  for n, (program, _) in found.items():
    needed = program.memory_analysis().temp_size_in_bytes
    assert needed > 64 * cache
    rest[n] = needed - 64 * cache
  grown = (rest[16] - rest[1]) / (found[16][1] - found[1][1]) / (B * G)
  assert grown < 64  # bytes a token and row: ids and log-probs, in some copies
  flops = {n: p.cost_analysis()['flops'] for n, (p, _) in found.items()}
  assert flops[16] < 1.02 * flops[4] < 1.1 * flops[1]


def test_the_trainers_work_is_linear_too():
  _, model, params = small_model(layers=1)
  flops = {}
  for n in (1, 4, 16):
    how = Chunks(8, 4)
    room = 8 + (n - 1) * 4
    columns = jnp.ones((2, P + room), bool)
    rows = Rows(jnp.ones((2, P + room), jnp.int32), columns)
    way = chunked.Chunked(P, how, packing.Packing(P + 8, 1))

    def f(rows, way=way):
      def score(rows, packed):
        return logprobs.score(model, params, rows, Sampling.make(), packed)[0]

      return packing.fit(way, rows, rows, score)

    cost = jax.jit(f).lower(rows).compile().cost_analysis()
    flops[n] = cost['flops']
  assert 3 < flops[4] / flops[1] < 4.6 and 3 < flops[16] / flops[4] < 4.6


def test_a_model_without_support_for_chunks_is_refused():
  _, model, params = small_model()
  with pytest.raises(ValueError, match='no extend'):
    think(dataclasses.replace(model, extend=None), params)


@pytest.mark.slow
def test_demonstrations_are_read_in_chunks_too():
  """Demonstrations that replace samples have the same contexts."""
  _, model, params = small_model()
  gen = fused.Generation(model, G, ROOM, demos=1, chunks=HOW)
  demo = jax.random.randint(jax.random.key(9), (B, ROOM), 2, 14)
  asked = prompts().replace(demo=demo, demo_length=jnp.array([21, 9, 4, 15]))
  out = fused.complete(
    gen, params, asked, jax.random.key(1), 0, Sampling.make(), STOP
  )
  np.testing.assert_array_equal(out.length[G - 1 :: G], [21, 9, 4, 15])
  want = chunk_logp(model, params, out)
  np.testing.assert_allclose(of_update(model, params, out), want, atol=1e-5)
