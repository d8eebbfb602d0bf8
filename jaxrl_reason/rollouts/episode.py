"""Plays the turns of episodes: the loop of `rollouts.turns`.

sample tokens until the turn of every row is over -> one step of the environment
for all rows -> its observations pass through the model, a few columns at once
-> the first token of the next turn

If the environment has an opening, each row reads its own one before the first
turn.

The two players of a game have two adjacent rows, and each player reads only its
own row. One player plays a turn, and the other player reads the observation.
Both rows have a copy of the game's state.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Episode
from jaxrl_reason.envs import env as env_lib
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rollouts.draw import NONE, Draw
from jaxrl_reason.rollouts.turn_limits import Limits as Limits

# Events counted per episode: malformed calls, observations cut to their limit,
# turns without a stop, and episodes that did not end because they had too many
# turns or no tokens left for the observation.
EVENTS = 'malformed cut long too_many no_room'.split()


@struct.dataclass
class State:
  """The episode state of N rows."""

  turn: jax.Array  # i32 [], or [N] if rows advance independently
  column: jax.Array | None  # i32 [], next cache column; None: per row
  t: jax.Array  # i32 [N], index in its completion of `token`
  begin: jax.Array  # i32 [N], index of the turn's first token
  seen: jax.Array  # i32 [N], state of `Limits.stops`
  token: jax.Array  # i32 [N], sampled, not in the cache yet
  ended: jax.Array  # bool [N], a stop ended the turn
  over: jax.Array  # bool [N], the turn is over
  done: jax.Array  # bool [N], the episode is over
  cache: Any
  env: Any
  out: dict[str, jax.Array]  # [N,C,...]
  episode: Episode
  # i32 [N], tokens of a completion that the cache has beside its prompt; None:
  # all are the row's own (`rollouts.episode_tree`).
  shared: jax.Array | None = None

  def cached(self, t: jax.Array) -> jax.Array:
    """Returns the indices among the row's own tokens in the cache, of tokens
    at indices t [N,...] in its completion; NONE stays.
    """
    if self.shared is None:
      return t
    shared = self.shared.reshape(-1, *[1] * (t.ndim - 1))
    return jnp.where(t == NONE, NONE, t - shared)


def written(all_: jax.Array, x, t: jax.Array, there: jax.Array) -> jax.Array:
  """Writes x [N,...] or [N,O,...] into all_ [N,C,...] at index t of its row,
  where `there` is true.
  """
  n, c = all_.shape[:2]
  row = jnp.arange(n).reshape(-1, *[1] * (t.ndim - 1))
  return all_.at[row, jnp.where(there, t, c)].set(x, mode='drop')


@dataclasses.dataclass(frozen=True)
class Play:
  """The functions of one turn, bound to their settings."""

  how: Limits
  draw: Draw
  max_new: int
  block: int = 1  # adjacent rows of one player

  def moves(self, turn: jax.Array) -> jax.Array:
    """Marks the rows that play a turn, bool [N]. In a game, the rows of the
    players alternate, or blocks of their rows.
    """
    row = jnp.arange(self.draw.keys.shape[0]) // self.block
    return (row - turn) % self.how.players == 0

  def of_mover(self, x: jax.Array, turn: jax.Array) -> jax.Array:
    """Returns x [N,...] with, for each row, the values of the row that plays a
    turn of the same game.
    """
    if self.how.players == 1:
      return x
    players = self.how.players
    games = x.reshape(-1, players, self.block, *x.shape[1:])
    of_game = games[:, turn % players][:, None]
    of_rows = jnp.broadcast_to(of_game, games.shape)
    return sharding.rows(of_rows.reshape(x.shape))

  def drawn(self, state: State, hidden: jax.Array, t: jax.Array) -> State:
    """Samples the t-th tokens of the rows whose turn is not over."""
    how, new = self.how, self.draw(hidden, trees.identity, t)
    live, out, token = ~state.over, dict(state.out), new['tokens']
    new |= {'sampled': True, 'turn': state.turn + 1}
    for name, x in new.items():
      out[name] = written(out[name], x, t, live)
    known = jnp.minimum(token, how.stops.shape[1] - 1)
    seen = jnp.asarray(how.stops)[state.seen, known]
    # The last ids of a padded vocabulary have no bytes.
    seen = jnp.where(token == known, seen, state.seen)
    ended = self.draw.ends(token) | (seen == how.stops.shape[0] - 1)
    full = (t + 1 == self.max_new) | (t + 1 - state.begin == how.tokens)
    return state.replace(
      t=jnp.where(live, t, state.t),
      token=jnp.where(live, token, state.token),
      seen=jnp.where(live, seen, state.seen),
      ended=jnp.where(live, ended, state.ended),
      over=state.over | ended | full,
      out=out,
    )

  def token(self, state: State) -> State:
    """Decodes the rows whose turn is not over, and samples their next
    tokens.
    """
    t = state.cached(jnp.where(state.over, NONE, state.t))
    hidden, cache = self.draw.model.decode(
      self.draw.weights, state.token, state.cache, t, state.column
    )
    out = dict(state.out)
    if 'routes' in out:
      used = self.draw.model.sampled_routes(cache)[1]
      out['routes'] = written(out['routes'], used, state.t, ~state.over)
    state = state.replace(cache=cache, column=_past(state, 1), out=out)
    return self.drawn(state, hidden, state.t + 1)

  def tokens_of_turn(self, state: State) -> State:
    """Decodes and samples until the turn of every row is over."""
    with trees.at_most('tokens', self.how.tokens - 1):
      return jax.lax.while_loop(lambda s: ~jnp.all(s.over), self.token, state)

  def said(self, state: State) -> env_lib.Step:
    """Steps the environment of every row with the bytes of the turn: those of
    its own row, or of the other row of its game.
    """
    how, c = self.how, self.max_new
    at = state.begin[:, None] + jnp.arange(how.tokens)
    inside = at <= state.t[:, None]
    tokens = jnp.minimum(at, c - 1)
    tokens = jnp.take_along_axis(state.out['tokens'], tokens, axis=1)
    spelled = how.bytes_of, how.n_bytes
    text, n = kernels.to_bytes(
      tokens, inside, *spelled, max_bytes=how.env.width
    )
    text, n = (self.of_mover(x, state.turn) for x in (text, n))
    return jax.vmap(how.env.step)(state.env, text, n)

  def answered(self, state: State) -> tuple[State, jax.Array, jax.Array]:
    """Steps the environment and records the rewards, events and observations.

    Returns:
      (state; tokens and their indices in the completion [N,1+O] to extend by:
        the turn's last token and the observation, with index NONE at padding).
    """
    how, said, live = self.how, self.said(state), ~state.done
    n = jnp.minimum(said.length, how.observation)
    last = state.turn + 1 == how.most
    own, reads = self.moves(state.turn), self.moves(state.turn + 1)
    fits = state.t + n + 1 < self.max_new  # and one token to sample
    fits = self.of_mover(fits, state.turn + 1)
    ended = self.of_mover(state.ended, state.turn)
    goes_on = live & ~said.done
    on = goes_on & ~last & fits
    events = {
      'malformed': live & own & said.malformed,
      'cut': on & reads & (said.length > how.observation),
      'long': live & own & ~state.ended,
      'too_many': goes_on & last,
      'no_room': goes_on & ~last & ~fits,
    }
    old = state.episode
    reward = how.weight * jnp.where(own, said.reward, said.others_reward)
    reward = jnp.where(live, reward, jnp.nan).astype(jnp.float32)
    now = jnp.arange(how.most) == jnp.reshape(state.turn, (-1, 1))
    episode = Episode(
      reward=jnp.where(now, reward[:, None], old.reward),
      done=old.done | (live & said.done & ended),
      events={k: old.events[k] + x for k, x in events.items()},
    )
    read = said.observation, said.length
    out, tokens, t = self._observation(
      state, *read, jnp.where(on & reads, n, NONE)
    )
    env = jax.tree.map(lambda a, b: _where(live, a, b), said.state, state.env)
    done = state.done | ~on
    state = state.replace(
      turn=state.turn + 1, done=done, env=env, out=out, episode=episode
    )
    return state, tokens, t

  def _observation(self, state: State, text, length, n):
    """Writes observations.

    Args:
      text, length: u8 [N,O] and i32 [N], of the environment; n: i32 [N], bytes
        that the row reads, or NONE.

    Returns:
      (the arrays `State.out`; `answered`'s tokens and indices).
    """
    width = self.how.observation
    room = max(0, width - text.shape[1])
    text = jnp.pad(text, ((0, 0), (0, room)))[:, :width]
    cut = (length > width)[:, None] & (jnp.arange(width) == width - 1)
    if self.how.byte_ids[ord(env_lib.CUT)] >= 0:
      text = jnp.where(cut, ord(env_lib.CUT), text)
    tokens = jnp.asarray(self.how.byte_ids)[text.astype(jnp.int32)]
    tokens = jnp.concatenate([state.token[:, None], tokens], axis=1)
    place = jnp.arange(width + 1)
    t = jnp.where(place <= n[:, None], state.t[:, None] + place, NONE)
    out = dict(state.out)
    turn = jnp.reshape(state.turn + 1, (-1, 1))
    new = {'tokens': tokens[:, 1:], 'turn': turn}
    for name, x in new.items():
      out[name] = written(out[name], x, t[:, 1:], t[:, 1:] >= 0)
    return out, tokens, t

  def opened(self, state: State) -> State:
    """Passes the opening of each row through the model, and samples the first
    tokens.

    The last token of a row that waits passes together with its next
    observation, as the last token of a turn does.
    """
    how, rows = self.how, jnp.arange(len(state.t))
    players = rows // self.block % how.players
    text, length = jax.vmap(how.opening)(state.env, players)
    state = state.replace(t=jnp.full_like(state.t, NONE))
    out, tokens, t = self._observation(
      state, text, length, jnp.minimum(length, how.observation)
    )
    last = jnp.max(t, axis=1)
    waits = ~self.moves(state.turn)
    t = jnp.where(waits[:, None] & (t == last[:, None]), NONE, t)
    cut = state.episode.events['cut'] + (length > how.observation)
    events = state.episode.events | {'cut': cut}
    state = state.replace(
      t=last,
      token=tokens[rows, last + 1],
      out=out,
      episode=state.episode.replace(events=events),
    )
    return self.extended(state, tokens, t)

  def passed(self, state: State, tokens, t) -> tuple[State, jax.Array]:
    """Passes tokens [N,1+O] at indices t through the model; returns the hidden
    states [N,D] of each row's last token.
    """
    how, (n, o) = self.how, tokens.shape
    room = ((0, 0), (0, how.extension - o))
    tokens, t = jnp.pad(tokens, room), jnp.pad(t, room, constant_values=NONE)
    width = how.chunk or how.extension
    longest = jnp.max(jnp.where(t >= 0, 1 + jnp.arange(t.shape[1]), 0))

    def part(x, start):
      return jax.lax.dynamic_slice_in_dim(x, start, width, axis=1)

    def body(carry):
      start, hidden, state = carry
      own, at = part(tokens, start), part(t, start)
      new, used, cache = self.draw.model.extend(
        self.draw.weights, own, state.cache, state.cached(at), state.column
      )
      out = dict(state.out)
      if 'routes' in out:
        out['routes'] = written(out['routes'], used, at, at >= 0)
      hidden = _where(jnp.any(at >= 0, axis=1), new, hidden)
      state = state.replace(cache=cache, column=_past(state, width), out=out)
      return start + width, hidden, state

    model = self.draw.model
    shape = jax.eval_shape(
      model.extend, self.draw.weights, part(tokens, 0), state.cache,
      part(t, 0), state.column,
    )[0]  # fmt: skip
    hidden = sharding.rows(jnp.zeros((n, *shape.shape[1:]), shape.dtype))
    carry = jnp.int32(0), hidden, state
    with trees.at_most('observation', how.extension // width):
      _, hidden, state = jax.lax.while_loop(
        lambda carry: carry[0] < longest, body, carry
      )
    return state, hidden

  def extended(self, state: State, tokens, t) -> State:
    """Passes the tokens through the model and samples the next turn's first
    token.
    """
    state, hidden = self.passed(state, tokens, t)
    begin = jnp.max(t, axis=1) + 1
    over = state.done | ~self.moves(state.turn)
    state = state.replace(
      begin=jnp.where(over, state.begin, begin),
      seen=jnp.zeros_like(state.seen),
      over=over,
    )
    return self.drawn(state, hidden, begin)

  def turn(self, state: State) -> State:
    """Plays one turn, and begins the next if any row continues."""
    state = self.tokens_of_turn(state)
    state, tokens, t = self.answered(state)
    # No jax.lax.cond here, because XLA would copy the cache for it. If no row
    # continues, no token passes through the model, and none is stored.
    return self.extended(state, tokens, t)

  def until(
    self, end: int, state: State, most: int, saved=None, save=lambda x, _: x
  ) -> tuple[State, Any]:
    """Plays the turns before number `end`, at most `most` of them, or until all
    episodes are over. Returns (the state, saved).

    Args:
      save: (saved, state before a turn) -> saved.
    """

    def unfinished(carry):
      return jnp.any(~carry[0].done & (carry[0].turn < end))

    def body(carry):
      return self.turn(carry[0]), save(carry[1], carry[0])

    with trees.at_most('turns', most):
      return jax.lax.while_loop(unfinished, body, (state, saved))


def _past(state: State, n: int) -> jax.Array | None:
  """Returns the cache's column after n more columns."""
  return None if state.column is None else state.column + n


def _where(rows: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
  return jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def begin(play: Play, hidden, cache, env, routes) -> State:
  """Samples the first token of all rows, from the prompts' hidden states [B,D],
  or after the openings.

  Args:
    env: the environment's states [N,...].
    routes: int [N,L,k], experts used in a step, or None.
  """
  how, c = play.how, play.max_new
  n = play.draw.keys.shape[0]
  hidden = sharding.rows(jnp.repeat(hidden, n // hidden.shape[0], axis=0))

  def blank(fill, dtype, *shape):
    return sharding.rows(jnp.full((n, *shape), fill, dtype))

  out = {
    'tokens': blank(0, jnp.int32, c),
    'logp': blank(0, jnp.float32, c),
    'sampled': blank(False, bool, c),
    'turn': blank(0, jnp.int32, c),
  }
  if play.draw.policy_logp:
    out['policy_logp'] = out['logp']
  if play.draw.entropy:
    out['entropy'] = out['logp']
  if routes is not None:
    out['routes'] = blank(moe.UNKNOWN, routes.dtype, c, *routes.shape[1:])
  zero, no = blank(0, jnp.int32), blank(False, bool)
  waits = ~play.moves(jnp.int32(0))
  episode = Episode(
    reward=blank(jnp.nan, jnp.float32, how.most),
    done=no,
    events=dict.fromkeys(EVENTS, zero),
  )
  state = State(
    turn=jnp.int32(0),
    column=jnp.int32(0),
    t=jnp.where(waits, NONE, zero),
    begin=zero,
    seen=zero,
    token=zero,
    ended=no,
    over=waits,
    done=no,
    cache=cache,
    env=env,
    out=out,
    episode=episode,
  )
  if how.opening:
    return play.opened(state)
  return play.drawn(state, hidden, zero)
