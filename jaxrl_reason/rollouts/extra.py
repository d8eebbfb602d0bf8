"""More samples for some problems: a step's rows, given out by solve rate.

  B problems x G samples -> solve rates -> E further groups of G samples, each
  of one of the B problems -> B + E groups, those of one problem one baseline

The number of rows is fixed; which problems have 2 G, 3 G, ... of them follows
from the first G samples: hard ones, as DARS (https://arxiv.org/abs/2508.13755),
or those where more samples are worth most, as a knapsack
(https://arxiv.org/abs/2509.25849). All inside the compiled step: the further
rows are a second, smaller generation.

Solve rates are (k + 1) / (n + 2) for k right ones of n verified: the papers
estimate without the 1 and 2, so that problems nobody solves, of rate 0, need a
rule of their own there.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Prompts, Trajectories
from jaxrl_reason.rollouts import groups as groups_lib
from jaxrl_reason.rollouts.refill import key_of_round


def hard(rate: jax.Array, n: jax.Array, g: int) -> jax.Array:
  """Shares out in proportion to 1 - s: (1 - s) over the samples there are (the
  largest such quotient goes next, d'Hondt's apportionment). DARS's weights rise
  with 1 - s too; their constants are its own.
  """
  del g
  return (1 - rate) / n


def knapsack(rate: jax.Array, n: jax.Array, g: int) -> jax.Array:
  """Shares out by what G samples more add to the chance of a signal, 1 - s^n -
  (1 - s)^n, times s (1 - s)^2, what the signal is worth. It falls with n, so
  that to give the next ones where the gain is largest solves the knapsack.
  """

  def chance(n):
    return 1 - rate**n - (1 - rate) ** n

  return (chance(n + g) - chance(n)) * rate * (1 - rate) ** 2


# (solve rates [B], samples so far [B], G) -> gain [B] of G samples more.
GAINS = {'hard': hard, 'knapsack': knapsack}


def allocated(
  rate: jax.Array, n_groups: int, g: int, gain: Callable
) -> jax.Array:
  """Gives out further groups, one after the other, each to the problem of the
  largest gain: problems i32 [n_groups], in rising order.
  """

  def give(n, _):
    at = jnp.argmax(gain(rate, n, g))
    return n.at[at].add(g), at

  start = jnp.full(rate.shape, g)
  _, at = jax.lax.scan(give, start, None, length=n_groups)
  return jnp.sort(at).astype(jnp.int32)


def solve_rates(found: Trajectories) -> jax.Array:
  """Estimates (right rows + 1) / (rows with a verdict + 2) of every problem,
  f32 [B].
  """
  b = found.prompts.tokens.shape[0]
  ok = found.reward.valid.reshape(b, -1)
  right = ok & (found.reward.parts[:, 0] > 0.5).reshape(b, -1)
  return (right.sum(axis=1) + 1) / (ok.sum(axis=1) + 2)


@dataclasses.dataclass(frozen=True, eq=False)
class Extra:
  """Samples some of a step's problems further; static.

  Attributes:
    source: as `fused.FusedSource`.
    groups: E, of G samples each.
    by: a name in GAINS.
  """

  source: Callable[..., Trajectories]
  groups: int
  by: str

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Gives one step's trajectories, of B + E groups, inside jit."""
    rest = step, sampling, stop
    found = self.source(params, control, prompts, root, *rest)
    b, rate = prompts.tokens.shape[0], solve_rates(found)
    g = found.rollout.length.shape[0] // b
    at = allocated(rate, self.groups, g, GAINS[self.by])
    asked = jax.tree.map(sharding.rows, trees.take(prompts, at))
    # The noise goes by row, so that other rows of a problem need another key.
    more = self.source(params, control, asked, key_of_round(root, 1), *rest)
    both = groups_lib.joined(groups_lib.of(found), groups_lib.of(more))
    group = jnp.concatenate([jnp.arange(b, dtype=jnp.int32), at])
    both = groups_lib.to_rows(both).replace(group=group)
    account = groups_lib.account(both)
    counts = jnp.zeros(b).at[at].add(1)
    told = {
      'extra/problems': jnp.mean(counts > 0),
      'extra/groups_max': counts.max(),
      'extra/solve_rate': jnp.mean(rate[at]),
    }
    return both.replace(account=account.replace(metrics=told))
