"""Reads traffic and FLOPs of decoding and update from the TPU compiler.

  .venv/bin/python tools/benchmarks/decode_tpu.py [--model=qwen2.5-0.5b]
    [--topologies=v5e:2x2,v5p:2x2x1,v6e:2x2] [--mesh=1,4,1] [--segments=8]

Needs no TPU, but the extra `tpu` (its compiler, libtpu). The programs are those
of `jaxrl plan`, for a recipe with another batch size. For every topology:

  decode   bytes of one iteration of the loop over tokens, relative to weights +
           filled cache (half of a completion on average); the largest copy in
           the loop, and the keys of one layer; bytes exchanged between chips
  update   FLOPs relative to the model's formula: without recomputation (whole),
           with recomputed chunks of logits (none), and with remat (dots, full)
"""

import argparse
import runpy

import jax

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding
from jaxrl_reason.models import spec
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import plan_table
from jaxrl_reason.planning import planner as plan

RECIPE = 'configs/grpo_gsm8k.py'
# Name -> (model.remat, rl.logprob_chunk).
UPDATES = {
  'whole': ('none', 0),
  'none': ('none', 128),
  'dots': ('dots', 128),
  'full': ('full', 128),
}


def arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--model', default='qwen2.5-0.5b', help='a zoo name')
  parser.add_argument('--topologies', default='v5e:2x2,v5p:2x2x1,v6e:2x2')
  parser.add_argument('--mesh', default='1,4,1', help='data,fsdp,tensor')
  parser.add_argument('--prompts', type=int, default=32)
  parser.add_argument('--samples', type=int, default=8)
  parser.add_argument('--prompt-len', type=int, default=256)
  parser.add_argument('--completion-len', type=int, default=512)
  parser.add_argument('--segments', type=int, default=8)
  parser.add_argument('--micro-batches', type=int, default=8)
  return parser.parse_args()


def recipe(a: argparse.Namespace):
  config = config_lib.read(runpy.run_path(RECIPE)['get_config']())
  return config.changed(
    mesh=tuple(int(n) for n in a.mesh.split(',')),
    data__prompt_len=a.prompt_len,
    data__completion_len=a.completion_len,
    rl__prompts=a.prompts,
    rl__samples=a.samples,
    rl__parts=1,
    rl__cache_segments=a.segments,
    rl__micro_batches=a.micro_batches,
  )


def decode(planner: plan.Planner, config) -> dict:
  """Returns the bytes of one iteration of the token loop on one device, and the
  bytes that it must read.
  """
  run = planner.parts(config)
  (facts,) = planner.facts_of(run, ('generate',))
  loop = facts['token_loop']
  where = sharding.shardings(run.model.specs, run.mesh, sharding.DECODE_RULES)

  def put(x, s):
    return jax.ShapeDtypeStruct(x.shape, 'bfloat16', sharding=s)

  weights = jax.tree.map(put, spec.abstract(run.model.specs), where)
  if not run.shape.tied:
    del weights['embed']  # a token reads only one row
  c, d, shape = config.rl, config.data, run.shape
  rows = c.prompts * c.samples / sharding.row_shards(run.mesh)
  token = shape.kv_heads // run.mesh.shape['tensor'] * shape.head_dim * 2
  cached = rows * (d.prompt_len / c.samples + d.completion_len / 2)
  return loop | {
    'weights': described.on_chip(weights),
    'cache': 2 * shape.layers * token * cached,
    'keys': rows * d.completion_len * token,
  }


def main():
  a = arguments()
  config = recipe(a)
  print(
    f'{a.model}, {a.prompts} x {a.samples} rows, {a.prompt_len} + '
    f'{a.completion_len} tokens, {a.segments} cache segments, mesh {a.mesh}; '
    'bytes of one device'
  )
  form = '{:12} {:>9} {:>9} {:>9} {:>6} {:>9} {:>9} {:>9}  {}'
  print(
    form.format(
      *'topology bytes weights cache ratio copy keys exchanged'.split(),
      'update FLOPs / model: ' + ', '.join(UPDATES),
    )
  )
  for topology in a.topologies.split(','):
    planner = plan.Planner(
      config,
      topology,
      slices=1,
      model=a.model,
      say=lambda text: None,
    )
    d = decode(planner, config)
    ratio = d['bytes'] / (d['weights'] + d['cache'])
    flops = [update(planner, config, *how) for how in UPDATES.values()]
    numbers = [d[k] for k in ('bytes', 'weights', 'cache')]
    rest = [d[k] for k in ('largest_copy', 'keys', 'exchanged')]
    print(
      form.format(
        topology,
        *map(plan_table.human, numbers),
        f'{ratio:.2f}',
        *map(plan_table.human, rest),
        ', '.join(flops),
      ),
      flush=True,
    )


def update(planner: plan.Planner, config, remat: str, chunk: int) -> str:
  """Returns FLOPs relative to the model's formula, or 'does not fit'."""
  changed = config.changed(model__remat=remat, rl__logprob_chunk=chunk)
  parts = planner.parts(changed)
  (facts,) = planner.facts_of(parts, ('update',))
  if not facts['fits']:
    return 'does not fit'
  return f'{facts["flops_over_model"]:.2f}'


if __name__ == '__main__':
  main()
