"""Reward terms that depend on the statistics of the stage so far. The
statistics are stored in `TrainState.control['shaping']`.

  alp          -alp n max(s, 1 / G), n tokens, s the group's solve rate
  laser        +laser for correct rows of at most t_d tokens, t_d the target of
               the group's difficulty (easy, medium, hard), recomputed every
               `laser_every` steps; laser_explore for wrong rows beyond it
  price        -lambda n / C, lambda = clip(lambda + rate (x - goal), 0, most)
               after every step, x its solve rate or mean length over C
  historical   +historical / sqrt(1 + count of this answer for the problem)
  repeats      -repeats times the share of the group's other rows with the
               same answer
  brevity      +brevity r clip(1 - n / m, 0, 1) for the best rows of a group,
               r their reward, m their mean number of tokens
  repetition   -repetition times the share of the row's tokens that lie in an
               n-gram that occurred before, of repetition_n tokens

ALP: https://arxiv.org/abs/2506.05256. LASER-D, -DE:
https://arxiv.org/abs/2505.15612, with the rows of each step as the monitoring
set. historical and repeats: https://arxiv.org/abs/2509.06941. There the
historical bonus may have its own baselines; here it has the group's. Answers
are distinguished by a hash modulo 32.

brevity: https://github.com/PrimeIntellect-ai/prime-rl. repetition:
https://arxiv.org/abs/2502.03373, over tokens.

Terms are added after the filter, as the overlong penalty is, and statistics are
of the rewards without them. Lengths are in tokens that the policy sampled, also
of rows that the filter masks: a demonstration has length 0, and no term or
statistic counts it.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Metrics, Outcomes
from jaxrl_reason.losses import groups
from jaxrl_reason.parts import Part, Step

BITS = 32  # hash buckets of answers
LEVELS = ('hard', 'medium', 'easy')
BY = ('solve_rate', 'mean_length')


@dataclasses.dataclass(frozen=True)
class Shaping(Part):
  """Adds terms to rewards; static. The fields are keys of `rl.shaping`.

  Attributes:
    samples: G.
    max_new: C, the largest number of tokens of a completion.
    n_problems: problems in the pool.
  """

  samples: int
  max_new: int
  n_problems: int = 0
  alp: float = 0.0
  laser: float = 0.0
  laser_lengths: tuple[float, ...] = ()
  laser_explore: float = 0.0
  laser_every: int = 1
  price: float = 0.0
  price_rate: float = 0.0
  price_by: str = 'solve_rate'
  price_goal: float = 0.0
  price_most: float = 1.0
  historical: float = 0.0
  repeats: float = 0.0
  brevity: float = 0.0
  repetition: float = 0.0
  repetition_n: int = 10
  name: str = 'shaping'

  def init(self, total: jax.Array) -> dict[str, jax.Array]:
    """Returns the memory before the first step: targets, price and counts of
    answers, each only if a term reads it.
    """
    memory = {}
    if self.laser:
      longest = jnp.float32(max(self.laser_lengths))
      memory['targets'] = jnp.full(len(LEVELS), longest)
      memory['steps'] = jnp.int32(0)
    if self.price or self.price_rate:
      memory['price'] = jnp.float32(self.price)
    if self.historical:
      memory['given'] = jnp.zeros((self.n_problems, BITS), jnp.int32)
    return memory

  def before(self, memory: dict, step: Step) -> tuple[dict, Step, Metrics]:
    """Adds the terms to the rewards of a batch, and updates the statistics."""
    batch = step.batch
    terms = self._terms(memory, batch, step.sampled.mask)
    reward = batch.reward + sum(terms.values())
    n = jnp.maximum(batch.reward_valid.sum(), 1)
    metrics = {
      f'shaping/{k}': jnp.sum(jnp.where(batch.reward_valid, x, 0)) / n
      for k, x in terms.items()
    }
    if 'price' in memory:
      metrics['shaping/lambda'] = memory['price']
    for i, level in enumerate(LEVELS if 'targets' in memory else ()):
      metrics[f'shaping/target_{level}'] = memory['targets'][i]
    step = step._replace(batch=batch.replace(reward=reward))
    return self.observe(memory, step.outcomes), step, metrics

  def _terms(
    self, known: dict, b: Batch, sampled: jax.Array
  ) -> dict[str, jax.Array]:
    """Computes the terms [N] of a batch's rows, by name.

    Args:
      sampled: bool [N,T], the tokens of the rows before the filter.
    """
    own = batch_lib.own_tokens(b.replace(mask=sampled))
    length, right = own.sum(axis=1), (b.reward_parts[:, 0] > 0.5) * 1.0
    is_demo = (sampled & ~own).any(axis=1)
    of_group = dict(group=b.group, valid=b.reward_valid & ~is_demo)
    out = {}
    if self.alp:
      given = right, length
      out['alp'] = losses.alp_penalty(*given, **of_group, alp_beta=self.alp)
    if self.laser:
      target = known['targets'][losses.difficulty(right, **of_group)]
      how = dict(alpha=self.laser, explore=self.laser_explore)
      bonus = losses.laser_bonus(right, length, target, **how)
      out['laser'] = jnp.where(is_demo, 0.0, bonus)
    if 'price' in known:
      out['price'] = -known['price'] * length / self.max_new
    if self.historical:
      count = (
        known['given']
        .at[b.prompt_id, b.answer_id % BITS]
        .get(mode='fill', fill_value=0)
      )
      bonus = self.historical / jnp.sqrt(1.0 + count)
      there = (b.answer_id >= 0) & ~is_demo
      out['historical'] = jnp.where(there, bonus, 0.0)
    if self.repeats:
      out['repeats'] = -self.repeats * _repeated(b, **of_group)
    if self.brevity:
      bonus = losses.brevity_bonus(b.reward, length, **of_group)
      out['brevity'] = self.brevity * bonus
    if self.repetition:
      share = losses.repeated_share(b.tokens, own, n=self.repetition_n)
      out['repetition'] = -self.repetition * share
    return out

  def observe(self, known: dict, seen: Outcomes) -> dict[str, jax.Array]:
    """Returns the memory after a step."""
    new = dict(known)
    ok = seen.own
    right = ok & (seen.reward_parts[..., 0] > 0.5)
    n = jnp.maximum(ok.sum(), 1)
    if self.price_rate:
      x = right.sum() / n
      if self.price_by == 'mean_length':
        x = jnp.sum(jnp.where(ok, seen.length, 0)) / n / self.max_new
      moved = known['price'] + self.price_rate * (x - self.price_goal)
      moved = jnp.clip(moved, 0.0, self.price_most)
      new['price'] = jnp.where(jnp.any(ok), moved, known['price'])
    if 'given' in known:
      there = (ok & (seen.answer_id >= 0)).astype(jnp.int32)
      at = seen.prompt_id, seen.answer_id % BITS
      new['given'] = known['given'].at[at].add(there, mode='drop')
    if 'targets' in known:
      due = known['steps'] % self.laser_every == 0
      found = self._targets(known['targets'], seen, right)
      new['targets'] = jnp.where(due, found, known['targets'])
      new['steps'] = known['steps'] + 1
    return new

  def _targets(self, old, seen: Outcomes, right) -> jax.Array:
    """Computes LASER-D's target of each level from all generated rows. A level
    without rows keeps its old target.
    """
    n = seen.group.shape[-1]
    rounds = jnp.arange(seen.group.size // n).reshape(-1, 1)
    # Every round of a step numbers its groups from 0.
    group = (seen.group.reshape(-1, n) + n * rounds).reshape(-1)
    valid, right = seen.own.reshape(-1), right.reshape(-1) * 1.0
    level = losses.difficulty(right, group, valid=valid)
    level = jnp.where(valid, level, len(LEVELS))  # of no level
    new = losses.laser_d_target(
      right,
      seen.length.reshape(-1),
      level,
      self.samples,
      jnp.float32(self.laser_lengths),
    )
    there = jnp.any(level[:, None] == jnp.arange(len(LEVELS)), axis=0)
    return jnp.where(there, new, old)


def _repeated(b: Batch, group: jax.Array, valid: jax.Array) -> jax.Array:
  """Computes the share of a group's other valid rows with the same answer,
  [N].
  """
  g = groups.group_of(b.reward, group, valid)
  same = groups.same_group(g)
  answered = b.answer_id >= 0
  alike = same & (b.answer_id[:, None] == b.answer_id) & answered[:, None]
  others = jnp.maximum(same.sum(axis=1) - 1, 1)
  return jnp.maximum(alike.sum(axis=1) - 1, 0) / others
