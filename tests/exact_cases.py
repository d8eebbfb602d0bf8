"""Compares sampling and scoring in random configurations
(`tests/models/test_exact.py`).

python tests/exact_cases.py FIRST LAST [CACHE_DTYPE]
  prints the number of differences of each case
"""

import os
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, spec, transformer
from jaxrl_reason.models.adapters.lora import Lora
from jaxrl_reason.models.parts.rope import Rope
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.update import packing, scoring

ROUTED = dict(experts=8, experts_per_token=3, expert_norm=True)
GEMMA_ROPES = Rope(theta=1e4), Rope(theta=1e6, kind='linear', factor=8.0)
FAMILIES = {
  'llama': dict(tied=False),
  'qwen2': dict(bias=True),
  'qwen3': dict(qk_norm=True),
  'gemma3': dict(
    qk_norm=True,
    norm_place='sandwich',
    norm_offset=1.0,
    embed_scale=48**0.5,
    embed_rounded=True,
    activation='gelu_tanh',
    windows=(6, 0),
    ropes=GEMMA_ROPES,
    rope_of_layer=(0, 1),
    query_scale=0.3,
  ),
  'gpt_oss': dict(
    bias=True,
    o_bias=True,
    sinks=True,
    activation='gelu_quick',
    mlp_limit=7.0,
    expert_bias=True,
    windows=(6, 0),
    tied=False,
    **ROUTED,
  ),
  'qwen3_moe': dict(qk_norm=True, tied=False, **ROUTED),
  'deepseek_v3': dict(
    kv_heads=4,
    kv_rank=16,
    q_rank=20,
    rope_dim=4,
    value_dim=10,
    router='sigmoid',
    choice_bias=True,
    expert_groups=4,
    groups_per_token=2,
    expert_scale=2.5,
    shared_mlp=24,
    dense_layers=(0,),
    dense_mlp=40,
    tied=False,
    **ROUTED,
  ),
}
MESHES = None, (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 2, 2), (1, 1, 1, 8)
B, G, P, C = 4, 2, 8, 8


@struct.dataclass
class Sampled:
  """Rows [N,P+C] of a rollout, in the form that `scoring.scores` reads."""

  tokens: jax.Array
  valid: jax.Array
  temperature: jax.Array
  prompt_index: jax.Array
  routes: Any
  role: Any = None


def model_of(family: str, lora: bool = False, base: str = 'float32', **changes):
  """Returns (model, weights that all differ from their initial values)."""
  small = dict(
    vocab=72, layers=2, width=48, mlp=40, heads=4, kv_heads=2, head_dim=12
  )
  how = dict(dtype='bfloat16', numerics='exact')
  c = transformer.Config(**(small | how | FAMILIES[family] | changes))
  model = transformer.build(c)
  if lora:
    how = dict(frozen_dtype=base, trainable='lora/.*')
    model = adapters.attach(model, lora=Lora(rank=3, alpha=5.0), **how)

  r = np.random.default_rng(0)

  def leaf(path, x):
    if x.dtype == jnp.int8:
      return jnp.asarray(r.integers(-127, 128, x.shape), x.dtype)
    if path.endswith('scale'):
      return jnp.asarray(r.uniform(0.001, 0.004, x.shape), x.dtype)
    scale = 1.0 if path.endswith('norm') else 0.0
    return jnp.asarray(scale + 0.2 * r.normal(size=x.shape), x.dtype)

  return c, model, trees.map_with_path(leaf, spec.abstract(model.specs))


def rollout(
  model, params, sampling, *, routes: bool, seed=0, shape=(B, G), **how
):  # fmt: skip
  """Samples N rows, for `shape` = (prompts, samples of a prompt).

  Returns:
    (Sampled, log-probs [N,C], sampled [N,C]).
  """
  r, (b, g) = np.random.default_rng(seed), shape
  lengths = r.integers(1, P + 1, (b, 1))
  valid = jnp.asarray(np.arange(P) >= P - lengths)
  tokens = jnp.asarray(r.integers(0, 72, (b, P)))

  @jax.jit
  def run(params):
    stop = jnp.asarray([0, 1])
    key = jax.random.key(seed)
    return sampler.generate(
      model,
      params,
      tokens,
      valid,
      key,
      sampling,
      stop,
      n_samples=g,
      max_new=C,
      routes=routes,
      **how,
    )

  out = run(params)

  def joined(x, own):
    return jnp.concatenate([jnp.repeat(x, g, axis=0), own], axis=1)

  rows = Sampled(
    joined(tokens, out.tokens),
    joined(valid, out.sampled),
    jnp.full(b * g, sampling.temperature),
    jnp.repeat(jnp.arange(b), g),
    out.routes,
  )
  return rows, np.asarray(out.logp), np.asarray(out.sampled)


def trained(model, params, rows, sampling, *, how=None, parts=1, chunk=0):
  """Computes the trainer's log-probs [N,C] of the rows."""
  columns = dict(start=P, chunk=chunk)
  learner = SimpleNamespace(model=model, packing=how, columns=columns)

  @jax.jit
  def run(params, rows):
    return scoring.scores(learner, params, rows, sampling, parts)[0]

  return np.asarray(run(params, rows))[:, P:]


def case(seed: int, cache_dtype: str = 'model') -> tuple[dict, int]:
  """Runs a random configuration with a cache of the given type.

  Returns:
    (settings, number of log-probs that differ).
  """
  r = np.random.default_rng(1000 + seed)

  def pick(*choices):
    return choices[r.integers(len(choices))]

  family, mesh = pick(*FAMILIES), MESHES[r.integers(len(MESHES))]
  changes = dict(
    prefill=pick('whole', 'buckets:2', 'chunks:3'),
    remat=pick('none', 'dots', 'full'),
    decode_layers=pick('unroll', 'scan'),
    train_layers=pick('scan', 'unroll'),
    cache_dtype=cache_dtype,
  )
  temperature, top_p = pick((1.0, 1.0), (1.0, 0.9), (0.7, 0.9))
  slots, segments, parts = pick(0, 1), pick(1, 2), pick(1, 2, 8)
  padding = pick(
    None,
    packing.Packing(2 * (P + C), 2),
    packing.Lengths(P, 2),
    packing.Shared(P, 1, G, B),
  )
  chunk, lora = pick(0, 3), family != 'deepseek_v3' and pick(True, False)
  settings = dict(family=family, mesh=mesh, slots=slots, segments=segments)
  replay = pick(True, False)
  settings |= changes | dict(
    replay=replay,
    temperature=temperature,
    top_p=top_p,
    parts=parts,
    chunk=chunk,
    lora=lora,
    padding=padding,
  )
  c, model, params = model_of(family, lora, **changes)
  sampling = Sampling.fixed(temperature, 0, top_p, 0.0)

  def run(params, mesh):
    rows, logp, sampled = rollout(
      model,
      params,
      sampling,
      routes=replay and c.experts > 0,
      seed=seed,
      slots=slots,
      segments=segments,
    )
    score = dict(how=padding, parts=parts, chunk=chunk)
    return logp, sampled, trained(model, params, rows, sampling, **score)

  if mesh is None:
    logp, sampled, own = run(params, None)
  else:
    mesh = sharding.make_mesh(mesh)
    where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
    with jax.set_mesh(mesh):
      logp, sampled, own = run(jax.device_put(params, where), mesh)
  return settings, int((logp != own)[sampled].sum())


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  for number in range(int(sys.argv[1]), int(sys.argv[2])):
    settings, n = case(number, *sys.argv[3:])
    print(number, n, settings, flush=True)
