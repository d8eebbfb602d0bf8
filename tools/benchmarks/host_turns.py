"""Compares environments inside the program with those in Python processes.

  .venv/bin/python tools/benchmarks/host_turns.py [--rows=64,1024] [--slow=64]

First it measures batches per second of the same calculator on both sides, with
episodes of three turns. Then it measures tools that take 0.01 to 2 s
(log-uniform), with one process per row: seconds of a batch, compared with the
seconds if all rows waited for the slowest tool of each turn, and the share of
the time in which the device had rows to decode.
"""

import argparse
import random
import time

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import envs
from jaxrl_reason.data import tokenizers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.rollouts import episode, turns, verdict_arrays
from jaxrl_reason.rollouts import host_episodes as hosted
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.tools import serve

P, C, G = 8, 48, 8
TOKENIZER = tokenizers.CharTokenizer('0123456789*=-<>+/ adegiorstxyznz')
LIMITS = dict(most=3, tokens=10, observation=10, chunk=0, weight=1.0)
KEY, STOP = jax.random.key(1), jnp.array([1, -1])


def slow(text, example, state):
  """Sleeps 0.01 to 2 s, a function of row and turn."""
  turn = state or 0
  unit = random.Random(f'{example["id"]}/{turn}/{text}').random()
  time.sleep(0.01 * 200**unit)
  return '12', turn + 1, unit


def model_of():
  shape = transformer.Config(
    vocab=40, layers=2, width=128, mlp=256, heads=4, kv_heads=4, head_dim=32
  )
  model = transformer.build(shape)
  return model, jax.jit(lambda k: spec.init(model.specs, k))(jax.random.key(0))


def prompts(rows: int):
  b = rows // G
  tokens = jax.random.randint(jax.random.key(2), (b, P), 2, 12)
  return tokens, jnp.ones((b, P), bool), [{'id': i} for i in range(b)]


def seconds(play, times: int) -> float:
  """Measures the median seconds of a call after the first, which compiles."""
  times_s = []
  for _ in range(times + 1):
    start = time.monotonic()
    jax.block_until_ready(play())
    times_s.append(time.monotonic() - start)
  return float(np.median(times_s[1:]))


def inside(model, params, rows: int):
  how = turns.make(envs.ENVS['calculator'], TOKENIZER, **LIMITS)
  tokens, valid, _ = prompts(rows)

  @jax.jit
  def play(params):
    return turns.generate(
      how, model, params, tokens, valid, {}, KEY, Sampling.make(), STOP,
      n_samples=G, max_new=C,
    )  # fmt: skip

  return lambda: play(params)


def outside(model, params, rows: int, pool):
  stops = turns.automaton([b'='], TOKENIZER.token_bytes())
  write = verdict_arrays.Writer(
    TOKENIZER.encode_data, room=LIMITS['observation']
  )
  player = hosted.Player(
    episode.Limits(**LIMITS, stops=stops), model, n_samples=G, max_new=C,
    pool=pool, write=write, decode=TOKENIZER.decode, burst=8,
  )  # fmt: skip
  tokens, valid, examples = prompts(rows)
  ids = np.arange(rows, dtype=np.int32)

  def play():
    return player(
      params, tokens, valid, examples, KEY, Sampling.make(), STOP, ids
    )

  return play, player


def pool_of(name: str, workers: int) -> VerifierPool:
  env = {'env': {'name': name, 'args': {}, 'most': 200}}
  return VerifierPool(
    env, workers=workers, timeout_s=10, chunk=1,
    **serve.POOL,
  )  # fmt: skip


def alike(model, params, rows: int, times: int) -> None:
  f = inside(model, params, rows)
  with pool_of('calculator', 2) as pool:
    g, player = outside(model, params, rows, pool)
    a, b = f(), g()
    assert (np.asarray(a.tokens) == np.asarray(b.tokens)).all()
    fast, slower = seconds(f, times), seconds(g, times)
  print(
    f'{rows} rows: in the program {1 / fast:.2f} batches a second, on the host '
    f'{1 / slower:.2f} ({slower / fast:.1f} times the seconds)',
    flush=True,
  )


def waiting(model, params, rows: int) -> None:
  with pool_of(f'{__file__}:slow', rows) as pool:
    play, player = outside(model, params, rows, pool)
    out = play()  # compiles
    player.take_spent()
    start = time.monotonic()
    out = play()
    total = time.monotonic() - start
  idle = player.take_spent()['tools_wait_s']
  unit = np.asarray(out.episode.reward)  # total time of `slow`, as its reward
  took = np.where(np.isfinite(unit), 0.01 * 200 ** np.nan_to_num(unit), 0)
  together, alone = took.max(axis=0).sum(), took.sum(axis=1).max()
  print(
    f'{rows} rows, tools of 0.01 to 2 s: {total:.2f} s a batch. The tools of '
    f'the slowest row take {alone:.2f} s, and {together:.2f} s if all rows '
    f'wait for the slowest tool of a turn. In {1 - idle / total:.0%} of the '
    'time, the device had rows to decode',
    flush=True,
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--rows', default='64,1024')
  parser.add_argument('--slow', type=int, default=64)
  parser.add_argument('--times', type=int, default=5)
  args = parser.parse_args()
  model, params = model_of()
  for rows in map(int, args.rows.split(',')):
    alike(model, params, rows, args.times)
  waiting(model, params, args.slow)


if __name__ == '__main__':
  main()
