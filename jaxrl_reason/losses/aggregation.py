"""From per-token losses [N, T] to one number, with every divisor named.

  token_mean            sum_it x_it / tokens
  token_sum             sum_it x_it
  seq_mean_token_mean   sum_i (sum_t x_it / T_i) / rows
  seq_mean_token_sum    sum_i sum_t x_it / rows
  fixed_length          sum_it x_it / (rows * length)

`rows` is every row (`count_empty=True`) or only those that have a token. The
divisors of the whole batch are computed once, by `denominators`, and handed to
every micro-batch or device; the pieces then add up to the whole exactly.
GRPO's published objective is `seq_mean_token_mean`
(https://arxiv.org/abs/2402.03300), Dr.GRPO's is `fixed_length`
(https://arxiv.org/abs/2503.20783), DAPO's `token_mean`
(https://arxiv.org/abs/2503.14476; its formula divides by the tokens of one
prompt's group, its code by those of the batch: `group_token_weight` gives the
first).
"""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  as_float,
  as_mask,
  keep,
  row_count,
  row_mean,
  safe_divide,
)
from jaxrl_reason.losses.groups import over_group, segment_ids


def counts(mask, *, length=None, axis_name=None, sums=None):
  """The divisors of a batch: {'tokens', 'rows', 'nonempty', 'length'}.

  Args:
    mask: [N, T], 1 where a token was sampled by the policy and is trained on.
    length: the fixed length in tokens; T if None.
    axis_name: mesh axis (or axes) to add over, inside `shard_map`.
    sums: more scalars of this batch to add up with the rest.

  Returns:
    float32 scalars. `length` is a constant of the run and is never added up.
  """
  n = row_count(mask)
  sums = {
    **(sums or {}),
    'tokens': n.sum(),
    'rows': jnp.asarray(n.shape[0], n.dtype),
    'nonempty': as_float(n > 0).sum(),
  }
  if axis_name is not None:
    sums = jax.lax.psum(sums, axis_name)
  return {**sums, 'length': jnp.asarray(length or mask.shape[-1], n.dtype)}


def _total(x, mask):
  return keep(mask, x).sum()


AGGREGATIONS = {
  'token_mean': lambda x, m, d, rows: safe_divide(_total(x, m), d['tokens']),
  'token_sum': lambda x, m, d, rows: _total(x, m),
  'seq_mean_token_mean': lambda x, m, d, rows: safe_divide(
    row_mean(x, m).sum(), rows
  ),
  'seq_mean_token_sum': lambda x, m, d, rows: safe_divide(_total(x, m), rows),
  'fixed_length': lambda x, m, d, rows: safe_divide(
    _total(x, m), rows * d['length']
  ),
}


def aggregate(
  x, mask, how, *, denominators=None, length=None, count_empty=False
):
  """Reduces `x` [N, T] over the mask; 0 when the mask is empty, never NaN.

  Args:
    x: [N, T]; what it holds outside the mask is never read.
    mask: [N, T].
    how: a name in `AGGREGATIONS`.
    denominators: the whole batch's `counts`; this batch's own if None.
    length: divisor of `fixed_length`, in tokens; T if None.
    count_empty: whether rows without a token count as rows.
  """
  d = counts(mask, length=length) if denominators is None else denominators
  rows = d['rows'] if count_empty else d['nonempty']
  return AGGREGATIONS[how](x, mask, d, rows)


def group_token_weight(mask, group):
  """[N, T] weights that turn `token_mean` into a mean over prompts.

  w_it = (tokens / prompts) / tokens of my prompt's group, so that
  sum_it w_it x_it / tokens = mean over prompts of each group's token mean:
  the DAPO formula as printed. Prompts without a token do not count.
  """
  n = row_count(mask)
  segment = segment_ids(group)
  mine = over_group(n, segment)
  prompts = safe_divide(n, mine).sum()
  return keep(
    as_mask(mask), (n.sum() * safe_divide(1.0, mine * prompts))[:, None]
  )
