"""Choice of the next problems: a controller of problems and a steering of
sources, as two pure functions of one state.

  propose(state, key, n, step) -> ids
  observe(state, ids, reward, ...) -> state

The probability of problem i of source s is

  p_i = (share of s) * (weight of i) / (sum of the weights of s's problems)

If all problems of a source have weight 0, they are drawn uniformly. With `Free`
steering, p_i is in proportion to (weight of s) * (weight of i).
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import trees
from jaxrl_reason.config import Data, rules
from jaxrl_reason.data import controllers, pool

MASTERED = 0.9  # solve rate of a mastered problem, for metrics


@dataclasses.dataclass(frozen=True)
class Chooser:
  """A controller and a steering with the names of the sources; static, because
  it selects a program.

  Attributes:
    problems: a controller of `controllers.CONTROLLERS`.
    steering: one of `controllers.STEERING`.
    names: of the sources.
    memory: decay of a problem's running means.
    prior: solve rate of an untried problem.
  """

  problems: Any
  steering: Any
  names: tuple[str, ...]
  memory: float = 0.5
  prior: float = 0.5

  def start(
    self, source: np.ndarray, difficulty: np.ndarray, begun: jax.Array
  ) -> pool.Statistics:
    """Returns the statistics of M untried problems; begun: the run's step."""
    return pool.start(
      source,
      difficulty,
      prior=self.prior,
      begun=begun,
      own=self.problems.start(),
      arms=self.steering.start(),
    )

  def shares(self, stats: pool.Statistics, step: jax.Array) -> jax.Array:
    """Returns the probabilities [S] of the sources at a step of the run."""
    w = self.steering.weigh(stats, step - stats.begun)
    w = jnp.where(jnp.isfinite(w), jnp.maximum(w, 0), 0)
    wanted = self.steering.wanted(step - stats.begun)
    w = jnp.where(w.sum() > 0, w, wanted)
    return w / w.sum()

  def probabilities(self, stats: pool.Statistics, step: jax.Array) -> jax.Array:
    """Returns the probabilities [M] of the problems at a step of the run."""
    w = self.problems.weigh(stats, step - stats.begun)
    w = jnp.where(jnp.isfinite(w), jnp.maximum(w, 0), 0)
    if isinstance(self.steering, controllers.STEERING['free']):
      w *= self.steering.wanted(step - stats.begun)[stats.source]
      w = jnp.where(w.sum() > 0, w, 1.0)
      return w / w.sum()
    of_source = self._by_source(stats, w)
    w = jnp.where(of_source[stats.source] > 0, w, 1.0)
    of_source = self._by_source(stats, w)
    each = self.shares(stats, step) / jnp.where(of_source > 0, of_source, 1)
    return w * each[stats.source]

  def propose(
    self, stats: pool.Statistics, key: jax.Array, n: int, step: jax.Array
  ) -> jax.Array:
    """Samples the ids [n] of the problems of a step of the run.

    Args:
      key: of the run; the step is folded in.
    """
    if self._in_epochs:
      first = (step - stats.begun).astype(jnp.uint32) * jnp.uint32(n)
      place = first + jnp.arange(n, dtype=jnp.uint32)
      # Stages have orders of their own; the run's key is that of the first.
      of_stage = jax.random.fold_in(key, stats.begun)
      key = jnp.where(stats.begun == 0, key, of_stage)
      if len(self.names) > 1:
        weights = self.steering.weights
        return pool.in_turns(key, place, stats.source, weights)
      return pool.shuffled(key, place, len(stats.visits))
    p = self.probabilities(stats, step)
    key = jax.random.fold_in(key, step)
    ids = pool.draw(p, key, n)
    # They come in rising order, and what reads the first ones reads a sample.
    return jax.random.permutation(trees.named_key(key, 'order'), ids)

  def learn(
    self, stats: pool.Statistics, seen: pool.Seen, step: jax.Array
  ) -> pool.Statistics:
    """Returns the statistics after a batch, including the controllers'
    memory.
    """
    return pool.note(stats, seen, step, self.memory).replace(
      own=self.problems.observe(stats, seen),
      arms=self.steering.observe(stats, seen, step - stats.begun),
    )

  def metrics(
    self,
    stats: pool.Statistics,
    ids: jax.Array,
    there: jax.Array,
    step: jax.Array,
  ) -> dict[str, jax.Array]:
    """Computes metrics of the state from which ids [N] of a step were chosen.

    Args:
      there: bool [N], mask of the ids that were used.
    """
    tried = stats.visits > 0
    n = jnp.maximum(tried.sum(), 1)
    rate = jnp.where(tried, stats.rate, 0)
    out = {
      'entropy': self._entropy(stats, step),
      'tried': jnp.mean(tried),
      'solve_rate': rate.sum() / n,
      'mastered': jnp.sum(tried & (rate >= MASTERED)) / n,
      'unsolved': jnp.sum(tried & (rate == 0)) / n,
      'same': jnp.sum(stats.same > 0) / n,
      'answers': jax.lax.population_count(stats.answers).sum() / n,
    }
    out |= {k: v.astype(jnp.float32) for k, v in stats.own.items()}
    out = {f'problems/{k}': v for k, v in out.items()}
    if len(self.names) == 1:
      return out
    count = self._by_source(stats, tried)
    solved = self._by_source(stats, rate) / jnp.maximum(count, 1)
    of = stats.source[ids]
    shares = jax.ops.segment_sum(there / there.sum(), of, len(self.names))
    for i, name in enumerate(self.names):
      out[f'source/{name}/share'] = shares[i]
      out[f'source/{name}/solve_rate'] = solved[i]
    return out

  @property
  def _in_epochs(self) -> bool:
    """Returns whether problems come in epochs without replacement, separately
    for each source.
    """
    uniform = controllers.CONTROLLERS['uniform']
    weights = controllers.STEERING['weights']
    still = not any(isinstance(w, tuple) for w in self.steering.weights)
    steady = type(self.steering) is weights and still
    one = len(self.names) == 1
    return type(self.problems) is uniform and (one or steady)

  def _by_source(self, stats: pool.Statistics, x: jax.Array) -> jax.Array:
    """Sums x [M] over the problems of each source, [S]."""
    x = x.astype(jnp.float32)
    if len(self.names) == 1:
      return x.sum(keepdims=True)
    return jax.ops.segment_sum(x, stats.source, len(self.names))

  def _entropy(self, stats: pool.Statistics, step: jax.Array) -> jax.Array:
    """Computes the entropy of the proposal over its maximum log M; 1:
    uniform.
    """
    m = len(stats.visits)
    if m == 1 or (self._in_epochs and len(self.names) == 1):
      return jnp.float32(1)
    p = self.probabilities(stats, step)
    return -jnp.sum(jax.scipy.special.xlogy(p, p)) / jnp.log(m)


def make(data: Data, names: tuple[str, ...], weights: tuple) -> Chooser:
  """Makes the chooser of a `data` section.

  Args:
    names, weights: of the sources.
  """
  c = data.controller
  problem, steering = controllers.make(c.to_dict(), weights)
  return Chooser(problem, steering, names, c.memory, c.prior)


def difficulty(
  example: Mapping[str, Any], of_source: float | None, strict: bool = False
) -> float | None:
  """Returns the stated difficulty of a problem, in any unit: its source's
  `difficulty`, else the example's own (meta); None: none is stated.

  Args:
    strict: refuse a difficulty of the example that is no number.
  """
  own = (example.get('meta') or {}).get('difficulty')
  if of_source is not None:
    return float(of_source)
  if rules.is_number(own) and abs(own) <= sys.float_info.max:
    return float(own)
  if strict and own is not None:
    raise ValueError(
      f'its difficulty is {own!r:.60}, which is not a number: correct or '
      'remove the field, or set data.sources.<name>.difficulty'
    )
  return None
