"""The TPU compiler compiles attention for described chips."""

import pytest
from described_tpu import printed

COMPILE = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jaxrl_reason import sharding
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.models.parts import attention, kernel_choice
c = transformer.Config(
  vocab=128, layers=2, width=256, mlp=256, heads=4, kv_heads=2,
  head_dim={width}, dtype='bfloat16', remat='full', attention_cap={cap},
  windows={windows},
)
model = transformer.build(c)
tpu = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2')
mesh = sharding.make_mesh({mesh}, tpu.devices)
where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
params = jax.tree.map(
  lambda s, w: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=w),
  spec.abstract(model.specs), where)
rows = jax.ShapeDtypeStruct(
  (4, 640), jnp.int32, sharding=sharding.row_sharding(mesh))
loss = lambda p, *rows: model.hidden(p, *rows).astype(jnp.float32).sum()
with jax.set_mesh(mesh):
  assert kernel_choice.resolve(c, 640) == 'splash'
  compiled = jax.jit(jax.grad(loss)).lower(params, rows, rows).compile()
text = compiled.as_text()
print('kernels', text.count('tpu_custom_call'))
print('scores', '640,640' in text)
"""

DECODE = """
import dataclasses, jax, jax.numpy as jnp
from jax.experimental import topologies
from jaxrl_reason import sharding
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.planning import costs
c = transformer.Config(
  vocab=128, layers=6, width=256, mlp=256, heads=8, kv_heads=4, head_dim=64,
  dtype='bfloat16', sinks=True, windows=(128, 0) * 3, cache_dtype='{cache}',
)
model = transformer.build(c)
tpu = topologies.get_topology_desc(platform='tpu', topology_name='v5e:2x2')
mesh = sharding.make_mesh((1, 2, 2), tpu.devices)
where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
params = jax.tree.map(
  lambda s, w: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=w),
  spec.abstract(model.specs), where)
rows = jax.ShapeDtypeStruct(
  (4, 200), jnp.int32, sharding=sharding.row_sharding(mesh))
def f(params, tokens):
  hidden, cache = model.prefill(params, tokens, tokens > 0, 8, {columns})
  print('kernel', cache.by_kernel, len(cache.own))
  weights = model.decode_params(params)
  def step(state):
    t, hidden, cache = state
    token = jnp.argmax(model.unembed(weights, hidden), axis=-1)
    hidden, cache = model.decode(weights, token, cache, t)
    return t + 1, hidden, cache
  hidden = jnp.repeat(hidden, 8, axis=0)
  state = jnp.int32(0), hidden, cache
  return jax.lax.while_loop(lambda s: s[0] < 77, step, state)[1]
with jax.set_mesh(mesh):
  text = jax.jit(f).lower(params, rows).compile().as_text()
print('called', 'cached_attention' in text)
(_, loop), = costs.of(text, mesh).loops_of((77,))
print('copy', max(loop.total().copies, default=0))
"""


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
  'columns, cache, kernel',
  [(5000, 'model', True), (20000, 'int8', True), (64, 'model', False)],
)
def test_decoding_compiles_for_a_tpu(columns, cache, kernel):
  """Decoding loops over three periods of two layers, sharded by rows and heads,
  with lengths that no block divides. A layer's cache is not copied. Small
  shapes do not use the kernel.
  """
  out = printed(DECODE.format(columns=columns, cache=cache))
  assert f'kernel {kernel} 2' in out and f'called {kernel}' in out
  keys = 16 * 2 * columns * 64  # of one device's rows and heads, in bytes
  assert int(out.split('copy ')[1].split()[0]) < max(keys / 100, 2**16)


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
  'mesh, width, cap, windows',
  [
    ((1, 2, 2), 64, 0.0, (0, 128)),
    ((1, 1, 2, 2), 128, 30.0, ()),
  ],
)
def test_splash_compiles_for_a_tpu(mesh, width, cap, windows):
  """Compiles forward and backward passes for a described v5e:2x2, sharded by
  rows and heads or by heads and queries. The program has no array of [T,T]
  scores.
  """
  out = printed(
    COMPILE.format(mesh=mesh, width=width, cap=cap, windows=windows)
  )
  # Forward, its recomputation, dq and dkv, for each window of the layers.
  assert int(out.split('kernels ')[1].split()[0]) >= 3 * max(1, len(windows))
  assert 'scores False' in out
