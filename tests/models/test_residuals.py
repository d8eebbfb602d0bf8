"""Several residual streams, low-rank residuals and sparse gates (Gemma 3n)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.family_shapes import FAMILIES, SHARED, V, config

from jaxrl_reason.models import (
  adapters,
  families,
  mixed_layers,
  spec,
  transformer,
)
from jaxrl_reason.models.parts import layers


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(altup_num_inputs=1), 'altup_num_inputs=1 must be 2 or more'),
    (dict(laurel_rank=None), 'laurel_rank=None must be 1 or more'),
    (dict(hidden_size_per_layer_input=0), 'per_layer_input=0 must be 1'),
    (dict(altup_active_idx=1), 'altup_active_idx=1 is not supported'),
    (dict(altup_correct_scale=False), 'only True'),
    (dict(intermediate_size=[24] * 7 + [20]), 'all num_hidden_layers=8 la'),
    (dict(intermediate_size=[24, -1]), 'intermediate_size=-1 is not a whole'),
    (dict(activation_sparsity_pattern=[0.5]), 'list of num_hidden_layers=8'),
    (dict(activation_sparsity_pattern=[1.0] * 8), 'to less than 1'),
    (dict(activation_sparsity_pattern=['x'] * 8), "='x' is not a number"),
    (dict(sliding_window=None), 'sliding_window is null'),
    (dict(num_kv_shared_layers=7), 'reading_layers=7: layer 1 needs'),
  ],
)
def test_keys_of_gemma_3n_are_refused_by_name(changes, said):
  h = SHARED | FAMILIES['gemma3n_text'] | {'model_type': 'gemma3n_text'}
  with pytest.raises(ValueError, match=said):
    families.from_hf(h | changes)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(streams=1), 'streams=1 must be 0 or at least 2'),
    (dict(layer_inputs=0, layer_inputs_vocab=0), 'needs model.layer_inputs'),
    (dict(streams=0, layer_inputs=0), 'layer_inputs_vocab has no effect'),
    (dict(layer_factor=True), 'streams cannot be combined with layer_factor'),
    (dict(streams=0, activation='relu2'), "activation='relu2'"),
    (dict(norm_place='parallel'), "norm_place='parallel'"),
    (dict(mlp_sparsity=(0.5,)), 'mlp_sparsity has 1 entries, model.layers=8'),
    (dict(dtype='bfloat16', numerics='exact'), 'not support model.wide_layers'),
  ],
)
def test_several_residual_streams_refuse_other_settings(changes, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(config('gemma3n_text'), **changes)


@pytest.mark.parametrize('name', ['streams', 'low_rank', 'mlp_sparsity'])
def test_exact_numerics_refuse_parts_of_gemma_3n(name):
  own = dict(wide_layers=(), wide_head_dim=0, wide_kv_heads=0, value_norm=False)
  own |= dict(reading_layers=0, layer_inputs=0, layer_inputs_vocab=0)
  parts = dict(streams=0, low_rank=0, mlp_sparsity=())
  if name == 'streams':  # which needs inputs of layers
    own |= dict(layer_inputs=4)
  parts.pop(name)
  c = dataclasses.replace(config('gemma3n_text'), **own, **parts)
  said = 'layer_inputs' if name == 'streams' else name
  with pytest.raises(ValueError, match=f'not support model.{said}='):
    dataclasses.replace(c, dtype='bfloat16', numerics='exact')


def test_steering_refuses_several_residual_streams():
  h = SHARED | FAMILIES['gemma3n_text'] | {'model_type': 'gemma3n_text'}
  h |= dict(layer_types=['sliding_attention'] * 8)  # one stack
  c = families.from_hf(h | dict(num_kv_shared_layers=0))
  assert [*c.stacks] == ['layers']
  with pytest.raises(ValueError, match='several residual streams'):
    adapters.attach(transformer.build(c), steering=True)


def test_sparse_gates_keep_the_share_above_the_cutoff():
  """A share of 0.7 of normally distributed gates is zero. Layers without a
  share keep all gates.
  """
  c = config('gemma3n_text')
  x = jax.random.normal(jax.random.key(0), (3, 20_000)) * 2 + 5
  for layer, share in (3, 0.7), (1, 0.0):
    y = layers.sparse(x, mixed_layers.cutoff(c, layer))
    assert abs(np.mean(y == 0) - share) < 0.01
    kept = x[y > 0]
    assert np.mean(kept) > 5 and np.ptp(kept - y[y > 0]) < 0.1
  # Constant gates have no deviation, whose gradient is finite.
  g = jax.grad(lambda x: layers.sparse(x, 0.5).sum())(jnp.ones((2, 8)))
  assert np.isfinite(g).all()


def test_flops_of_streams_are_those_of_their_weights():
  c = config('gemma3n_text')
  model = transformer.build(c)
  d = c.width
  # Norms and scales of layers, of queries and of keys, of the output and of the
  # layers' inputs; then the table of these inputs.
  beside = c.layers * (8 * d + 6) + 4 * 6 + d + 4 + (V - 10) * c.layers * 4
  routers = c.layers * d * 3  # used before and after a layer
  own = 2 * (spec.n_params(model.specs) - beside + routers)
  assert c.tied and model.flops_per_token(0) == own


def test_streams_after_the_last_layer_are_joined():
  c = config('gemma3n_text')
  model = transformer.build(c)
  params = spec.init(model.specs, jax.random.key(0))
  tokens = jnp.arange(12).reshape(2, 6)
  valid = jnp.ones(tokens.shape, bool)
  last = jax.jit(model.hidden_after, static_argnums=3)
  x = layers.norm(last(params, tokens, valid, -1), params, 'final_norm', c)
  want = jax.jit(model.hidden)(params, tokens, valid)
  np.testing.assert_allclose(x, want, atol=1e-6)
