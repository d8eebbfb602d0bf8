"""Filters: selection of the rows of a batch to train on, by their rewards.

A filter is a function of a Batch that masks tokens. A filter that drops groups
leaves the baselines unchanged. A filter that selects rows within a group
removes the others from the group's baseline too (`reward_valid`), as if they
had not been sampled. It selects among the rows with a verdict that the filters
before it have left.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.parts import Part, Step

Filter = Callable[[Batch], Batch]


def _there(batch: Batch) -> jax.Array:
  """Marks the rows, bool [N], that a filter may select: those with a verdict
  and a token to train on. An earlier filter may have masked the others.
  """
  return batch.reward_valid & jnp.any(batch.mask, axis=1)


def _same(batch: Batch) -> jax.Array:
  """Returns [N,N], true where the second row has a verdict and shares the
  group of the first.
  """
  return (batch.group[:, None] == batch.group) & batch.reward_valid


def _spread(batch: Batch) -> jax.Array:
  """Computes the range of rewards of a row's group, [N]; -inf without a
  verdict.
  """
  same = _same(batch)
  high = jnp.max(jnp.where(same, batch.reward, -jnp.inf), axis=1)
  low = jnp.min(jnp.where(same, batch.reward, jnp.inf), axis=1)
  return high - low


def _right(batch: Batch) -> jax.Array:
  """Marks the rows whose first reward part is 1, bool [N]."""
  return batch.reward_parts[:, 0] > 0.5


def _rows(batch: Batch, kept: jax.Array) -> Batch:
  """Keeps the marked rows [N]; the others are treated as never sampled."""
  return batch.replace(
    mask=batch.mask & kept[:, None], reward_valid=batch.reward_valid & kept
  )


def _rank(batch: Batch, value: jax.Array, among: jax.Array) -> jax.Array:
  """Ranks each row within the rows `among` [N] of its group, i32 [N]: by
  ascending value, then by ascending index.
  """
  i = jnp.arange(value.shape[0])
  before = (value < value[:, None]) | (
    (value == value[:, None]) & (i < i[:, None])
  )
  return (before & _same(batch) & among).sum(axis=1)


def _first(
  batch: Batch, value: jax.Array, keep: int, among: jax.Array | bool = True
) -> jax.Array:
  """Marks the `keep` rows of every group with the lowest values among the rows
  `among` [N] that a filter may select, bool [N].
  """
  among = _there(batch) & among
  return among & (_rank(batch, value, among) < keep)


def keep_sampled(batch: Batch) -> Batch:
  """Keeps the rows with a sampled token. Answers to invalid proposals and rows
  of a past version have none.
  """
  return _rows(batch, jnp.any(batch.mask, axis=1))


def drop_dead_groups(batch: Batch) -> Batch:
  """Masks zero-variance groups (the dynamic sampling of DAPO,
  https://arxiv.org/abs/2503.14476). With `rl.refill_rounds` other groups
  replace them; without it the batch shrinks.
  """
  return batch.replace(mask=batch.mask & (_spread(batch) > 0)[:, None])


def drop_truncated(batch: Batch) -> Batch:
  """Masks rows that reached the token limit (overlong filtering)."""
  return batch.replace(mask=batch.mask & ~batch.truncated[:, None])


def keep_spread(batch: Batch, *, spread: float) -> Batch:
  """Masks groups whose rewards differ by less than `spread`. Use it for rewards
  with noise or small parts, for which hardly any group has zero variance.
  """
  # 0.7 - 0.6 is less than 0.1 in float32.
  kept = _spread(batch) >= spread * (1 - 1e-5)
  return batch.replace(mask=batch.mask & kept[:, None])


def keep_band(batch: Batch, *, low: float, high: float) -> Batch:
  """Masks groups whose accuracy lies outside [low, high] (online difficulty
  filtering, https://arxiv.org/abs/2504.03380). Accuracy is the share of
  verified rows whose first reward part is 1.
  """
  same = _same(batch)
  n = same.sum(axis=1)
  # A product, not a quotient: 3 / 10 is more than 0.3 in float32.
  right = (same & _right(batch)).sum(axis=1)
  inside = (right >= low * n - 1e-4) & (right <= high * n + 1e-4) & (n > 0)
  return batch.replace(mask=batch.mask & inside[:, None])


def keep_random(batch: Batch, *, share: float) -> Batch:
  """Masks groups at random, whatever their rewards: a control for filters of
  groups. A group remains with probability `share`. Its tokens determine the
  draw, so a second pass, as after a refill, drops no further group.
  """
  width = batch.tokens.shape[1]
  weights = jnp.arange(1, 2 * width, 2, dtype=jnp.uint32)
  sums = (batch.tokens.astype(jnp.uint32) * weights).sum(axis=1)
  same = batch.group[:, None] == batch.group
  of_group = jnp.where(same, sums, jnp.uint32(0)).sum(axis=1)
  key = trees.named_key(jax.random.key(0), 'random groups')
  draws = jax.vmap(lambda x: jax.random.uniform(jax.random.fold_in(key, x)))(
    of_group
  )
  return batch.replace(mask=batch.mask & (draws < share)[:, None])


def keep_shortest(batch: Batch, *, keep: int) -> Batch:
  """Keeps the `keep` shortest rows of every group (GFPO,
  https://arxiv.org/abs/2508.09726).
  """
  return _rows(batch, _first(batch, batch.mask.sum(axis=1), keep))


def keep_efficient(batch: Batch, *, keep: int) -> Batch:
  """Keeps the `keep` rows of every group with the most reward per token (GFPO's
  token efficiency, https://arxiv.org/abs/2508.09726).
  """
  length = jnp.maximum(batch.mask.sum(axis=1), 1)
  return _rows(batch, _first(batch, -batch.reward / length, keep))


def keep_best(batch: Batch, *, keep: int) -> Batch:
  """Keeps the `keep` rows of every group with the highest reward."""
  return _rows(batch, _first(batch, -batch.reward, keep))


def keep_varied(batch: Batch, *, keep: int) -> Batch:
  """Keeps the `keep` rows of every group with the largest variance of rewards
  (PODS, https://arxiv.org/abs/2504.13818): the i highest and keep - i lowest,
  for the best i (its theorem 1).
  """
  ok = _there(batch)
  same = _same(batch) & ok
  lowest = _rank(batch, batch.reward, ok)
  highest = same.sum(axis=1) - 1 - lowest

  def chosen(i):
    return ok & ((highest < i) | (lowest < keep - i))

  def variance(i):
    chosen_group = same & chosen(i)
    n = jnp.maximum(chosen_group.sum(axis=1), 1)
    mean = jnp.sum(jnp.where(chosen_group, batch.reward, 0), axis=1) / n
    off = jnp.where(chosen_group, batch.reward - mean[:, None], 0)
    return jnp.sum(off**2, axis=1) / n

  found = jax.lax.map(variance, jnp.arange(keep + 1))  # [keep+1,N]
  return _rows(batch, chosen(jnp.argmax(found, axis=0)))


def fewer_right(batch: Batch, *, keep: int) -> Batch:
  """Keeps the `keep` shortest correct rows of a group and all wrong ones (the
  positive side of GRPO-RoC, https://arxiv.org/abs/2508.20722, which selects by
  faults of format and tools instead of length).
  """
  right, length = _right(batch), batch.mask.sum(axis=1)
  return _rows(batch, ~right | _first(batch, length, keep, right))


def fewer_wrong(batch: Batch, *, keep: int) -> Batch:
  """Keeps the first `keep` wrong rows of a group, which is equivalent to a
  random choice, and all correct ones (the negative side of GRPO-RoC,
  https://arxiv.org/abs/2508.20722).
  """
  wrong = ~_right(batch)
  value = jnp.zeros(wrong.shape)
  return _rows(batch, ~wrong | _first(batch, value, keep, wrong))


# Their keyword arguments are keys of `rl.filter_args`.
FILTERS = {
  'none': None,
  'dead_groups': drop_dead_groups,
  'truncated': drop_truncated,
  'spread': keep_spread,
  'band': keep_band,
  'random': keep_random,
  'shortest': keep_shortest,
  'efficient': keep_efficient,
  'best': keep_best,
  'varied': keep_varied,
  'fewer_right': fewer_right,
  'fewer_wrong': fewer_wrong,
}


def make(names: str, args: Mapping[str, Any]) -> Filter | None:
  """Composes the filters of `rl.filter`; None if no filter is set.

  Args:
    names: names in FILTERS, joined by '+' and applied in that order.
    args: `rl.filter_args`; a `keep` of 0 means not set.

  Raises:
    ValueError: names the key.
  """
  chosen = []
  for name in names.split('+'):
    if name not in FILTERS:
      raise ValueError(
        f'rl.filter={names!r}: no filter is called {name!r}.'
        f'{config_lib.nearest(name, FILTERS)} Choose of {", ".join(FILTERS)}, '
        'several joined by +'
      )
    if FILTERS[name] is not None:
      chosen.append(_with_args(name, args))
  return in_turn(chosen)


def in_turn(chosen: Sequence[Filter | None]) -> Filter | None:
  """Composes filters, applied in their order; None if there is none."""
  chosen = [f for f in chosen if f is not None]
  if len(chosen) < 2:
    return chosen[0] if chosen else None
  return functools.partial(_in_turn, chosen)


def _in_turn(chosen: list[Filter], batch: Batch) -> Batch:
  for f in chosen:
    batch = f(batch)
  return batch


def arguments(f: Callable) -> tuple[str, ...]:
  """Returns the names of the `rl.filter_args` that a filter reads."""
  return tuple(inspect.signature(f).parameters)[1:]


def _with_args(name: str, args: Mapping[str, Any]) -> Filter:
  f = FILTERS[name]
  given = {k: args[k] for k in arguments(f)}
  for key, value in given.items():
    if key in ('keep', 'spread', 'share') and not value:
      raise ValueError(
        f'rl.filter={name!r} needs rl.filter_args.{key} above 0, not {value}'
      )
  return functools.partial(f, **given) if given else f


def overlong_penalty(batch: Batch, cache: int, max_new: int) -> jax.Array:
  """Computes DAPO's penalty on the reward of long completions, [N], 0 to -1; 0
  for demonstrations.

  Args:
    cache: tokens at the end of max_new over which the penalty falls.
    max_new: C.
  """
  length = batch_lib.own_tokens(batch).sum(axis=1)
  return losses.soft_overlong_penalty(length, max_length=max_new, cache=cache)


@dataclasses.dataclass(frozen=True, eq=False)
class Selection(Part):
  """Filters a batch, and adds the soft overlong penalty to its rewards.

  Filters read the verifier's rewards. The penalty is added after them, so that
  a group of wrong samples is dropped for any lengths.

  Attributes:
    filter: a function of FILTERS, or None.
    overlong: tokens over which `overlong_penalty` falls; 0 adds none.
    max_new: C.
  """

  filter: Callable[[Batch], Batch] | None
  overlong: int
  max_new: int
  name: str = 'selection'

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Masks the rows that the filter drops, and adds the penalty."""
    batch, sampled = step.batch, step.sampled
    if self.filter is not None:
      batch = self.filter(batch)
    if not self.overlong:
      return memory, step._replace(batch=batch), {}
    penalty = overlong_penalty(sampled, self.overlong, self.max_new)
    batch = batch.replace(reward=sampled.reward + penalty)
    metrics = {'overlong_penalty': jnp.mean(penalty)}
    return memory, step._replace(batch=batch), metrics
