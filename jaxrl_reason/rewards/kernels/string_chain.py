"""Applies string functions that a policy wrote, on the device.

abcd|RLD=     cbadcbad, from left to right: the problems of `string_functions`

The host twin of a function is `verifiers.tasks.string_functions.apply`.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.rewards.kernels.token_bytes import scanned
from jaxrl_reason.verifiers.tasks import string_functions

LONGEST = 16  # letters of a string
_FIRST, _LAST = (
  ord(string_functions.LETTERS[0]),
  ord(string_functions.LETTERS[-1]),
)
_EMPTY = 255  # after the end of a string


def _apply(name: jax.Array, s: jax.Array, n: jax.Array) -> tuple:
  """Applies the function `name` i32 [N] to strings i32 [N,K] of n [N] letters.

  Returns:
    (strings [N,K], their letters [N], which may be above K).
  """
  i, n_ = jnp.arange(s.shape[1]), n[:, None]
  earlier = (s[:, :, None] == s[:, None, :]) & (i[:, None] > i)
  new = (i < n_) & ~earlier.any(axis=2)
  drops = jnp.argsort(~new, axis=1)  # stable: letters keep their order
  ends = jnp.where(i == n_ - 1, 0, i)
  source = {
    'R': n_ - 1 - i,
    'L': (i + 1) % n_,
    'X': jnp.where(i == 0, n_ - 1, ends),
    'T': i + 1 + jnp.zeros_like(n_),
    'D': i % n_,
    'U': drops,
  }
  size = {'T': n - 1, 'D': 2 * n, 'U': new.sum(axis=1)}
  at, length = i + jnp.zeros_like(n_), n
  for key, x in source.items():
    at = jnp.where(name[:, None] == ord(key), x, at)
  for key, x in size.items():
    length = jnp.where(name == ord(key), x, length)
  moved = jnp.take_along_axis(s, jnp.clip(at, 0, s.shape[1] - 1), axis=1)
  following = jnp.where(s == _LAST, _FIRST, s + 1)
  moved = jnp.where(name[:, None] == ord('I'), following, moved)
  ordered = jnp.sort(s, axis=1)
  moved = jnp.where(name[:, None] == ord('S'), ordered, moved)
  return jnp.where(i < length[:, None], moved, _EMPTY), length


def _read(state: dict, c: jax.Array) -> dict:
  """Reads one byte."""
  s, n = state['s'], state['n']
  letter = (c >= _FIRST) & (c <= _LAST)
  bar, end = c == ord('|'), c == ord('=')
  function = jnp.isin(c, jnp.asarray([*map(ord, string_functions.FUNCTIONS)]))
  here = (jnp.arange(LONGEST) == n[:, None]) & letter[:, None]
  applied, size = _apply(c, s, jnp.maximum(n, 1))
  s = jnp.where(function[:, None], applied, jnp.where(here, c[:, None], s))
  n = jnp.where(function, size, n + letter)
  fine = state['fine'] & ~state['ended'] & (letter | bar | function | end)
  fine &= jnp.where(letter | bar, ~state['applies'], state['applies'])
  fine &= ~end | (state['functions'] > 0)
  fine &= (n > 0) & (n <= LONGEST)
  return {
    's': s,
    'n': jnp.clip(n, 0, LONGEST),
    'functions': state['functions'] + function,
    'applies': state['applies'] | bar,
    'ended': state['ended'] | end,
    'fine': fine,
  }


def evaluate(text: jax.Array, length: jax.Array) -> tuple:
  """Applies chains of one function or more that end in `=`.

  Args:
    text: u8 [N,W]; length: i32 [N], bytes of it.

  Returns:
    (strings u8 [N,LONGEST], 0 after the end; their letters i32 [N]; whether the
    text is such a chain, and no string has more than LONGEST letters, bool
    [N]).
  """
  n = len(text)
  zero, no = jnp.zeros(n, jnp.int32), jnp.zeros(n, bool)
  state = {
    's': jnp.full((n, LONGEST), _EMPTY, jnp.int32), 'n': zero,
    'functions': zero, 'applies': no, 'ended': no, 'fine': ~no,
  }  # fmt: skip
  state = scanned(_read, state, text, length)
  size = jnp.where(state['fine'], state['n'], 0)
  inside = jnp.arange(LONGEST) < size[:, None]
  found = jnp.where(inside, state['s'], 0).astype(jnp.uint8)
  return found, size, state['fine']
