"""Attention compiled by the real TPU compiler for chips that are not here."""

import os
import subprocess
import sys

import pytest
from small import ROOT

COMPILE = """
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jaxrl_reason import sharding
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.models.parts import attention
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
  assert attention.resolve(c, 640) == 'splash'
  compiled = jax.jit(jax.grad(loss)).lower(params, rows, rows).compile()
text = compiled.as_text()
print('kernels', text.count('tpu_custom_call'))
print('scores', '640,640' in text)
"""


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
  'mesh, width, cap, windows',
  [
    ((1, 2, 2), 64, 0.0, (0, 128)),
    ((1, 1, 2, 2), 128, 30.0, ()),
  ],
)
def test_splash_compiles_for_a_tpu(mesh, width, cap, windows):
  """Forward and backward on a described v5e:2x2, sharded by rows and heads or
  by heads and queries; no array of [T,T] scores is left in the program.
  """
  pytest.importorskip('libtpu')
  code = COMPILE.format(mesh=mesh, width=width, cap=cap, windows=windows)
  env = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'TPU_SKIP_MDS_QUERY': '1',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # it only compiles
  }
  # Those of the tests are the CPU compiler's.
  for name in ('XLA_FLAGS', 'JAX_COMPILATION_CACHE_DIR'):
    env.pop(name)
  done = subprocess.run(
    [sys.executable, '-c', code], env=env, cwd=ROOT, capture_output=True,
    text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  out = done.stdout
  # Forward, its recomputation, dq and dkv, for each window of the layers.
  assert int(out.split('kernels ')[1].split()[0]) >= 3 * max(1, len(windows))
  assert 'scores False' in out
