"""Measures wall seconds, CPU seconds and matmul utilization of a GRPO step.

  .venv/bin/python tools/benchmarks/grpo_step.py [--layers=4 --width=256]
    [--repeats=7]

The step has 8 prompts x 8 samples, 32 + 64 tokens, vocabulary 512, float32, a
separate reference (KL 0.04) and AdamW. No completion stops early. With
JAX_NUM_CPU_DEVICES=2, two cores are two devices that split the rows. `sampler`
is generation, `update` is reference log-probs, log-probs, loss, gradients and
optimizer, `step` is both in one program. `floor` is the model's FLOPs at the
rate of a 2048^3 product, which is measured in the same run.
"""

import argparse
import functools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, sharding
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.rollouts import fused
from jaxrl_reason.run.rl import programs as programs_lib
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import optim
from jaxrl_reason.update import step as step_lib

B, G, P, C, V = 8, 8, 32, 64, 512
NEVER = jnp.array([-1])


def timed(f, repeats: int) -> tuple[float, float]:
  """Measures median wall and CPU seconds of f() after a warm-up."""
  jax.block_until_ready(f())
  rows = []
  for _ in range(repeats):
    wall, cpu = time.perf_counter(), time.process_time()
    jax.block_until_ready(f())
    rows.append((time.perf_counter() - wall, time.process_time() - cpu))
  return tuple(np.median(rows, axis=0))


def product():
  """Returns a function that multiplies two float32 2048 x 2048 matrices."""
  a = jax.random.normal(jax.random.key(0), (2048, 2048))
  return functools.partial(jax.jit(jnp.matmul), a, a)


def matmul_peak(repeats: int) -> float:
  """Measures the FLOP/s of `product`."""
  return 2 * 2048**3 / timed(product(), repeats)[0]


def shape(layers: int, width: int, **model) -> transformer.Config:
  """Returns the shape of the benchmark's model: four heads, without GQA."""
  return transformer.Config(
    vocab=V,
    layers=layers,
    width=width,
    mlp=4 * width,
    heads=4,
    kv_heads=4,
    head_dim=width // 4,
    **model,
  )


def problem(
  layers: int,
  width: int,
  *,
  prompt: int = P,
  new: int = C,
  samples: int = G,
  slots: int = 0,
  segments: int = 4,
  micro_batches: int = 1,
  **model,
):
  """Returns (learner, generation, state, prompts) of the benchmark's shapes."""
  config = shape(layers, width, **model)
  gen = fused.Generation(
    transformer.build(config), samples, new, slots, segments
  )
  return problem_of(config, gen, B, prompt, micro_batches=micro_batches)


def problem_of(
  config: transformer.Config,
  gen: fused.Generation,
  n_prompts: int,
  prompt: int,
  **learner,
):
  """Returns (learner, generation, state, prompts) of a model with random
  weights.

  Args:
    config: config of the model `gen.model`.
  """
  learner = learner_lib.Learner(
    model=gen.model,
    objective=losses.resolve({'name': 'grpo', 'kl_coef': 0.04}),
    tx=optim.make(config_lib.Optimizer(lr=1e-4), 100),
    start=prompt,
    part_names=('x',),
    **learner,
  )

  def begin(key):
    return learner_lib.init_state(learner, spec.init(gen.model.specs, key))

  shape = n_prompts, prompt
  tokens = jax.random.randint(jax.random.key(1), shape, 0, config.vocab)
  rows = jnp.arange(n_prompts)
  prompts = Prompts(tokens, jnp.ones(shape, bool), rows, {'x': rows})
  state = jax.jit(begin)(jax.random.key(0))
  return learner, gen, *on_all_devices(state, prompts)


def on_all_devices(state, prompts):
  """Shards rows over all devices if there are several."""
  if jax.device_count() > 1:
    mesh = sharding.make_mesh((-1, 1, 1))
    jax.set_mesh(mesh)
    state = jax.device_put(state, sharding.replicated(mesh))
    prompts = jax.device_put(prompts, sharding.row_sharding(mesh))
  return state, prompts


def reward_fn(rollout, answers, control=None) -> Reward:
  """Computes a cheap reward that differs between samples."""
  score = (rollout.tokens[:, 0] % 7).astype(jnp.float32)
  return Reward(score, score[:, None], score >= 0)


def programs(learner, gen, state, prompts) -> dict:
  """Returns the phases by name: () -> arrays to wait for.

  The first call compiles. `update` and `step` donate and replace one state.
  """
  root, sampling = jax.random.key(2), Sampling.make()
  source = fused.FusedSource(gen, reward_fn)
  sample = jax.jit(
    lambda p: fused.complete(gen, p, prompts, root, 0, sampling, NEVER)
  )
  out = sample(state.params)
  trajectories = Trajectories(prompts, out, reward_fn(out, {}))
  batch = batch_lib.make_batch(trajectories)
  learn = jax.jit(
    lambda s: step_lib.update(learner, s, batch, sampling, root),
    donate_argnums=0,
  )
  step = jax.jit(
    lambda s: programs_lib.fused_step(
      learner, source, s, prompts, root, sampling, NEVER
    ),
    donate_argnums=0,
  )

  def moved(f):
    nonlocal state
    state, metrics = f(state)
    return metrics

  return {
    'sampler': lambda: sample(state.params),
    'update': lambda: moved(learn),
    'step': lambda: moved(step),
  }


def flops(
  learner, prompt: int = P, new: int = C, samples: int = G, **_
) -> dict[str, float]:
  """Computes the model's FLOPs by phase."""
  rows, forward = B * samples, learner.model.flops_per_token((prompt + new) / 2)
  sample = (B * prompt + rows * new) * forward
  learn = rows * (prompt + new) * forward * 4  # reference 1, policy 1 + 2
  return {'sampler': sample, 'update': learn, 'step': sample + learn}


def measure(layers: int, width: int, repeats: int, **model) -> list[dict]:
  learner, *rest = problem(layers, width, **model)
  rows, work = B * G, flops(learner)
  # The product runs on one of the devices that share the cores.
  peak = matmul_peak(repeats) * jax.device_count()
  table = []
  for name, f in programs(learner, *rest).items():
    wall, cpu = timed(f, repeats)
    table.append(
      {
        'phase': name,
        'wall_s': wall,
        'cpu_s': cpu,
        'gflop': work[name] / 1e9,
        'share_of_peak': work[name] / peak / wall,
        'tokens_per_s': rows * C / wall,
        'peak_gflops': peak / 1e9,
      }
    )
  return table


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args()
  table = measure(args.layers, args.width, args.repeats)
  if args.json:
    print(json.dumps(table))
    return
  print(
    f'{args.layers} layers x {args.width}, {B} x {G} rows, {P} + {C} '
    f'tokens, vocabulary {V}, float32; {jax.device_count()} x '
    f'{jax.default_backend()}, jax {jax.__version__}, '
    f'matmul peak {table[0]["peak_gflops"]:.0f} GFLOP/s'
  )
  print(
    f'{"phase":8} {"wall s":>8} {"CPU s":>8} {"GFLOP":>8} '
    f'{"of peak":>8} {"tokens/s":>9}'
  )
  for r in table:
    print(
      f'{r["phase"]:8} {r["wall_s"]:8.3f} {r["cpu_s"]:8.3f} '
      f'{r["gflop"]:8.1f} {r["share_of_peak"]:8.2f} '
      f'{r["tokens_per_s"]:9.0f}'
    )


if __name__ == '__main__':
  main()
