"""Rewards for the pool's tests; workers import this file by its path."""

import os
import sys
import time


def behave(completion: str, example: dict) -> float:
  """Does what the completion says."""
  if completion == 'hang':
    while True:
      pass
  if completion == 'sleep':
    time.sleep(60)
  if completion == 'die':
    os._exit(3)
  if completion == 'eat':
    bytearray(10**10)
  if completion == 'raise':
    raise ValueError('a bad day')
  if completion == 'exit':
    sys.exit(1)
  if completion == 'spawn':
    os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', example['seconds'])
    time.sleep(60)
  if completion == 'nan':
    return float('nan')
  if completion == 'nothing':
    return None
  return float(completion == example['answer'])


def always_raises(completion: str, example: dict) -> float:
  raise KeyError('no such thing')


def jax_loaded(completion: str, example: dict) -> float:
  return float('jax' in sys.modules)


def pid(completion: str, example: dict) -> float:
  return float(os.getpid())


def grow(completion: str, example: dict) -> float:
  """Leaks 8 MB a case."""
  grow.kept.append(bytearray(8 * 2**20))
  return float(os.getpid())


grow.kept = []


def echo(completion: str, example: dict) -> float:
  time.sleep(example.get('sleep', 0.0))
  while 'after' in example and not os.path.exists(example['after']):
    time.sleep(0.01)
  return float(completion)


def scaled(completion: str, example: dict, *, by: float = 1.0) -> float:
  return by * float(completion)


def has_letter_a(completion: str, example: dict) -> float:
  return float('a' in completion)


def length(completion: str, example: dict) -> float:
  return float(len(completion))
