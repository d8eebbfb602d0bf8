"""Combinations of each kind of layer with odd shapes, prompts in chunks, loops
over layers, packed rows, eight devices, adapters on int8, smaller caches and
replayed experts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.family_shapes import (
  ALIKE,
  EXPERTS,
  FAMILIES,
  SHARED,
  SLOW,
  V,
  config,
)

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, families, logprobs, transformer
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.rollouts import sampler

EVERY = *FAMILIES, *ALIKE
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


def test_every_family_has_a_shape():
  names = {name.partition(',')[0] for name in EVERY}
  assert names == {*families.FAMILIES}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (name in (*SLOW, *ALIKE)))
    for name in EVERY
  ],
)
def test_sampler_equals_trainer_with_prompts_in_chunks(name):
  model, params = built(name, prefill='chunks:4')
  assert gap(model, params, slots=1, segments=2) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', EVERY)
def test_sampler_in_a_loop_over_layers_equals_trainer(name):
  model, params = built(name, decode_layers='scan')
  assert gap(model, params) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize('name', EVERY)
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
@pytest.mark.parametrize('name', EVERY)
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
@pytest.mark.parametrize('name', EVERY)
def test_packed_rows_are_independent(name):
  model, params = built(name)
  tokens = jax.random.randint(jax.random.key(5), (2, 2 * P), 3, V)
  ids = jnp.repeat(jnp.array([[1, 2]] * 2), P, axis=1)
  hidden = jax.jit(model.hidden)
  packed = hidden(params, tokens, ids)
  apart = hidden(params, tokens.reshape(4, P), jnp.ones((4, P), bool))
  np.testing.assert_allclose(packed.reshape(apart.shape), apart, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', EVERY)
def test_int8_caches_are_near(name):
  if config(name).index_topk:
    with pytest.raises(ValueError, match="cache_dtype='int8' rounds the keys"):
      built(name, cache_dtype='int8')
    return
  model, params = built(name, cache_dtype='int8')
  assert 1e-6 < gap(model, params) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize('name', EVERY)
def test_kernels_agree(name):
  model, params = built(name, attention='einsum')
  other = 'blocked' if config(name).index_topk else 'splash'
  blocks, _ = built(name, attention=other)
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
    (dict(dense_layers=tuple(range(6))), 'some of model.layers=6'),
    (dict(dense_layers=(1, 0)), 'must be rising indices of some'),
    (dict(dense_mlp=0), 'need a model.dense_mlp .now 0'),
    (dict(expert_inputs=True), 'expert_inputs needs .*expert_norm=False'),
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


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(wide_layers=()), 'wide_head_dim has no effect: model.wide_layers'),
    (dict(wide_layers=(3, 1)), 'wide_layers=.3, 1. must be rising indices'),
    (dict(wide_kv_heads=3), 'wide_kv_heads=3 a divisor of model.heads=4'),
    (dict(rope_of_layer=(0,) * 8), 'rotary tables .rope_of_layer. that no'),
    (dict(reading_layers=0), 'reading_mlp has no effect: model.reading_la'),
    (dict(reading_layers=8), 'reading_layers=8 must be less than'),
    (dict(reading_layers=7), 'layer 1 needs an earlier layer with keys'),
    (dict(windows=(5, 0) * 3 + (4, 0)), 'layer 6 needs an .* model.windows=4'),
    (dict(out_gate=True), 'cannot be combined with out_gate=True'),
    (dict(q_rank=2, kv_rank=4, rope_dim=2, value_dim=6), 'latent attention'),
    (dict(expert_norms=True), 'expert_norms has no effect: model.experts=0'),
    (dict(dtype='bfloat16', numerics='exact'), 'not support model.wide_layers'),
  ],
)
def test_heads_of_several_widths_refuse_other_settings(changes, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(config('gemma4_text'), **changes)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(use_bidirectional_attention='all'), "attention='all' is not supp"),
    (dict(layer_types=['sliding_attention'] * 8), 'last of layer_types'),
    (dict(vocab_size_per_layer_input=39), 'vocab_size_per_layer_input=39'),
    (dict(num_kv_shared_layers=7), 'reading_layers=7: layer 1 needs'),
    (dict(rope_parameters={'full_attention': {}}), 'rope_parameters needs'),
    (dict(rope_scaling={'rope_type': 'linear'}), 'rope_scaling is not read'),
    (dict(sliding_window=None), 'sliding_window is null'),
    (
      dict(per_layer_config={'1': {'head_dim': 8}}),
      'per_layer_config must set the same head_dim',
    ),
    (dict(enable_moe_block=True), 'num_experts is missing'),
  ],
)
def test_keys_of_gemma_4_are_refused_by_name(changes, said):
  h = SHARED | FAMILIES['gemma4_text'] | {'model_type': 'gemma4_text'}
  with pytest.raises(ValueError, match=said):
    families.from_hf(h | changes)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(attention_chunk_size=-1), 'attention_chunk_size=-1 must be 1 or'),
    (
      dict(attention_chunk_size=None, layer_types=['chunked_attention'] * 6),
      'attention_chunk_size=None must be 1 or more',
    ),
    (dict(layer_types=['sliding_attention'] * 6), 'choose chunked_attention'),
    (dict(no_rope_layers=[1, 0]), 'no_rope_layers has 2 entries'),
    (dict(moe_layers=[]), 'moe_layers must have one layer or more'),
    (dict(rope_scaling=dict(rope_type='none')), "rope_type='none' is not"),
    (dict(quantization_config=dict(quant_method='fp8')), 'for llama4_text'),
  ],
)
def test_keys_of_llama_4_are_refused_by_name(changes, said):
  h = SHARED | FAMILIES['llama4_text'] | {'model_type': 'llama4_text'}
  with pytest.raises(ValueError, match=said):
    families.from_hf(h | changes)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(use_bias=True), 'use_bias=True is not .* output head would have a'),
    (dict(moe_norm_min=0.1), 'moe_norm_min=0.1 must be at most 1e-09'),
    (dict(moe_layer_interval=0), 'moe_layer_interval=0 must be 1 or more'),
    (dict(moe_layer_start_index=9), 'start_index=9, .* leave one layer with'),
  ],
)
def test_keys_of_ernie_4_5_are_refused_by_name(changes, said):
  h = SHARED | FAMILIES['ernie4_5_moe'] | {'model_type': 'ernie4_5_moe'}
  with pytest.raises(ValueError, match=said):
    families.from_hf(h | changes)


def test_heads_of_global_layers_are_read_in_either_form():
  h = SHARED | FAMILIES['gemma4_text, experts'] | {'model_type': 'gemma4_text'}
  own = {'head_dim': 10, 'num_key_value_heads': 2}
  made = {'per_layer_config': {'02': own, '5': own}, 'global_head_dim': 99}
  assert families.from_hf(h | made) == config('gemma4_text, experts')


def test_a_layer_that_reads_keys_stores_none():
  c = config('gemma4_text')
  model, params = built('gemma4_text')
  shapes = jax.eval_shape(
    lambda p: model.prefill(p, jnp.zeros((B, P), int), VALID, G, C)[1], params
  )
  kept = [[x.values.shape for x in layer] for layer in shapes.own]
  local, wide = (B * G, 2, 5, 6), (B * G, 2, C, 10)
  assert kept == [[local] * 2, [wide] * 2] * 2 + [[]] * 4
  # Norms of layers and their factor, of queries and of keys, of the output, and
  # of the layers' inputs; then the table of these inputs.
  beside = c.layers * (5 * c.width + 1) + 4 * (6 + 10) + 2 * (6 + 10)
  beside += c.width + 4 + V * c.layers * 4
  own = 2 * (trees.n_params(params) - beside)
  assert c.tied and model.flops_per_token(0) == own
  seen = 4 * 4 * 5 * 6 + 4 * 4 * 100 * 10  # heads, tokens, width
  assert model.flops_per_token(100) == own + 4 * seen
