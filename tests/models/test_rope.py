"""Rotary angles of every kind equal those of `transformers`."""

import dataclasses

import hf_models as H
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_models import torch, transformers
from small import small_config, small_model

from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import blocks, families, logprobs, transformer
from jaxrl_reason.models.parts import rope
from jaxrl_reason.rollouts import sampler

pytestmark = pytest.mark.parity

LONG = dict(
  rope_type='longrope',
  short_factor=[1.0, 1.1, 1.3, 1.6],
  long_factor=[1.5, 2.0, 4.0, 9.0],
  original_max_position_embeddings=32,
)
SCALINGS = {
  'default': {},
  'linear': dict(rope_type='linear', factor=2.5),
  'dynamic': dict(rope_type='dynamic', factor=2.0),
  'llama3': H.LLAMA3 | dict(rope_theta=500.0),
  'yarn': dict(
    rope_type='yarn', factor=4.0, original_max_position_embeddings=32
  ),
  'yarn_told': dict(
    type='yarn',
    factor=3.0,
    original_max_position_embeddings=16,
    beta_fast=8.0,
    beta_slow=0.5,
    attention_factor=1.25,
    truncate=False,
  ),
  'yarn_deepseek': dict(
    rope_type='yarn',
    factor=8.0,
    original_max_position_embeddings=16,
    mscale=1.0,
    mscale_all_dim=0.5,
  ),
}
T = 200


def configs(scaling, kind='Llama', **changes):
  """Returns (their config, our table) of one rope_scaling, head width 16."""
  shared = H.SHARED | dict(max_position_embeddings=128, hidden_size=64)
  h = getattr(transformers, f'{kind}Config')(
    **(shared | changes), rope_theta=500.0, rope_scaling=scaling or None
  )
  c = families.from_hf(h.to_dict())
  assert c.head_dim == 16
  return h, c.rope_tables[0]


def theirs(h, positions, kind='llama', name='Llama'):
  module = getattr(transformers.models, kind)
  module = getattr(module, f'modeling_{kind}')
  layer = getattr(module, f'{name}RotaryEmbedding')(h)
  cos, sin = layer(torch.zeros(1), torch.as_tensor(positions)[None])
  half = cos.shape[-1] // 2
  return cos[0, :, :half].numpy(), sin[0, :, :half].numpy()


@pytest.mark.parametrize('name', SCALINGS)
def test_angles_equal(name):
  h, table = configs(SCALINGS[name])
  # 'dynamic' by the longest row of the call: the same up to here.
  positions = np.arange(128 if name == 'dynamic' else T)
  want = theirs(h, positions)
  got = rope.angles(table, jnp.asarray(positions), 16, T)
  np.testing.assert_allclose(got, want, atol=3e-5)
  if name != 'default':
    plain = rope.angles(rope.Rope(theta=500.0), jnp.asarray(positions), 16, T)
    assert (name == 'dynamic') == np.allclose(got, plain, atol=1e-3)


def test_dynamic_is_that_of_tokens_generated_one_by_one():
  h, table = configs(SCALINGS['dynamic'])
  positions = np.arange(120, T)
  one = [theirs(h, [p]) for p in positions]
  want = np.concatenate(one, axis=1)
  got = rope.angles(table, jnp.asarray(positions), 16, T)
  np.testing.assert_allclose(got, want, atol=3e-5)


@pytest.mark.parametrize('room', [32, 33])
@pytest.mark.parametrize('fraction', [1.0, 0.5])
def test_longrope_depends_on_the_maximum_length(room, fraction):
  n = int(4 * fraction) * 2
  scaling = LONG | {
    k: (LONG[k] * 2)[:n] for k in ('short_factor', 'long_factor')
  }
  h, table = configs(scaling, 'Phi3', partial_rotary_factor=fraction)
  positions = np.arange(room)
  want = theirs(h, positions, 'phi3', 'Phi3')
  got = rope.angles(table, jnp.asarray(positions), 16, room)
  assert got[0].shape == (room, n)
  np.testing.assert_allclose(got, want, atol=3e-5)


def test_partial_rotation_leaves_the_rest_of_a_head():
  x = jnp.arange(2 * 3 * 8.0).reshape(2, 3, 8)
  cos, sin = rope.angles(rope.Rope(fraction=0.5), jnp.array([1, 2]), 8, 4)
  y = rope.rotate(x, cos, sin)
  np.testing.assert_array_equal(y[..., 4:], x[..., 4:])
  np.testing.assert_allclose(
    jnp.linalg.norm(y[..., :4], axis=-1),
    jnp.linalg.norm(x[..., :4], axis=-1),
    rtol=1e-6,
  )
  assert not np.allclose(y[..., :4], x[..., :4])


def test_queries_grow_and_are_normalised_by_table():
  """A table with unit heads, and one without rotation whose queries grow, as
  in Llama 4, computed in NumPy for a layer of each.
  """
  still = rope.Rope('none', growth=0.5, original=4, ahead=1)
  c = small_config(ropes=(rope.Rope(unit=True), still))
  x = jax.random.normal(jax.random.key(0), (1, 9, 2, c.head_dim))
  turned, grown = blocks.rotary(c, jnp.arange(9)[None], 9)
  for is_query in (True, False):
    y = blocks._turned(x, c, turned, is_query)
    square = np.mean(np.square(y), axis=-1)
    np.testing.assert_allclose(square, 1, atol=1e-4)
    factor = 1 + 0.5 * np.log([1, 1, 1, 2, 2, 2, 2, 3, 3]) * is_query
    y = blocks._turned(x, c, grown, is_query)
    np.testing.assert_allclose(y, x * factor[:, None, None], rtol=1e-6)


def test_layers_of_different_tables_and_windows():
  """Results of scanned, unrolled and decoded layers are equal, although tables
  depend on position and maximum length.
  """
  c, model, params = small_model(
    ropes=(
      rope.Rope('dynamic', factor=3.0, max_positions=6),
      rope.Rope('longrope', original=8, short=(1.0, 1.0), long=(2.0, 5.0)),
    ),
    rope_of_layer=(1, 0, rope.NOPE),
    windows=(4, 0, 7),
  )
  tokens = jnp.arange(20).reshape(2, 10) % 16
  valid = jnp.arange(10) >= jnp.array([[0], [3]])
  out = jax.jit(
    lambda params: sampler.generate(
      model,
      params,
      tokens,
      valid,
      jax.random.key(0),
      Sampling.make(),
      jnp.array([-1]),
      n_samples=2,
      max_new=6,
    )
  )(params)
  whole = jnp.concatenate([jnp.repeat(tokens, 2, 0), out.tokens], 1)
  mask = jnp.pad(jnp.repeat(valid, 2, 0), ((0, 0), (0, 6)), constant_values=1)
  for changes in ({}, {'train_layers': 'scan', 'remat': 'full'}):
    other = transformer.build(dataclasses.replace(c, **changes))
    logp = jax.jit(
      lambda p: logprobs.score(
        other,  # noqa: B023
        p,
        Rows(whole, mask),
        Sampling.make(),
        start=10,
      )[0]
    )(params)
    np.testing.assert_allclose(logp[:, 10:], out.logp, atol=1e-5)


def test_the_activation_is_read_where_transformers_reads_it():
  """The key of another family has no effect."""
  h = H.SHARED | {'model_type': 'llama', 'hidden_activation': 'gelu'}
  assert families.from_hf(h).activation == 'silu'
  h = H.SHARED | {'model_type': 'gemma2', 'hidden_act': 'silu'}
  assert families.from_hf(h).activation == 'gelu_tanh'


def test_all_features_are_rotated_if_their_share_is_null():
  """This is as in transformers. If the key is absent, the share is a half."""
  h = H.SHARED | {'model_type': 'glm4_moe', 'head_dim': 8}
  fractions = [
    families.from_hf(h | x).rope_tables[0].fraction
    for x in ({}, {'partial_rotary_factor': None})
  ]
  assert fractions == [0.5, 1.0]


YARN = {'rope_type': 'yarn', 'factor': 4.0}


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'rope_scaling': {'rope_type': 'spiral'}}, "'spiral'"),
    ({'rope_scaling': {'partial_rotary_factor': 0.5}}, 'partial_rotary'),
    ({'rope_scaling': {'rope_type': 'linear'}}, 'needs factor'),
    ({'partial_rotary_factor': 0.5}, '=0.5 is not supported: llama'),
    ({'rope_theta': None}, 'rope_theta=None must'),
    ({'model_type': 'llamb'}, "'llamb' is not supported: no file"),
    ({'model_type': 'gpt2'}, "'gpt2' .* norms with a bias"),
    (
      {'model_type': 'deepseek_v2'},
      'its form of latent attention is not supported',
    ),
    ({'model_type': 'mamba2'}, 'recurrent layers'),
    ({'layer_types': ['full_attention', 'chunked']}, r"\[1\]='chunked'"),
    ({'layer_types': ['full_attention']}, 'layer_types has 1 entries'),
    ({'layer_types': ['sliding_attention'] * 2}, r'\[0\].*llama .* no window'),
    (
      {'model_type': 'phi3', 'rope_scaling': H.LONGROPE},
      'longrope has 2 short_factor.*need 4',
    ),
    ({'hidden_size': 'null'}, 'hidden_size is null'),
    ({'hidden_act': 'relu'}, "hidden_act='relu' is not supported for llama"),
    (
      {'rope_scaling': YARN, 'rope_parameters': {'rope_theta': 5.0}},
      'rope_scaling and rope_parameters differ',
    ),
    (
      {'model_type': 'olmo3', 'rope_parameters': {'rope_theta': 5.0}},
      'rope_parameters of olmo3 need a table per kind of',
    ),
    ({'model_type': 'mistral', 'sliding_window': 0}, 'sliding_window=0 must'),
    ({'hidden_size': 0}, 'hidden_size=0 must be more than 0'),
    ({'rms_norm_eps': 0.0}, 'rms_norm_eps=0.0 must be more than 0'),
    ({'hidden_size': '32'}, "hidden_size='32' is not a whole number"),
    ({'model_type': 'mixtral', 'num_local_experts': [8]}, 'num_local_experts='),
    ({'model_type': ['llama']}, r"model_type=\['llama'\] is not a name"),
    ({'model_type': 'mistral', 'mlp_bias': True}, 'mlp_bias .* mistral'),
    ({'quantization_config': {'bits': 4}}, 'quantization_config'),
    ({'num_hidden_layers': None}, 'num_hidden_layers'),
  ],
)
def test_unsupported_rope_is_named(changes, words):
  h = H.SHARED | {'model_type': 'llama', 'rope_scaling': None} | changes
  gone = {'num_hidden_layers'} & changes.keys()
  h = {k: None if v == 'null' else v for k, v in h.items() if k not in gone}
  with pytest.raises(ValueError, match=words):
    families.from_hf(h)
