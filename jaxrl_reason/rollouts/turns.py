"""Episodes of several turns with an environment, inside the compiled program.

prefill the prompts -> sample tokens until the turn of every row is over -> one
step of the environment for all rows -> its observations pass through the model,
a few columns at once (`extend`) -> the tokens of the next turn ...

A turn ends at a stop token, at the environment's own stop bytes, or at its
token limit. Rows that wait for others leave gaps in the cache (`models.cache`)
but none in the completion, which is the row's sampled tokens and the
observations in order, as training reads it. Only sampled tokens are searched
for stops and passed to the environment, so every observation is only data.

The noise of a token depends on (key, row id, index in the completion) only, as
in the sampler.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, Reward, Rollout
from jaxrl_reason.envs import env as env_lib
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rollouts import episode_tree, sampler
from jaxrl_reason.rollouts import tree as tree_lib
from jaxrl_reason.rollouts.draw import NONE, Draw
from jaxrl_reason.rollouts.episode import Play, State, begin
from jaxrl_reason.rollouts.turn_limits import Turns

PART = 'env'  # the environment's reward part and encoded problems


def make(env: env_lib.Env, tokenizer, **limits) -> Turns:
  """Builds the `Turns` of an environment for a tokenizer.

  Args:
    limits: most, tokens, observation, chunk and weight of the Turns.

  Raises:
    ValueError: the tokenizer has no token for a byte that the environment
      writes.
  """
  table, lengths = kernels.token_bytes_table(tokenizer)
  spelled = tokenizer.token_bytes()
  alone = {data: i for i, data in reversed(list(enumerate(spelled)))}
  ids = [alone.get(bytes([b]), NONE) for b in range(256)]
  missing = {c for c in env.alphabet if any(ids[b] < 0 for b in c.encode())}
  if missing:
    raise ValueError(
      'rl.turns.env: the tokenizer has no token for '
      f'{"".join(sorted(missing))!r} alone, which the environment writes; use '
      'data.tokenizer="byte", or have the characters in the task\'s alphabet'
    )
  return Turns(
    env=env,
    stops=automaton([env.stop] if env.stop else [], spelled),
    bytes_of=table,
    n_bytes=lengths,
    byte_ids=np.int32(ids),
    **limits,
  )


def automaton(stops: Sequence[bytes], spelled: list[bytes]) -> np.ndarray:
  """Returns the transitions of `Limits.stops`.

  A state is the longest suffix of the sampled bytes that is a prefix of one of
  `stops`. The last state is never left.

  Args:
    stops: non-empty byte strings; if there are none, only a stop token ends a
      turn.
    spelled: bytes of every token.
  """
  states = {b''} | {stop[:i] for stop in stops for i in range(len(stop))}
  states = sorted(states, key=lambda s: (len(s), s))
  number = {seen: i for i, seen in enumerate(states)}

  def after(seen: bytes, token: bytes) -> int:
    for i in range(len(token)):
      seen += token[i : i + 1]
      if any(seen.endswith(stop) for stop in stops):
        return len(states)
      while seen not in number:
        seen = seen[1:]
    return number[seen]

  rows = [[after(seen, token) for token in spelled] for seen in states]
  return np.int32([*rows, [len(states)] * len(spelled)])


def rollout(play: Play, state: State, n_samples: int, version) -> Rollout:
  """Returns the Rollout of finished episodes."""
  out, routes = state.out, None
  sampled = out['sampled']
  if 'routes' in out:
    routes = sampler.routes_of_rows(state.cache.routes[0], out['routes'])
  return Rollout(
    tokens=out['tokens'],
    sampled=sampled,
    length=sampled.sum(axis=1),
    logp=out['logp'],
    policy_logp=out.get('policy_logp'),
    truncated=~state.episode.done,
    temperature=play.draw.sampling.temperature,
    version=jnp.where(sampled, version, 0),
    turn=out['turn'],
    node=sampler.nodes(out['turn'] > 0, n_samples),
    routes=routes,
    episode=state.episode,
  )


def idle(rollout: Rollout, most: int) -> jax.Array:
  """Computes the share of the decode steps of all rows, f32 [], in which the
  row waits: for the other player of its game, for longer turns of other rows,
  or because its episode has ended.

  Args:
    rollout: of episodes without forks; most: S, turns of an episode.
  """
  own = rollout.turn[..., None] == jnp.arange(1, most + 1)
  drawn = jnp.sum(own & rollout.sampled[..., None], axis=1)  # [N,S]
  # The first token of a turn is sampled without a decode step.
  decoded = jnp.maximum(drawn - 1, 0)
  steps = jnp.max(decoded, axis=0).sum()
  waits = steps - jnp.mean(decoded.astype(jnp.float32), axis=0).sum()
  return waits / jnp.maximum(steps, 1)


def require_extend(
  model: Model, what: str = 'episodes of several turns'
) -> None:
  """Refuses a model without `extend`."""
  if model.extend is None:
    raise ValueError(
      f'this model has no extend, which {what} need (`base.Model`): sample '
      'single completions of it'
    )


@dataclasses.dataclass(frozen=True)
class Seats:
  """The order of rows while games are played.

  A prompt is computed with the adapters of each player. So the rows of a player
  of one prompt are adjacent during the games; before and after them the rows of
  the players alternate.

  Attributes:
    players: with adapters of their own; 1: the order does not change.
    samples: G, rows of a prompt.
  """

  players: int
  samples: int

  @property
  def block(self) -> int:
    """Counts the adjacent rows of one player."""
    return self.samples // self.players

  def copies(self, prompts: Any) -> Any:
    """Returns one copy [B*players,...] of prompts [B,...] for each player."""
    if self.players == 1:
      return prompts
    return jax.tree.map(
      lambda x: sharding.rows(jnp.repeat(x, self.players, axis=0)), prompts
    )

  def with_roles(self, params: Any, n: int, block: int = 1) -> Any:
    """Returns parameters for n rows; `block` adjacent ones are of a player."""
    if self.players == 1:
      return params
    return lora.of_rows(params, jnp.arange(n) // block % self.players)

  def by_player(self, x: jax.Array) -> jax.Array:
    """Orders alternating rows [N,...] for the games."""
    return self._swapped(x, self.block, self.players)

  def in_order(self, x: jax.Array) -> jax.Array:
    """Reverses `by_player`."""
    return self._swapped(x, self.players, self.block)

  def _swapped(self, x: jax.Array, *sizes: int) -> jax.Array:
    if self.players == 1:
      return x
    rows = x.reshape(-1, *sizes, *x.shape[1:]).swapaxes(1, 2)
    return sharding.rows(rows.reshape(x.shape))


def generate(
  how: Turns,
  model: Model,
  params,
  prompts: jax.Array,
  valid: jax.Array,
  encoded: dict,
  key: jax.Array,
  sampling,
  stop: jax.Array,
  *,
  n_samples: int,
  max_new: int,
  row_ids: jax.Array | None = None,
  segments: int = 1,
  policy_logp: bool = False,
  routes: bool = False,
  version: jax.Array | int = 0,
  by_role: bool = False,
  tree: tree_lib.Tree | None = None,
) -> Rollout:
  """Samples n_samples episodes of every prompt.

  Args:
    how: the environment and the limits.
    encoded: encoded problems for the environment, one per prompt, [B,...].
    segments: parts in which the cache grows, each of whole turns.
    by_role: the rows of each player are computed with adapters of its own.
    tree: forks of episodes of one player; None: no rows share tokens.
    others: see `sampler.generate`.

  Returns:
    Rollout of B*G rows, which includes the observations.
  """
  require_extend(model)
  n, leaves = prompts.shape[0] * n_samples, tree.leaves if tree else 1
  ids = jnp.arange(n) if row_ids is None else row_ids
  seats = Seats(how.players if by_role else 1, n_samples)
  ids, (prompts, valid) = seats.by_player(ids), seats.copies((prompts, valid))
  weights = model.decode_params(seats.with_roles(params, n, seats.block))
  told = policy_logp, bool(tree) and not tree.turns  # entropies
  every = draw = Draw.make(model, weights, key, ids, sampling, stop, *told)
  if tree:
    tree_lib.require_fork(model)
    draw = tree_lib.of_rows(every, np.arange(0, n, leaves))
  own = seats.with_roles(params, len(prompts))
  rows = seats.block // leaves
  hidden, cache = model.prefill(own, prompts, valid, rows, max_new, 1)
  used = model.sampled_routes(cache)[1] if routes else None
  bounds = _bounds(how, tree, segments)
  cache = model.gapped(cache, how.columns(bounds[0]))
  play = Play(how, draw, max_new, seats.block if by_role else 1)
  env = _env(play, encoded, key, ids[::leaves], n_samples // leaves)
  state = begin(play, hidden, cache, env, used)
  if tree:
    state, nodes = episode_tree.play_all(tree, every, play, state)
    play = dataclasses.replace(play, draw=every)
  else:
    state = _played(play, state, bounds)
  state = _in_order(seats, state)
  out = rollout(play, state, n_samples, version)
  if tree:
    out = out.replace(node=tree.numbered(nodes, out.valid, n_samples))
  if by_role:
    out = out.replace(role=jnp.arange(n, dtype=jnp.int8) % how.players)
  return out.replace(views=how.env.told(state.env)) if how.env.told else out


def _env(play: Play, encoded: dict, key, ids: jax.Array, n: int) -> Any:
  """Returns the first states of the environment, for n episodes of a prompt.

  Args:
    encoded: by prompt, [B,...]; ids: of the rows.
  """
  of_each = functools.partial(jnp.repeat, repeats=n, axis=0)
  encoded = jax.tree.map(of_each, encoded)
  games = play.of_mover(ids, jnp.int32(0))  # one key of a game
  noise = trees.row_keys(trees.named_key(key, 'environment'), games)
  env = jax.vmap(play.how.env.reset)(encoded, noise)
  return jax.tree.map(sharding.rows, env)


def _in_order(seats: Seats, state: State) -> State:
  """Returns the state with the rows in the order of the batch."""
  mine = state.out, state.episode, state.env
  out, episode, env = jax.tree.map(seats.in_order, mine)
  return state.replace(out=out, episode=episode, env=env)


def _bounds(how: Turns, tree: tree_lib.Tree | None, segments: int) -> list[int]:
  """Returns the turns before which the cache grows, and the largest number."""
  if tree:
    return [*tree.turns[:1], how.most]
  return cache_lib.spaced(how.most, min(segments, how.most))


def _played(play: Play, state: State, bounds: Sequence[int]) -> State:
  """Plays to the end of all episodes; bounds: see `_bounds`."""
  for before, bound in zip((0, *bounds), bounds):
    cache = play.draw.model.grow(state.cache, play.how.columns(bound))
    state, _ = play.until(bound, state.replace(cache=cache), bound - before)
  return state


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
  """Computes the rewards of episodes by kernels on the policy's text. The last
  part is the environment's rewards, summed over turns, without their weight.

  Attributes:
    reward_fn: as in `fused.FusedSource`; None uses the environment alone.
    weight: factor that the rewards of the environment already have.
  """

  reward_fn: Callable[..., Reward] | None
  weight: float = 1.0

  def __call__(
    self, rollout: Rollout, answers: dict, control: dict | None = None
  ) -> Reward:
    own = jnp.nansum(rollout.episode.reward, axis=1)
    part = own[:, None] / (self.weight or 1.0)
    if self.reward_fn is None:
      return Reward(own, part, jnp.isfinite(own))
    found = self.reward_fn(rollout, answers, control)
    parts = jnp.concatenate([found.parts, part], axis=1)
    return found.replace(total=found.total + own, parts=parts)
