"""Steering of sources: the share of the draws of each source."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.data.pool import Seen, Statistics

KEEP = 0.999  # decay of counts per batch: shares of about 1,000 batches


@dataclasses.dataclass(frozen=True)
class Weights:
  """Configured shares; the base class of the others.

  Attributes:
    weights: for each source a number, or a schedule over the stage's steps as
      (at, values).
  """

  weights: tuple = (1.0,)

  def start(self) -> dict[str, jax.Array]:
    """Returns the initial memory."""
    return {}

  def wanted(self, step: jax.Array) -> jax.Array:
    """Returns the configured shares [S] at a step of the stage."""
    now = [
      jnp.interp(step, *map(jnp.float32, w)) if isinstance(w, tuple) else w
      for w in self.weights
    ]
    now = jnp.stack([jnp.float32(w) for w in now])
    return now / now.sum()

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    """Returns the shares [S] of the draws, in any unit; step: of the stage."""
    del stats
    return self.wanted(step)

  def observe(
    self, stats: Statistics, seen: Seen, step: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns the memory after a batch; stats: before the batch."""
    del seen, step
    return stats.arms


@dataclasses.dataclass(frozen=True)
class Free(Weights):
  """No shares: configured weights multiply those of the problems, and the
  controller of problems draws from all of them at once.
  """


@dataclasses.dataclass(frozen=True)
class Consumed(Weights):
  """Configured shares of the trained rows, whatever filters remove from each
  source (adaptive domain sampling of Apriel-Reasoner,
  https://arxiv.org/abs/2604.02007).

  Draws are in proportion to each source's deficit after the next batch, divided
  by the share of its drawn rows that were trained on.
  """

  def start(self) -> dict[str, jax.Array]:
    n = len(self.weights)
    return {'consumed': jnp.zeros(n), 'drawn': jnp.zeros(n)}

  def used(self, seen: Seen) -> jax.Array:
    """Returns the counted amount of a batch, by source."""
    return seen.used

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    wanted, arms = self.wanted(step), stats.arms
    # A source without trained rows so far counts as if a hundredth were
    # trained.
    used = arms['consumed'] / jnp.maximum(arms['drawn'], 1)
    mean = arms['consumed'].sum() / jnp.maximum(arms['drawn'].sum(), 1)
    used = jnp.maximum(used, 0.01 * jnp.where(mean > 0, mean, 1.0))
    used = jnp.where(arms['drawn'] > 0, used, jnp.where(mean > 0, mean, 1.0))
    # The deficit is to be made up within a tenth of the amount counted so far.
    coming = jnp.maximum(0.1 * arms['consumed'].sum(), 1.0)
    after = arms['consumed'].sum() + coming
    lack = jnp.maximum(wanted * after - arms['consumed'], 0.0)
    return jnp.where(wanted > 0, lack / used, 0.0)

  def observe(
    self, stats: Statistics, seen: Seen, step: jax.Array
  ) -> dict[str, jax.Array]:
    del step
    arms = stats.arms
    return {
      'consumed': KEEP * arms['consumed'] + self.used(seen),
      'drawn': KEEP * arms['drawn'] + seen.drawn,
    }


@dataclasses.dataclass(frozen=True)
class Tokens(Consumed):
  """Configured shares of the sampled tokens that are trained on."""

  def used(self, seen: Seen) -> jax.Array:
    return seen.tokens


def _by_source(seen: Seen, x: jax.Array, n_sources: int) -> jax.Array:
  """Sums x [U] over the problems of each source."""
  x = jnp.where(seen.there, x, 0.0)
  return jax.ops.segment_sum(x, seen.source, n_sources)


@dataclasses.dataclass(frozen=True)
class Sec(Weights):
  """A bandit over sources: p ~ softmax(Q / temperature), Q a running mean of
  the mean |advantage| (SEC, https://arxiv.org/abs/2505.14970).

  Configured weights multiply p: a source of weight 0 is not drawn.

  Attributes:
    learn: weight of a new batch in Q.
  """

  learn: float = 0.5
  temperature: float = 1.0

  def start(self) -> dict[str, jax.Array]:
    return {'value': jnp.zeros(len(self.weights))}

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    p = jax.nn.softmax(stats.arms['value'] / self.temperature)
    return p * self.wanted(step)

  def observe(
    self, stats: Statistics, seen: Seen, step: jax.Array
  ) -> dict[str, jax.Array]:
    del step
    old, n = stats.arms['value'], len(self.weights)
    rows = _by_source(seen, seen.n, n)
    new = _by_source(seen, seen.n * seen.advantage, n) / jnp.maximum(rows, 1)
    value = old + jnp.where(rows > 0, self.learn * (new - old), 0.0)
    return {'value': value}


@dataclasses.dataclass(frozen=True)
class Dump(Weights):
  """An upper confidence bound over sources (DUMP,
  https://arxiv.org/abs/2504.09710):

    p ~ softmax((A + sqrt(2 ln(n + 1) / (n_s + 1))) / temperature)

  n_s counts the rows of source s and n those of all. Differs from the paper in
  A, a running mean of the mean |advantage| instead of the mean of a window.
  """

  learn: float = 0.1
  temperature: float = 0.1

  def start(self) -> dict[str, jax.Array]:
    n = len(self.weights)
    return {'value': jnp.zeros(n), 'rows': jnp.zeros(n)}

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    rows = stats.arms['rows']
    bonus = jnp.sqrt(2 * jnp.log(rows.sum() + 1) / (rows + 1))
    bound = stats.arms['value'] + bonus
    return jax.nn.softmax(bound / self.temperature) * self.wanted(step)

  def observe(
    self, stats: Statistics, seen: Seen, step: jax.Array
  ) -> dict[str, jax.Array]:
    del step
    old, n = stats.arms, len(self.weights)
    rows = _by_source(seen, seen.n, n)
    new = _by_source(seen, seen.n * seen.advantage, n) / jnp.maximum(rows, 1)
    # The first batch of a source sets its mean.
    learn = jnp.where(old['rows'] > 0, self.learn, 1.0)
    value = old['value'] + jnp.where(rows > 0, learn * (new - old['value']), 0)
    return {'value': value, 'rows': old['rows'] + rows}
