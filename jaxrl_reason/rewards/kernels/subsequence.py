"""The longest-increasing-subsequence kernel: any longest subsequence counts.

Host twin: `verifiers.tasks.lis.check`. The answer's numbers are found by masks
and one gather; whether they are a subsequence is one pass over the K given
numbers, each of which matches the next unmatched number of the answer.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.rewards.kernels import final, numbers, token_bytes
from jaxrl_reason.verifiers.tasks import lis, problem


def encode(
  example: problem.Example, *, max_numbers: int = 16
) -> dict[str, np.ndarray]:
  given = example['meta']['numbers']
  if len(given) > max_numbers:
    raise ValueError(f'{len(given)} numbers; max_numbers={max_numbers}')
  padded = np.full(max_numbers, -1, np.int32)  # [K]; -1 equals no number
  padded[: len(given)] = given
  return {'numbers': padded, 'longest': np.int32(max(lis.lengths(given)))}


def _is_subsequence(chosen, n_chosen, given) -> jax.Array:
  """Matches greedily; `matched` is the number of matched numbers so far."""

  def body(matched, number):
    at = jnp.minimum(matched, chosen.shape[1] - 1)
    wanted = jnp.take_along_axis(chosen, at[:, None], axis=1)[:, 0]
    return matched + ((wanted == number) & (matched < n_chosen)), None

  start = jnp.zeros_like(n_chosen)
  matched, _ = jax.lax.scan(body, start, given.T)
  return matched == n_chosen


def score(text, length, answer) -> jax.Array:
  """Scores as `jaxrl_reason.verifiers.tasks.lis.check` does."""
  given = answer['numbers']  # [N,K]
  at = jnp.arange(text.shape[1])
  start, counts = final.answer_span(text, length)
  inside = (at >= start[:, None]) & (at < length[:, None])  # [N,W]
  digit = inside & token_bytes.is_digit(text)
  legal = digit | (text == ord(' ')) | ~inside
  end, value, too_long = numbers.ends(digit, text)
  n_chosen = end.sum(1)
  where = jnp.minimum(numbers.nth(end, given.shape[1]), text.shape[1] - 1)
  chosen = jnp.take_along_axis(value, where, axis=1)  # [N,K]
  after = jnp.arange(1, given.shape[1]) >= n_chosen[:, None]
  increases = ((chosen[:, 1:] > chosen[:, :-1]) | after).all(1)
  right = counts & legal.all(1) & ~too_long.any(1)
  right &= (n_chosen == answer['longest']) & increases
  right &= _is_subsequence(chosen, n_chosen, given)
  return right.astype(jnp.float32)
