"""Draws the next tokens of rows, for all modes of generation.

A `Past` has what a row's next token depends on besides its hidden state and its
noise: forced words, and the tokens so far.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_reason import logits as logits_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.base import Model
from jaxrl_reason.rollouts.forcing import Forcing
from jaxrl_reason.rollouts.hidden_states import HiddenStates

NONE = -1  # no token sampled
BLANK = {'tokens': NONE}  # the fill value of arrays; 0 for all others


@struct.dataclass
class Past:
  """The state of S rows that their next tokens depend on; each None if unused.

  Attributes:
    due: int [S], of `Draw.forcing`.
    seen: the tokens of prompts [B,V] and of completions [S,V], for penalties,
      and states [S] of the automaton.
  """

  due: jax.Array | None = None
  seen: logits_lib.Seen = logits_lib.Seen()


EMPTY = Past()


@dataclasses.dataclass(frozen=True)
class Draw:
  """Samples tokens of rows; the arrays are of all N rows."""

  model: Model
  weights: Any
  sampling: logits_lib.Sampling  # temperature [N]
  keys: jax.Array  # [N]
  stop: jax.Array  # int [E]
  policy_logp: bool = False
  entropy: bool = False
  forcing: Forcing | None = None
  # i32 [], updates behind the weights, to record it of every token.
  version: jax.Array | None = None
  # i32 [N], tokens of each completion that its prompt has already; None: none.
  first: jax.Array | None = None
  states: HiddenStates | None = None  # to read of the decoded tokens

  @classmethod
  def make(cls, model: Model, weights, key, ids, sampling, *rest) -> 'Draw':
    """Builds the Draw of rows with ids [N] or [N,k]; `rest` as the fields."""
    temperature = jnp.broadcast_to(sampling.temperature, ids.shape[:1])
    sampling = sampling.replace(temperature=temperature)
    return cls(model, weights, sampling, trees.row_keys(key, ids), *rest)

  def begin(self, hidden: jax.Array, prompts: jax.Array, valid) -> Past:
    """Returns the Past of rows without a token.

    Args:
      hidden: [N,D]; prompts, valid: [B,P].
    """
    n, seen = len(hidden), logits_lib.Seen()
    if self.sampling.penalties is not None:
      unembed, weights = self.model.unembed, self.weights
      vocab = jax.eval_shape(unembed, weights, hidden).shape[-1]
      seen = seen.replace(
        prompt=sharding.rows(logits_lib.counts(prompts, valid, vocab) > 0),
        counts=sharding.rows(jnp.zeros((n, vocab), jnp.int32)),
      )
    if self.sampling.automaton is not None:
      seen = seen.replace(state=sharding.rows(jnp.zeros(n, jnp.int32)))
    return Past(self.forcing and self.forcing.begin(n), seen)

  def __call__(
    self, hidden, row: Callable, t, past: Past = EMPTY
  ) -> dict[str, jax.Array]:
    """Samples the t-th tokens and their log-probs of rows [S] (int, or all)."""
    logits = self.model.unembed(self.weights, hidden)
    sampling = self.sampling.replace(temperature=row(self.sampling.temperature))
    sums, seen = self.model.sums, past.seen
    if seen.prompt is not None:
      repeats = len(hidden) // len(seen.prompt)
      seen = seen.replace(prompt=jnp.repeat(seen.prompt, repeats, axis=0))
    shaped = logits_lib.shaped(logits, sampling, sums=sums, seen=seen)
    keys = row(self.keys)
    if self.first is not None:
      t = t + row(self.first)
    at_t = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(t, keys.shape))
    token, logp = logits_lib.draw(shaped, sampling, at_t, sums)
    new = {'tokens': token, 'logp': logp}
    if self.version is not None:
      new['version'] = jnp.full_like(token, self.version)
    if self.policy_logp:
      new['policy_logp'] = logits_lib.token_logp(logits, token, sums)
    if self.entropy:
      new['entropy'] = logits_lib.entropy(logits)
    return new

  def next(self, hidden, row: Callable, t, past: Past, over):
    """Samples the t-th tokens of rows, or replaces them by forced ones.

    Args:
      over: bool [S], rows that had ended.

    Returns:
      (values of the tokens by name, the Past after them, bool [S]: the token
      ends the completion).
    """
    new, due = self(hidden, row, t, past), None
    if self.forcing is not None:
      new, due = self.forcing(new, past.due, t, self.ends(new['tokens']))
    token, seen = new['tokens'], past.seen
    ends = self.ends(token)
    if (follow := self.sampling.automaton) is not None:
      state = jnp.where(over, seen.state, follow.next(seen.state, token))
      ends |= follow.ended[state]
      seen = seen.replace(state=state)
    if seen.counts is not None:
      seen = seen.replace(counts=_with(seen.counts, token, ~over))
    return new, Past(due, seen), ends

  def ends(self, token: jax.Array) -> jax.Array:
    """Returns true for tokens [...] that are stop tokens."""
    return jnp.any(token[..., None] == self.stop, axis=-1) & (token != NONE)

  def restarted(self, past: Past, token, begins: jax.Array) -> Past:
    """Replaces the Past of rows that begin (bool [S]) by that after their first
    tokens [S]. Only penalties may be used here.
    """
    if past.seen.counts is None:
      return past
    counts = jnp.where(begins[:, None], 0, past.seen.counts)
    counts = _with(counts, token, begins)
    return past.replace(seen=past.seen.replace(counts=counts))


def _with(counts: jax.Array, token: jax.Array, there) -> jax.Array:
  """Adds tokens [S] to counts [S,V] where `there` [S] is true."""
  return counts.at[jnp.arange(len(token)), token].add(there)
