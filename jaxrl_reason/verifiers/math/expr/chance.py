"""Samples secret primes and points, once per process.

Equal answers agree at every prime and point, so their verdict does not depend
on the sample. Different answers agree with a negligible probability, because an
answer cannot be constructed for a secret sample.
"""

import functools
import hashlib
import secrets

BITS = 256  # of a prime: false equality has probability degree / 2^255
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
  """Returns `size` bytes for a name, derived from the key of the process."""
  mixed = hashlib.blake2b(name.encode(), key=KEY, digest_size=size)
  return int.from_bytes(mixed.digest(), 'big')


def _is_prime(number: int) -> bool:
  """Tests primality by Miller and Rabin (J. Number Theory 1980)."""
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
