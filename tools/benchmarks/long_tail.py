"""Measures tokens/s of the sampler if completions have very different lengths.

  .venv/bin/python tools/benchmarks/long_tail.py [--layers=4 --width=256]
    [--samples=32]
    [--new=256] [--repeats=5] [--batches=4] [--steps=8]

Lengths are log-normal (sigma 1) with a mean of a quarter of the limit,
truncated at the limit. There are 8 prompts of 32 tokens, and the vocabulary has
512 tokens. The model is modified: it samples the stop token exactly when a row
has its length. The first token of a row determines its length, so all modes of
the sampler generate the same rows, which is checked. Useful tokens are those
before the end of a row. The table has the rows that a mode decodes at a time,
and the useful tokens per decode step. Both are counted, so they do not depend
on the machine.

The last modes keep --batches batches in flight, in pieces of 2 prompts. Their
seconds and tokens are those of --steps steps, measured when all batches are in
flight.
"""

import argparse
import dataclasses
import functools
import time

import grpo_step
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Model
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import fused, in_flight, sampler

STOP = 0


def lengths_by_token(mean: float, limit: int) -> jax.Array:
  """Returns int [V]: for each first token, the length of its row."""
  rng = np.random.default_rng(0)
  drawn = rng.lognormal(np.log(mean) - 0.5, 1.0, grpo_step.V)
  return jnp.asarray(np.clip(np.rint(drawn), 2, limit), jnp.int32)


def with_lengths(model: Model, lengths: jax.Array) -> Model:
  """Returns the model with completions that stop at given lengths.

  The cache also stores the first tokens of rows. The hidden state also stores
  whether the next token is the last.
  """

  def prefill(*args):
    hidden, cache = model.prefill(*args)
    rows = args[1].shape[0] * args[3]
    return (hidden_and(hidden, False), (cache, jnp.zeros(rows, jnp.int32)))

  def hidden_and(hidden, last):
    flag = jnp.broadcast_to(last, hidden.shape[:1]).astype(hidden.dtype)
    return jnp.concatenate([hidden, flag[:, None]], axis=1)

  def decode(params, tokens, cache, t, column):
    cache, first = cache
    first = jnp.where(t == 0, tokens, first)
    hidden, cache = model.decode(params, tokens, cache, t, column)
    return hidden_and(hidden, t + 2 >= lengths[first]), (cache, first)

  def unembed(params, hidden):
    logits = model.unembed(params, hidden[:, :-1])
    stop = jnp.where(hidden[:, -1:] > 0, 1e9, -1e9)
    return jnp.where(jnp.arange(logits.shape[1]) == STOP, stop, logits)

  def grow(cache, n):
    return (model.grow(cache[0], n), cache[1])

  def renew(cache, new, at):
    return (model.renew(cache[0], new[0], at), cache[1])

  return dataclasses.replace(
    model,
    prefill=prefill,
    decode=decode,
    unembed=unembed,
    grow=grow,
    renew=renew,
  )


def counted(model: Model, rows: list[int]) -> Model:
  """Returns the model whose decode steps append their numbers of rows."""

  def decode(params, tokens, *rest):
    jax.debug.callback(functools.partial(rows.append, len(tokens)))
    return model.decode(params, tokens, *rest)

  return dataclasses.replace(model, decode=decode)


def modes(samples: int) -> dict[str, tuple[int, dict]]:
  """Returns name -> (stop token, arguments of `generate`)."""
  few = {f'{n} slots': n for n in (16, 8, 4, 2, 1) if n < samples}
  return {
    'plain loop': (-1, {}),
    'early exit': (STOP, {}),
    'early exit, 4 segments': (STOP, {'segments': 4}),
  } | {
    f'{k}, 4 segments': (STOP, dict(slots=n, segments=4))
    for k, n in few.items()
  }


def measure_flight(args, model, state, prompts, slots: int) -> tuple:
  """Measures groups in flight: (name, wall s, CPU s, tokens/s, rows, tokens per
  decode step).
  """
  gen = fused.Generation(model, args.samples, args.new, slots)
  plain = fused.FusedSource(gen, grpo_step.reward_fn)
  source = in_flight.InFlightSource(plain, args.batches, grpo_step.B // 2)
  rest = Sampling.make(), jnp.array([STOP])

  @functools.partial(jax.jit, donate_argnums=1)
  def steps(params, memory, first, n):
    def one(i, carry):
      memory, tokens, idle, columns = carry
      found = source(
        params, {in_flight.NAME: memory}, prompts, jax.random.key(2), i, *rest
      )
      account = found.account
      idle += account.metrics['in_flight/idle']
      tokens += found.rollout.length.sum()
      columns += account.metrics['in_flight/columns']
      return account.control[in_flight.NAME], tokens, idle, columns

    carry = memory, jnp.int32(0), jnp.float32(0), jnp.int32(0)
    return jax.lax.fori_loop(first, first + n, one, carry)

  memory = jax.jit(source.memory)(state.params, prompts)
  warm = 3 * args.batches
  memory, *_ = steps(state.params, memory, 0, warm)
  jax.block_until_ready(memory)
  wall, cpu = time.perf_counter(), time.process_time()
  memory, tokens, idle, columns = steps(state.params, memory, warm, args.steps)
  tokens = int(tokens)
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  name = f'{args.batches} in flight, {slots} slots'
  print(f'{name}: {100 * idle / args.steps:.0f}% of the slots idle')
  rows = len(memory.slots.token)
  return name, wall, cpu, tokens / wall, rows, tokens / int(columns)


def sampled(args, model, state, prompts, stop: int, static: dict):
  """Returns a function that samples the completions in one mode."""

  @jax.jit
  def generate(params, stop):
    return sampler.generate(
      model,
      params,
      prompts.tokens,
      prompts.valid,
      jax.random.key(2),
      Sampling.make(),
      stop,
      n_samples=args.samples,
      max_new=args.new,
      **static,
    )

  return functools.partial(generate, state.params, jnp.array([stop]))


def measure(args) -> list[tuple]:
  learner, _, state, prompts = grpo_step.problem(
    args.layers, args.width, new=args.new
  )
  lengths = lengths_by_token(args.new / 4, args.new)
  model, want, table = with_lengths(learner.model, lengths), None, []
  for name, (stop, static) in modes(args.samples).items():
    run = sampled(args, model, state, prompts, stop, static)
    wall, cpu = grpo_step.timed(run, args.repeats)
    tokens, rows = np.asarray(run().tokens), []
    jax.block_until_ready(
      sampled(args, counted(model, rows), state, prompts, stop, static)()
    )
    jax.effects_barrier()
    n = np.asarray(lengths)[tokens[:, 0]]
    tokens = np.where(np.arange(args.new) < n[:, None], tokens, 0)
    want = tokens if want is None else want
    if not np.array_equal(tokens, want):
      raise RuntimeError(f'{name} and the plain loop sampled different tokens')
    total = n.sum()
    each = max(rows), total / len(rows)
    table.append((name, wall, cpu, total / wall, *each))
  print(f'mean length {n.mean():.0f}, longest {n.max()}, of {args.new}')
  for slots in (n for n in (16, 8, 4, 2, 1) if n <= args.samples):
    table.append(measure_flight(args, model, state, prompts, slots))
  return table


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--layers', type=int, default=4)
  parser.add_argument('--width', type=int, default=256)
  parser.add_argument('--samples', type=int, default=32)
  parser.add_argument('--new', type=int, default=256)
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--batches', type=int, default=4)
  parser.add_argument('--steps', type=int, default=8)
  args = parser.parse_args()
  print(
    f'{args.layers} layers x {args.width}, {grpo_step.B} x {args.samples} '
    f'rows, {grpo_step.P} + {args.new} tokens; jax {jax.__version__}'
  )
  table = measure(args)
  print(
    f'{"mode":24} {"wall s":>8} {"CPU s":>8} {"tokens/s":>9} {"plain":>6} '
    f'{"per CPU s":>9} {"rows":>5} {"per step":>8}'
  )
  for name, wall, cpu, rate, rows, each in table:
    ratio, per_cpu = rate / table[0][3], rate * wall / cpu
    print(
      f'{name:24} {wall:8.3f} {cpu:8.3f} {rate:9.0f} {ratio:6.2f} '
      f'{per_cpu:9.0f} {rows:5d} {each:8.2f}'
    )


if __name__ == '__main__':
  main()
