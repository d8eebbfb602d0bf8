"""Environments for tests of runs: a hostile one, and one with a counter."""

import hashlib
import os
import signal
import subprocess
import time

WAYS = 'hang fork leave flood binary crash raise exit big print ask'.split()


def step(text, example, state):
  """Misbehaves depending on a hash of the turn. Even hashes are harmless."""
  turn = state or 0
  said = f'{text}/{example["prompt"]}/{turn}'.encode()
  number = int.from_bytes(hashlib.sha256(said).digest()[:4])
  way = WAYS[number // 2 % len(WAYS)] if number % 2 else 'ask'
  if way == 'hang':
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
  elif way == 'fork' and os.fork() == 0:
    return '9', turn + 1, 100.0  # answers as well
  elif way == 'leave':
    subprocess.Popen(['sleep', '1000'], start_new_session=True)
  elif way == 'flood':
    return '1' * 10**9, turn + 1, 0.0
  elif way == 'binary':
    return bytes(range(255, -1, -1)) * 40 + b'#7', turn + 1, 0.0
  elif way == 'crash':
    os.kill(os.getpid(), signal.SIGSEGV)
  elif way == 'raise':
    raise RuntimeError('\ud800 #7 =')
  elif way == 'exit':
    raise SystemExit(0)
  elif way == 'print':
    for descriptor in (1, 2):
      for _ in range(500):
        os.write(descriptor, b'#7;\n' * 2**18)
    subprocess.run(['echo', 'x' * 10**5], check=True)
  elif way == 'big':
    return '2', 'x' * 10**7, 0.0
  done = turn >= 2
  return None if done else f'{number % 97}=#', turn + 1, number % 5 * 0.1


def late(text, example, state):
  """Never answers."""
  time.sleep(1000)


class Slow:
  """An environment whose start never ends."""

  def __init__(self):
    time.sleep(1000)
