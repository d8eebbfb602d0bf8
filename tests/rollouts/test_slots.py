"""Slots, growing caches and small caches sample the tokens of the plain
loop.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import blocks, flax_bridge
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.parts import moe, stored
from jaxrl_reason.rollouts import sampler

B, G, P, C = 3, 5, 4, 12
STOP = jnp.array([1, 2, 5])
GEMMA = dict(windows=(3, 0, 5), attention_cap=2.0)
EXPERTS = dict(experts=4, experts_per_token=2, bias=False)
VALID = np.arange(P) >= P - np.array([[3], [2], [1]])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  monkeypatch.setattr(cache_lib, 'TILE', 2)
  monkeypatch.setattr(cache_lib, 'FIRST', 2)
  monkeypatch.setattr(cache_lib, 'GROWTH', 2)


def compiled(model, stop=STOP, **static):
  """Returns a compiled function (params, temperature [] or [N]) -> Rollout."""
  tokens = jax.random.randint(jax.random.key(0), (B, P), 2, 16)
  valid = jnp.asarray(VALID)

  def f(params, temperature):
    return sampler.generate(
      model,
      params,
      tokens,
      valid,
      jax.random.key(3),
      Sampling.make(temperature),
      stop,
      n_samples=G,
      max_new=C,
      policy_logp=True,
      **static,
    )

  return jax.jit(f)


def run(model, params, temperature=1.0, **static):
  return compiled(model, **static)(params, jnp.float32(temperature))


@functools.cache
def plain(shape=(), **static):
  """Returns the samples without slots and segments."""
  return run(*small_model(**dict(shape))[1:], **static)


def assert_same(got, want):
  for name in ('tokens', 'length', 'truncated', 'temperature'):
    np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  np.testing.assert_allclose(got.policy_logp, want.policy_logp, atol=1e-5)


@pytest.mark.parametrize(
  'shape, static',
  [
    ({}, [dict(slots=2), dict(slots=1, segments=4), dict(segments=1)]),
    (GEMMA, [dict(slots=3, segments=2)]),
  ],
)
def test_slots_and_segments_change_no_sample(shape, static):
  _, model, params = small_model(**shape)
  # Each row has a temperature of its own, which goes with it to its slot.
  temperature = 0.7 + 0.1 * (jnp.arange(B * G) % 7)
  want = run(model, params, temperature)
  assert len(set(want.length.tolist())) > 4  # rows end at different times
  assert np.any(want.length == 1) and np.any(want.truncated)
  for changes in static:
    assert_same(run(model, params, temperature, **changes), want)


@pytest.mark.parametrize('slots', [0, 2])
def test_a_row_reads_only_its_own_temperature(tiny, slots):
  _, model, params = tiny
  f = compiled(model, slots=slots)
  warm = np.arange(B * G) % 3 == 1
  cool, both, hot = (
    f(params, jnp.where(warm, *t)) for t in ((0.4, 0.4), (2.5, 0.4), (2.5, 2.5))
  )
  # One temperature equals a vector of it, bit for bit.
  one = f(params, jnp.float32(0.4))
  jax.tree.map(np.testing.assert_array_equal, one, cool)
  for name in ('tokens', 'length', 'logp'):
    x, y, z = (np.asarray(getattr(o, name)) for o in (cool, both, hot))
    # With few slots, the keys of a row may be in other columns, so sums may
    # have other roundings.
    np.testing.assert_allclose(y[~warm], x[~warm], atol=1e-5)
    np.testing.assert_allclose(y[warm], z[warm], atol=1e-5)
    assert np.any(x[warm] != z[warm])


def test_slots_are_few_and_the_cache_grows(tiny):
  """Counts the rows decoded at a time, and the columns."""
  _, model, params = tiny
  seen = []

  def decode(params, tokens, cache, t, column):
    seen.append((tokens.shape[0], cache.own[0][0].values.shape[2]))
    return model.decode(params, tokens, cache, t, column)

  spied = dataclasses.replace(model, decode=decode)
  run(spied, params, slots=2, segments=3)
  assert set(seen) == {(B * 2, 4), (B * 2, 8), (B * 2, 12)}


def test_the_cache_grows_only_for_rows_that_have_not_ended(tiny):
  _, model, params = tiny
  grown = []

  def grow(cache, columns):
    jax.debug.callback(lambda: grown.append(columns))
    return model.grow(cache, columns)

  def columns(stop):
    f = compiled(dataclasses.replace(model, grow=grow), stop=stop)
    grown.clear()
    jax.block_until_ready(f(params, jnp.float32(1.0)))
    jax.effects_barrier()
    return sorted(grown)

  assert columns(jnp.arange(16)) == []
  assert columns(jnp.array([-1])) == [4, 8, 12]


@pytest.mark.parametrize('shape', [{}, GEMMA, EXPERTS])
def test_prompt_buckets_change_no_sample(shape):
  routes = 'experts' in shape
  want = plain(tuple(shape.items()), routes=routes)
  got = run(*small_model(prefill='buckets:3', **shape)[1:], routes=routes)
  assert_same(got, want)
  if routes:
    real = np.asarray(want.routes) != moe.UNKNOWN
    real[:, :P] &= np.repeat(VALID, G, axis=0)[..., None, None]
    np.testing.assert_array_equal(got.routes[real], want.routes[real])


@pytest.mark.parametrize('cache_dtype', ['model', 'int8'])
def test_prompt_chunks_change_no_sample(cache_dtype):
  shape = {} if cache_dtype == 'model' else {'cache_dtype': cache_dtype}
  chunked = small_model(prefill='chunks:3', **shape)
  assert_same(run(*chunked[1:]), plain(tuple(shape.items()), routes=False))


@pytest.mark.parametrize('longest, width', [(1, 2), (2, 2), (3, 4), (4, 4)])
def test_prompts_are_computed_as_wide_as_the_longest(
  monkeypatch, longest, width
):
  _, model, params = small_model(prefill='buckets:2')
  forward = blocks.forward

  def spy(params, c, tokens, *args, **kwargs):
    h, aux = forward(params, c, tokens, *args, **kwargs)
    return jnp.full_like(h, tokens.shape[1]), aux

  monkeypatch.setattr(blocks, 'forward', spy)
  valid = jnp.arange(P) >= P - jnp.array([[longest], [1], [1]])
  hidden, _ = model.prefill(params, jnp.ones((B, P), int), valid, 1, C)
  np.testing.assert_array_equal(hidden, width)


def test_experts_used_are_those_of_the_row():
  _, model, params = small_model(**EXPERTS)
  want = plain(tuple(EXPERTS.items()), routes=True)
  got = run(model, params, routes=True, slots=2, segments=2)
  assert_same(got, want)
  # The last token drawn is never decoded.
  decoded = np.arange(C) < np.asarray(want.length)[:, None] - 1
  a, b = (np.asarray(x.routes[:, P:])[decoded] for x in (got, want))
  np.testing.assert_array_equal(a, b)
  assert a.any()


def test_bridged_models_take_slots(tiny):
  c, model, params = tiny

  def apply(params, tokens):
    valid = jnp.ones_like(tokens, bool)
    return model.unembed(params, model.hidden(params, tokens, valid))

  bridged = flax_bridge.from_apply(apply, params)
  want = plain(routes=False)
  assert_same(run(bridged, params, slots=2, segments=2), want)


@pytest.mark.parametrize('shape', [(8, 1, 1), (2, 2, 2)])
def test_slots_on_eight_devices_equal_one(shape):
  gen = dataclasses.replace(L.GEN, slots=3, segments=2)
  params = L.model_and_params()[1]
  want = jax.jit(L.sample)(params, L.prompts())
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    where = sharding.shardings(L.MODEL.specs, mesh, sharding.TRAIN_RULES)
    placed = jax.tree.map(jax.device_put, params, where)
    rows = sharding.to_global(L.prompts(), mesh)
    f = jax.jit(lambda p, x: L.sample(p, x, gen))
    got = f(placed, rows)
    text = f.lower(placed, rows).compile().as_text()
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  # The cache of a slot stays on its device: [B*I / row shards, heads, columns,
  # H].
  own = f'f32[{L.B * 3 // (shape[0] * shape[1])},{4 // shape[2]},{L.C},4]'
  assert own in text


@pytest.mark.parametrize('dtype, most', [('bfloat16', 0.1), ('int8', 0.2)])
def test_small_caches_stay_close_and_greedy(dtype, most):
  _, model, params = small_model()
  _, less, _ = small_model(cache_dtype=dtype)
  want = run(model, params, 0.0)
  got = run(less, params, 0.0, slots=2, segments=2)
  same = np.cumsum(got.tokens != want.tokens, axis=1) == 0
  gap = np.abs(got.policy_logp - want.policy_logp)
  assert 1e-4 < gap[same].max() < most  # another distribution, but near
  assert not gap[:, 0].any()  # the first token's is not read from the cache
  # Rows differ only after a near tie, and most do not differ.
  assert same.mean() > 0.8
  assert np.all(gap[~same & np.roll(same, 1, axis=1)] < most)


def test_int8_is_off_by_half_a_scale_at_most():
  x = jax.random.normal(jax.random.key(0), (3, 2, 7, 16))
  x = x * 10.0 ** jnp.arange(-3, 4)[:, None]  # a scale for every position
  x = x.at[0, 0, 0].set(0)
  kept = stored.store(x, 'int8')
  assert kept.values.dtype == jnp.int8 and kept.scale.shape == (3, 2, 7)
  error = jnp.abs(kept.values * kept.scale[..., None] - x)
  largest = jnp.abs(x).max(axis=-1, keepdims=True)
  assert jnp.all(error <= largest / 254 * 1.001)
  assert jnp.all(jnp.abs(kept.values[1]).max(axis=-1) == 127)
  assert not jnp.any(kept.values[0, 0, 0])


def test_the_sizes_of_a_growing_cache_end_at_the_completions_length(
  monkeypatch,
):
  assert cache_lib.rooms(12, 1) == (12,)
  assert cache_lib.rooms(11, 3) == (4, 8, 11)
  monkeypatch.setattr(cache_lib, 'TILE', 32)
  assert cache_lib.rooms(20, 4) == (20,)
  assert cache_lib.rooms(1000, 4) == (256, 512, 768, 1000)
  monkeypatch.setattr(cache_lib, 'FIRST', 100)
  monkeypatch.setattr(cache_lib, 'GROWTH', 4)
  for most, want in {
    1: (1,), 100: (100,), 101: (100, 101), 400: (100, 400),
    2000: (100, 400, 1600, 2000),
  }.items():  # fmt: skip
    assert cache_lib.rooms(most, 0) == want


def test_a_stream_of_tokens_needs_a_slot_for_every_row(tiny):
  with pytest.raises(ValueError, match='not 2 of 5'):
    run(*tiny[1:], slots=2, on_token=print)
