"""Combinations of each kind of layer with odd shapes, prompts in chunks, loops
over layers, packed rows, eight devices, adapters on int8, smaller caches and
replayed experts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.family_shapes import ALIKE, EXPERTS, FAMILIES, SLOW, V, config

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, families, logprobs, transformer
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.rollouts import sampler

B, G, P, C = 4, 2, 9, 14
LENGTHS = np.array([9, 1, 6, 4])
VALID = np.arange(P) >= P - LENGTHS[:, None]


@jax.jit
def perturbed(params):
  """Changes every value, so that no parameter is without effect."""
  keys = iter(jax.random.split(jax.random.key(1), 200))

  def shake(path, x):
    if x.dtype == jnp.int8:
      return x
    by = 0.2 * jax.random.normal(next(keys), x.shape, x.dtype)
    # Added to an int8 scale of 0.002, 0.2 would make weights of 25, and the
    # rounding errors of such a model are too large to compare.
    return x * (1 + by) if path.endswith('/scale') else x + by

  return trees.map_with_path(shake, params)


def built(name: str, beside=None, **runtime):
  model = transformer.build(config(name, **runtime))
  model = adapters.attach(model, **beside) if beside else model
  params = jax.jit(lambda: frozen.init(model.specs, jax.random.key(0)))()
  return model, perturbed(params)


def generate(model, params, **static):
  tokens = jax.random.randint(jax.random.key(0), (B, P), 3, V)

  @jax.jit
  def f(params):
    return sampler.generate(
      model,
      params,
      tokens,
      jnp.asarray(VALID),
      jax.random.key(3),
      Sampling.make(1.0),
      jnp.array([1, 2]),
      n_samples=G,
      max_new=C,
      routes=model.hidden_routed is not None,
      **static,
    )

  return tokens, f(params)


def rows_of(tokens, out):
  """Returns (rows of prompts and completions, bool [N,C] of sampled tokens)."""
  whole = jnp.concatenate([jnp.repeat(tokens, G, 0), out.tokens], 1)
  past = np.arange(C) < np.asarray(out.length)[:, None]
  mask = jnp.concatenate([np.repeat(VALID, G, 0), past], 1)
  return Rows(whole, mask, out.temperature, out.routes), past


def gap(model, params, **static) -> float:
  """Computes the largest difference of sampler and trainer log-probs."""
  tokens, out = generate(model, params, **static)
  rows, past = rows_of(tokens, out)
  score = jax.jit(
    lambda p: logprobs.score(model, p, rows, Sampling.make(), start=P)[0]
  )
  assert past.sum() > 20
  return np.abs(score(params)[:, P:] - out.logp)[past].max()


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(n, marks=[pytest.mark.slow] * (n in (*ALIKE, *SLOW)))
    for n in (*FAMILIES, *ALIKE)
  ],
)
def test_sampler_equals_trainer_with_prompts_in_chunks(name):
  model, params = built(name, prefill='chunks:4')
  assert gap(model, params, slots=1, segments=2) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_sampler_in_a_loop_over_layers_equals_trainer(name):
  model, params = built(name, decode_layers='scan')
  assert gap(model, params) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_adapters_beside_int8(name):
  targets = '.*attn/(q|k|v|o|(q|kv)_(up|down))|.*mlp/(gate|up|down)'
  beside = dict(
    lora=lora.Lora(rank=2, alpha=4.0, targets=targets),
    frozen_dtype='int8',
    trainable='lora/.*',
  )
  model, params = built(name, beside)
  flat = jax.tree_util.tree_leaves_with_path(params)
  assert any(x.dtype == jnp.int8 for _, x in flat)
  assert gap(model, params) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
@pytest.mark.parametrize('shape', [(2, 2, 2), (2, 4, 1), (1, 4, 1, 2)])
def test_on_eight_devices_as_on_one(name, shape):
  model, params = built(name, split=shape[2] > 1)
  tokens, want = generate(model, params)
  rows, past = rows_of(tokens, want)

  def score(p, rows):
    return logprobs.score(model, p, rows, Sampling.make(), start=P)[0]

  alone = jax.jit(score)(params, rows)
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
    placed = jax.tree.map(jax.device_put, params, where)
    _, got = generate(model, placed)
    split = jax.jit(score)(placed, rows)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  # float32 sums in another order: 1.3e-5 of qwen3_5_text, others below 1e-5.
  np.testing.assert_allclose(got.logp, want.logp, atol=2e-5)
  gaps = np.abs(np.asarray(split)[:, P:] - np.asarray(alone)[:, P:])
  assert gaps[past].max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_packed_rows_are_independent(name):
  model, params = built(name)
  tokens = jax.random.randint(jax.random.key(5), (2, 2 * P), 3, V)
  ids = jnp.repeat(jnp.array([[1, 2]] * 2), P, axis=1)
  hidden = jax.jit(model.hidden)
  packed = hidden(params, tokens, ids)
  apart = hidden(params, tokens.reshape(4, P), jnp.ones((4, P), bool))
  np.testing.assert_allclose(packed.reshape(apart.shape), apart, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_int8_caches_are_near(name):
  model, params = built(name, cache_dtype='int8')
  assert 1e-6 < gap(model, params) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize('name', FAMILIES)
def test_kernels_agree(name):
  model, params = built(name, attention='einsum')
  blocks, _ = built(name, attention='splash')
  tokens = jax.random.randint(jax.random.key(5), (2, 130), 3, V)
  valid = jnp.arange(130) >= jnp.array([[0], [7]])

  def f(model):
    def loss(p):
      h = model.hidden(p, tokens, valid)
      return jnp.sum(jnp.sin(h) * valid[..., None]), h

    return jax.jit(jax.grad(loss, has_aux=True))(params)

  (ga, a), (gb, b) = f(model), f(blocks)
  np.testing.assert_allclose(a[valid], b[valid], atol=2e-4)
  for x, y in zip(jax.tree.leaves(ga), jax.tree.leaves(gb)):
    gap = np.linalg.norm(x - y)
    assert gap <= 2e-3 * np.linalg.norm(x) + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', EXPERTS)
def test_replaying_its_own_routes_changes_nothing(name):
  model, params = built(name)
  tokens, out = generate(model, params)
  rows, past = rows_of(tokens, out)
  c = config(name)
  shape = (B * G, P + C, len(c.routed_layers), c.experts_per_token)
  assert out.routes.shape == shape
  f = jax.jit(model.hidden_routed)
  own, aux = f(params, rows.tokens, rows.valid)
  again, _ = f(params, rows.tokens, rows.valid, aux['routes'])
  real = np.asarray(rows.valid)
  np.testing.assert_allclose(own[real], again[real], atol=1e-5)
  same = np.sort(aux['routes'][:, :-1]) == np.sort(out.routes[:, :-1])
  assert same[real[:, :-1] & real[:, 1:]].mean() > 0.99
  other = (aux['routes'] + 1) % c.experts
  assert np.abs(f(params, rows.tokens, rows.valid, other)[0] - own).max() > 0.01


def test_a_latent_cache_keeps_a_row_for_all_heads():
  c = config('deepseek_v3')
  model, params = built('deepseek_v3')
  shapes = jax.eval_shape(
    lambda p: model.prefill(p, jnp.zeros((B, P), int), VALID, G, C)[1], params
  )
  kept = [(x.values.shape for x in layer) for layer in shapes.own]
  assert [list(layer) for layer in kept] == [[(B * G, 1, C, 14)]] * c.layers


def test_adapters_alone_are_named_by_their_layers(tmp_path):
  """Layers without experts are a separate stack before the others."""
  settings = lora.Lora(rank=2, alpha=4.0, targets='.*attn/(q|o)')
  beside = dict(lora=settings, trainable='lora/.*')
  model, params = built('glm4_moe', beside)
  c, table = config('glm4_moe'), families.FAMILIES['glm4_moe'].TENSORS
  specs = model.specs
  lora.save_peft(tmp_path, params, settings, table, specs, stacks=c.stacks)
  file = tmp_path / 'adapter_model.safetensors'
  found = pytest.importorskip('safetensors.numpy').load_file(file)
  for stack, layers in ('dense_layers', (0, 1)), ('layers', (2, 3, 4, 5)):
    ours = params['lora'][stack]['attn']['o']['b']
    for at, layer in enumerate(layers):
      name = f'base_model.model.model.layers.{layer}.self_attn.o_proj'
      np.testing.assert_array_equal(found[f'{name}.lora_B.weight'].T, ours[at])
  experts = lora.Lora(rank=2, alpha=4.0, targets='.*mlp/down')
  model, params = built('gpt_oss', dict(lora=experts, trainable='lora/.*'))
  table = families.FAMILIES['gpt_oss'].TENSORS
  with pytest.raises(ValueError, match='an adapter per expert'):
    lora.save_peft(tmp_path, params, experts, table, model.specs)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(expert_groups=3), 'expert_groups=3 must divide model.experts=8'),
    (dict(experts_per_token=5), 'at most 4, .* model.groups_per_token=2'),
    (dict(dense_layers=6), 'dense_layers=6 must be less than model.layers=6'),
    (dict(dense_mlp=0), 'needs a model.dense_mlp .now 0'),
    (dict(expert_groups=8, experts_per_token=2), 'sum of their best two'),
    (dict(rope_dim=10), 'rope_dim=10 must be between 1 and 9'),
    (dict(kv_rank=0), 'q_rank has no effect: model.kv_rank=0'),
    (dict(kv_heads=1), 'kv_heads other than heads'),
    (dict(attention='xla'), "'xla' does not support values of another width"),
  ],
)
def test_incompatible_settings_are_refused(changes, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(config('deepseek_v3'), **changes)
