"""Controllers of problems: weights that a source's draws are in proportion to.

Difficulties go from 0 to 1 (`pool.ranked`); solve rates are running means, and
the prior for a problem that was not tried.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.data.pool import Seen, Statistics


def lowest(x: jax.Array, share: float | jax.Array) -> jax.Array:
  """Tells which of x [M], from 0 to 1, are its lowest ceil(share M) values and
  their equals. By halves, without sorting: a million take a fiftieth of it.
  """

  def halve(_, span):
    low, high = span
    middle = (low + high) / 2
    enough = jnp.mean(x <= middle) >= share
    return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

  span = jnp.float32(-1.0), jnp.float32(1.0)
  return x <= jax.lax.fori_loop(0, 26, halve, span)[1]


@dataclasses.dataclass(frozen=True)
class Uniform:
  """Every problem alike; of one source, in epochs without replacement. The
  class that the others change.
  """

  def start(self) -> dict[str, jax.Array]:
    """Gives what it remembers, at first."""
    return {}

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    """Gives weights [M], at least 0; step: i32 [], of the stage."""
    del step
    return jnp.ones(len(stats.visits))

  def observe(self, stats: Statistics, seen: Seen) -> dict[str, jax.Array]:
    """Gives what it remembers after a batch; stats: before the batch."""
    del seen
    return stats.own


@dataclasses.dataclass(frozen=True)
class Priority(Uniform):
  """p ~ 1 - solve rate (Kimi k1.5, https://arxiv.org/abs/2501.12599).

  Attributes:
    floor: least weight, so that what is solved is seen again; 0 as published.
  """

  floor: float = 0.0

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    return jnp.maximum(1 - stats.rate, self.floor)


@dataclasses.dataclass(frozen=True)
class Learnability(Uniform):
  """p ~ s (1 - s), the variance of a right answer, s the solve rate
  (https://arxiv.org/abs/2502.12272, which draws from the best of a sample).

  Attributes:
    floor: least weight, of 0.25 at most.
  """

  floor: float = 0.01

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    return jnp.maximum(stats.rate * (1 - stats.rate), self.floor)


@dataclasses.dataclass(frozen=True)
class Band(Uniform):
  """Problems with a solve rate in [low, high], and those not tried (online
  difficulty filtering, https://arxiv.org/abs/2504.03380).

  Attributes:
    balanced: as many draws below the middle of the band as above; problems not
      tried count where the prior lies.
  """

  low: float = 0.2
  high: float = 0.8
  balanced: bool = False

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    rate = stats.rate
    inside = (rate >= self.low) & (rate <= self.high) | (stats.visits == 0)
    if not self.balanced:
      return inside.astype(jnp.float32)
    hard = inside & (rate < (self.low + self.high) / 2)
    easy = inside & ~hard
    return hard / jnp.maximum(hard.sum(), 1) + easy / jnp.maximum(easy.sum(), 1)


@dataclasses.dataclass(frozen=True)
class Greso(Uniform):
  """Skips before rollout what has taught nothing: a problem with z visits of
  equal rewards in a row is kept with chance q^z (GRESO,
  https://arxiv.org/abs/2506.02177).

  q is one number for problems that are always solved and one for those never
  solved; each moves by `change` after a batch, down where more of the batch
  than its target was of that kind, else up.

  Attributes:
    explore: q at first; change: of q per batch.
    easy, hard: target shares of a batch that is all right, all wrong.
  """

  explore: float = 0.5
  change: float = 0.01
  easy: float = 1 / 12
  hard: float = 1 / 6

  def start(self) -> dict[str, jax.Array]:
    return {
      'explore_easy': jnp.float32(self.explore),
      'explore_hard': jnp.float32(self.explore),
    }

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    own = stats.own
    solved = stats.last > 0.5
    q = jnp.where(solved, own['explore_easy'], own['explore_hard'])
    return q**stats.same

  def observe(self, stats: Statistics, seen: Seen) -> dict[str, jax.Array]:
    n = jnp.maximum(seen.there.sum(), 1)
    solved = seen.solved > 0.5
    out = {}
    for name, chosen, target in (
      ('explore_easy', solved, self.easy),
      ('explore_hard', ~solved, self.hard),
    ):
      share = jnp.sum(seen.same & chosen) / n
      move = jnp.where(share >= target, -self.change, self.change)
      moved = jnp.clip(stats.own[name] + move, self.change, 1.0)
      out[name] = jnp.where(seen.there.any(), moved, stats.own[name])
    return out


@dataclasses.dataclass(frozen=True)
class Mastered(Uniform):
  """Leaves out problems that are mastered, and tries them again later (POLARIS,
  https://hkunlp.github.io/blog/2025/Polaris/, which drops solve rates above 0.9
  between stages; the second try is ours).

  Attributes:
    above: solve rate from which a problem is mastered.
    retest: steps after its last visit at which it comes back.
  """

  above: float = 0.9
  retest: int = 100

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    mastered = (stats.visits > 0) & (stats.rate >= self.above)
    due = stats.begun + step - stats.seen >= self.retest
    return (~mastered | due).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Drive(Uniform):
  """Keeps the share of the problems that is hardest, a share that shrinks
  (hard-focus of DRIVE, https://arxiv.org/abs/2511.06307, which narrows the set
  between phases).

  Attributes:
    keep: share at the end; steps: of the stage until then.
  """

  keep: float = 0.25
  steps: int = 100

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    done = jnp.clip(step / self.steps, 0.0, 1.0)
    share = 1 - done * (1 - self.keep)
    return lowest(stats.rate, share).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class EasyToHard(Uniform):
  """A Gaussian over difficulty whose centre goes from the easiest problems to
  the hardest (E2H-G, https://arxiv.org/abs/2506.06632).

    p ~ exp(-(d - (t / steps)^power)^2 / (2 width^2))

  Attributes:
    steps: of the stage until the centre is at the hardest.
    power: below 1 leaves the easy ones sooner; width: of the Gaussian.
  """

  steps: int = 100
  power: float = 0.5
  width: float = 0.25

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    centre = jnp.clip(step / self.steps, 0.0, 1.0) ** self.power
    return jnp.exp(-0.5 * ((stats.difficulty - centre) / self.width) ** 2)


@dataclasses.dataclass(frozen=True)
class AdaRft(Uniform):
  """Problems whose difficulty is nearest to a target that follows the reward
  (AdaRFT, https://arxiv.org/abs/2504.05520).

    target <- clip(target + change * tanh(slope * (mean solved - goal)), 0, 1)

  Attributes:
    nearest: share of the pool that is near enough to be drawn; the paper takes
      the batch that is nearest.
  """

  goal: float = 0.5
  change: float = 0.05
  slope: float = 2.0
  nearest: float = 0.1

  def start(self) -> dict[str, jax.Array]:
    return {'target': jnp.float32(0)}

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    far = jnp.abs(stats.difficulty - stats.own['target'])
    return lowest(far, self.nearest).astype(jnp.float32)

  def observe(self, stats: Statistics, seen: Seen) -> dict[str, jax.Array]:
    n = jnp.sum(seen.n)
    mean = jnp.sum(seen.n * seen.solved) / jnp.maximum(n, 1)
    move = self.change * jnp.tanh(self.slope * (mean - self.goal))
    target = stats.own['target'] + jnp.where(n > 0, move, 0.0)
    return {'target': jnp.clip(target, 0.0, 1.0)}


@dataclasses.dataclass(frozen=True)
class Ladder(Uniform):
  """The easiest rung of difficulty until it is climbed, then the next (as the
  horizon curriculum of https://arxiv.org/abs/2510.07312, stage by stage).

  Attributes:
    rungs: equal steps of difficulty from 0 to 1; those without problems are
      passed over.
    climb: solve rate of the rung, a running mean of about ten batches, at which
      the next begins.
    review: share of draws that go to the rungs below, together.
  """

  rungs: int = 5
  climb: float = 0.7
  review: float = 0.2

  def start(self) -> dict[str, jax.Array]:
    return {
      'rung': jnp.int32(0),
      'rung_rate': jnp.float32(0),
      'rung_batches': jnp.int32(0),
    }

  def of(self, difficulty: jax.Array) -> jax.Array:
    """Gives the rungs [M] of difficulties."""
    return jnp.round(difficulty * (self.rungs - 1)).astype(jnp.int32)

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    rung, now = self.of(stats.difficulty), stats.own['rung']
    top, below = rung == now, rung < now
    review = jnp.where(below.any(), self.review, 0.0)
    top = (1 - review) * top / jnp.maximum(top.sum(), 1)
    return top + review * below / jnp.maximum(below.sum(), 1)

  def observe(self, stats: Statistics, seen: Seen) -> dict[str, jax.Array]:
    own, rungs = stats.own, self.of(stats.difficulty)
    at = jnp.minimum(seen.ids, len(rungs) - 1)
    n = jnp.where(seen.there & (rungs[at] == own['rung']), seen.n, 0)
    mean = jnp.sum(n * seen.solved) / jnp.maximum(n.sum(), 1)
    batches = own['rung_batches'] + (n.sum() > 0)
    # The mean of the first ten batches, then a running one.
    weight = 1 / jnp.clip(batches, 1, 10)
    rate = own['rung_rate'] + weight * (mean - own['rung_rate'])
    rate = jnp.where(n.sum() > 0, rate, own['rung_rate'])
    higher = jnp.where(rungs > own['rung'], rungs, self.rungs)
    following = jnp.min(higher)
    up = (batches >= 3) & (rate >= self.climb) & (following < self.rungs)
    return {
      'rung': jnp.where(up, following, own['rung']),
      'rung_rate': jnp.where(up, 0.0, rate),
      'rung_batches': jnp.where(up, 0, batches),
    }
