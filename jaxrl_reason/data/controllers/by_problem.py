"""Controllers of problems: weights in proportion to which a source's problems
are drawn.

Difficulties range from 0 to 1 (`pool.ranked`). Solve rates are running means,
and the prior for an untried problem.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason.data.pool import Seen, Statistics


def lowest(x: jax.Array, share: float | jax.Array) -> jax.Array:
  """Returns a mask of the lowest ceil(share M) values of x [M], in [0, 1], and
  their equals. Bisects instead of sorting: for a million values it takes a
  fiftieth of the time.
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
  """Equal weights; with one source, epochs without replacement. The base class
  of the others.
  """

  def start(self) -> dict[str, jax.Array]:
    """Returns the controller's initial memory."""
    return {}

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    """Returns weights [M], at least 0; step: i32 [], of the stage."""
    del step
    return jnp.ones(len(stats.visits))

  def observe(self, stats: Statistics, seen: Seen) -> dict[str, jax.Array]:
    """Returns the memory after a batch; stats: before the batch."""
    del seen
    return stats.own


@dataclasses.dataclass(frozen=True)
class Priority(Uniform):
  """p ~ 1 - solve rate (Kimi k1.5, https://arxiv.org/abs/2501.12599).

  Attributes:
    floor: least weight, so that solved problems come again; 0 as published.
  """

  floor: float = 0.0

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    return jnp.maximum(1 - stats.rate, self.floor)


@dataclasses.dataclass(frozen=True)
class Learnability(Uniform):
  """p ~ s (1 - s), the variance of the verdict, with s the solve rate
  (https://arxiv.org/abs/2502.12272, which takes the best of a sample).

  Attributes:
    floor: least weight, at most 0.25.
  """

  floor: float = 0.01

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    del step
    return jnp.maximum(stats.rate * (1 - stats.rate), self.floor)


@dataclasses.dataclass(frozen=True)
class Band(Uniform):
  """Problems with a solve rate in [low, high], and untried ones (online
  difficulty filtering, https://arxiv.org/abs/2504.03380).

  Attributes:
    balanced: equal numbers of draws below and above the middle of the band;
      untried problems count at the prior.
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
  """Skips problems without a learning signal before rollout: a problem with z
  successive visits of equal rewards is kept with probability q^z (GRESO,
  https://arxiv.org/abs/2506.02177).

  There is one q for problems that are always solved and one for problems that
  are never solved. After a batch each moves by `change`: down if the share of
  the batch of that kind exceeds its target, else up.

  Attributes:
    explore: initial q; change: of q per batch.
    easy, hard: target shares of a batch with all right, all wrong answers.
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
  """Leaves out mastered problems, and retries them later (POLARIS,
  https://hkunlp.github.io/blog/2025/Polaris/, which drops solve rates above 0.9
  between stages; the retry is our addition).

  Attributes:
    above: solve rate from which a problem is mastered.
    retest: number of steps after its last visit when it comes back.
  """

  above: float = 0.9
  retest: int = 100

  def weigh(self, stats: Statistics, step: jax.Array) -> jax.Array:
    mastered = (stats.visits > 0) & (stats.rate >= self.above)
    due = stats.begun + step - stats.seen >= self.retest
    return (~mastered | due).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Drive(Uniform):
  """Restricts draws to the hardest share of the problems, a share that shrinks
  (hard-focus of DRIVE, https://arxiv.org/abs/2511.06307, which narrows the set
  between phases).

  Attributes:
    keep: final share; steps: number of the stage's steps until then.
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
    steps: number of the stage's steps until the centre is at the hardest.
    power: values below 1 leave the easy ones sooner; width: of the Gaussian.
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
    change: largest move of the target per step. The authors move by up to 50 on
      difficulties from 0 to 100, which is 0.5 here; the default is a tenth of
      that, so that the target crosses the pool in 20 steps and not in 2.
    nearest: share of the pool that is drawn from; the paper takes the nearest
      batch.
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
  """Draws from the easiest rung of difficulty until it is climbed, then from
  the next (like the horizon curriculum of https://arxiv.org/abs/2510.07312,
  stage by stage).

  Attributes:
    rungs: equal steps of difficulty from 0 to 1; empty ones are skipped.
    climb: solve rate of the rung, a running mean of about ten batches, at which
      the next begins.
    review: share of draws from all rungs below together.
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
    """Returns the rungs [M] of difficulties."""
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
    # The mean of the first ten batches, then a running mean.
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
