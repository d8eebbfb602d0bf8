"""What the TPU compiler makes of the decode loop, without a TPU.

  TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu python tools/benchmarks/decode_tpu.py
    [--layers=4 --width=256] [--topology=v5e:2x2] [--mesh=1,4,1]

Needs the extra `tpu` (its compiler, libtpu). Compiles generation of 8 prompts x
8 samples, 32 + 64 tokens, vocabulary 512, bfloat16, for a topology that need
not exist here, and lists what one trip of the loop over tokens holds: copies
(none should be as large as a layer's cache), and collectives (with the decode
rules, none moves a weight).
"""

import argparse
import collections
import functools
import math
import re
import time

import grpo_step
import jax
from jax.experimental import topologies

from jaxrl_reason import fused_step, sharding
from jaxrl_reason.logits import Sampling

BYTES = {'bf16': 2, 'f32': 4, 's32': 4, 'u32': 4, 'pred': 1}
MOVES = ('copy', 'all-gather', 'all-reduce', 'all-to-all', 'collective-permute')
LINE = re.compile(
  r'%?[\w.\-]+ = \(?(\w+)\[([\d,]*)\].*? '
  rf'((?:{"|".join(MOVES)})(?:-start)?)\('
)


def compiled(layers: int, width: int, topology: str, mesh_shape):
  """(HLO text of `fused_step.rollout`, seconds of compilation)."""
  # Before the mesh: a described device runs nothing.
  learner, gen, state, prompts = grpo_step.problem(
    layers, width, dtype='bfloat16'
  )
  args = prompts, jax.random.key(0), Sampling.make(), grpo_step.NEVER
  described = topologies.get_topology_desc(
    platform='tpu', topology_name=topology
  )
  mesh = sharding.make_mesh(mesh_shape, described.devices)
  put = lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
  where = sharding.shardings(learner.model.specs, mesh, sharding.TRAIN_RULES)
  params = jax.tree.map(put, state.params, where)
  rows = jax.tree.map(lambda x: put(x, sharding.row_sharding(mesh)), args[0])
  rest = jax.tree.map(lambda x: put(x, sharding.replicated(mesh)), args[1:])
  start = time.monotonic()
  with jax.set_mesh(mesh):
    generate = jax.jit(functools.partial(fused_step.rollout, learner, gen))
    text = generate.lower(params, rows, *rest).compile().as_text()
  return text, time.monotonic() - start


def token_loop(text: str) -> str:
  """The body of the loop over tokens: prefill's loop over layers is smaller."""
  names = re.findall(r' while\(.*body=%?([\w.\-]+)', text)
  body = lambda name: re.search(rf'\n%?{re.escape(name)} \(.*?\n}}', text, re.S)
  return max((body(name)[0] for name in names), key=len)


def moves(body: str) -> collections.Counter:
  """(operation, shape, bytes on one device) -> how often in one trip."""
  found = collections.Counter()
  for line in body.splitlines():
    match = LINE.search(line)
    if match:
      kind, shape, op = match.groups()
      size = math.prod(int(n) for n in shape.split(',') if n)
      found[op, f'{kind}[{shape}]', size * BYTES.get(kind, 4)] += 1
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--topology', default='v5e:2x2')
  parser.add_argument('--mesh', default='1,4,1')
  args = parser.parse_args()
  shape = tuple(int(n) for n in args.mesh.split(','))
  text, seconds = compiled(args.layers, args.width, args.topology, shape)
  rows = grpo_step.B * grpo_step.G // (shape[0] * shape[1])
  cache = rows * grpo_step.C * args.width // shape[2] * 2
  print(
    f'{args.layers} layers x {args.width}, {args.topology}, mesh {shape}: '
    f'compiled in {seconds:.1f} s; keys of one layer {cache:,} bytes a device'
  )
  print(f'{"one trip of the token loop":40} {"bytes":>10} {"times":>6}')
  for (op, array, size), n in sorted(
    moves(token_loop(text)).items(), key=lambda item: -item[0][2]
  ):
    print(f'{op + " " + array:40} {size:10,} {n:6}')


if __name__ == '__main__':
  main()
