"""Plays episodes with an environment in Python, in a pool of processes.

  open_     prefill, every row's first token
  go_on     reads the replies that have arrived, then a few tokens of all rows
            whose turn is not over        <-- again, until no row is left
     turns that are over --> pool (`tools.serve`) --> replies, as they arrive

A row waits only for its own tool, while the other rows are decoded. The arrival
time of a reply is random, so nothing in a row may depend on another row: its
keys are in its own cache columns (`models.cache`), its noise depends on (key,
row id, index), and the state of its tool is sent with its calls. A batch is
therefore the same for all durations of tools, and equal to that of an
environment inside the program (`rollouts.turns`) with the same replies.

Each process of jax has a pool, and plays the episodes of its own rows. Before
all of them call a program, they exchange the replies that have arrived.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import hosts, sharding, trees
from jaxrl_reason.base import Episode, Model, Rollout
from jaxrl_reason.rollouts import episode, turns
from jaxrl_reason.rollouts.draw import NONE, Draw
from jaxrl_reason.rollouts.verdict_arrays import Writer

# Events besides `episode.EVENTS`: calls of unknown tools, timeouts, and tools
# that raised or lost their process.
EVENTS = (*episode.EVENTS, 'unknown', 'timeout', 'failed')
POLL_S = 0.05  # longest wait for own replies before those of other processes
# Text that the model reads in place of the reply of a failed call.
FAILED = {'timeout': 'error: timeout', 'failed': 'error: the tool failed'}


@dataclasses.dataclass
class _Row:
  """The host's state of a row.

  Attributes:
    state: of its environment, as JSON; None before the first reply.
    turn: turns that were answered.
  """

  example: dict
  state: str | None = None
  turn: int = 0


# --- programs ------------------------------------------------------------


def _told(how: episode.Limits, state: episode.State) -> dict[str, jax.Array]:
  """Returns the arrays of rows [N] that the host reads: if the turn is over,
  how it ended, and its tokens [N,M].
  """
  at = state.begin[:, None] + jnp.arange(how.tokens)
  tokens = state.out['tokens']
  inside = jnp.minimum(at, tokens.shape[1] - 1)
  return {
    'over': state.over,
    'ended': state.ended,
    't': state.t,
    'n': state.t + 1 - state.begin,
    'tokens': jnp.take_along_axis(tokens, inside, axis=1),
  }


def open_(
  how: episode.Limits, model: Model, n_samples: int, max_new: int,
  routes: bool, params, prompts, valid, key, sampling, stop, ids,
):  # fmt: skip
  """Begins n_samples episodes of every prompt; returns (weights, State,
  arrays for the host).
  """
  turns.require_extend(model)
  weights = model.decode_params(params)
  draw = Draw.make(model, weights, key, ids, sampling, stop)
  hidden, cache = model.prefill(params, prompts, valid, n_samples, max_new, 1)
  used = model.sampled_routes(cache)[1] if routes else None
  cache = model.gapped(cache, max_new)
  play = episode.Play(how, draw, max_new)
  state = episode.begin(play, hidden, cache, (), used)
  state = state.replace(turn=jnp.zeros_like(state.t), column=None)
  return weights, state, _told(how, state)


def go_on(
  how: episode.Limits, model: Model, max_new: int, burst: int, state, weights,
  key, sampling, stop, ids, tokens, n,
):  # fmt: skip
  """Reads replies, then samples up to `burst` tokens of each row whose turn is
  not over.

  Args:
    tokens: i32 [N,O], replies; n: i32 [N], their lengths, NONE without a reply.

  Returns:
    (State, arrays for the host).
  """
  draw = Draw.make(model, weights, key, ids, sampling, stop)
  play = episode.Play(how, draw, max_new)
  state = trees.where_due(
    jnp.any(n >= 0), lambda s: _read(play, s, tokens, n), state
  )

  def unfinished(carry):
    i, state = carry
    return (i < burst) & ~jnp.all(state.over)

  def body(carry):
    i, state = carry
    return i + 1, play.token(state)

  _, state = jax.lax.while_loop(unfinished, body, (jnp.int32(0), state))
  return state, _told(how, state)


def _read(play: episode.Play, state: episode.State, tokens, n):
  """Reads replies, and samples the first tokens of the next turns."""
  asked = n >= 0
  state = state.replace(turn=state.turn + asked)
  tokens = jnp.concatenate([state.token[:, None], tokens], axis=1)
  place = jnp.arange(tokens.shape[1])
  t = jnp.where(place <= n[:, None], state.t[:, None] + place, NONE)
  out, there = dict(state.out), t[:, 1:] >= 0
  for name, x in (('tokens', tokens[:, 1:]), ('turn', state.turn[:, None])):
    x = jnp.broadcast_to(x, there.shape)
    out[name] = episode.written(out[name], x, t[:, 1:], there)
  state, hidden = play.passed(state.replace(out=out), tokens, t)
  begin, others = jnp.max(t, axis=1) + 1, state.over
  state = state.replace(
    begin=jnp.where(asked, begin, state.begin),
    seen=jnp.where(asked, 0, state.seen),
    over=~asked,
  )
  state = play.drawn(state, hidden, begin)
  return state.replace(over=jnp.where(asked, state.over, others))


def close(
  how, model, n_samples: int, max_new: int, state, weights, key, sampling,
  stop, ids, said: Episode, version,
) -> Rollout:  # fmt: skip
  """Returns the Rollout of finished episodes."""
  draw = Draw.make(model, weights, key, ids, sampling, stop)
  play = episode.Play(how, draw, max_new)
  state = state.replace(episode=said)
  return turns.rollout(play, state, n_samples, version)


# --- the host ------------------------------------------------------------


class Player:
  """Plays episodes with an environment in a pool of processes."""

  def __init__(
    self,
    how: episode.Limits,
    model: Model,
    *,
    n_samples: int,
    max_new: int,
    pool: Any,
    write: Writer,
    decode: Callable[[Sequence[int]], str],
    burst: int,
    routes: bool = False,
    mesh: jax.sharding.Mesh | None = None,
  ):
    """Args:
    mesh: of the rows; None: all rows are of this process.
    pool: with `submit(cases) -> future` of `tools.base.Reply`s or Verdicts.
    decode: ids of a turn -> the text that the environment reads.
    burst: tokens sampled before the host polls for replies.
    """
    self.how, self.max_new = how, max_new
    self._pool, self._write, self._decode = pool, write, decode
    self._mesh = mesh
    self._open = jax.jit(
      functools.partial(open_, how, model, n_samples, max_new, routes)
    )
    self._go_on = jax.jit(
      functools.partial(go_on, how, model, max_new, burst), donate_argnums=0
    )
    self._close = jax.jit(
      functools.partial(close, how, model, n_samples, max_new)
    )
    self._spent = collections.Counter()

  def __call__(
    self, params, tokens, valid, examples: Sequence[dict], key, sampling, stop,
    ids, version=0,
  ) -> Rollout:  # fmt: skip
    """Plays n_samples episodes of every prompt.

    Args:
      tokens, valid: of prompts [B,P]; examples: the problems of this process's
        prompts.
      ids: int [N] or [N,k], names of rows, for the noise.
      version: i32 [], of the weights.
    """
    given, n = (key, sampling, stop, ids), len(ids)
    weights, state, told = self._open(params, tokens, valid, *given)
    rows, own = self._rows(examples, n)
    told = self._seen(told, n)
    said = _Said(n, self.how.most)
    asked, waits = self._ask(rows, told, own), False
    while True:
      answers = self._answered(asked, waits)
      found = self._heard_of(answers, rows, told, said)
      more, running, replies = self._exchanged(asked, told, found)
      waits = not (running or replies)
      if waits and not more:
        break
      if waits:
        continue
      was, replies = told['over'], self._as_arrays(replies, n)
      state, told = self._go_on(state, weights, *given, *replies)
      told = self._seen(told, n)
      live = (replies[1] >= 0) | ~was
      new = own[(live & told['over'])[own]]
      asked |= self._ask(rows, told, new)
    said = hosts.all_rows(own, trees.take(said.episode(), own))
    return self._close(state, weights, *given, said, version)

  def _rows(self, examples: Sequence[dict], n: int):
    """Returns (the rows that this process plays, their positions). The first
    process that has a row plays it.
    """
    mine = self._mine(n).tolist()
    earlier = hosts.gather(mine)[: jax.process_index()]
    known = {row for rows in earlier for row in rows}
    found = {
      row: _Row(examples[i * len(examples) // len(mine)])
      for i, row in enumerate(mine)
      if row not in known
    }
    return found, np.array(list(found), int)

  def _mine(self, n: int) -> np.ndarray:
    """Returns the positions of this process's rows among N."""
    if self._mesh is None:
      return np.arange(n)
    return sharding.my_rows(self._mesh, n)

  def _exchanged(self, asked: dict, told, found: dict[int, list[int]]):
    """Exchanges replies, {row: tokens}, with all processes: (whether one of
    them waits for a reply, whether a row is decoded, all replies).
    """
    mine = bool(asked), not bool(told['over'].all()), list(found.items())
    more, running, replies = zip(*hosts.gather(mine))
    joined = {row: ids for part in replies for row, ids in part}
    return any(more), any(running), joined

  def take_spent(self) -> dict[str, float]:
    """Returns and resets the seconds in which the host waited for the
    device, and those in which every row waited for a reply.
    """
    spent, self._spent = self._spent, collections.Counter()
    return {k: spent[k] for k in ('turns_decode_s', 'tools_wait_s')}

  def _seen(self, told, n: int) -> dict[str, np.ndarray]:
    """Returns the arrays of rows [N]. Rows of other processes are over."""
    since = time.monotonic()
    if jax.process_count() == 1:
      seen = jax.device_get(told)  # all copies at once
    else:
      mine = self._mine(n)
      seen = {name: np.ones(x.shape, x.dtype) for name, x in told.items()}
      for name, x in told.items():
        seen[name][mine] = sharding.to_local(x, self._mesh)
    self._spent['turns_decode_s'] += time.monotonic() - since
    return seen

  def _ask(self, rows, told, new) -> dict:
    """Submits turns that are over to the pool: {future: row}."""
    asked = {}
    for i in new:
      if told['over'][i]:
        text = self._decode(told['tokens'][i][: told['n'][i]].tolist())
        case = {'example': rows[i].example, 'state': rows[i].state}
        asked[self._pool.submit([(text, case)])] = int(i)
    return asked

  def _answered(self, asked: dict, wait: bool) -> dict[int, Any]:
    """Removes finished futures from `asked` and returns their replies; with
    `wait`, at least one if there is one process.
    """
    since = time.monotonic()
    if wait and asked:
      when = concurrent.futures.FIRST_COMPLETED
      most = None if jax.process_count() == 1 else POLL_S
      concurrent.futures.wait(asked, most, return_when=when)
      self._spent['tools_wait_s'] += time.monotonic() - since
    ready = [future for future in asked if future.done()]
    return {asked.pop(future): future.result()[0] for future in ready}

  def _heard_of(self, answers: dict, rows, told, said: '_Said'):
    """Returns the tokens of replies to read, {row: ids}."""
    heard = {
      i: self._heard(rows[i], i, reply, told, said)
      for i, reply in answers.items()
    }
    return {i: ids for i, ids in heard.items() if ids is not None}

  def _as_arrays(self, replies: dict[int, list[int]], n: int):
    """Returns (tokens i32 [N,O], lengths i32 [N]) of replies."""
    tokens = np.zeros((n, self.how.observation), np.int32)
    lengths = np.full(n, NONE, np.int32)
    for i, ids in replies.items():
      tokens[i, : len(ids)], lengths[i] = ids, len(ids)
    return tokens, lengths

  def _heard(self, row: _Row, i: int, reply, told, said) -> list[int] | None:
    """Records the reply to a row's turn; returns its tokens if the row
    continues.
    """
    text, done, reward, events = _content(reply)
    if reply.valid:
      row.state = reply.state
    ids, cut = self._write(text)
    last = row.turn + 1 == self.how.most
    fits = told['t'][i] + len(ids) + 1 < self.max_new  # and one token to sample
    ended = bool(told['ended'][i])
    events |= {
      'long': not ended,
      'cut': cut and not (done or last) and fits,
      'too_many': not done and last,
      'no_room': not (done or last or fits),
    }
    said.note(i, row.turn, self.how.weight * reward, done and ended, events)
    row.turn += 1
    return None if done or last or not fits else ids


def _content(reply) -> tuple[str, bool, float, dict[str, bool]]:
  """Returns (text, done, reward, events) of a reply."""
  if not reply.valid:
    kind = 'timeout' if reply.status == 'timeout' else 'failed'
    return FAILED[kind], False, 0.0, {kind: True}
  events = {reply.event: True} if reply.event else {}
  done = reply.observation is None
  return reply.observation or '', done, reply.score, events


class _Said:
  """The environment's rewards and events of N rows, S turns at most."""

  def __init__(self, n: int, most: int):
    self._reward = np.full((n, most), np.nan, np.float32)
    self._done = np.zeros(n, bool)
    self._events = {name: np.zeros(n, np.int32) for name in EVENTS}

  def note(self, i: int, turn: int, reward: float, done: bool, events: dict):
    self._reward[i, turn], self._done[i] = reward, done
    for name, happened in events.items():
      self._events[name][i] += happened

  def episode(self) -> Episode:
    return Episode(self._reward, self._done, self._events)
