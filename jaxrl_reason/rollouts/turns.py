"""Episodes of several turns with an environment, inside the compiled program.

prefill the prompts -> draw tokens until every row's turn is over -> one step of
the environment for all rows -> its observations pass through the model, a few
columns at once (`extend`) -> the next turn's tokens ...

A turn is over with a stop token, with the environment's own stop bytes, or when
it is too long. Rows that wait leave gaps in the cache (`models.cache`), none in
the completion: that is the row's own tokens and the observations, one after
another, as training reads it. Only drawn tokens are looked through for stops
and given to the environment, so an observation is data whatever is in it.

The noise of a token depends on (key, row id, index in the completion) only, as
the sampler's does.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, Reward, Rollout
from jaxrl_reason.envs import base as env_lib
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.episode import Play, State, Turns, begin
from jaxrl_reason.rollouts.sampler import NONE

PART = 'env'  # the environment's part of the reward, and its encoded problems


def make(env: env_lib.Env, tokenizer, **limits) -> Turns:
  """Prepares an environment for a tokenizer.

  Args:
    limits: most, tokens, observation, chunk and weight of the Turns.

  Raises:
    ValueError: the tokenizer has no token for a byte the environment writes.
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
  """Gives the transitions of `Limits.stops`.

  A state is the longest end of what was drawn that begins one of `stops`; the
  last is never left.

  Args:
    stops: not empty any; none of them: nothing but a stop token ends a turn.
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
  """Lays out what the episodes came to."""
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


def require_extend(
  model: Model, what: str = 'episodes of several turns'
) -> None:
  """Refuses a model that cannot read what it is answered."""
  if model.extend is None:
    raise ValueError(
      f'this model has no extend, which {what} need (`base.Model`): sample '
      'single completions of it'
    )


def drawing(
  model: Model,
  weights,
  key,
  ids,
  sampling,
  stop,
  policy_logp: bool = False,
  entropy: bool = False,
) -> sampler.Draw:
  """Gives what draws the tokens of rows with these ids [N] or [N,k]."""
  heat = jnp.broadcast_to(sampling.temperature, ids.shape[:1])
  return sampler.Draw(
    model,
    weights,
    sampling.replace(temperature=heat),
    sampler.row_keys(key, ids),
    stop,
    policy_logp,
    entropy,
  )


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
) -> Rollout:
  """Plays n_samples episodes of every prompt.

  Args:
    how: the environment and the limits.
    encoded: what the environment goes by of each prompt, [B,...].
    segments: parts in which the cache grows, whole turns each.
    others: see `sampler.generate`.

  Returns:
    Rollout of B*G rows, with what the environment said.
  """
  require_extend(model)
  n = prompts.shape[0] * n_samples
  ids = jnp.arange(n) if row_ids is None else row_ids
  weights = model.decode_params(params)
  draw = drawing(model, weights, key, ids, sampling, stop, policy_logp)
  hidden, cache = model.prefill(params, prompts, valid, n_samples, max_new, 1)
  used = model.sampled_routes(cache)[1] if routes else None
  bounds = cache_lib.spaced(how.most, min(segments, how.most))
  cache = model.gapped(cache, how.columns(bounds[0]))
  of_each = functools.partial(jnp.repeat, repeats=n_samples, axis=0)
  encoded = jax.tree.map(of_each, encoded)
  noise = sampler.row_keys(trees.named_key(key, 'environment'), ids)
  env = jax.tree.map(sharding.rows, jax.vmap(how.env.reset)(encoded, noise))
  play = Play(how, draw, max_new)
  state = begin(play, hidden, cache, env, used)
  for before, bound in zip((0, *bounds), bounds):
    cache = model.grow(state.cache, how.columns(bound))
    with trees.at_most('turns', bound - before):
      state = jax.lax.while_loop(
        lambda s, bound=bound: (s.turn < bound) & ~jnp.all(s.done),
        play.turn,
        state.replace(cache=cache),
      )
  out = rollout(play, state, n_samples, version)
  return out.replace(views=how.env.told(state.env)) if how.env.told else out


@dataclasses.dataclass(frozen=True, eq=False)
class Judged:
  """Rewards of episodes: kernels on what the policy wrote, and as a last part
  what the environment gave, summed over turns.

  Attributes:
    reward_fn: as `fused.FusedSource` takes it; None: the environment alone.
  """

  reward_fn: Callable[..., Reward] | None

  def __call__(
    self, rollout: Rollout, answers: dict, control: dict | None = None
  ) -> Reward:
    own = jnp.nansum(rollout.episode.reward, axis=1)
    if self.reward_fn is None:
      return Reward(own, own[:, None], jnp.isfinite(own))
    found = self.reward_fn(rollout, answers, control)
    parts = jnp.concatenate([found.parts, own[:, None]], axis=1)
    return Reward(found.total + own, parts, found.valid)
