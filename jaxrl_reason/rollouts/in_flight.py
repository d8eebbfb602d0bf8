"""The source whose groups stay in flight from step to step: unfinished
completions continue under the next weights (PipelineRL,
https://arxiv.org/abs/2509.19128; partial rollouts of Kimi k1.5,
https://arxiv.org/abs/2501.12599).

a step: prefill the new prompts -> decode until as many groups have finished ->
verify and train on these groups; all others stay in their places

No step waits for the longest completion of its prompts, so hardly a slot is
idle. M = (batches - 1) B + b groups are in flight while a step decodes, and b
of them are replaced at a time: a step has B / b pieces.

Everything is in `TrainState.control`: slots, caches, tokens so far, and the
version of the weights that sampled each token. `cache` says what a row that
continues in a later step reads:

  kept        the keys and values so far, also those of earlier weights
  recomputed  keys and values of its tokens by the weights of each step, so
              every token is sampled from the distribution of one version

Groups are numbered in the order in which they begin. The noise of a token
depends on (step in which its group began, row, position) only, so with constant
weights the completions are those of plain steps.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Metrics, Prompts, Trajectories
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import cache as cache_lib
from jaxrl_reason.rollouts import group_arrays, sampler
from jaxrl_reason.rollouts.draw import NONE, Draw
from jaxrl_reason.rollouts.fused import FusedSource, key_of
from jaxrl_reason.rollouts.slots import Slots

NAME = 'in_flight'
KEPT, RECOMPUTED = CACHES = 'kept', 'recomputed'
# Tokens of a row that are recomputed at a time.
CHUNK = 32


@struct.dataclass
class Flight:
  """M groups in flight, G samples each, decoded in I slots each."""

  begun: jax.Array  # i32 [], groups that have begun
  number: jax.Array  # i32 [M], of the group in a place
  free: jax.Array  # i32 [b], places of the groups that were trained on last
  prompts: Prompts  # [M,...]
  slots: Slots  # M*I slots, M*G rows


def _finished(slots: Slots) -> jax.Array:
  m, n_slots = slots.row.shape
  n_rows = slots.out['tokens'].shape[0] // m
  over = slots.over.reshape(m, n_slots).all(axis=1)
  return over & (slots.taken >= n_rows)


def _metrics(found: Trajectories, spent, flight: Flight, step) -> Metrics:
  """Summarises a step.

  Args:
    spent: (steps of decoding, slots with a row in them) by piece.
  """
  columns, busy = (x.sum() for x in spent)
  rollout, n = found.rollout, flight.slots.token.size
  lag = jnp.where(rollout.sampled, step - rollout.version, 0)
  return {
    'in_flight/columns': columns,
    'in_flight/idle': 1 - busy / jnp.maximum(columns * n, 1),
    'in_flight/lag_max': lag.max(),
  }


@dataclasses.dataclass(frozen=True, eq=False)
class InFlightSource:
  """Generates as `FusedSource`, without waiting for the groups of its step.

  The first batches - 1 steps only begin groups, and return no valid row.

  Attributes:
    source: generation settings and rewards.
    batches: of groups in flight.
    pieces: of a step.
    max_staleness: largest number of steps from the first tokens of a group to
      its update: a step waits for groups that would become older. 0: no limit.
    cache: of continued rows, a name in CACHES.
  """

  source: FusedSource
  batches: int
  pieces: int = 1
  max_staleness: int = 0
  cache: str = KEPT

  def memory(self, params, prompts: Prompts) -> Flight:
    """Returns the memory before the first step: no group in flight.

    Args:
      params: weights; prompts: [B,...], of a step. Shapes suffice.

    Raises:
      ValueError: the model cannot replace prompts in its cache, or cannot
        compute tokens of a cache again.
    """
    if self.source.gen.model.renew is None:
      raise ValueError('groups in flight need a model with Model.renew')
    model = self.source.gen.model
    if self.cache == RECOMPUTED and None in (model.extend, model.gapped):
      raise ValueError(
        'recomputed caches need a model with Model.extend and Model.gapped; '
        "set rl.in_flight.cache='kept'"
      )
    b = prompts.tokens.shape[0] // self.pieces
    m = (self.batches - 1) * prompts.tokens.shape[0] + b

    def of_places(x):
      return jnp.resize(x, (m, *x.shape[1:]))

    def begin(params, prompts):
      key, number = jax.random.key(0), jnp.arange(m)
      prompts = jax.tree.map(
        lambda x: jnp.resize(x, (m, *x.shape[1:])), prompts
      )
      stop = jnp.zeros(1, jnp.int32)
      noise = self._noise(key, jnp.int32(0), number, m)
      draw = self._draw(params, Sampling.fixed(), stop, noise, jnp.int32(0))
      return prompts, self._begin(params, draw, prompts)

    shapes = jax.eval_shape(begin, params, prompts)
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    none = jnp.zeros(m, jnp.int32)
    return Flight(jnp.int32(0), none, none[:b], *empty)

  def __call__(
    self, params, control: dict, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Returns the trajectories of the groups that a step trains on.

    Args:
      prompts: of the groups that begin; others as of `FusedSource`.
    """
    flight, gen = control[NAME], self.source.gen
    n = flight.begun // prompts.tokens.shape[0]
    is_on = n >= self.batches - 1
    weights = gen.model.decode_params(params)
    draw = functools.partial(self._draw, weights, sampling, stop, version=step)

    def noise(number):
      return self._noise(root, step - n, number, prompts.tokens.shape[0])

    metrics = {}
    if self.cache == RECOMPUTED:
      flight, metrics = self._recomputed(params, weights, flight)

    def piece(flight, given):
      rest, asked = given
      flight = self._admit(params, flight, asked, draw, noise)
      flight, spent = self._decode(flight, draw, noise, (n, rest, is_on))
      flight, done = self._take(flight, is_on)
      return flight, (done, spent)

    rest = jnp.arange(self.pieces)[::-1] * len(flight.free)
    given = rest, batch_lib.split(prompts, self.pieces)
    flight, (done, spent) = jax.lax.scan(piece, flight, given)
    asked, out = batch_lib.join(done)
    out = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out)
    every = draw(noise(jnp.arange(len(prompts.tokens))))
    slots = flight.slots.replace(out=out)
    rollout = sampler.to_rollout(every, slots, gen.n_samples, out['version'])
    rollout = rollout.replace(truncated=rollout.truncated & is_on)
    noises = root, step, 'views'
    reward = self.source.judged(params, control, asked, rollout, noises)
    reward = reward.replace(valid=reward.valid & is_on)
    found = Trajectories(asked, rollout, reward)
    account = group_arrays.account(found).replace(
      control={NAME: flight},
      metrics=metrics | _metrics(found, spent, flight, step),
    )
    return found.replace(account=account)

  def _noise(self, root, first, number, b: int) -> jax.Array:
    """Returns the keys [n*G] of groups with numbers [n].

    Args:
      first: i32 [], the step that began the groups 0 to B - 1; b: B.
    """
    g = self.source.gen.n_samples

    def of_group(i):
      key = key_of(root, first + i // b, 'sampling')
      # A piece has every `pieces`-th group of its step (`batch.split`).
      piece, place = jnp.divmod(i % b, b // self.pieces)
      row = (place * self.pieces + piece) * g
      return trees.row_keys(key, row + jnp.arange(g))

    return jax.vmap(of_group)(number).reshape(-1)

  def _draw(self, weights, sampling, stop, keys, version) -> Draw:
    temperature = jnp.broadcast_to(sampling.temperature, keys.shape)
    sampling = sampling.replace(temperature=temperature)
    model = self.source.gen.model
    return Draw(model, weights, sampling, keys, stop, version=version)

  def _begin(self, params, draw: Draw, prompts: Prompts) -> Slots:
    """Prefills prompts [n,P] and samples the first tokens of all their rows."""
    gen, asked = self.source.gen, (prompts.tokens, prompts.valid)
    n, g, c = len(prompts.tokens), gen.n_samples, gen.max_new
    n_slots = min(gen.slots or g, g)
    hidden, cache = gen.model.prefill(params, *asked, n_slots, c, c)
    slots = sampler.begin(draw, hidden, cache, None, asked, (n, g, c))
    return sampler.shared(slots, n, n_slots)

  def _recomputed(
    self, params, weights, flight: Flight
  ) -> tuple[Flight, Metrics]:
    """Computes the caches of all groups with the weights of the step, b groups
    at a time.
    """
    slots, b = flight.slots, len(flight.free)
    m, n_slots = slots.row.shape
    tokens = slots.out['tokens'].reshape(m, -1, self.source.gen.max_new)
    tokens = jnp.take_along_axis(tokens, slots.row[..., None], axis=1)
    t = jnp.where(slots.over, 0, slots.t).reshape(m, n_slots)

    def of_places(cache, at):
      asked, own, n = group_arrays.taken((flight.prompts, tokens, t), at)
      own, n = own.reshape(-1, own.shape[-1]), n.reshape(-1)
      new = self._computed(params, weights, asked, own, n)
      renew = self.source.gen.model.renew
      return renew(cache, new, at, n, slots.step), None

    places = jnp.arange(m).reshape(b, -1).T  # b of all devices
    cache, _ = jax.lax.scan(of_places, slots.cache, places)
    n = flight.prompts.valid.sum() + t.sum()
    flight = flight.replace(slots=slots.replace(cache=cache))
    return flight, {'in_flight/recomputed': n}

  def _computed(self, params, weights, asked: Prompts, tokens, t):
    """Computes the gapped cache of prompts [b,P] and of the first t int [b*I]
    tokens [b*I,C] of their rows.
    """
    gen, (n, c) = self.source.gen, tokens.shape
    n_slots, width = n // len(asked.tokens), min(CHUNK, c)
    given = asked.tokens, asked.valid, n_slots, c, c
    _, cache = gen.model.prefill(params, *given)
    chunks = -(-c // width)
    room = chunks * width
    cache = gen.model.gapped(cache, room)
    tokens = jnp.pad(jnp.maximum(tokens, 0), ((0, 0), (0, room - c)))

    def body(state):
      start, cache = state
      own = jax.lax.dynamic_slice_in_dim(tokens, start, width, axis=1)
      at = start + jnp.arange(width)
      at = jnp.where(at < t[:, None], at, NONE)
      *_, cache = gen.model.extend(weights, own, cache, at, start)
      return start + width, cache

    longest = trees.shared_max(t)
    with trees.at_most('recomputed', chunks):
      _, cache = jax.lax.while_loop(
        lambda state: state[0] < longest, body, (jnp.int32(0), cache)
      )
    return cache

  def _admit(self, params, flight: Flight, asked: Prompts, draw, noise):
    """Puts new groups into the free places."""
    m, b = len(flight.number), len(flight.free)
    number = flight.begun + jnp.arange(b)
    at = jnp.where(flight.begun < m, number, flight.free)
    fresh = self._begin(params, draw(noise(number)), asked)
    old, renew = flight.slots, self.source.gen.model.renew
    # The counter of steps, by which all slots choose their column, goes on.
    counted = fresh.replace(cache=None, step=None)
    without = old.replace(cache=None, step=None)
    slots = cache_lib.put_places(without, counted, at, m)
    cache = renew(old.cache, fresh.cache, at)
    return Flight(
      begun=flight.begun + b,
      number=flight.number.at[at].set(number),
      free=at,
      prompts=cache_lib.put_places(flight.prompts, asked, at, m),
      slots=slots.replace(cache=cache, step=old.step),
    )

  def _decode(self, flight: Flight, draw, noise, when):
    """Decodes until enough groups have finished.

    Args:
      when: (steps before this one, groups that later pieces of the step
        train on, whether the step trains).

    Returns:
      (flight, (steps of decoding, slots that had a row in them)).
    """
    (n, rest, is_on), gen = when, self.source.gen
    draw = draw(noise(flight.number))
    sizes = gen.max_new, 1, gen.n_samples, gen.slots
    most = sampler.trips(*sizes)[-1][1]

    def unfinished(state):
      slots, _ = state
      return is_on & ~self._is_enough(flight, _finished(slots), n, rest)

    def body(state):
      slots, busy = state
      return sampler.advance(draw, None, slots), busy + (~slots.over).sum()

    state = flight.slots, jnp.int32(0)
    with trees.at_most('tokens', most):
      slots, busy = jax.lax.while_loop(unfinished, body, state)
    spent = slots.step - flight.slots.step, busy
    return flight.replace(slots=slots), spent

  def _is_enough(self, flight: Flight, done, n, rest) -> jax.Array:
    """Returns whether a piece can train on b of the groups `done`, bool [M], so
    that no group becomes too old, even if later steps begin B groups each.
    """
    b, k = len(flight.free), self.max_staleness
    enough = done.sum() >= b
    if not k:
      return enough
    # For each of the next steps: groups that must be trained on by its end,
    # minus those that the remaining pieces and steps can train on.
    ahead, size = jnp.arange(k + 1), b * self.pieces
    due = flight.number // size <= n + ahead[:, None] - k  # [k+1,M]
    need = due.sum(axis=1) - size * ahead - rest
    return enough & jnp.all((due & done).sum(axis=1) >= need)

  def _take(self, flight: Flight, is_on) -> tuple[Flight, tuple]:
    """Removes the b oldest finished groups: (flight, (prompts, arrays))."""
    m, b = len(flight.number), len(flight.free)
    done = _finished(flight.slots)
    last = jnp.iinfo(jnp.int32).max
    at = jnp.argsort(jnp.where(done, flight.number, last))[:b]
    rows = {
      k: sharding.rows(x.reshape(m, -1, *x.shape[1:])[at])
      for k, x in flight.slots.out.items()
    }
    rows['tokens'] = jnp.where(is_on, rows['tokens'], NONE)
    asked = group_arrays.taken(flight.prompts, at)
    free = jnp.where(is_on, at, flight.free)
    return flight.replace(free=free), (asked, rows)
