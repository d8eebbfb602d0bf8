"""Samples completions: prompts [B,P] -> Rollout of N = B*G completions [N,C].

prefill each prompt once, sample every row's first token -> while a slot has a
row: decode one step, sample a token per slot, and assign the next row of the
prompt to each slot whose row has ended. Everything is one compiled program:
static shapes, traced settings and stop tokens, early exit when all rows have
ended.

Slots. I of a prompt's G rows are decoded at a time (by default all), in the
slots [B,I] of the prompt. A slot always belongs to the same prompt, and all its
slots read the prompt's keys in place. Nothing is copied or gathered when a row
begins, and no row leaves its device. The cache has the size of B*I rows, not N.

Segments. The cache grows in segments, each with its own loop, so a step reads
few unused columns (`models.cache`). A cache that grows by factors grows only if
a row has not ended, so short completions do not pay for a large limit.

The noise of a token depends only on (key of the step, row id, position). It is
the same after a resume, and for any sharding, slots or split of a batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, Params, Rollout
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rollouts.draw import BLANK, NONE, Draw
from jaxrl_reason.rollouts.forcing import Forcing
from jaxrl_reason.rollouts.hidden_states import HIDDEN, HiddenStates
from jaxrl_reason.rollouts.slots import Slots, rows_of, write


def _tell(on_token: Callable, t, token, over) -> None:
  token = jnp.where(over, 0, token)
  jax.experimental.io_callback(on_token, None, t, token, over, ordered=True)


def _step(draw: Draw, on_token: Callable | None, slots: Slots) -> Slots:
  """Decodes the slots' tokens and samples the next tokens."""
  hidden, cache, states = _decoded(draw, slots)
  step, t = slots.step + 1, slots.t + 1
  given = hidden, rows_of(slots), t, slots.past, slots.over
  new, past, ends = draw.next(*given)
  token = new['tokens']
  if on_token is not None:
    _tell(on_token, t, token, slots.over)
  out = dict(slots.out)
  if 'routes' in out:
    used = draw.model.sampled_routes(cache)[1]
    out['routes'] = write(out['routes'], used, slots, slots.t)
  for name, x in new.items():
    x = jnp.where(slots.over, BLANK.get(name, 0), x)
    out[name] = write(out[name], x, slots, t)
  full = t + 1 == out['tokens'].shape[1]
  over = slots.over | ends | full
  new = dict(cache=cache, out=out, past=past, states=states)
  return slots.replace(step=step, t=t, token=token, over=over, **new)


def _decoded(draw: Draw, slots: Slots) -> tuple:
  """Decodes the slots' tokens: (hidden [S,D], cache, `Slots.states`)."""
  own = slots.t if slots.shared is None else slots.t - slots.shared
  given = slots.token, slots.cache, own, slots.step
  if slots.states is None:
    return *draw.model.decode(draw.weights, *given), None
  layers = draw.states.layers
  *new, each = draw.model.decode_after(draw.weights, layers, *given)
  token = jax.lax.dynamic_index_in_dim(slots.out['tokens'], slots.t, 1, False)
  return *new, draw.states.with_token(slots.states, each, token != NONE)


def _refill(draw: Draw, slots: Slots) -> Slots:
  """Assigns the next rows of their prompt to the slots that are over.

  The first tokens of all rows were sampled in `begin`.
  """
  b, n_slots = slots.row.shape
  first = slots.out['tokens'][:, 0].reshape(b, -1)  # [B,G]
  over = slots.over.reshape(b, n_slots)
  row = slots.taken[:, None] + jnp.cumsum(over, axis=1) - 1
  begins = over & (row < first.shape[1])
  row = jnp.where(begins, row, slots.row)
  token = jnp.take_along_axis(first, row, axis=1).reshape(-1)
  begins = begins.reshape(-1)
  single = slots.out['tokens'].shape[1] == 1
  return slots.replace(
    row=row,
    t=jnp.where(begins, 0, slots.t),
    token=jnp.where(begins, token, slots.token),
    over=jnp.where(begins, draw.ends(token) | single, slots.over),
    taken=slots.taken + begins.reshape(b, -1).sum(axis=1),
    past=draw.restarted(slots.past, token, begins),
  )


def loop(
  draw: Draw, on_token: Callable | None, most: int, slots: Slots
) -> Slots:
  """Steps until all rows have ended, or as many as `most`."""
  last = slots.step + most
  body = functools.partial(advance, draw, on_token)
  with trees.at_most('tokens', most):
    return jax.lax.while_loop(
      lambda slots: (slots.step < last) & unfinished(slots), body, slots
    )


def unfinished(slots: Slots) -> jax.Array:
  """Returns whether a row has not ended, or has no slot yet: bool []."""
  # One condition for runs side by side: with a condition per run, each run
  # would copy its caches at every token and write them by scatters.
  left = trees.shared_max(~slots.over)
  if slots.row is not None:
    g = slots.out['tokens'].shape[0] // slots.row.shape[0]
    left |= trees.shared_max(slots.taken < g)
  return left


def if_unfinished(draw: Draw, on_token: Callable | None, loops, slots: Slots):
  """Runs loops of `trips`, each only if a row has not ended before it.

  A larger cache is allocated and filled within the condition, so its cost does
  not reach batches of short completions.

  Returns:
    Slots without a cache: its size depends on the last loop that ran.
  """
  (columns, most), *rest = loops

  def run(slots):
    cache = draw.model.grow(slots.cache, columns)
    slots = loop(draw, on_token, most, slots.replace(cache=cache))
    return if_unfinished(draw, on_token, rest, slots) if rest else ended(slots)

  def ended(slots):
    return slots.replace(cache=None)

  return jax.lax.cond(unfinished(slots), run, ended, slots)


def advance(draw: Draw, on_token: Callable | None, slots: Slots) -> Slots:
  """Samples a token of every slot, and assigns rows to slots that are over."""
  slots = _step(draw, on_token, slots)
  return slots if slots.row is None else _refill(draw, slots)


def trips(max_new: int, segments: int, n_samples: int, slots: int = 0):
  """Returns [(columns, steps at most)] of the loops over tokens, one after
  another.

  The last loop ends when all rows have ended: I slots need at most the steps of
  G / I rows each, plus one row.
  """
  rooms = cache_lib.rooms(max_new, segments)
  steps = [b - a for a, b in zip((0, *rooms), rooms)]
  if 0 < slots < n_samples:
    steps[-1] = max_new * (-(-n_samples // slots) + 1)
  return list(zip(rooms, steps))


def begin(draw: Draw, hidden, cache, routes, prompts, shape) -> Slots:
  """Samples the first token of all rows; returns a slot for every row.

  Args:
    hidden: [B,D], of the prompts' last tokens.
    prompts: (tokens, valid) [B,P].
    routes: int [S,L,k], experts used in a step, or None.
    shape: (B, G, C).
  """
  b, g, c = shape
  hidden = sharding.rows(jnp.repeat(hidden, g, axis=0))
  past, none = draw.begin(hidden, *prompts), jnp.zeros(b * g, bool)
  first, past, ends = draw.next(hidden, trees.identity, 0, past, none)
  out = {}
  for k, x in first.items():
    blank = jnp.full((b * g, c), BLANK.get(k, 0), x.dtype)
    out[k] = sharding.rows(blank.at[:, 0].set(x))
  if routes is not None:
    out['routes'] = sharding.rows(
      jnp.full((b * g, c, *routes.shape[1:]), moe.UNKNOWN, routes.dtype)
    )
  token, zero = first['tokens'], jnp.int32(0)
  return Slots(zero, zero, token, ends | (c == 1), cache, out, past)


def shared(slots: Slots, b: int, n_slots: int) -> Slots:
  """Returns slots for a part of the rows: the first rows of each prompt."""

  def first(x):
    some = x.reshape(b, -1, *x.shape[1:])[:, :n_slots]
    return some.reshape(-1, *x.shape[1:])

  return slots.replace(
    t=jnp.zeros(b * n_slots, jnp.int32),
    token=first(slots.token),
    over=first(slots.over),
    past=jax.tree.map(first, slots.past),
    row=jnp.broadcast_to(jnp.arange(n_slots), (b, n_slots)),
    taken=jnp.full(b, n_slots),
  )


def nodes(there: jax.Array, n_samples: int) -> jax.Array:
  """Assigns a node to each sample [N,C]; samples share no tokens."""
  sample = jnp.arange(there.shape[0]) % n_samples + 1
  return jnp.where(there, sample[:, None], 0)


def routes_of_rows(prompt: jax.Array, own: jax.Array) -> jax.Array:
  """Concatenates the experts used of prompts [B,P,...] and of their completions
  [N,C,...].
  """
  repeated = jnp.repeat(prompt, own.shape[0] // prompt.shape[0], axis=0)
  return jnp.concatenate([repeated, own], axis=1)


def to_rollout(draw: Draw, slots: Slots, g: int, version: jax.Array) -> Rollout:
  """Returns the Rollout of the slots: one turn, no token shared.

  Args:
    draw: of all N rows; version: i32 [] or [N,C], of the weights.
  """
  drawn, routes = slots.out['tokens'] != NONE, slots.out.get('routes')
  ended = jnp.any(draw.ends(slots.out['tokens']), axis=1)
  if (follow := draw.sampling.automaton) is not None:
    ended |= follow.ended[slots.past.seen.state]
  if routes is not None:
    of_prompts = draw.model.sampled_routes(slots.cache)[0]
    routes = routes_of_rows(of_prompts, routes)
  return Rollout(
    tokens=jnp.where(drawn, slots.out['tokens'], 0),
    sampled=drawn,
    length=drawn.sum(axis=1),
    logp=slots.out['logp'],
    policy_logp=slots.out.get('policy_logp'),
    entropy=slots.out.get('entropy'),
    truncated=~ended,
    temperature=draw.sampling.temperature,
    version=jnp.where(drawn, version, 0),
    turn=drawn.astype(jnp.int32),
    node=nodes(drawn, g),
    routes=routes,
    views=draw.states and {HIDDEN: draw.states.ended(slots.states, drawn)},
  )


def _refuse_few(n_slots: int, n_samples: int, **parts: Any) -> None:
  """Refuses parts that need a slot for every row; None: not used."""
  if name := next((name for name, x in parts.items() if x is not None), ''):
    raise ValueError(
      f'{name} needs a slot for every row, not {n_slots} of {n_samples}'
    )


def _decoded_to_end(
  draw: Draw, on_token: Callable | None, loops, always: bool, slots: Slots
) -> Slots:
  """Runs loops of `trips`. The first loop has its cache.

  Args:
    always: run all loops; False: `if_unfinished`.
  """
  (_, most), *rest = loops
  slots = loop(draw, on_token, most, slots)
  if not always and rest:
    last = if_unfinished(draw, on_token, rest, slots)
    # Of the cache, only the routes of prompts are read, and loops keep them.
    return last.replace(cache=slots.cache)
  for columns, most in rest:
    cache = draw.model.grow(slots.cache, columns)
    slots = loop(draw, on_token, most, slots.replace(cache=cache))
  return slots


def generate(
  model: Model,
  params: Params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling: logits_lib.Sampling,
  stop: jax.Array,
  *,
  n_samples: int,
  max_new: int,
  row_ids: jax.Array | None = None,
  slots: int = 0,
  segments: int = 0,
  policy_logp: bool = False,
  entropy: bool = False,
  routes: bool = False,
  version: jax.Array | int = 0,
  on_token: Callable | None = None,
  forcing: Forcing | None = None,
  states: HiddenStates | None = None,
) -> Rollout:
  """Samples n_samples completions of every prompt.

  Args:
    model: the policy's functions; params: its weights.
    prompts: int [B,P], left-padded; valid: bool [B,P], true at real tokens.
    key: of this step; fold the step's number into the run's key.
    sampling: settings, temperature [] or [N].
    stop: int [E], the tokens that end a completion (any one; pad with -1).
    n_samples: G; rows of one prompt are adjacent.
    max_new: C, the token limit of a completion.
    row_ids: int [N], the positions of the rows in the whole batch, or [N,k],
      ids of k numbers; None: 0 to N - 1. The noise depends on them.
    slots: I, samples of a prompt that are decoded at a time; 0: all.
    segments: parts in which the cache grows (`cache.rooms`); each compiles
      its own loop.
    policy_logp: also return log-probabilities of the untempered policy.
    entropy: also return the entropies of its distributions before temperature
      and filters, in nats.
    routes: also return the experts used, for `model.hidden_routed`: int
      [N,P+C,L,k]; -1 for tokens that were not decoded. The log-probabilities of
      a row do not depend on the experts of its last token.
    version: i32 [], of the weights, recorded for every token.
    on_token: host function (t, tokens [N], done bool [N]), called in order
      with the t-th tokens while the program runs; `done` marks the rows that
      had ended before. On one device, and only with a slot for every row.
    forcing: forced tokens. Only with a slot for every row, as an automaton of
      `sampling`.
    states: hidden states to return among the views, f32 [N,D]. Only with a slot
      for every row and a number of segments.

  Returns:
    Rollout of B*G rows. The stop token is part of a completion; later tokens
    are 0, with log-probability 0.
  """
  (b, _), g, c = prompts.shape, n_samples, max_new
  n_slots = min(slots or g, g)
  if n_slots < g:
    alone = dict(on_token=on_token, forcing=forcing, states=states)
    _refuse_few(n_slots, g, automaton=sampling.automaton, **alone)
  if states is not None and not segments:
    raise ValueError('hidden states need segments, not 0')
  ids = jnp.arange(b * g) if row_ids is None else row_ids
  told = policy_logp, entropy, forcing, None, None, states
  weights = model.decode_params(params)
  draw = Draw.make(model, weights, key, ids, sampling, stop, *told)
  loops = trips(c, segments, g, n_slots)
  first = loops[0][0]
  hidden, cache = model.prefill(params, prompts, valid, n_slots, c, first)
  used = model.sampled_routes(cache)[1] if routes else None
  state = begin(draw, hidden, cache, used, (prompts, valid), (b, g, c))
  if n_slots < g:
    state = shared(state, b, n_slots)
  if states is not None:
    state = state.replace(states=states.begin(b * g, hidden.shape[-1]))
  if on_token is not None:
    _tell(on_token, state.t, state.token, jnp.zeros_like(state.over))
  state = _decoded_to_end(draw, on_token, loops, segments > 0, state)
  if states is not None:  # the last tokens of the longest rows
    state = state.replace(states=_decoded(draw, state)[-1])
  return to_rollout(draw, state, g, version)
