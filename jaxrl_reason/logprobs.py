"""Log-probabilities of given tokens under the policy: the trainer's side of
what the sampler did, computed a chunk of columns at a time so that logits
[N,T,V] never exist whole.
"""

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
) -> tuple[jax.Array, jax.Array]:
  """log p(token_t | tokens before t) and the entropy it was drawn with.

  Args:
    tokens: int [N,T]; valid: bool [N,T].
    sampling: the distribution; temperature [N]. Neutral means the policy's.
    start: first column wanted, at least 1: columns before it are prompts in
      every row, and need no logits.
    chunk: columns of logits alive at once (recomputed in the backward pass);
      0: all of them.
    routes: int [N,T,L,k] of a mixture of experts, those sampling used; None:
      the router's choice now.

  Returns:
    (logp [N,T], entropy [N,T] in nats), float32, 0 before `start`. Values at
    invalid tokens are finite and mean nothing.
  """
  if routes is None:
    hidden = model.hidden(params, tokens, valid)
  else:
    hidden = model.hidden_routed(params, tokens, valid, routes)[0]
  hidden = hidden[:, start - 1 : -1]
  targets = tokens[:, start:]
  n, columns, width = hidden.shape

  def part(hidden, targets):
    logits = model.unembed(params, hidden)
    heat = jnp.broadcast_to(sampling.temperature, (n,))[:, None]
    shaped = logits_lib.shape(
      logits, sampling.replace(temperature=heat), targets
    )
    return logits_lib.token_logp(shaped, targets), logits_lib.entropy(shaped)

  if not 0 < chunk < columns:
    out = part(hidden, targets)
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
    body = jax.checkpoint(lambda xs: part(*xs))
    out = jax.tree.map(join, jax.lax.map(body, (split(hidden), split(targets))))
  logp, entropy = jax.tree.map(lambda x: jnp.pad(x, ((0, 0), (start, 0))), out)
  return logp, entropy
