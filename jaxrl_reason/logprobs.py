"""Log-probabilities of given tokens under the policy: the trainer's side of
what the sampler did, computed a chunk of columns at a time so that logits
[N,T,V] never exist whole.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import logits as logits_lib
from jaxrl_reason.base import Model


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
) -> tuple[jax.Array, jax.Array]:
  """log p(token_t | tokens before t) and the entropy it was drawn with.

  Args:
    tokens, valid, start, chunk, routes, hidden: see `over_columns`.
    sampling: the distribution; temperature [N]. Neutral means the policy's.

  Returns:
    (logp [N,T], entropy [N,T] in nats), float32, 0 before `start`. Values at
    invalid tokens are finite and mean nothing.
  """
  heat = jnp.broadcast_to(sampling.temperature, tokens.shape[:1])[:, None]
  sampling = sampling.replace(temperature=heat)

  def part(logits, targets):
    shaped = logits_lib.shape(logits, sampling, targets)
    return logits_lib.token_logp(shaped, targets), logits_lib.entropy(shaped)

  return over_columns(
    model,
    params,
    tokens,
    valid,
    part,
    start=start,
    chunk=chunk,
    routes=routes,
    hidden=hidden,
  )


def forward(
  model: Model, params, tokens, valid, routes=None
) -> tuple[jax.Array, jax.Array | None]:
  """(hidden [N,T,D], load balance f32 [] of a mixture of experts or None).

  Args:
    routes: int [N,T,L,k] of a mixture of experts, those sampling used; None:
      the router's choice now.
  """
  if model.hidden_routed is None:
    return model.hidden(params, tokens, valid), None
  hidden, aux = model.hidden_routed(params, tokens, valid, routes)
  return hidden, aux['load_balance']


def over_columns(
  model: Model,
  params,
  tokens: jax.Array,
  valid: jax.Array,
  part: Callable[[jax.Array, jax.Array], Any],
  *,
  start: int = 1,
  chunk: int = 0,
  routes: jax.Array | None = None,
  hidden: jax.Array | None = None,
) -> Any:
  """What `part` makes of the logits from which each token was drawn.

  Args:
    tokens: int [N,T]; valid: bool [N,T].
    part: (logits f32 [N,c,V], the c tokens drawn from them [N,c]) -> tree of
      [N,c], column by column.
    start: first column wanted, at least 1: columns before it are prompts in
      every row, and need no logits.
    chunk: columns of logits alive at once (recomputed in the backward pass);
      0: all of them.
    routes: see `forward`.
    hidden: [N,T,D], where the caller has them already.

  Returns:
    The tree of [N,T], 0 before `start`.
  """
  if hidden is None:
    hidden, _ = forward(model, params, tokens, valid, routes)
  hidden = hidden[:, start - 1 : -1]
  targets = tokens[:, start:]
  n, columns, _ = hidden.shape
  of = lambda hidden, targets: part(model.unembed(params, hidden), targets)
  if not 0 < chunk < columns:
    out = of(hidden, targets)
  else:
    room = -columns % chunk
    split = lambda x: jnp.moveaxis(
      jnp.pad(x, ((0, 0), (0, room)) + ((0, 0),) * (x.ndim - 2)).reshape(
        n, -1, chunk, *x.shape[2:]
      ),
      1,
      0,
    )
    join = lambda x: jnp.moveaxis(x, 0, 1).reshape(n, -1)[:, :columns]
    body = jax.checkpoint(lambda xs: of(*xs))
    out = jax.tree.map(join, jax.lax.map(body, (split(hidden), split(targets))))
  return jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (start, 0))), out)
