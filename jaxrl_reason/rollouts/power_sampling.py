"""Samples completions x from the policy's distribution raised to a power,
p(x)^a / Z, by Markov chain Monte Carlo.

https://arxiv.org/abs/2510.14901: a base model's own distribution, sharpened,
solves problems that it rarely solves at temperature 1. A low temperature
sharpens the distribution of every next token, and p(x)^a that of whole
completions: it prefers a token that is followed by likely tokens.

A chain starts with a completion at temperature 1 / a. A move of Metropolis and
Hastings chooses one of its tokens at random, and samples this token and all
later ones again at temperature 1 / a. The new completion x' replaces x with
probability

  min(1, p(x')^a q(x) len(x) / (p(x)^a q(x') len(x')))

q is the distribution at temperature 1 / a, len the number of tokens. p(x)^a / Z
is the chain's only stationary distribution. The paper also lengthens the
completion block by block; here every move is of a whole completion.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import trees
from jaxrl_reason.base import Model, Params, Rollout
from jaxrl_reason.logits import Sampling
from jaxrl_reason.rollouts import sampler

# Fields of a Rollout that the sampler computes token by token.
BY_TOKEN = 'tokens', 'logp', 'policy_logp', 'entropy'


@dataclasses.dataclass(frozen=True)
class Power:
  """The settings of a chain.

  Attributes:
    power: a, above 1.
    moves: number of moves; each generates completions once more.
  """

  power: float
  moves: int


@struct.dataclass
class Prefix:
  """Forces the first tokens of completions (the interface of `Forcing`).

  Attributes:
    values: arrays [N,C] of the tokens by name, which are kept.
    length: i32 [N], number of the forced tokens of each row.
  """

  values: dict[str, jax.Array]
  length: jax.Array

  def begin(self, n: int) -> jax.Array:
    """Returns the initial state of rows, which is not used."""
    return jnp.zeros(n, jnp.int32)

  def __call__(self, new: dict, due: jax.Array, t, ends):
    """Replaces the t-th tokens of the rows whose prefix is longer than t."""
    del ends

    def pick(name, x):
      kept = jax.lax.dynamic_index_in_dim(self.values[name], t, 1, False)
      return jnp.where(t < self.length, kept, x)

    return {name: pick(name, x) for name, x in new.items()}, due


def generate(
  how: Power,
  model: Model,
  params: Params,
  prompts: jax.Array,
  valid: jax.Array,
  key: jax.Array,
  sampling: Sampling,
  stop: jax.Array,
  *,
  row_ids: jax.Array,
  **rest: Any,
) -> Rollout:
  """Samples completions from p(x)^a; arguments as of `sampler.generate`.

  Args:
    sampling: without filters, biases and penalties; temperature 1, or 0 for
      rows that are greedy.

  Returns:
    Rollout; `logp` is of temperature 1 / a, `policy_logp` of the policy.
  """
  temperature = jnp.broadcast_to(sampling.temperature, len(row_ids))
  proposal = sampling.replace(temperature=temperature / how.power)
  own = rest | dict(row_ids=row_ids, policy_logp=True)

  def propose(key, prefix):
    given = prompts, valid, key, proposal, stop
    return sampler.generate(model, params, *given, **own, forcing=prefix)

  def move(i, old):
    noise = jax.random.fold_in(key, i)
    keys = trees.row_keys(trees.named_key(noise, 'move'), row_ids)
    u = jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys)
    first = (u[:, 0] * old.length).astype(jnp.int32)
    values = {k: getattr(old, k) for k in BY_TOKEN}
    values = {k: x for k, x in values.items() if x is not None}
    new = propose(noise, Prefix(values, first))
    likely = jnp.log(u[:, 1]) < _log_ratio(how.power, old, new, first)
    accept = (i == 0) | (likely & (temperature > 0))

    def pick(a, b):
      return jnp.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)

  # The first move begins without tokens and is always accepted.
  shapes = jax.eval_shape(functools.partial(propose, key, None))
  empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
  return jax.lax.fori_loop(0, how.moves + 1, move, empty)


def _log_ratio(power: float, old: Rollout, new: Rollout, first) -> jax.Array:
  """Computes the logarithm of a move's probability [N].

  Args:
    first: [N], index of the first token that was sampled again.
  """

  def suffix(x: Rollout):
    value = power * x.policy_logp - x.logp
    again = x.sampled & (jnp.arange(value.shape[1]) >= first[:, None])
    return jnp.where(again, value, 0).sum(axis=1) - jnp.log(x.length)

  return suffix(new) - suffix(old)
