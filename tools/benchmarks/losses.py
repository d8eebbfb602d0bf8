"""Measures loss + gradient, relative to reading the inputs once.

  .venv/bin/python tools/benchmarks/losses.py [--rows 512] [--tokens 1024]
    [--repeats 20]

A loss reads a few [N, T] arrays and writes the gradient, which needs only one
pass over memory. The unit is therefore a jitted sum over the same arrays, which
reads every byte once. `loss + grad` has no metrics (XLA removes unused
results), `+ metrics` has all of them.
"""

import argparse
import functools
import pathlib
import sys
import time

import jax
import jax.numpy as jnp

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jaxrl_reason import losses

PRESETS = 'reinforce grpo dapo gspo cispo gmpo sapo flash_rl'.split()


def inputs(preset, n, t):
  """Returns random arrays for the loss of a preset."""
  key = jax.random.split(jax.random.key(0), 5)
  logp = -jax.random.exponential(key[0], (n, t))

  def near(k):
    return logp + 0.1 * jax.random.normal(k, (n, t))

  length = jax.random.randint(key[1], (n, 1), t // 4, t + 1)
  arrays = dict(
    logp=logp, mask=jnp.arange(t) < length, adv=jax.random.normal(key[2], (n,))
  )
  for name, k in zip(('old_logp', 'ref_logp', 'sampler_logp'), (2, 3, 4)):
    if name in losses.needs(preset):
      arrays[name] = near(key[k])
  return arrays


def seconds(fn, x, repeats):
  """Measures the median time of a call without compilation."""
  jax.block_until_ready(fn(x))
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(fn(x))
    times.append(time.perf_counter() - start)
  return sorted(times)[len(times) // 2]


def read_once(x):
  """Computes a number that depends on every byte of every array."""
  return sum(a.astype(jnp.float32).sum() for a in jax.tree.leaves(x))


def with_metrics(preset, x):
  x = dict(x)
  logp, adv, mask = (x.pop(k) for k in ('logp', 'adv', 'mask'))

  def fn(logp):
    return losses.policy_loss(preset, logp, adv, mask, **x)

  return jax.value_and_grad(fn, has_aux=True)(logp)


def without_metrics(preset, x):
  (loss, _), grad = with_metrics(preset, x)
  return loss, grad


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rows', type=int, default=512)
  parser.add_argument('--tokens', type=int, default=1024)
  parser.add_argument('--repeats', type=int, default=20)
  args = parser.parse_args()
  device = jax.devices()[0]
  print(f'{device.device_kind}, [{args.rows}, {args.tokens}]')
  print(f'{"preset":12}{"read once":>12}{"loss + grad":>22}{"+ metrics":>22}')
  for preset in PRESETS:
    x = inputs(preset, args.rows, args.tokens)
    once = seconds(jax.jit(read_once), x, args.repeats)
    line = f'{preset:12}{1e3 * once:9.2f} ms'
    for fn in (without_metrics, with_metrics):
      s = seconds(jax.jit(functools.partial(fn, preset)), x, args.repeats)
      line += f'{1e3 * s:10.2f} ms {s / once:6.1f} x'
    print(line)


if __name__ == '__main__':
  main()
