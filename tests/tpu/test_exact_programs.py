"""The TPU compiler computes exact numerics with the same operations in
sampling and in training.
"""

import collections
import math

import pytest
from described_tpu import printed

from jaxrl_reason.planning import hlo, matrix_products

# Tokens of a prompt, of a completion and of a row; no other size is one of
# these, and only heads are H wide.
P, C, H = 16, 24, 64
COLUMNS = P, C, P + C
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
  """Returns the operations of layers whose result depends on an order, or that
  `fixed_point` replaces.
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


@pytest.mark.tpu_compile
def test_sampler_and_trainer_have_the_same_products(tmp_path):
  """On four chips, sharded by rows, weights and heads: products of int8 digits
  with int32 sums, equally many of each length, and no other sums. Sums over
  keys are longer in training; there are as many for each array of keys.

  Two digits of each factor have three products, or two if the digits of the
  smaller factor are stacked; with three digits, five or two.
  """
  found, rest = programs(tmp_path), {}
  for part, columns in ('sample', P), ('decode', P + C), ('train', P + C):
    assert not inexact(found[part])
    of = products(found[part])
    dtypes, sums, terms = map(set, zip(*of))
    assert dtypes == {'s8*s8'} and sums == {'s32'}
    assert max(terms) * 64 * 127 < 2**31
    of = {k[2]: n for k, n in of.items()}
    over_keys = {n: of.pop(n) for n in COLUMNS if n in of}
    assert sum(over_keys) == columns and set(over_keys.values()) <= {2, 5}
    assert of.pop(H) in (2 * len(over_keys), 3 * len(over_keys))  # scores
    rest[part] = of
  assert rest['sample'] == rest['decode']
  # q, k, v, gate, up; and the head, whose digits are larger than the rows.
  assert rest['decode'].pop(256) == 2 * 6
  assert rest['train'].pop(256) == 3 * 5 + 2
  assert {k: n * 3 for k, n in rest['decode'].items()} == {
    k: n * 2 for k, n in rest['train'].items()
  }
