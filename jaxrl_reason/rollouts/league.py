"""A league: in a share of the games, one player is a past version of the
policy, as in AlphaStar (https://doi.org/10.1038/s41586-019-1724-z).

A version is a copy of the trained weights: of the adapters, if only these are
trained. `TrainState.control['league']` stores the last versions. The run's key
chooses the version that plays in a step, its games, and the player whose moves
it makes. The update does not train on tokens of a version.

The program computes every row with both models, each with a cache of its own,
and samples from one of them. So generation costs twice as much.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import trees
from jaxrl_reason.base import Metrics, Model, Rollout, TrainState
from jaxrl_reason.models import spec
from jaxrl_reason.parts import Chain, Part

NAME = 'league'


@dataclasses.dataclass(frozen=True)
class League(Part):
  """Stores versions of the policy, and chooses the games they play; static.

  Attributes:
    share: share of the games in which a version plays against the policy.
    every: steps between two versions.
    size: largest number of versions; a new one replaces the oldest.
    specs: specs of the policy's weights.
    trainable: regex over the paths of the trained weights.
  """

  share: float
  every: int
  size: int
  specs: Any = dataclasses.field(default=None, compare=False)
  trainable: str = '.*'
  name: str = NAME

  def init(self, total: jax.Array) -> dict:
    """Returns a league without versions."""
    trained, _ = trees.split(spec.abstract(self.specs), self.trainable)

    def blank():
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), trained)

    versions = {str(i): blank() for i in range(self.size)}
    steps = jnp.zeros(self.size, jnp.int32)
    return {'versions': versions, 'step': steps, 'n': jnp.int32(0)}

  def after(
    self, memory: dict, state: TrainState, metrics: Metrics
  ) -> tuple[dict, TrainState, Metrics]:
    """Stores the policy every `every` steps, in place of the oldest version."""
    now, _ = trees.split(state.params, self.trainable)
    due = state.step % self.every == 0
    place = memory['n'] % self.size

    def put(i: int, old: Any) -> Any:
      return trees.where(due & (place == i), now, old)

    versions = {k: put(int(k), x) for k, x in memory['versions'].items()}
    step = (
      memory['step']
      .at[place]
      .set(jnp.where(due, state.step, memory['step'][place]))
    )
    n = memory['n'] + due
    metrics = {'league/versions': jnp.minimum(n, self.size)}
    return {'versions': versions, 'step': step, 'n': n}, state, metrics

  def players(self, params, memory: dict, key: jax.Array, n: int) -> dict:
    """Returns the weights of a step's players, as `of_two` reads them.

    Args:
      key: key of the step; n: number of rows, two for each game.
    """
    which, games, seats = (
      trees.named_key(key, use) for use in ('version', 'games', 'players')
    )
    stored = jnp.minimum(memory['n'], self.size)
    chosen = jax.random.randint(which, (), 0, jnp.maximum(stored, 1))
    now, rest = trees.split(params, self.trainable)
    past = now
    for k, version in memory['versions'].items():
      past = trees.where((stored > 0) & (chosen == int(k)), version, past)
    plays = jax.random.uniform(games, (n // 2,)) < self.share
    seat = jax.random.randint(seats, (n // 2,), 0, 2)
    is_past = (seat[:, None] == jnp.arange(2)) & plays[:, None]
    return {
      'policy': params,
      'past': trees.join(past, rest),
      'is_past': is_past.reshape(n) & (stored > 0),
      'step': memory['step'][chosen],
    }


def of(chain: Chain) -> League | None:
  """Returns the league among the parts of a step, or None."""
  leagues = [part for part in chain.parts if isinstance(part, League)]
  return leagues[0] if leagues else None


def of_two(model: Model) -> Model:
  """Returns a model whose rows are computed with two sets of weights.

  Its parameters are a dictionary: `policy` and `past`, and `is_past`, bool [N],
  which marks the rows that sample from `past`. Hidden states [...,2D] are those
  of both, concatenated.
  """

  def both(f, params, *given):
    return [f(params[who], *given) for who in ('policy', 'past')]

  def decode_params(params):
    policy, past = both(model.decode_params, params)
    return params | {'policy': policy, 'past': past}

  def joined(found):
    *first, caches = zip(*found)
    return jnp.concatenate(first[0], axis=-1), caches

  def prefill(params, *given):
    return joined(both(model.prefill, params, *given))

  def decode(params, tokens, caches, *rest):
    return joined(
      model.decode(params[who], tokens, cache, *rest)
      for who, cache in zip(('policy', 'past'), caches)
    )

  def extend(params, tokens, caches, *rest):
    hidden, cache = joined(
      model.extend(params[who], tokens, cache, *rest)
      for who, cache in zip(('policy', 'past'), caches)
    )
    return hidden, None, cache

  def unembed(params, hidden):
    halves = jnp.split(hidden, 2, axis=-1)
    policy, past = (
      model.unembed(params[who], x)
      for who, x in zip(('policy', 'past'), halves)
    )
    return jnp.where(params['is_past'][:, None], past, policy)

  def of_caches(f):
    return lambda caches, columns: tuple(f(x, columns) for x in caches)

  return dataclasses.replace(
    model,
    decode_params=decode_params,
    prefill=prefill,
    decode=decode,
    extend=extend,
    unembed=unembed,
    grow=of_caches(model.grow),
    gapped=model.gapped and of_caches(model.gapped),
    fork=None,
    sampled_routes=None,
  )


def of_policy(rollout: Rollout, is_past: jax.Array) -> Rollout:
  """Returns the rollout with only the policy's tokens marked as sampled."""
  sampled = rollout.sampled & ~is_past[:, None]
  return rollout.replace(
    sampled=sampled,
    length=sampled.sum(axis=1),
    logp=jnp.where(sampled, rollout.logp, 0.0),
  )


def metrics(players: dict, rollout: Rollout, step: jax.Array) -> Metrics:
  """Summarises the games against a version.

  Returns:
    The share of these games among all games, the share of these games that the
    policy won, and the age of the version in steps.
  """
  gained = jnp.nansum(rollout.episode.reward, axis=1)
  n = players['is_past'].sum()
  lost = jnp.where(players['is_past'], gained < 0, False).sum()
  return {
    'league/share': 2 * n / len(gained),
    'league/win': lost / jnp.maximum(n, 1),
    'league/age': jnp.where(n > 0, step - players['step'], 0),
  }
