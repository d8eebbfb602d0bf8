"""Log-probabilities of given tokens under the policy: the trainer's side of
what the sampler did, computed a chunk of columns at a time so that logits
[N,T,V] never exist whole.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Model
from jaxrl_reason.update.packing import Packed


def score(
  model: Model,
  params,
  tokens: jax.Array,
  valid: jax.Array,
  sampling: logits_lib.Sampling,
  *,
  start: int = 1,
  chunk: int = 0,
  routes: jax.Array | None = None,
  hidden: jax.Array | None = None,
  packed: Packed | None = None,
) -> tuple[jax.Array, jax.Array]:
  """log p(token_t | tokens before t) and the entropy it was drawn with.

  Args:
    tokens, valid, start, chunk, routes, hidden, packed: see `over_columns`.
    sampling: the distribution; temperature [N]. Neutral means the policy's.

  Returns:
    (logp [N,T], entropy [N,T] in nats), float32, 0 before `start`. Values at
    invalid tokens are finite and mean nothing.
  """

  def part(logits, targets, heat):
    of = sampling.replace(temperature=heat)
    shaped = logits_lib.shape(logits, of, targets)
    return logits_lib.token_logp(shaped, targets), logits_lib.entropy(shaped)

  return over_columns(
    model,
    params,
    tokens,
    valid,
    part,
    heat_of(sampling, tokens),
    start=start,
    chunk=chunk,
    routes=routes,
    hidden=hidden,
    packed=packed,
  )


def heat_of(sampling: logits_lib.Sampling, tokens: jax.Array) -> jax.Array:
  """The temperature [] or [N] of rows for each of their tokens [N,T]."""
  heat = jnp.broadcast_to(sampling.temperature, tokens.shape[:1])
  return jnp.broadcast_to(heat[:, None], tokens.shape)


def forward(
  model: Model, params, tokens, valid, routes=None, packed=None
) -> tuple[jax.Array, jax.Array | None]:
  """(hidden [N,T,D], load balance f32 [] of a mixture of experts or None).

  Args:
    routes: int [N,T,L,k] of a mixture of experts, those sampling used; None:
      the router's choice now.
    packed: where the rows' tokens lie in packed ones [R,L], whose hidden
      states [R,L,D] these are then; None: as they are.
  """
  if packed is not None:
    tokens, valid = packed.pack(tokens), packed.segments
    routes = None if routes is None else packed.pack(routes)
  if model.hidden_routed is None:
    return model.hidden(params, tokens, valid), None
  hidden, aux = model.hidden_routed(params, tokens, valid, routes)
  return hidden, aux['load_balance']


def over_columns(
  model: Model,
  params,
  tokens: jax.Array,
  valid: jax.Array,
  part: Callable[..., Any],
  *beside: jax.Array,
  start: int = 1,
  chunk: int = 0,
  routes: jax.Array | None = None,
  hidden: jax.Array | None = None,
  packed: Packed | None = None,
) -> Any:
  """What `part` makes of the logits from which each token was drawn.

  Args:
    tokens: int [N,T]; valid: bool [N,T], or segment ids of packed rows.
    part: (logits f32 [N,c,V], the c tokens drawn from them [N,c], columns of
      `beside`) -> tree of [N,c], column by column.
    beside: arrays [N,T] about the tokens that `part` reads.
    start: first column wanted, at least 1: columns before it are prompts in
      every row, and need no logits.
    chunk: columns of logits alive at once (recomputed in the backward pass);
      0: all of them.
    routes, packed: see `forward`.
    hidden: what `forward` gives, where the caller has it already.

  Returns:
    The tree of [N,T], 0 before `start`, and at padding where packed.
  """
  if hidden is None:
    hidden, _ = forward(model, params, tokens, valid, routes, packed)
  if packed is not None:
    beside = tuple(map(packed.pack, beside))
    rows = packed.pack(tokens), packed.segments
    out = over_columns(
      model, params, *rows, part, *beside, chunk=chunk, hidden=hidden
    )
    wanted = jnp.arange(tokens.shape[1]) >= start
    back = lambda x: jnp.where(wanted, packed.unpack(x), 0)
    return jax.tree.map(back, out)
  hidden = hidden[:, start - 1 : -1]
  read = tuple(x[:, start:] for x in (tokens, *beside))
  pin = lambda x: jax.tree.map(sharding.tokens, x)
  of = lambda hidden, read: part(model.unembed(params, pin(hidden)), *pin(read))
  whole = not 0 < chunk < hidden.shape[1]
  out = of(hidden, read) if whole else _by_chunk(of, (hidden, read), chunk)
  return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (start, 0))), out)


def _by_chunk(of: Callable[..., Any], arrays: tuple, chunk: int) -> Any:
  """of(*arrays) [n,T] of arrays [n,T,...], `chunk` columns at a time."""
  n, columns = jax.tree.leaves(arrays)[0].shape[:2]
  room = -columns % chunk

  def split(x):
    padded = jnp.pad(x, ((0, 0), (0, room)) + ((0, 0),) * (x.ndim - 2))
    return jnp.moveaxis(padded.reshape(n, -1, chunk, *x.shape[2:]), 1, 0)

  join = lambda x: jnp.moveaxis(x, 0, 1).reshape(n, -1)[:, :columns]
  body = jax.checkpoint(lambda xs: of(*xs))
  out = jax.lax.map(body, jax.tree.map(split, arrays))
  return jax.tree.map(join, out)
