"""Trains on the reasoning, and not on the sampled answer, if no reward depends
on the answer.

The likelihood of the reference answer y* is a function of the prompt x and the
reasoning z. The gradient of its expectation has two terms:

  grad E[r(x, z)] = E[r grad log p(z | x)] + E[grad r(x, z)]

The first is the policy gradient of the tokens of z. A sampled answer is in no
term, so training on it adds noise. The second trains on y* after the sampled
reasoning: for r = log p(y* | x, z), it is the gradient of the log-likelihood
(JEPO, https://arxiv.org/abs/2503.19618). For r = p(y* | x, z) each row has the
weight r as well (VeriFree, https://arxiv.org/abs/2505.21493). The part does not
multiply by r; `sft_loss='dft'` weighs each token by its own probability.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.models.parts import moe
from jaxrl_reason.parts import Part, Step
from jaxrl_reason.rewards.kernels import likelihood, token_bytes
from jaxrl_reason.rollouts.views import ANSWER_VIEWS
from jaxrl_reason.verifiers.tasks import problem


@dataclasses.dataclass(frozen=True, eq=False)
class AnswerTokens(Part):
  """Removes the answer from the trained tokens of a row; static.

  A completion in which no answer can be found keeps its tokens.

  Attributes:
    start: first column of completions.
    table: `token_bytes_table` of the tokenizer.
    puts_reference: put the reference answer, as observed tokens, in place of
      the sampled answer, if the row has room for it.
  """

  start: int
  table: np.ndarray
  puts_reference: bool = False
  name: str = 'answer_tokens'

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Removes sampled answers, and puts reference answers."""
    batch, before = step.batch, step.batch.mask.sum()
    first = self._first(batch)[:, None]
    columns = jnp.arange(batch.mask.shape[1])
    views = dict(batch.views or {})
    batch = batch.replace(mask=batch.mask & (columns < first))
    if self.puts_reference:
      tokens, is_answer = (views.pop(name) for name in ANSWER_VIEWS)
      batch = _with_answer(batch, first, tokens, is_answer)
    metrics = {'reasoning_share': batch.mask.sum() / jnp.maximum(before, 1)}
    batch = batch.replace(views=views or None)
    return memory, step._replace(batch=batch), metrics

  def _first(self, batch: Batch) -> jax.Array:
    """Returns the column of the first token of each answer, i32 [N]; the number
    of columns if the row has no answer.
    """
    of_completion = token_bytes.after_marker(
      batch.tokens[:, self.start :],
      batch.mask.sum(axis=1),
      self.table,
      ord(problem.MARKER),
    )
    behind = batch.mask.shape[1]
    return jnp.where(of_completion > 0, self.start + of_completion, behind)


def _with_answer(
  batch: Batch, first: jax.Array, tokens: jax.Array, is_answer: jax.Array
) -> Batch:
  """Puts answers [N,A] into rows [N,T] from column `first` [N,1] on.

  Args:
    is_answer: bool [N,A], marks the tokens of an answer, which come first.
  """
  n, columns = is_answer.sum(axis=1), jnp.arange(batch.mask.shape[1])
  given, _, put = (
    x[:, : len(columns)]
    for x in likelihood.splice_reference(batch.tokens, first[:, 0], tokens, n)
  )
  fits = first + n[:, None] <= len(columns)
  after, put = fits & (columns >= first), fits & put  # [N,T]
  valid = jnp.where(after, put, batch.valid)
  routes = batch.routes
  if routes is not None:
    unknown = jnp.asarray(moe.UNKNOWN, routes.dtype)
    routes = jnp.where(after[..., None, None], unknown, routes)
  return batch.replace(
    tokens=jnp.where(put, given, batch.tokens),
    valid=valid,
    observed=put,
    turn=jnp.where(put, 1, batch.turn * valid),
    routes=routes,
  )
