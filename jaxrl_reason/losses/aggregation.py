"""Reduces losses per token [N, T] to one number, with named divisors.

  token_mean            sum_it x_it / tokens
  token_sum             sum_it x_it
  seq_mean_token_mean   sum_i (sum_t x_it / T_i) / rows
  seq_mean_token_sum    sum_i sum_t x_it / rows
  fixed_length          sum_it x_it / (rows * length)

`rows` counts every row (`count_empty=True`) or only rows that have a token. The
divisors of the whole batch are computed once, by `denominators`, and passed to
every micro-batch or device. Their results then add up to the batch's exactly.
GRPO's published objective is `seq_mean_token_mean`
(https://arxiv.org/abs/2402.03300), Dr.GRPO's is `fixed_length`
(https://arxiv.org/abs/2503.20783), DAPO's `token_mean`
(https://arxiv.org/abs/2503.14476; its formula divides by the tokens of one
prompt's group, its code by those of the batch: `group_token_weight` computes
the former).
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Divisors,
  Sums,
  as_mask,
  check_shapes,
  choose,
  keep,
  row_count,
  row_mean,
  safe_divide,
)
from jaxrl_reason.losses.groups import over_group, segment_ids
from jaxrl_reason.losses.objective_part import Part


def counts(
  mask: Array,
  *,
  length: Array | None = None,
  axis_name: str | tuple[str, ...] | None = None,
  sums: Sums | None = None,
) -> dict[str, jax.Array]:
  """Computes the divisors of a batch: {'tokens', 'rows', 'nonempty', 'length'}.

  Args:
    mask: [N, T], 1 where a token was sampled by the policy and is trained on.
    length: the fixed length in tokens; T if None.
    axis_name: mesh axis (or axes) to add over, inside `shard_map`.
    sums: further scalars of this batch to add up.

  Returns:
    Scalars, float32 or under `jax_enable_x64` float64. `length` is a constant
    of the run and is never added up.
  """
  n = row_count(mask)
  nonempty, rows = (n > 0).astype(n.dtype).sum(), jnp.asarray(n.size, n.dtype)
  sums = dict(sums or {}, tokens=n.sum(), rows=rows, nonempty=nonempty)
  if axis_name is not None:
    sums = jax.lax.psum(sums, axis_name)
  return {**sums, 'length': jnp.asarray(length or jnp.shape(mask)[-1], n.dtype)}


def _token_mean(x, mask, d, rows):
  return safe_divide(keep(mask, x).sum(), d['tokens'])


def _token_sum(x, mask, d, rows):
  return keep(mask, x).sum()


def _seq_mean_token_mean(x, mask, d, rows):
  return safe_divide(row_mean(x, mask).sum(), rows)


def _seq_mean_token_sum(x, mask, d, rows):
  return safe_divide(keep(mask, x).sum(), rows)


def _fixed_length(x, mask, d, rows):
  return safe_divide(keep(mask, x).sum(), rows * d['length'])


AGGREGATIONS = {
  'token_mean': _token_mean,
  'token_sum': _token_sum,
  'seq_mean_token_mean': _seq_mean_token_mean,
  'seq_mean_token_sum': _seq_mean_token_sum,
  'fixed_length': _fixed_length,
}


def aggregate(
  x: Array,
  mask: Array,
  how: str,
  *,
  denominators: Sums | None = None,
  length: Array | None = None,
  count_empty: bool = False,
) -> jax.Array:
  """Reduces `x` [N, T] over the mask; 0 if the mask is empty, never NaN.

  Args:
    x: [N, T]; values outside the mask are never read.
    mask: [N, T].
    how: a name in `AGGREGATIONS`.
    denominators: the whole batch's `counts`; this batch's own if None.
    length: divisor of `fixed_length`, in tokens; T if None.
    count_empty: whether rows without a token count as rows.
  """
  check_shapes(mask=mask, x=x)
  reduce = choose('how', how, AGGREGATIONS)
  d = counts(mask, length=length) if denominators is None else denominators
  d = Divisors(d)
  return reduce(x, mask, d, d['rows' if count_empty else 'nonempty'])


@dataclasses.dataclass(frozen=True)
class Aggregate(Part):
  """`aggregate` with its choices; called with (x, mask, denominators)."""

  how: str = 'token_mean'
  length: int | None = None
  count_empty: bool = False
  names = (
    ('how', 'how', 'aggregation'),
    ('length', 'length', 'fixed_length'),
    ('count_empty', 'count_empty', 'count_empty'),
  )

  @property
  def keys_read(self) -> set[str]:
    unread = set() if self.how == 'fixed_length' else {'fixed_length'}
    if self.how in ('token_mean', 'token_sum'):
      unread |= {'count_empty'}
    return super().keys_read - unread

  def __call__(self, x, mask, denominators):
    options = dict(denominators=denominators, count_empty=self.count_empty)
    return aggregate(x, mask, self.how, **options)


@dataclasses.dataclass(frozen=True)
class RowMean(Aggregate):
  """The mean of a loss per row [N]; called with (x, mask, denominators)."""

  names = (('count_empty', 'count_empty', 'count_empty'),)

  @property
  def keys_read(self) -> set[str]:
    return {'count_empty'}

  def __call__(self, x, mask, denominators):
    rows = denominators['rows' if self.count_empty else 'nonempty']
    return safe_divide(x.sum(), rows)


def group_token_weight(mask: Array, group: Array) -> jax.Array:
  """Computes weights [N, T] that turn `token_mean` into a mean over prompts.

  w_it = (tokens / prompts) / tokens of the row's group, so that
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
