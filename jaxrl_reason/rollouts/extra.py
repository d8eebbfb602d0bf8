"""Samples more completions for some problems of a step, by their solve rates.

  B problems x G samples -> solve rates -> E further groups of G samples, each
  of one of the B problems -> B + E groups, those of one problem one baseline

The number of rows is fixed. The first G samples determine the problems with 2
G, 3 G, ... rows: hard problems, as in DARS (https://arxiv.org/abs/2508.13755),
or problems for which more samples have the highest value, as in a knapsack
(https://arxiv.org/abs/2509.25849). The further rows are a second round.

Solve rates are (k + 1) / (n + 2) for k correct of n verified samples. The
papers use k / n, and need a special rule for problems of rate 0.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Trajectories
from jaxrl_reason.rollouts import group_arrays
from jaxrl_reason.rollouts.rounds import Finished, Rounds


def hard(rate: jax.Array, n: jax.Array, g: int) -> jax.Array:
  """Scores problems by (1 - s) / n for n samples: groups are allocated in
  proportion to 1 - s (d'Hondt's apportionment). DARS's weights rise with 1 - s
  too, with other constants.
  """
  del g
  return (1 - rate) / n


def knapsack(rate: jax.Array, n: jax.Array, g: int) -> jax.Array:
  """Scores problems by the increase of the chance of a signal, 1 - s^n - (1 -
  s)^n, from G more samples, times the signal's value s (1 - s)^2. The gain
  falls with n, so choosing the largest gain at each turn solves the knapsack.
  """

  def chance(n):
    return 1 - rate**n - (1 - rate) ** n

  return (chance(n + g) - chance(n)) * rate * (1 - rate) ** 2


# (solve rates [B], samples so far [B], G) -> gain [B] of G further samples.
GAINS = {'hard': hard, 'knapsack': knapsack}


def allocated(
  rate: jax.Array, n_groups: int, g: int, gain: Callable
) -> jax.Array:
  """Allocates further groups, one after another, each to the problem of the
  largest gain. Returns problems i32 [n_groups], in ascending order.
  """

  def give(n, _):
    at = jnp.argmax(gain(rate, n, g))
    return n.at[at].add(g), at

  start = jnp.full(rate.shape, g)
  _, at = jax.lax.scan(give, start, None, length=n_groups)
  return jnp.sort(at).astype(jnp.int32)


def solve_rates(found: Trajectories) -> jax.Array:
  """Estimates (right samples + 1) / (samples with a verdict + 2) of every
  problem, f32 [B]. Demonstrations do not count.
  """
  b, is_demo = found.prompts.tokens.shape[0], found.rollout.is_demo
  ok = found.reward.valid if is_demo is None else found.reward.valid & ~is_demo
  ok = ok.reshape(b, -1)
  right = ok & (found.reward.parts[:, 0] > 0.5).reshape(b, -1)
  return (right.sum(axis=1) + 1) / (ok.sum(axis=1) + 2)


@dataclasses.dataclass(frozen=True, eq=False)
class Extra(Rounds):
  """Samples more groups for some of a step's problems, in a second round;
  static.

  Attributes:
    groups: E, of G samples each.
    by: a name in GAINS.
  """

  groups: int
  by: str
  n = 2
  name = 'extra'

  def ask(self, control, carry: tuple, prompts: Prompts, i) -> Prompts:
    """Returns the prompts [B,...], then those of the further groups [E,...]."""
    if not carry:
      return prompts
    at, _ = self._allocated(carry[0])
    return jax.tree.map(sharding.rows, trees.take(prompts, at))

  def finish(self, control, carry: tuple, root, step) -> Finished:
    """Returns B + E groups; those of one problem share a baseline."""
    first, more = carry
    b = first.prompts.tokens.shape[0]
    at, rate = self._allocated(first)
    own, further = group_arrays.of(first), group_arrays.of(more)
    both = group_arrays.to_rows(group_arrays.joined(own, further))
    group = jnp.concatenate([jnp.arange(b, dtype=jnp.int32), at])
    counts = jnp.ones(b).at[at].add(1)
    metrics = {
      'extra/problems': jnp.mean(counts > 1),
      'extra/groups_max': counts.max(),
      'extra/solve_rate': jnp.mean(rate[at]),
    }
    return Finished(both.replace(group=group), None, metrics)

  def _allocated(self, first: Trajectories) -> tuple[jax.Array, jax.Array]:
    """Returns the problems of the further groups, i32 [E], and the solve
    rates f32 [B] that they were chosen by.
    """
    rate = solve_rates(first)
    g = first.rollout.length.shape[0] // rate.shape[0]
    return allocated(rate, self.groups, g, GAINS[self.by]), rate
