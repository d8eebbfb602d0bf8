"""Samples episodes that share their beginnings: the rows of a prompt are the
leaves of a tree that forks before turns.

  at turns     all rows fork before the turns of given numbers
  by entropy   rows are played to their ends, and each forks before the k turns
               whose first tokens had the highest entropies. So a fork is after
               the reply of a tool where the policy is least sure, as in ARPO
               (https://arxiv.org/abs/2507.19849)

The children of a fork share the tokens before it, observations included, and
each begins with a copy of the environment's state. So in an environment with
chance, the same turns of two children have the same outcome.

The noise is that of `rollouts.tree`. So the first leaf of a fork is the episode
that is played without forks.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import sharding
from jaxrl_reason.base import Model
from jaxrl_reason.rollouts import tree as tree_lib
from jaxrl_reason.rollouts.draw import Draw
from jaxrl_reason.rollouts.episode import Play, State


def _fork(model: Model, state: State, at: jax.Array, n: int) -> State:
  """Replaces every row by n children that share its tokens before index `at`,
  int [S,1], or [S,n] for each child, at least 1: of the first token of a turn.
  """
  last = at - 1  # each child decodes the last token in common
  before = 0 if state.shared is None else state.shared[:, None]
  cache = model.fork(state.cache, last - 1 - before, n)
  token = jnp.take_along_axis(state.out['tokens'], last, axis=1)
  same = dict(done=state.done, env=state.env, episode=state.episode)
  copied = jax.tree.map(lambda x: x[:, None], same)
  copied |= dict(t=last, begin=at, token=token, shared=last)
  copied = jax.tree.map(functools.partial(tree_lib.children, n=n), copied)
  zero = jnp.zeros_like(copied['t'])
  return state.replace(
    **copied,
    column=jnp.int32(0),
    seen=zero,
    ended=zero > 0,
    over=copied['done'],
    cache=cache,
    out=tree_lib.begun(state.out, at, n),
  )


def _resumed(play: Play, state: State, turns: int) -> State:
  """Samples the first tokens after a fork; `turns`: played at most from there
  until the next one.
  """
  columns = play.how.columns(turns) + 1  # and the last token in common
  cache = play.draw.model.grow(state.cache, columns)
  return play.token(state.replace(cache=cache))


def _at_turns(how: tree_lib.Tree, every: Draw, play: Play, state: State):
  """Plays to each fork in turn, and then to the end: (state of all rows, the
  nodes of their tokens [S,leaves,C]).
  """
  n, most = len(every.keys), play.how.most
  state, _ = play.until(how.turns[0], state, how.turns[0])
  for fork, end in zip(how.turns, (*how.turns[1:], most)):
    # An episode that is over has copies.
    at = jnp.where(state.done, play.max_new, state.begin)[:, None]
    state = _fork(every.model, state, at, how.width)
    rows = np.arange(0, n, n // len(state.done))
    play = dataclasses.replace(play, draw=tree_lib.of_rows(every, rows))
    state = _resumed(play, state, end - fork)
    state, _ = play.until(end, state, end - fork)
  level = jnp.searchsorted(
    jnp.asarray(how.turns), state.out['turn'] - 1, side='right'
  )
  return state, how.nodes(level.reshape(-1, how.leaves, play.max_new))


def _with_history(play: Play, state: State) -> tuple[State, dict]:
  """Plays to the end; returns also the states of the environment and the
  counted events before each turn, [N,most,...].
  """
  most = play.how.most

  def of_turn(state: State) -> dict:
    return {'env': state.env, 'events': state.episode.events}

  def blank(x):
    return sharding.rows(jnp.zeros((len(x), most, *x.shape[1:]), x.dtype))

  def save(saved: dict, state: State) -> dict:
    return jax.tree.map(
      lambda all_, x: all_.at[:, state.turn].set(x), saved, of_turn(state)
    )

  blanks = jax.tree.map(blank, of_turn(state))
  return play.until(most, state, most, blanks, save)


def forks_of(
  turn: jax.Array, sampled: jax.Array, entropy: jax.Array, forks: int = 1
) -> jax.Array:
  """Returns the indices of the first tokens of turns with the highest
  entropies, int [S,forks]; 0: the episode has one turn (see `highest`).

  Args:
    turn: int [S,C], as of a Rollout; sampled: bool [S,C]; entropy: f32 [S,C].
  """
  # A turn's number changes at its first token: a reply has that of its call.
  begins = (turn != jnp.roll(turn, 1, axis=1)) & sampled
  return tree_lib.highest(entropy, begins & (turn > 1), forks)


def _branched(model: Model, whole: State, saved: dict, at) -> State:
  """Returns the states of n children of each row that was played to its end, as
  they were before token `at`, int [S,n], the first of a turn.

  Args:
    saved: of `_with_history`.
  """
  of_children = functools.partial(tree_lib.children, n=at.shape[1])
  turn = jnp.take_along_axis(whole.out['turn'], at, axis=1) - 1
  then = jax.tree.map(lambda x: x[jnp.arange(len(at))[:, None], turn], saved)
  turn, then = jax.tree.map(of_children, (turn, then))
  state = _fork(model, whole, at, at.shape[1])
  episode = state.episode
  there = jnp.arange(episode.reward.shape[1]) < turn[:, None]
  episode = episode.replace(
    reward=jnp.where(there, episode.reward, jnp.nan),
    done=episode.done & state.done,
    events=then['events'],
  )
  return state.replace(turn=turn, env=then['env'], episode=episode)


def _by_entropy(how: tree_lib.Tree, every: Draw, play: Play, state: State):
  """Plays rows to their ends, and then the other children of their forks:
  (state of all rows, the nodes of their tokens [S,leaves,C]).
  """
  whole, saved = _with_history(play, state)
  given = (whole.out[name] for name in ('turn', 'sampled', 'entropy'))
  at = forks_of(*given, how.forks)
  alone = at[:, 0] == 0
  begun = whole.replace(done=alone), saved, how.of_others(at)
  state = _branched(every.model, *begun)
  _, others = how.rows(len(every.keys))
  play = dataclasses.replace(play, draw=tree_lib.of_rows(every, others))
  most = play.how.most
  state = _resumed(play, state, most - 1)
  state, _ = play.until(most, state, most - 1)
  first, rest = ((x.out, x.env, x.episode) for x in (whole, state))
  out, env, episode = tree_lib.joined(first, rest, alone)
  state = state.replace(out=out, env=env, episode=episode)
  return state, how.nodes_of_forks(at, play.max_new)


def play_all(
  how: tree_lib.Tree, every: Draw, play: Play, state: State
) -> tuple[State, jax.Array]:
  """Plays the episodes of all leaves.

  Args:
    how: the forks.
    every: the Draw of all N rows.
    play, state: of the first leaves, [N/leaves].

  Returns:
    (the state of all rows, the nodes of their tokens for `Tree.numbered`).
  """
  sample = _at_turns if how.turns else _by_entropy
  return sample(how, every, play, state)
