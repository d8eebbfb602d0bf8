"""Masked arithmetic and importance ratios, used by all files of this package.

All functions follow three rules:
  1. Select before arithmetic. A masked entry may be NaN or inf. It is replaced
     before it is used, so neither a value nor a gradient depends on it
     (`0 * nan` is `nan`, and so is the gradient of `where(m, exp(nan), 0)`).
  2. Compute in `promote_types(dtype, float32)`: bfloat16 log-probabilities
     carry 3 digits, and a ratio is the exponential of their difference.
  3. Divide by a named count; an empty sum divided by 0 is 0.

The importance ratio pi / old between the current and an older policy:

  token           r_it = pi(y_it) / old(y_it)
  sequence_mean        s_i  = (prod_t r_it)^(1 / T_i), geometric        (GSPO)
  sequence_mean_token  s_it = sg(s_i) r_it / sg(r_it): value s_i, gradient of
                       its own token                              (GSPO-token)
  sequence_product     prod_t r_it, the ratio of whole sequences        (TOPR)

Other trainers use the name `sequence` for either of the last kinds; here no
level has that name.

https://arxiv.org/abs/2507.18071. All of them are exponentials of a log-ratio
clamped to +-MAX_LOG_RATIO, of shape [N, T], exactly 0 outside the mask. With
`old_logp=None` the batch is on-policy: old = stop_gradient(logp), and every
ratio is exactly 1 with the gradient of logp.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.names import nearest

Array = jax.typing.ArrayLike
Arrays = Mapping[str, Any]  # by the names of SHAPES, None where absent
Sums = Mapping[str, Array]  # scalars of the whole batch
Metrics = dict[str, jax.Array]  # scalars

# exp() of a log-ratio is taken inside +-40: e^40 = 2.4e17 is exact enough for
# any clip or truncation that follows and its sums stay finite in float32,
# which overflows at e^88. Beyond the clamp the gradient is 0.
MAX_LOG_RATIO = 40.0


# Every array by name: N rows, T tokens, R reward parts, S segments, V the
# vocabulary. One name has one shape wherever it is an argument.
SHAPES = {
  **dict.fromkeys(
    'mask logp old_logp ref_logp sampler_logp old_mean_logp teacher_logp '
    'at_sampling entropy values old_values targets process_reward segment_ids '
    'node_ids tokens is_offpolicy sft_mask token_weight cov_tokens x '
    'sum_p_squared teacher_kl old_divergence'.split(),
    'NT',
  ),
  **dict.fromkeys(
    'reward group reward_valid valid greedy_reward truncated metric '
    'length pass_rate'.split(),
    'N',
  ),
  'adv': 'N|NT',
  'reward_parts': 'NR',
  'segment_reward': 'NS',
  'logits': 'NTV',
}


def check_shapes(**arrays: Any) -> None:
  """Raises a ValueError that names the first argument with a wrong shape.

  The letters of `SHAPES` have to agree between the arrays, in their order;
  None is skipped.
  """
  sizes = {}
  for name, x in arrays.items():
    shape = jnp.shape(x)
    form = [f for f in SHAPES[name].split('|') if len(f) == len(shape)]
    fits = form and all(sizes.get(k, n) == n for k, n in zip(form[0], shape))
    if x is not None and not fits:
      raise ValueError(_misfit(name, shape, sizes))
    sizes |= zip(form[0], shape) if fits else ()


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the arrays among the arguments `locals()`, after a shape check.

  Lists become arrays.
  """
  arrays = {
    name: jnp.asarray(x) if isinstance(x, list | tuple) else x
    for name, x in given.items()
    if name in SHAPES
  }
  check_shapes(**arrays)
  return arrays


def _misfit(name, shape, sizes):
  forms = ' or '.join(f'[{", ".join(f)}]' for f in SHAPES[name].split('|'))
  known = ', '.join(f'{k}={n}' for k, n in sizes.items())
  end = f' with {known}, as the arguments before it have' if known else ''
  return f'losses: {name} has shape {list(shape)} and has to be {forms}{end}.'


class Divisors(dict):
  """Divisors of the whole batch by name; a missing one is a ValueError."""

  def __missing__(self, name: str) -> Any:
    raise ValueError(
      f'losses: denominators has {", ".join(sorted(self)) or "no entry"}, and '
      f'{name!r} is missing: pass what losses.denominators(settings, mask, ..) '
      'returns for the whole batch.'
    )


def choose(key: str, value: Any, choices: Mapping[str, Any]) -> Any:
  """Returns choices[value]; a ValueError names the key and the choices."""
  if value not in choices:
    raise ValueError(
      f'losses: {key}={value!r} is no choice.{nearest(value, choices)} '
      f'Choose one of: {", ".join(map(str, choices))}.'
    )
  return choices[value]


def required(arrays: Mapping[str, Any], name: str, but: str = '') -> Any:
  """Returns arrays[name]; raises ValueError if it is None, except for `but`."""
  if arrays.get(name) is None and name != but:
    name = {'at_sampling': 'old_logp'}.get(name, name)
    raise ValueError(
      f'losses: these settings need the array {name!r}, which is missing: pass '
      'it, or choose settings that do without it (losses.needs(settings) lists '
      'what a run has to compute).'
    )
  return arrays[name]


def as_float(x: Array) -> jax.Array:
  """Returns `x` as float32, or as float64 if it is float64."""
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def as_mask(mask: Array) -> jax.Array:
  """Converts a 0/1 array to bool; raises ValueError on any other value.

  Inside a compiled function, where values cannot be checked, `keep` and
  `row_count` return NaN for a mask of other values than 0 and 1. A value
  between them is a weight: pass it to `policy_loss(token_weight=..)`.
  """
  mask = jnp.asarray(mask)
  if mask.dtype != bool and not isinstance(mask, jax.core.Tracer):
    odd = np.setdiff1d(np.asarray(mask, np.float64), (0, 1))
    if odd.size:
      raise ValueError(
        f'losses: a mask holds {odd[0]:g} and has to hold 0 and 1 only; '
        'weights of tokens are token_weight.'
      )
  return mask != 0


def _nan_where_soft(x, mask):
  """Returns x, with NaN where a traced mask is neither 0 nor 1."""
  if not isinstance(mask, jax.core.Tracer) or mask.dtype == bool:
    return x
  return jnp.where((mask == 0) | (mask == 1), x, jnp.nan)


def keep(mask: Array, x: Array, fill: Array = 0.0) -> jax.Array:
  """Returns `x` where the mask is set, and `fill` elsewhere.

  Neither the value nor the gradient reads `x` outside the mask.
  """
  kept = jnp.where(as_mask(mask), as_float(x), fill)
  return _nan_where_soft(kept, mask)


def possible(mask: Array, *logps: Array | None) -> jax.Array:
  """Returns the mask without tokens whose log-probability is -inf: bool [N, T].

  Such a token was filtered out of the policy's vocabulary, and its log-ratio
  and KL are infinite. NaN stays, so that a broken model is noticed.
  """
  out = as_mask(mask)
  for logp in logps:
    if logp is not None:
      out &= ~jnp.isneginf(jnp.asarray(logp))
  return out


def safe_exp(x: Array) -> jax.Array:
  """Computes exp(x) with x clamped to +-MAX_LOG_RATIO."""
  return jnp.exp(hard_clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def hard_clip(x: Array, low: Array, high: Array) -> jax.Array:
  """Clips x, with gradient 1 on the closed interval and 0 outside.

  `jnp.clip` and `jnp.minimum` halve the gradient at a tie, and on-policy ratios
  are ties. The selects used here have no ties.
  """
  return jnp.where(x > high, high, jnp.where(x < low, low, x))


def safe_divide(x: Array, n: Array) -> jax.Array:
  """Divides x / n in the dtype of x; 0 with a zero gradient where n is 0."""
  x = as_float(x)
  n = jnp.asarray(n, x.dtype)
  return jnp.where(n == 0, 0.0, x / jnp.where(n == 0, 1.0, n))


def rows_to_tokens(adv: Array, mask: Array) -> jax.Array:
  """Spreads [N] or [N, T] over [N, T], exactly 0 outside the mask.

  One dimension always means one number per row, also where N = T.
  """
  check_shapes(mask=mask, adv=adv)
  x = jnp.asarray(adv)
  x = x[:, None] if x.ndim == 1 else x
  return keep(mask, jnp.broadcast_to(x, jnp.shape(mask)))


def row_sum(x: Array, mask: Array) -> jax.Array:
  """Computes the sum over a row's tokens: [N, T] -> [N]."""
  return keep(mask, x).sum(-1)


def row_count(mask: Array) -> jax.Array:
  """Counts the tokens in each row, [N]; float64 under `jax_enable_x64`."""
  return _nan_where_soft(as_mask(mask).astype(float), mask).sum(-1)


def row_mean(x: Array, mask: Array) -> jax.Array:
  """Averages the tokens of a row, 0 for an empty row: [N, T] -> [N]."""
  return safe_divide(row_sum(x, mask), row_count(mask))


def masked_mean(x: Array, mask: Array) -> jax.Array:
  """Averages the set entries of the whole array; 0 if there are none."""
  return safe_divide(keep(mask, x).sum(), row_count(mask).sum())


def masked_var(x: Array, mask: Array, *, ddof: int = 0) -> jax.Array:
  """Computes the variance of the set entries in two passes, over n - ddof."""
  d = keep(mask, as_float(x) - masked_mean(x, mask))
  n = row_count(mask).sum()
  return safe_divide(jnp.square(d).sum(), jnp.maximum(n - ddof, 0.0))


def safe_sqrt(x: Array) -> jax.Array:
  """Computes sqrt(x), 0 with a zero gradient at 0."""
  return jnp.where(x <= 0, 0.0, jnp.sqrt(jnp.where(x <= 0, 1.0, x)))


def stop(x: Array | None) -> jax.Array | None:
  """Stops the gradient; returns None for None."""
  return None if x is None else jax.lax.stop_gradient(x)


def absolute(x: Array) -> jax.Array:
  """Computes |x| with gradient 0 at 0 (`jnp.abs`: 1): on-policy ties are 0."""
  return jnp.sign(x) * x


# exp(x) - 1 - x loses all digits near 0 (x = 1e-3 keeps one in float32), so
# below 1/4 it is x^2 (1/2! + x/3! + .. + x^5/7!), good to 1e-8 there; at 1/4
# the plain form is good to 2e-6 in float32.
_SERIES = tuple(1 / math.factorial(n) for n in range(2, 8))


def exp_minus_1_minus(x: Array) -> jax.Array:
  """Computes exp(x) - 1 - x >= 0 to full precision; x is clamped to 40."""
  small = jnp.abs(x) < 0.25
  s = jnp.where(small, x, 0.0)
  poly = functools.reduce(lambda p, c: p * s + c, reversed(_SERIES))
  far = jnp.where(small, 1.0, hard_clip(x, -MAX_LOG_RATIO, MAX_LOG_RATIO))
  return jnp.where(small, s * s * poly, jnp.exp(far) - 1 - far)


def log_ratio(logp: Array, old_logp: Array | None, mask: Array) -> jax.Array:
  """Computes log pi - log old per token, [N, T], 0 outside the mask."""
  check_shapes(mask=mask, logp=logp, old_logp=old_logp)
  logp = keep(mask, logp)
  old = stop(logp if old_logp is None else keep(mask, old_logp))
  return logp - old


def _token(lr, mask):
  return lr


def _of_row(reduce, lr, mask):
  return jnp.broadcast_to(reduce(lr, mask)[:, None], lr.shape)


def _sequence_mean_token(lr, mask):
  return lr - stop(lr) + stop(row_mean(lr, mask))[:, None]


LEVELS = {
  'token': _token,
  'sequence_mean': functools.partial(_of_row, row_mean),
  'sequence_mean_token': _sequence_mean_token,
  'sequence_product': functools.partial(_of_row, row_sum),
}


def importance_ratio(
  logp: Array, old_logp: Array | None, mask: Array, *, ratio: str = 'token'
) -> jax.Array:
  """Computes pi / old at one of the `LEVELS`: [N, T], 0 outside the mask."""
  lr = log_ratio(logp, old_logp, mask)
  return keep(mask, safe_exp(choose('ratio', ratio, LEVELS)(lr, mask)))
