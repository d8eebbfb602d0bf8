"""Arrays besides text that rewards read from a rollout (`Rollout.views`).

logp, entropy, uniform_kl   f32 [N,C], of the policy; see TOKEN_VIEWS
group                       i32 [N], equal for the samples of a prompt
uniform                     f32 [N], noise by (key, row)
mask                        bool [N,C], tokens sampled; always present
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import logits as logits_lib
from jaxrl_reason.base import Model, Prompts, Rollout
from jaxrl_reason.models import logprobs
from jaxrl_reason.rewards.kernels import likelihood


def entropy(logits: jax.Array, tokens: jax.Array) -> jax.Array:
  """Computes the entropy [N,c] in nats of the distributions of tokens [N,c]."""
  del tokens
  return logits_lib.entropy(logits)


def uniform_kl(logits: jax.Array, tokens: jax.Array) -> jax.Array:
  """Computes KL(uniform || policy) [N,c] at the positions of tokens [N,c]."""
  del tokens
  return likelihood.uniform_kl(logits)


# (logits [N,c,V], tokens [N,c]) -> [N,c]: views of every token. They are of the
# unfiltered policy: with a filter that leaves one token, its entropy would be
# 0.
TOKEN_VIEWS = {
  'logp': logits_lib.token_logp,
  'entropy': entropy,
  'uniform_kl': uniform_kl,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Views:
  """Adds the views that rewards read to a rollout.

  Token views take one more forward pass, in the update's micro-batches and
  chunks of columns. The entropy and the divergence are over the model's V,
  which includes the few ids beyond the tokenizer's.

  Attributes:
    model: the policy's functions.
    names: the requested views besides `mask`.
    start: first column of completions.
    chunk: columns of logits in memory at once; 0 computes all at once.
    parts: parts of the rows, computed one after another.
  """

  model: Model
  names: tuple[str, ...]
  start: int
  chunk: int = 0
  parts: int = 1

  def __call__(
    self, params, prompts: Prompts, rollout: Rollout, key: jax.Array
  ) -> Rollout:
    n = rollout.tokens.shape[0]
    out = {'mask': rollout.sampled}
    if 'group' in self.names:
      out['group'] = jnp.arange(n) // (n // prompts.tokens.shape[0])
    if 'uniform' in self.names:
      out['uniform'] = likelihood.uniforms(key, n)
    if set(TOKEN_VIEWS) & set(self.names):
      out |= self._of_tokens(params, prompts, rollout)
    return rollout.replace(views=out)

  def _of_tokens(self, params, prompts, rollout) -> dict[str, jax.Array]:
    n, c = rollout.tokens.shape
    wanted = {k: f for k, f in TOKEN_VIEWS.items() if k in self.names}

    def read(logits, tokens):
      return {k: f(logits, tokens) for k, f in wanted.items()}

    def of_part(rows):
      return logprobs.over_columns(
        self.model, params, rows, read, start=self.start, chunk=self.chunk
      )[0]

    # There may be fewer greedy completions than micro-batches, so the number of
    # parts has to divide both.
    parts = math.gcd(n, self.parts)
    rows = batch_lib.split(batch_lib.rows_of(prompts, rollout), parts)
    out = batch_lib.join(jax.lax.map(of_part, rows))
    return {k: x[:, -c:] for k, x in out.items()}
