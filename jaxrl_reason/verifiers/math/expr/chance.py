"""Secret randomness: primes and shares that no answer was written against.

Drawn once per process. Two equal answers agree at every prime and point, so
that their verdict does not depend on the draw; two others agree there by an
accident that nobody can arrange, because nobody can know the draw.
"""

import functools
import hashlib
import secrets

BITS = 256  # of a prime: an accident takes degree / 2^255
KEY = secrets.token_bytes(32)
ROUNDS = 24  # a composite number passes with probability 4^-24


@functools.lru_cache(None)
def prime(which: int) -> int:
  """Returns this process's prime of that number."""
  while True:
    candidate = secrets.randbits(BITS) | 1 << (BITS - 1) | 1
    if _is_prime(candidate):
      return candidate


def share(name: str, size: int = 40) -> int:
  """Returns `size` bytes that belong to a name, mixed with the process's
  key.
  """
  mixed = hashlib.blake2b(name.encode(), key=KEY, digest_size=size)
  return int.from_bytes(mixed.digest(), 'big')


def _is_prime(number: int) -> bool:
  """The test of Miller and Rabin (J. Number Theory 1980), random bases."""
  if any(number % small == 0 for small in range(3, 40, 2)):
    return False
  odd, twos = number - 1, 0
  while odd % 2 == 0:
    odd, twos = odd // 2, twos + 1
  return all(_passes(number, odd, twos) for _ in range(ROUNDS))


def _passes(number: int, odd: int, twos: int) -> bool:
  power = pow(2 + secrets.randbelow(number - 3), odd, number)
  if power in (1, number - 1):
    return True
  for _ in range(twos - 1):
    power = power * power % number
    if power == number - 1:
      return True
  return False
