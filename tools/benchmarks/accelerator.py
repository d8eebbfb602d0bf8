"""Compares a GRPO step at published shapes with an accelerator's peak rates.

  .venv/bin/python tools/benchmarks/accelerator.py
    [--models=qwen2.5-0.5b,qwen2.5-1.5b]
    [--prompts=32 --samples=8] [--prompt-len=256 --completion-len=1024]
    [--micro-batches=8] [--remat=dots] [--unrolled] [--layers=N] [--repeats=3]
    [--phases=prompts,sampler,update,step]

Weights are random float32, products and cache are bfloat16. There is a
reference with a KL term, and AdamW. No completion stops early. The same run
measures the peak rates of the device: a product of two square bfloat16
matrices, and a copy.

  decode   generation without the prefill. `share`: bytes per second, relative
           to the copy. Every token reads the weights and the filled cache.
  update   `share`: FLOP/s, relative to the product. The FLOPs are those of the
           model: one pass of the reference and three of the policy, without
           recomputation by remat.
  step     generation and update in one program

tokens/s counts completion tokens. torch_step.py measures the same with
transformers and a plain torch update. On a CPU, use one layer and few tokens.
"""

import argparse
import dataclasses

import grpo_step
import jax
import jax.numpy as jnp

from jaxrl_reason.models import transformer, zoo
from jaxrl_reason.rollouts import fused


def arguments() -> argparse.Namespace:
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--models', default='qwen2.5-0.5b,qwen2.5-1.5b')
  p.add_argument('--prompts', type=int, default=32)
  p.add_argument('--samples', type=int, default=8)
  p.add_argument('--prompt-len', type=int, default=256)
  p.add_argument('--completion-len', type=int, default=1024)
  p.add_argument('--micro-batches', type=int, default=8)
  p.add_argument('--segments', type=int, default=8)
  p.add_argument('--remat', default='dots')
  p.add_argument('--attention', default='auto')
  p.add_argument('--unrolled', action='store_true', help='layers, not scanned')
  p.add_argument('--layers', type=int, default=0, help='0: all')
  p.add_argument('--phases', default='prompts,sampler,update,step')
  p.add_argument('--repeats', type=int, default=3)
  p.add_argument('--probe', type=int, default=8192, help='size of the product')
  return p.parse_args()


def limits(n: int, repeats: int) -> tuple[float, float]:
  """Measures (FLOP/s of a bfloat16 product, bytes/s of a copy), size [n,n]."""
  square = jnp.ones((n, n), jnp.bfloat16)
  product = jax.jit(lambda a: jnp.dot(a, a))
  many = jnp.ones((4, n, n), jnp.float32)
  copy = jax.jit(lambda x: x + 1)
  seconds = [
    grpo_step.timed(f, repeats)[0]
    for f in (lambda: product(square), lambda: copy(many))
  ]
  return 2 * n**3 / seconds[0], 2 * many.nbytes / seconds[1]


def shape_of(a: argparse.Namespace, name: str):
  c = zoo.ZOO[name]
  return dataclasses.replace(
    c,
    layers=a.layers or c.layers,
    dtype='bfloat16',
    remat=a.remat,
    attention=a.attention,
    train_layers='unroll' if a.unrolled else 'scan',
  )


def needed(a, c, learner, n_weights: int) -> tuple[float, float]:
  """Computes (bytes that decoding reads, FLOPs of an update)."""
  rows, new = a.prompts * a.samples, a.completion_len
  length = a.prompt_len + new
  a_token = 2 * c.layers * c.kv_heads * c.head_dim * 2
  read = a.prompts * a.prompt_len + rows * new / 2
  # A token reads only one row of an untied embedding.
  unread = 0 if c.tied else c.vocab * c.width
  decoded = new * (2 * (n_weights - unread) + a_token * read)
  row_flops = length * learner.model.flops_per_token((length - 1) / 2)
  head = 2 * c.width * c.vocab  # computed for completion tokens only
  return decoded, 4 * rows * (row_flops - (length - new) * head)


def measure(a: argparse.Namespace, name: str):
  """Yields (name, seconds, result of `needed`) of each phase."""
  c = shape_of(a, name)
  gen = fused.Generation(
    transformer.build(c), a.samples, a.completion_len, segments=a.segments
  )
  problem = grpo_step.problem_of(
    c,
    gen,
    a.prompts,
    a.prompt_len,
    micro_batches=a.micro_batches,
    logprob_chunk=min(128, a.completion_len),
  )
  learner, _, state, prompts = problem
  n_weights = sum(x.size for x in jax.tree.leaves(state.params))
  first = dataclasses.replace(gen, max_new=1, segments=1)
  programs = grpo_step.programs(*problem)
  alone = grpo_step.programs(learner, first, state, prompts)['sampler']
  programs = {'prompts': alone, **programs}
  work, seconds = needed(a, c, learner, n_weights), {}
  for phase in a.phases.split(','):
    seconds[phase] = grpo_step.timed(programs[phase], a.repeats)[0]
    yield phase, seconds[phase], work
    if phase == 'sampler' and 'prompts' in seconds:
      yield 'decode', seconds[phase] - seconds['prompts'], work


def main():
  a = arguments()
  flops, bandwidth = limits(a.probe, a.repeats)
  print(
    f'{jax.devices()[0].device_kind}, jax {jax.__version__}; product '
    f'{flops / 1e12:.1f} TFLOP/s, copy {bandwidth / 1e9:.0f} GB/s; {a.prompts} '
    f'x {a.samples} rows, {a.prompt_len} + {a.completion_len} tokens, remat '
    f'{a.remat}'
  )
  print(f'{"model":14} {"phase":8} {"wall s":>9} {"tokens/s":>9} {"share":>6}')
  for name in a.models.split(','):
    for phase, s, (read, work) in measure(a, name):
      floors = {'decode': read / bandwidth, 'update': work / flops}
      tokens = a.prompts * a.samples * a.completion_len / s
      share = f'{floors[phase] / s:6.2f}' if phase in floors else ''
      print(
        f'{name:14} {phase:8} {s:9.3f} {tokens:9.0f} {share}',
        flush=True,
      )


if __name__ == '__main__':
  main()
