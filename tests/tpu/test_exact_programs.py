"""The TPU compiler computes exact numerics with the same operations in
sampling and in training.
"""

import collections
import math

import pytest
from described_tpu import printed

from jaxrl_reason.planning import hlo, matrix_products

# Tokens of a prompt and of a completion, and the width of a head.
P, C, H = 16, 24, 64
COMPILE = """
import jax, jax.numpy as jnp
from exact_cases import Sampled
from jax.experimental import topologies
from jaxrl_reason import sharding
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs, spec, transformer
from jaxrl_reason.rollouts import sampler
c = transformer.Config(
  vocab=512, layers=2, width=256, mlp=384, heads=4, kv_heads=2, head_dim={h},
  qk_norm=True, dtype='bfloat16', numerics='{numerics}',
)
model = transformer.build(c)
tpu = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2')
mesh = sharding.make_mesh((1, 2, 2), tpu.devices)
where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
params = jax.tree.map(
  lambda s, w: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=w),
  spec.abstract(model.specs), where)
sampling = Sampling.fixed(0.7, 0, 1.0, 0.0)
def sample(params, tokens):
  return sampler.generate(
    model, params, tokens, tokens > 0, jax.random.key(0), sampling,
    jnp.asarray([0, 1]), n_samples=4, max_new={c},
  )
def loss(params, tokens):
  temperature = jnp.full(len(tokens), 0.7)
  rows = Sampled(tokens, tokens > 0, temperature, None, None)
  return logprobs.score(model, params, rows, sampling, start={p})[0].sum()
for name, f, shape in (
  ('sample', sample, (4, {p})),
  ('train', jax.value_and_grad(loss), (16, {p} + {c})),
):
  rows = jax.ShapeDtypeStruct(
    shape, jnp.int32, sharding=sharding.row_sharding(mesh))
  with jax.set_mesh(mesh):
    text = jax.jit(f).lower(params, rows).compile().as_text()
  open('{folder}/' + name, 'w').write(text)
"""


def programs(folder, numerics='exact'):
  """Returns the operations of the prompts, of decoding and of the forward pass
  of training, as pairs (operations beside it, operation).
  """
  how = dict(p=P, c=C, h=H, folder=folder, numerics=numerics)
  printed(COMPILE.format(**how))
  out = collections.defaultdict(list)
  for name in ('sample', 'train'):
    module = hlo.parse((folder / name).read_text())
    for ops in module.computations.values():
      for op in ops.values():
        part = 'decode' if f'tokens_at_most_{C}' in op.attrs else name
        if 'transpose(' not in op.attrs:  # of the backward pass
          out[part].append((module, ops, op))
  return out


def products(found) -> collections.Counter:
  """Counts the products by (dtypes, dtype of the sum, terms of a sum)."""
  out = collections.Counter()
  for _, ops, op in found:
    if op.kind in ('dot', 'convolution'):
      size = math.prod(op.shapes[0].dims)
      terms = round(matrix_products.flops(ops, op) / 2 / size)
      read = '*'.join(ops[o].shapes[0].dtype for o in op.operands[:2])
      out[read, op.shapes[0].dtype, terms] += 1
  return out


def inexact(found) -> list[str]:
  """Returns the operations of layers whose result depends on the order of
  terms, or that `fixed_point` replaces.
  """
  out = []
  for module, ops, op in found:
    if 'closed_call' not in op.attrs:
      continue
    if op.kind in ('exponential', 'log', 'logistic', 'rsqrt', 'tanh'):
      out.append(op.name)
    if op.kind == 'reduce' and op.shapes[0].dtype in ('f32', 'bf16'):
      terms = math.prod(ops[op.operands[0]].shapes[0].dims)
      summed = terms > math.prod(op.shapes[0].dims)
      if summed and module.root(op.called[0]).kind == 'add':
        out.append(op.name)
  return out


# Terms of a chip's products with weights: q, k, v, gate, up; o; down. The head
# has 256.
WEIGHTS = {256: 5, 128: 1, 192: 1}


def once(terms: int) -> collections.Counter:
  """Counts the products of two digits each, by their terms, if each digit of
  the larger factor is read once.
  """
  return collections.Counter({terms: 2})


def by_level(terms: int, digits: int = 2) -> collections.Counter:
  """Counts the products if each level is one product of stacked digits."""
  return collections.Counter({terms: 1, 2 * terms: digits - 1})


def added(*counts) -> collections.Counter:
  return sum(counts, collections.Counter())


@pytest.mark.tpu_compile
def test_sampler_and_trainer_have_the_same_products(tmp_path):
  """The programs are sharded over four chips by rows, weights and heads. They
  have products of int8 digits with int32 sums, as many for each weight as two
  digits need, and no other sums. Weights of attention have three digits.
  """
  found = programs(tmp_path)
  of_weights = {
    f: added(*(f(n) for n, times in WEIGHTS.items() for _ in range(times)))
    for f in (once, by_level)
  }
  of_caches = [once(n) for n in (H, H, P, C)]
  wanted = {
    'sample': [of_weights[once], by_level(H), by_level(P, 3), once(256)],
    'decode': [of_weights[once], *of_caches, once(256)],
    'train': [
      of_weights[by_level],
      by_level(H),
      by_level(P + C, 3),
      by_level(256),
    ],
  }
  for part, expected in wanted.items():
    assert not inexact(found[part])
    of = products(found[part])
    dtypes, sums, terms = map(set, zip(*of))
    assert dtypes == {'s8*s8'} and sums == {'s32'}
    assert max(terms) * 64 * 127 < 2**31
    assert {k[2]: n for k, n in of.items()} == added(*expected)


WHOLE = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jaxrl_reason import sharding
from jaxrl_reason.models.parts import exact_layers
tpu = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2')
mesh = sharding.make_mesh((1, 4, 1), tpu.devices)
where = jax.NamedSharding(mesh, jax.P('fsdp'))
x = jax.ShapeDtypeStruct((64, 768, 896), jnp.bfloat16, sharding=where)
w = jax.ShapeDtypeStruct((896, 4864), jnp.float32, sharding=where)
with jax.set_mesh(mesh):
  print(jax.jit(exact_layers.dense).lower(x, w).compile().as_text())
"""


@pytest.mark.tpu_compile
def test_a_weight_is_gathered_before_its_products():
  """It is gathered as int8 digits. Otherwise the compiler exchanges parts of
  the weight between products, or gathers digits as float32 numbers.
  """
  text = printed(WHOLE)
  gathered = [
    op.shapes[0].dtype
    for ops in hlo.parse(text).computations.values()
    for op in ops.values()
    if op.kind.startswith('all-gather')
  ]
  assert gathered == ['s8', 's8'] and 'collective-permute' not in text
