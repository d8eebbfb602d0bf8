"""A decoder-only transformer as a pytree of weights and pure functions.

tokens [N,T] -> embed -> L x (x + attention(norm x); x + swiglu(norm x)) -> norm
-> hidden [N,T,D]; `unembed` gives logits. Training scans over layers stacked
on a leading axis (one compiled layer, however deep). Decoding walks the layers
one by one over a cache of one array per layer, updated in place: a scan would
copy the whole cache every token (tools/benchmarks/decode.py).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model
from jaxrl_reason.models import layers, spec

REMAT = {
  # Nothing kept inside a layer: least memory, one more forward pass.
  'full': jax.checkpoint_policies.nothing_saveable,
  # Products with weights kept; attention scores recomputed.
  'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape and numerics of a model; every key of `config.model` but name."""

  vocab: int
  layers: int
  width: int
  mlp: int
  heads: int
  kv_heads: int
  head_dim: int
  rope_theta: float = 10_000.0
  norm_eps: float = 1e-6
  qk_norm: bool = False
  bias: bool = False  # on q, k, v, as in Qwen2
  tied: bool = True  # the head is the embedding, transposed
  dtype: str = 'float32'  # of computation; parameters are float32
  remat: str = 'none'  # none | dots | full
  scan: bool = True  # over layers in training; False unrolls

  def __post_init__(self):
    if self.heads % self.kv_heads:
      raise ValueError(
        f'model.heads={self.heads} is no multiple of '
        f'model.kv_heads={self.kv_heads}'
      )
    if self.head_dim % 2:
      raise ValueError(
        f'model.head_dim={self.head_dim} is odd; rotary positions need pairs'
      )
    if self.remat != 'none' and self.remat not in REMAT:
      raise ValueError(
        f'model.remat={self.remat!r}: choose none, {", ".join(REMAT)}'
      )
    if self.dtype not in ('float32', 'bfloat16'):
      raise ValueError(
        f'model.dtype={self.dtype!r}: choose float32 or bfloat16'
      )


@struct.dataclass
class Cache:
  """Keys and values, one array per layer, laid out [row, head, position, H] so
  that a head's keys are contiguous for the decode step's products.
  """

  prompt: tuple  # L x (k, v), each [B,K,P,H]; shared by a prompt's samples
  own: tuple  # L x (k, v), each [N,K,C,H]
  prompt_mask: jax.Array  # bool [B,P]


def specs(c: Config) -> dict:
  """The spec tree: shapes, logical axes and initial values."""
  d, q, k, h, f = c.width, c.heads, c.kv_heads, c.head_dim, c.mlp
  ones = lambda axis, n: spec.Spec((n,), (axis,), 'ones')
  # Residual outputs start smaller with depth (GPT-2), so that the sum of 2L
  # of them has the scale of one.
  depth = (2 * c.layers) ** -0.5
  attn = {
    'q': spec.Spec((d, q, h), ('embed', 'heads', None), fan_in=d),
    'k': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'v': spec.Spec((d, k, h), ('embed', 'kv_heads', None), fan_in=d),
    'o': spec.Spec(
      (q, h, d), ('heads', None, 'embed'), scale=depth * (q * h) ** -0.5
    ),
  }
  if c.bias:
    for name, heads, axis in (
      ('q', q, 'heads'),
      ('k', k, 'kv_heads'),
      ('v', k, 'kv_heads'),
    ):
      attn[name + '_bias'] = spec.Spec((heads, h), (axis, None), 'zeros')
  if c.qk_norm:
    attn |= {'q_norm': ones(None, h), 'k_norm': ones(None, h)}
  layer = {
    'attn_norm': ones(None, d),
    'attn': attn,
    'mlp_norm': ones(None, d),
    'mlp': {
      'gate': spec.Spec((d, f), ('embed', 'mlp'), fan_in=d),
      'up': spec.Spec((d, f), ('embed', 'mlp'), fan_in=d),
      'down': spec.Spec((f, d), ('mlp', 'embed'), scale=depth * f**-0.5),
    },
  }
  tree = {
    # Unit inputs, unless the same weights also make the logits.
    'embed': spec.Spec(
      (c.vocab, d), ('vocab', 'embed'), scale=d**-0.5 if c.tied else 1.0
    ),
    'layers': spec.stack(layer, c.layers),
    'final_norm': ones(None, d),
  }
  if not c.tied:
    tree['head'] = spec.Spec((d, c.vocab), ('embed', 'vocab'), fan_in=d)
  return tree


def flops_per_token(c: Config, context: float) -> float:
  """Forward FLOPs of one token that attends to `context` tokens: two per
  weight that multiplies it, and four per attended feature.
  """
  attn = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads)
  weights = c.layers * (attn + 3 * c.width * c.mlp) + c.width * c.vocab
  return 2 * weights + 4 * c.layers * c.heads * c.head_dim * context


def build(c: Config) -> Model:
  """The policy's functions, with the config bound."""
  bind = lambda f: lambda params, *args: f(params, c, *args)
  return Model(
    specs=specs(c),
    hidden=bind(hidden),
    unembed=bind(unembed),
    decode_params=bind(decode_params),
    prefill=bind(prefill),
    decode=bind(decode),
    flops_per_token=lambda context: flops_per_token(c, context),
  )


def embed(params: Any, c: Config, tokens: jax.Array) -> jax.Array:
  """Token embeddings [..., D]."""
  return params['embed'][tokens].astype(c.dtype)


def unembed(params: Any, c: Config, hidden: jax.Array) -> jax.Array:
  """Logits [..., V], float32: log-probabilities are built on them."""
  head = params['embed'].T if c.tied else params['head']
  return jnp.einsum(
    '...d,dv->...v',
    hidden,
    head.astype(hidden.dtype),
    preferred_element_type=jnp.float32,
  )


def _qkv(x, p, c: Config, angles):
  """q [...,Q,H] and k, v [...,K,H] of x [...,D], rotated."""
  out = []
  for name in ('q', 'k', 'v'):
    y = layers.dense(x, p[name])
    if c.bias:
      y = y + p[name + '_bias'].astype(x.dtype)
    if c.qk_norm and name != 'v':
      y = layers.rms_norm(y, p[name + '_norm'], c.norm_eps)
    out.append(y if name == 'v' else layers.rotate(y, *angles))
  return out


def block(x, p, c: Config, angles, attend):
  """One layer; `attend(q, k, v) -> (out, aux)` is what differs between
  training, prefill and decoding. x: [...,D]; returns (x, aux).
  """
  q, k, v = _qkv(
    layers.rms_norm(x, p['attn_norm'], c.norm_eps), p['attn'], c, angles
  )
  out, aux = attend(q, k, v)
  o = p['attn']['o'].reshape(-1, c.width)
  x = x + layers.dense(out.reshape(*x.shape[:-1], -1), o)
  h = layers.rms_norm(x, p['mlp_norm'], c.norm_eps)
  return x + layers.swiglu(h, p['mlp']), aux


def _run_layers(params, c: Config, x, angles, attend):
  """All layers over whole sequences; aux stacked [L,...]."""

  def body(x, p):
    x, aux = block(x, p, c, angles, attend)
    return sharding.rows(x), aux

  if c.remat != 'none':
    body = jax.checkpoint(body, policy=REMAT[c.remat])
  return jax.lax.scan(
    body, x, params['layers'], unroll=1 if c.scan else c.layers
  )


def _forward(params, c: Config, tokens, valid, keep_cache):
  positions = jnp.maximum(jnp.cumsum(valid, axis=1) - 1, 0)
  # Padding becomes zeros here, so whatever its ids embed to (NaN included)
  # never meets a real token, not even times a zero weight.
  x = jnp.where(valid[..., None], embed(params, c, tokens), 0)
  t = tokens.shape[1]
  mask = jnp.tril(jnp.ones((t, t), bool)) & valid[:, None, :]

  def attend(q, k, v):
    kv = (k.swapaxes(1, 2), v.swapaxes(1, 2)) if keep_cache else None
    return layers.attend(q, k, v, mask), kv

  angles = layers.rope_angles(positions, c.head_dim, c.rope_theta)
  x, kv = _run_layers(params, c, sharding.rows(x), angles, attend)
  return layers.rms_norm(x, params['final_norm'], c.norm_eps), kv


def hidden(params: Any, c: Config, tokens: jax.Array, valid: jax.Array):
  """Final hidden states [N,T,D] of tokens [N,T], valid bool [N,T].

  Positions count the valid tokens of a row, so left, right or no padding give
  the same values at the real tokens.
  """
  return _forward(params, c, tokens, valid, keep_cache=False)[0]


def decode_params(params: Any, c: Config) -> Any:
  """Weights as decoding reads them: cast and gathered once per generation, not
  once per token, and one tree per layer. Norms stay float32, as in training.
  """
  cast = trees.map_with_path(
    lambda path, x: x if path.endswith('norm') else x.astype(c.dtype), params
  )
  cast = sharding.constrain(cast, specs(c), sharding.DECODE_RULES)
  layer = lambda i: jax.tree.map(lambda x: x[i], cast['layers'])
  return cast | {'layers': [layer(i) for i in range(c.layers)]}


def prefill(
  params: Any, c: Config, tokens, valid, n_samples: int, max_new: int
):
  """Runs prompts [B,P] (left-padded) once; makes room for their completions.

  Returns:
    (hidden of the last token [B,D], Cache for B*n_samples rows).
  """
  h, (k, v) = _forward(params, c, tokens, valid, keep_cache=True)
  rows = tokens.shape[0] * n_samples
  shape = (rows, c.kv_heads, max_new, c.head_dim)
  empty = lambda: sharding.rows(jnp.zeros(shape, k.dtype))
  return h[:, -1], Cache(
    prompt=tuple((k[i], v[i]) for i in range(c.layers)),
    own=tuple((empty(), empty()) for _ in range(c.layers)),
    prompt_mask=valid,
  )


def decode(params: Any, c: Config, tokens, cache: Cache, t):
  """One token per row: the t-th of its completion.

  Args:
    params: from `decode_params`.
    tokens: int [N], the tokens at completion index t.
    cache: filled up to index t - 1.
    t: int scalar.

  Returns:
    (hidden [N,D], cache with index t written).
  """
  n, b = tokens.shape[0], cache.prompt_mask.shape[0]
  lengths = cache.prompt_mask.sum(axis=1) + t
  positions = jnp.broadcast_to(lengths[:, None], (b, n // b)).reshape(n)
  angles = layers.rope_angles(positions, c.head_dim, c.rope_theta)
  x = sharding.rows(embed(params, c, tokens))
  own_mask = jnp.arange(cache.own[0][0].shape[2]) <= t
  own = []
  for p, prompt, (k_all, v_all) in zip(
    params['layers'], cache.prompt, cache.own
  ):

    def attend(q, k, v, prompt=prompt, k_all=k_all, v_all=v_all):
      put = lambda buffer, new: jax.lax.dynamic_update_slice_in_dim(
        buffer, new[:, :, None], t, axis=2
      )
      kv = put(k_all, k), put(v_all, v)
      return layers.attend_cached(
        q, prompt, kv, cache.prompt_mask, own_mask
      ), kv

    x, kv = block(x, p, c, angles, attend)
    own.append(kv)
  x = layers.rms_norm(x, params['final_norm'], c.norm_eps)
  return x, cache.replace(own=tuple(own))
