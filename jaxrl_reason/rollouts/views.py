"""Arrays besides text that rewards read from a rollout (`Rollout.views`).

logp, entropy, uniform_kl   f32 [N,C], of the policy; see TOKEN_VIEWS
reference, direct           f32 [N,A], of the policy, of the reference answer;
                            with reference_mask, see `kernels.reference`
reference_tokens            i32 [N,A], of the reference answer, to train on
group                       i32 [N], equal for the samples of a prompt
uniform                     f32 [N], noise by (key, row)
reward_model                f32 [N], the output of a reward model
verdict                     {question: f32 [N]}, see `judging`
hidden                      f32 [B,G,D], see `hidden_states`; by prompt
mask                        bool [N,C], tokens sampled; always present
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import logits as logits_lib
from jaxrl_reason import trees
from jaxrl_reason.base import Model, Prompts, Rollout
from jaxrl_reason.models import logprobs
from jaxrl_reason.rewards.kernels import likelihood, reference, token_bytes
from jaxrl_reason.rewards.kernels.asked import Question
from jaxrl_reason.rollouts.hidden_states import HIDDEN, HiddenStates
from jaxrl_reason.rollouts.judging import Judge
from jaxrl_reason.verifiers.tasks import problem

REWARD, VERDICT = 'reward_model', 'verdict'
ANSWER_VIEWS = ('reference_tokens', 'reference_mask')
TEACHER = 'teacher'  # its weights, in `control`


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


def with_answers_only(rollout: Rollout) -> Rollout:
  """Drops all views but the reference answers."""
  given = rollout.views or {}
  views = {name: given[name] for name in ANSWER_VIEWS if name in given}
  return rollout.replace(views=views or None)


def passes(names: Collection[str], n_samples: int) -> float:
  """Counts the forward passes of the policy, with logits of all completion
  tokens, over the rows of a round that views take.

  Args:
    names: of the views; n_samples: G, the rows of a prompt.
  """
  whole = bool(TOKEN_VIEWS.keys() & set(names)) + ('reference' in names)
  return whole + ('direct' in names) / n_samples


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
    table: `token_bytes_table` of the tokenizer, in which views of the reference
      answer find the marker.
    reward: function of (weights of the reward model, policy's weights, rows)
      to rewards [N]; None: there is no reward model.
    hidden: computes hidden states; None: no reward reads them, nor the probe.
    verdict: judges by question.
    asks_teacher: whether the weights are the teacher's, not the policy's.
    trains_reference: whether the loss trains on the reference answer.
  """

  model: Model
  names: tuple[str, ...]
  start: int
  chunk: int = 0
  parts: int = 1
  table: np.ndarray | None = None
  reward: Callable | None = None
  hidden: HiddenStates | None = None
  verdict: Mapping[Question, Judge] = dataclasses.field(default_factory=dict)
  asks_teacher: bool = False
  trains_reference: bool = False

  @property
  def kept(self) -> tuple[str, ...]:
    """Returns the names of the views that parts of the step read too."""
    hidden = self.hidden is not None and self.hidden.kept
    return hidden * (HIDDEN,) + self.trains_reference * ANSWER_VIEWS

  def __call__(
    self,
    params,
    prompts: Prompts,
    rollout: Rollout,
    key: jax.Array,
    control: dict | None = None,
  ) -> Rollout:
    n = rollout.tokens.shape[0]
    out = {'mask': rollout.sampled}
    if 'group' in self.names:
      out['group'] = jnp.arange(n) // (n // prompts.tokens.shape[0])
    if 'uniform' in self.names:
      out['uniform'] = likelihood.uniforms(key, n)
    if REWARD in self.names:
      score = functools.partial(self.reward, control[REWARD], params)
      out[REWARD] = self._by_parts(score, prompts, rollout)
    if VERDICT in self.names:
      judge = control[TEACHER] if self.asks_teacher else params
      out[VERDICT] = self._verdicts(judge, prompts, rollout)
    if self.hidden is not None:
      states = (rollout.views or {}).get(HIDDEN)  # of the sampler
      if states is None:
        rows = batch_lib.rows_of(prompts, rollout)
        states = self.hidden(params, rows, batch_lib.sampled_of(rows, rollout))
      b, d = prompts.tokens.shape[0], states.shape[1]
      out[HIDDEN] = states.reshape(b, n // b, d)
    if set(TOKEN_VIEWS) & set(self.names):
      out |= self._of_tokens(params, prompts, rollout, self.names)
    if reference.VIEWS & set(self.names):
      out |= self._of_reference(params, prompts, rollout)
    return rollout.replace(views=out)

  def _verdicts(self, judge, prompts, rollout) -> dict[Question, jax.Array]:
    """Computes the scores [N] by each question."""
    n, out = rollout.tokens.shape[0], {}

    def by_parts(of_part, *beside):
      return self._by_parts(of_part, prompts, rollout, *beside)

    for question, of in self.verdict.items():
      own = prompts.answer[of.part]
      own = jax.tree.map(lambda x: batch_lib.per_row(x, n), own)
      g = n // prompts.tokens.shape[0]
      out[question] = of(judge, rollout, own, g, by_parts)
    return out

  def _of_reference(self, params, prompts, rollout) -> dict[str, jax.Array]:
    answers, n = prompts.answer[reference.PART], rollout.tokens.shape[0]
    given = {k: batch_lib.per_row(x, n) for k, x in answers.items()}
    columns = jnp.arange(given['tokens'].shape[1])
    out = {'reference_mask': columns < given['n_tokens'][:, None]}  # [N,A]
    if self.trains_reference:
      out['reference_tokens'] = given['tokens']
    if 'reference' in self.names:
      marker = ord(problem.MARKER)
      start = token_bytes.after_marker(
        rollout.tokens, rollout.length, self.table, marker
      )
      logp = self._spliced(params, prompts, rollout, start, given)
      out['reference'] = jnp.where(start[:, None] > 0, logp, -jnp.inf)
    if 'direct' in self.names:
      # The same for all samples of a prompt.
      b, m = answers['marker'].shape
      one = trees.take(rollout, slice(None, None, n // b))
      one = one.replace(tokens=answers['marker'])
      logp = self._spliced(params, prompts, one, jnp.full(b, m), answers)
      out['direct'] = batch_lib.per_row(logp, n)
    return out

  def _spliced(self, params, prompts, rollout, start, given) -> jax.Array:
    """Computes log-probs [n,A] of reference answers from token `start` [n] of
    completions on.
    """
    answer = given['tokens'], given['n_tokens']
    tokens, valid, _ = likelihood.splice_reference(
      rollout.tokens, start, *answer
    )
    rollout = rollout.replace(
      tokens=tokens, turn=valid.astype(jnp.int32), routes=None
    )
    logp = self._of_tokens(params, prompts, rollout, ['logp'])['logp']
    columns = jnp.arange(given['tokens'].shape[1])
    place = jnp.maximum(start, 0)[:, None] + columns
    return jnp.take_along_axis(logp, place, axis=1)

  def _of_tokens(self, params, prompts, rollout, names) -> dict[str, jax.Array]:
    c = rollout.tokens.shape[1]
    wanted = {k: f for k, f in TOKEN_VIEWS.items() if k in names}

    def read(logits, tokens):
      return {k: f(logits, tokens) for k, f in wanted.items()}

    def of_part(rows):
      return logprobs.over_columns(
        self.model, params, rows, read, start=self.start, chunk=self.chunk
      )[0]

    out = self._by_parts(of_part, prompts, rollout)
    return {k: x[:, -c:] for k, x in out.items()}

  def _by_parts(self, of_part, prompts: Prompts, rollout: Rollout, *beside):
    """Computes `of_part` of the rows, one part of them at a time.

    Args:
      beside: further arguments of it, trees of [N,...].
    """
    # There may be fewer greedy completions than micro-batches, so the number of
    # parts has to divide both.
    parts = math.gcd(rollout.tokens.shape[0], self.parts)
    rows = batch_lib.rows_of(prompts, rollout), *beside
    each = jax.lax.map(lambda x: of_part(*x), batch_lib.split(rows, parts))
    return batch_lib.join(each)
