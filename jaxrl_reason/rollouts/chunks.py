"""Generates in chunks with a carried tail (Delethink), `models.chunk_layout`.

prefill the prompts -> sample up to C tokens -> pass the last m tokens through
the model as the beginning of the next chunk -> sample C - m more

The cache has C columns for any number of chunks: each chunk overwrites the
columns of the one before. All unfinished rows are at the same token index.

The noise of a token depends on (key, row id, index in the completion) only, as
in the sampler, so a completion of a single chunk equals the sampler's.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model, Rollout
from jaxrl_reason.models.chunk_layout import Chunks
from jaxrl_reason.rollouts import sampler, turns
from jaxrl_reason.rollouts.draw import BLANK, NONE, Draw, Past


@struct.dataclass
class State:
  """The generation state of N rows."""

  chunk: jax.Array  # i32 []
  t: jax.Array  # i32 [], index in the chunk of `token`
  token: jax.Array  # i32 [N], sampled, not in the cache yet
  over: jax.Array  # bool [N]
  cache: Any
  out: dict[str, jax.Array]  # [N,C,...], of the whole completion
  past: Past


@dataclasses.dataclass(frozen=True)
class Thinking:
  """The functions of one chunk, bound to their settings."""

  how: Chunks
  draw: Draw
  room: int  # of a completion

  def drawn(self, state: State, hidden: jax.Array, t) -> State:
    """Samples the t-th tokens of the chunk for the rows that have not ended."""
    at = state.chunk * self.how.fresh + t
    given = hidden, trees.identity, at, state.past, state.over
    (new, past, ends), out = self.draw.next(*given), {}
    for name, x in new.items():
      x = jnp.where(state.over, BLANK.get(name, 0), x)
      out[name] = jax.lax.dynamic_update_index_in_dim(
        state.out[name], x, at, axis=1
      )
    token = new['tokens']
    over = state.over | ends | (at + 1 == self.room)
    return state.replace(t=t, token=token, over=over, out=out, past=past)

  def token(self, state: State) -> State:
    """Decodes the rows' tokens and samples the next tokens."""
    t = jnp.where(state.over, NONE, state.t)
    hidden, cache = self.draw.model.decode(
      self.draw.weights, state.token, state.cache, t, state.t
    )
    return self.drawn(state.replace(cache=cache), hidden, state.t + 1)

  def carried(self, state: State) -> State:
    """Begins the next chunk with this chunk's tail, and samples its first."""
    chunk, m = state.chunk + 1, self.how.carry
    tail = jax.lax.dynamic_slice_in_dim(
      state.out['tokens'], chunk * self.how.fresh, m, axis=1
    )
    t = jnp.where(state.over[:, None], NONE, jnp.arange(m))
    # Column i has token i of the chunk. Old columns of the previous chunk are
    # to the right of all attended columns, until they are overwritten.
    hidden, _, cache = self.draw.model.extend(
      self.draw.weights, tail, state.cache, t, jnp.int32(0)
    )
    state = state.replace(chunk=chunk, cache=cache)
    return self.drawn(state, hidden, jnp.int32(m))

  def think(self, state: State) -> State:
    """Samples a chunk to its end, and begins the next if any row continues."""

    def unfinished(s):
      return (s.t + 1 < self.how.tokens) & ~jnp.all(s.over)

    state = jax.lax.while_loop(unfinished, self.token, state)
    return trees.where_due(~jnp.all(state.over), self.carried, state)


def _begin(thinking: Thinking, hidden, cache, prompts, n_samples) -> State:
  """Samples the first token of all rows of prompts with hidden states [B,D]."""
  hidden = sharding.rows(jnp.repeat(hidden, n_samples, axis=0))
  n, zero = len(hidden), jnp.int32(0)
  past = thinking.draw.begin(hidden, *prompts)
  names = jax.eval_shape(
    lambda h: thinking.draw(h, trees.identity, 0, past), hidden
  )
  out = {
    k: sharding.rows(jnp.full((n, thinking.room), BLANK.get(k, 0), x.dtype))
    for k, x in names.items()
  }
  token = sharding.rows(jnp.zeros(n, jnp.int32))
  over = sharding.rows(jnp.zeros(n, bool))
  state = State(zero, zero, token, over, cache, out, past)
  return thinking.drawn(state, hidden, zero)


def _rollout(thinking: Thinking, state: State, n_samples: int, version):
  """Returns the Rollout of the chunks, numbered as turns."""
  tokens = state.out['tokens']
  drawn, draw = tokens != NONE, thinking.draw
  chunk = jnp.asarray(thinking.how.chunk_of(thinking.room)) + 1
  return Rollout(
    tokens=jnp.where(drawn, tokens, 0),
    sampled=drawn,
    length=drawn.sum(axis=1),
    logp=state.out['logp'],
    policy_logp=state.out.get('policy_logp'),
    entropy=state.out.get('entropy'),
    truncated=~jnp.any(draw.ends(tokens), axis=1),
    temperature=draw.sampling.temperature,
    version=jnp.where(drawn, version, 0),
    turn=jnp.where(drawn, chunk, 0),
    node=sampler.nodes(drawn, n_samples),
  )


def generate(
  how: Chunks,
  model: Model,
  params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling,
  stop: jax.Array,
  *,
  n_samples: int,
  max_new: int,
  row_ids: jax.Array | None = None,
  policy_logp: bool = False,
  entropy: bool = False,
  version: jax.Array | int = 0,
) -> Rollout:
  """Samples n_samples completions of every prompt in chunks; arguments as of
  `sampler.generate`.
  """
  turns.require_extend(model, 'chunks with a carried tail')
  ids = jnp.arange(len(prompts) * n_samples) if row_ids is None else row_ids
  weights = model.decode_params(params)
  given = model, weights, key, ids, sampling, stop
  draw = Draw.make(*given, policy_logp, entropy)
  hidden, cache = model.prefill(
    params, prompts, valid, n_samples, how.tokens, 1
  )
  thinking = Thinking(how, draw, max_new)
  cache = model.gapped(cache, how.tokens)
  state = _begin(thinking, hidden, cache, (prompts, valid), n_samples)
  state = jax.lax.while_loop(lambda s: ~jnp.all(s.over), thinking.think, state)
  return _rollout(thinking, state, n_samples, version)
