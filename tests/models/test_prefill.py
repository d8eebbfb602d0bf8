"""Prompts in chunks of columns equal whole prompts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.models import blocks
from jaxrl_reason.models.parts import moe

B, P = 8, 13
GEMMA = dict(windows=(3, 0, 5), attention_cap=2.0, norm_place='sandwich')
EXPERTS = dict(experts=4, experts_per_token=2, bias=False)
LENGTHS = np.array([10, 1, 7, 9, 2, 10, 5, 3])
VALID = np.arange(P) >= P - LENGTHS[:, None]


def prompts(vocab: int = 16):
  return jax.random.randint(jax.random.key(0), (B, P), 0, vocab)


def prefill(model, params, tokens, valid):
  def f(params, tokens, valid):
    return model.prefill(params, tokens, valid, 2, 4)

  return jax.jit(f)(params, tokens, jnp.asarray(valid))


def assert_same(got, want, atol=1e-5):
  np.testing.assert_allclose(got[0], want[0], atol=atol)
  real = np.broadcast_to(VALID[:, None], (B, 2, P))
  got, want = (jax.tree.leaves(x[1].prompt) for x in (got, want))
  for a, b in zip(got, want, strict=True):
    seen = real[:, :, -a.shape[2] :]  # a window keeps its columns alone
    np.testing.assert_allclose(a[seen], b[seen], atol=atol)


@pytest.mark.parametrize(
  'shape, n',
  [
    ({}, 1),
    ({}, 13),
    (GEMMA, 4),
    (GEMMA, 20),
    (dict(remat='full', train_layers='scan'), 4),
  ],
)
def test_chunks_equal_the_whole_prompt(shape, n):
  _, model, params = small_model(**shape)
  want = prefill(model, params, prompts(), VALID)
  _, model, _ = small_model(prefill=f'chunks:{n}', **shape)
  assert_same(prefill(model, params, prompts(), VALID), want)


def test_experts_are_routed_alike():
  _, model, params = small_model(**EXPERTS)
  want = prefill(model, params, prompts(), VALID)
  _, model, _ = small_model(prefill='chunks:3', **EXPERTS)
  got = prefill(model, params, prompts(), VALID)
  assert_same(got, want, atol=3e-5)
  routes, empty = got[1].routes
  np.testing.assert_array_equal(routes[VALID], want[1].routes[0][VALID])
  assert routes.shape == want[1].routes[0].shape
  assert np.all(routes[VALID] >= 0) and np.all(empty == moe.UNKNOWN)


def test_padding_has_no_effect_for_any_embedding():
  _, model, params = small_model(prefill='chunks:4')
  tokens = jnp.where(VALID, prompts(vocab=15), 15)  # 15 is padding alone
  want = prefill(model, params, tokens, VALID)
  params['embed'] = params['embed'].at[15].set(jnp.nan)
  got = prefill(model, params, tokens, VALID)
  assert_same(got, want, atol=0)


@pytest.mark.parametrize(
  'lengths, chunks', [((1, 2), 1), ((4, 1), 1), ((5, 4), 2), ((13, 13), 4)]
)
def test_chunks_of_padding_are_not_computed(monkeypatch, lengths, chunks):
  _, model, params = small_model(prefill='chunks:4')
  through, seen = blocks.through, []

  def spy(params, c, x, *args, **kwargs):
    jax.debug.callback(lambda: seen.append(x.shape[:2]))
    return through(params, c, x, *args, **kwargs)

  monkeypatch.setattr(blocks, 'through', spy)
  valid = np.arange(P) >= P - np.array(lengths)[:, None]
  jax.block_until_ready(prefill(model, params, prompts()[:2], valid))
  jax.effects_barrier()
  assert seen == [(2, 4)] * chunks


@pytest.mark.parametrize('shape', [(8, 1, 1), (2, 2, 2), (1, 2, 2, 2)])
def test_on_eight_devices_as_on_one(shape):
  _, model, params = small_model(prefill='chunks:4')
  want = prefill(model, params, prompts(), VALID)
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
    placed = jax.tree.map(jax.device_put, params, where)
    rows = sharding.to_global((np.asarray(prompts()), VALID), mesh)
    got = prefill(model, placed, *rows)
  assert_same(got, want)


def test_chunks_need_less_memory():
  """Scores of a chunk are [B,Q,n,P] instead of [B,Q,P,P] for all columns."""
  peak = {}
  tokens = jnp.zeros((2, 512), jnp.int32)
  for prefill in ('whole', 'chunks:64'):
    _, model, params = small_model(prefill=prefill)
    f = jax.jit(lambda p, x, m=model: m.prefill(p, x, x == 0, 1, 1))
    memory = f.lower(params, tokens).compile().memory_analysis()
    peak[prefill] = memory.temp_size_in_bytes
  assert peak['chunks:64'] < peak['whole'] / 3, peak
