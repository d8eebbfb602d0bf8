"""Evaluates arithmetic that a policy wrote, on the device.

7+5-3*2=      18, from left to right: the problems of the task `arithmetic`
7+5-3%10=     9, modulo 10
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.rewards.kernels.token_bytes import scanned

LIMIT = 10**6  # largest size of a result before the modulus
DIGITS = 2  # of an operand at most


def _apply(total, op, number):
  """Returns the result of one operation."""
  minus = jnp.where(op == ord('-'), total - number, total + number)
  return jnp.where(op == ord('*'), total * number, minus)


def _read(state: dict, c: jax.Array) -> dict:
  """Reads one byte."""
  digit = (c >= ord('0')) & (c <= ord('9'))
  operator = (c == ord('+')) | (c == ord('-')) | (c == ord('*'))
  percent, end = c == ord('%'), c == ord('=')
  has_number, reduces = state['digits'] > 0, state['reduces']
  number = state['number'] * 10 + jnp.where(digit, c - ord('0'), 0)
  result = _apply(state['total'], state['op'], state['number'])
  closes = operator | percent | end
  folds = closes & ~reduces
  modulus = jnp.maximum(state['number'], 1)
  total = jnp.where(folds, result, state['total'])
  total = jnp.where(end & reduces, total % modulus, total)
  n_ops = state['n_ops'] + operator
  fine = state['fine'] & ~state['ended'] & (digit | (closes & has_number))
  fine &= ~digit | (state['digits'] < DIGITS)
  fine &= ~operator | ~reduces
  fine &= ~percent | (~reduces & (n_ops > 0))
  fine &= ~end | (n_ops > 0)
  fine &= ~(end & reduces) | (state['number'] > 0)
  fine &= jnp.abs(total) <= LIMIT
  return {
    'total': jnp.clip(total, -LIMIT, LIMIT),
    'op': jnp.where(operator, c, state['op']),
    'number': jnp.where(digit, jnp.minimum(number, 99), 0),
    'digits': jnp.where(digit, state['digits'] + 1, 0),
    'n_ops': n_ops,
    'reduces': reduces | percent,
    'ended': state['ended'] | end,
    'fine': fine,
  }


def evaluate(text: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Evaluates expressions of one operator or more that end in `=`.

  Args:
    text: u8 [N,W]; length: i32 [N], bytes of it.

  Returns:
    (values i32 [N], whether the text is such an expression, bool [N]).
  """
  n = len(text)
  zero, no = jnp.zeros(n, jnp.int32), jnp.zeros(n, bool)
  state = {
    'total': zero, 'op': zero + ord('+'), 'number': zero, 'digits': zero,
    'n_ops': zero, 'reduces': no, 'ended': no, 'fine': ~no,
  }  # fmt: skip
  state = scanned(_read, state, text, length)
  return jnp.where(state['fine'], state['total'], 0), state['fine']
