"""Generation: prompts [B,P] -> Rollout of N = B*G completions [N,C].

prefill each prompt once -> while any row is unfinished: draw a token per row,
one decode step. Everything is one compiled program: static shapes, traced
settings and stop tokens, early exit when all rows have stopped. The noise of a
token depends on (key, row id, position) only, where the key is that of the
step: it survives resuming, resharding and generating a batch in parts.
"""

from collections.abc import Callable

import jax
import jax.experimental
import jax.numpy as jnp

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Model, Rollout


def _is_stop(tokens: jax.Array, stop: jax.Array) -> jax.Array:
  return jnp.any(tokens[:, None] == stop, axis=1)


def generate(
  model: Model,
  params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling: logits_lib.Sampling,
  stop: jax.Array,
  *,
  n_samples: int,
  max_new: int,
  row_ids: jax.Array | None = None,
  policy_logp: bool = False,
  routes: bool = False,
  on_token: Callable | None = None,
) -> Rollout:
  """Samples n_samples completions of every prompt.

  Args:
    model: the policy's functions; params: its weights.
    prompts: int [B,P], left-padded; valid: bool [B,P], true at real tokens.
    key: of this step; fold the step's number into the run's key.
    sampling: settings, temperature [] or [N].
    stop: int [E], the tokens that end a completion (any one; pad with -1).
    n_samples: G; rows of one prompt are adjacent.
    max_new: C, the completion's room.
    row_ids: int [N], the rows' places in the whole batch when this is a part
      of it; None: 0 to N - 1.
    policy_logp: also return log-probabilities of the untempered policy.
    routes: also return the experts used, for `model.hidden_routed`.
    on_token: host function (t, tokens [N], done bool [N]), called in order
      with the t-th tokens while the program runs, `done` of the rows that had
      ended before; on one device.

  Returns:
    Rollout of B*G rows. The stop token is part of a completion; what follows
    it is 0, with log-probability 0.
  """
  n, c = prompts.shape[0] * n_samples, max_new
  row_ids = jnp.arange(n) if row_ids is None else row_ids
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, row_ids)
  weights = model.decode_params(params)
  sampling = sampling.replace(
    temperature=jnp.broadcast_to(sampling.temperature, (n,))
  )

  def emit(t, hidden, rows):
    """Draws the t-th token of every row and notes it."""
    done, length, out = rows
    logits = model.unembed(weights, hidden)
    shaped = logits_lib.shape(logits, sampling)
    at_t = jax.vmap(jax.random.fold_in, (0, None))(keys, t)
    token = jnp.where(done, 0, logits_lib.draw(shaped, sampling, at_t))
    if on_token is not None:
      jax.experimental.io_callback(on_token, None, t, token, done, ordered=True)
    new = [token, jnp.where(done, 0, logits_lib.token_logp(shaped, token))]
    if policy_logp:
      new.append(jnp.where(done, 0, logits_lib.token_logp(logits, token)))
    write = lambda all_, x: jax.lax.dynamic_update_index_in_dim(
      all_, x, t, axis=1
    )
    out = [write(o, x) for o, x in zip(out, new)]
    return token, (done | _is_stop(token, stop), length + ~done, out)

  def body(state):
    t, token, cache, rows = state
    hidden, cache = model.decode(weights, token, cache, t)
    token, rows = emit(t + 1, hidden, rows)
    return t + 1, token, cache, rows

  dtypes = (jnp.int32, jnp.float32, jnp.float32)[: 2 + policy_logp]
  out = [sharding.rows(jnp.zeros((n, c), d)) for d in dtypes]
  rows = (jnp.zeros(n, bool), jnp.zeros(n, jnp.int32), out)
  hidden, cache = model.prefill(params, prompts, valid, n_samples, max_new)
  hidden = sharding.rows(jnp.repeat(hidden, n_samples, axis=0))
  token, rows = emit(jnp.int32(0), hidden, rows)
  unfinished = lambda s: (s[0] < c - 1) & ~jnp.all(s[3][0])
  state = (jnp.int32(0), token, cache, rows)
  _, _, cache, rows = jax.lax.while_loop(unfinished, body, state)
  done, length, out = rows
  return Rollout(
    tokens=out[0],
    length=length,
    logp=out[1],
    policy_logp=out[2] if policy_logp else None,
    truncated=~done,
    temperature=sampling.temperature,
    routes=model.sampled_routes(cache) if routes else None,
  )
