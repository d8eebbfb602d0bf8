"""The policy as a verifier of its own completions: a question after each row.

  prompt, completion, stop token | question | verdict token

The verdict token is `yes` or `no`, by the verifier. The likelihood term of the
loss trains on it (`rl.loss.sft_on='verdict'`): RL^V
(https://arxiv.org/abs/2505.04842), and the generative verifier of Tango
(https://arxiv.org/abs/2505.15034) in one model. The added columns are after
all other tokens, so the log-probs of a completion do not depend on them, and
one pass serves both losses.

A completion cannot contain the question after its stop token, since sampling
ends at that token. Rows without a verdict of the verifier, demonstrations, and
completions after a hint have no question. Rows that a filter drops have one.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason.base import Batch, Metrics, Model, Rows
from jaxrl_reason.parts import Part, Step
from jaxrl_reason.rewards.kernels import asked
from jaxrl_reason.rollouts import probe

TEXTS = 'ask', 'yes', 'no'  # keys of `rl.verdict`


def made(
  texts: Mapping[str, str],
  model: Model,
  tokenizer,
  *,
  of: str = '',
  parts: int = 1,
  keys: Mapping[str, str] = types.MappingProxyType({}),
) -> 'Verdicts':
  """Encodes the question and its answers.

  Args:
    texts: by the names in TEXTS.
    of: name of the model, for errors; parts: see `Verdicts`.
    keys: of the config, for errors, where they are not those of `rl.verdict`.

  Raises:
    ValueError: names the key of a text that the tokenizer cannot encode, or of
      a verdict that is not one token.
  """
  ids, whose = {}, f' of {of}' if of else ''
  for key in TEXTS:
    named = f'{keys.get(key, f"rl.verdict.{key}")}={texts[key]!r}'
    try:
      ids[key] = tokenizer.encode(asked.bare(texts[key]))
    except ValueError as e:  # a character that the alphabet lacks
      raise ValueError(f'{named}{whose}: {e}') from e
    if key != 'ask' and len(ids[key]) != 1:
      raise ValueError(
        f'{named} is {len(ids[key])} tokens{whose}; choose a text of one token'
      )
  answers = ids['yes'][0], ids['no'][0]
  return Verdicts(model, tuple(ids['ask']), *answers, parts)


class Asked(NamedTuple):
  """Rows [N,T] with a question; `observed` marks the verdict tokens."""

  tokens: jax.Array
  valid: jax.Array
  observed: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Verdicts(Part):
  """Adds a question and a verdict token to rows; static.

  Attributes:
    model: the policy's functions.
    question: tokens of the question.
    yes, no: the verdict tokens.
    parts: parts of the rows, whose verdicts are computed one after another.
    room: columns of questions that differ between problems; 0: `question` is
      that of every row.
  """

  model: Model
  question: tuple[int, ...]
  yes: int
  no: int
  parts: int = 1
  room: int = 0
  name: str = 'verdict'

  @property
  def columns(self) -> int:
    """Counts the columns that are added to rows."""
    return (self.room or len(self.question)) + 1

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Adds the columns, and measures the verdicts of the policy before the
    update.
    """
    right, counts = probe.outcome(step.sampled)
    batch = self.asked(step.batch, right > 0.5, counts)
    logp = self.logps(step.state.params, batch)
    return memory, step._replace(batch=batch), summary(logp, right, counts)

  def asked(self, batch: Batch, right: jax.Array, counts: jax.Array) -> Batch:
    """Adds the question and the verdict token to rows of T tokens.

    Args:
      right, counts: bool [N]; rows that do not count have no question.

    Returns:
      Rows of T + columns tokens; `observed` marks the verdict tokens alone.
    """
    t = batch.tokens.shape[1]
    fields = {
      k: _widened(x, self.columns)
      for k, x in vars(batch).items()
      if k not in batch_lib.OTHER_AXES and getattr(x, 'shape', ())[1:2] == (t,)
    }
    added = self.with_question(batch.tokens, batch.valid, right, counts)
    return batch.replace(**fields | added._asdict())

  def with_question(
    self,
    tokens: jax.Array,
    valid: jax.Array,
    right: jax.Array,
    counts: jax.Array,
    question: Mapping[str, jax.Array] | None = None,
  ) -> 'Asked':
    """Adds the columns to tokens and valid [N,T], see `asked`.

    Args:
      question: of each row, 'tokens' i32 [N,Q] and 'n_tokens' i32 [N]; None:
        the same in all rows.
    """
    t = tokens.shape[1]
    if question is None:
      ids = jnp.asarray(self.question, jnp.int32)
      n = jnp.full((len(tokens), 1), len(ids))
      ids = jnp.broadcast_to(ids, (len(tokens), len(ids)))
    else:
      ids, n = question['tokens'], question['n_tokens'][:, None]
    end = jnp.max(jnp.where(valid, jnp.arange(1, t + 1), 0), axis=1)
    at = jnp.arange(t + self.columns) - end[:, None]  # place in the question
    ids = jnp.take_along_axis(ids, jnp.clip(at, 0, ids.shape[1] - 1), axis=1)
    verdict = jnp.where(right, self.yes, self.no)[:, None]
    ids = jnp.where(at == n, verdict, ids)
    new = counts[:, None] & (at >= 0) & (at <= n)
    tokens = jnp.where(new, ids, _widened(tokens, self.columns))
    valid = _widened(valid, self.columns) | new
    return Asked(tokens, valid, new & (at == n))

  def logps(self, params, batch: 'Batch | Asked') -> jax.Array:
    """Computes log p(yes) and log p(no) of rows with a question, f32 [N,2]."""
    choices = jnp.array([self.yes, self.no])

    def of_part(rows):
      tokens, valid, before = rows
      x = self.model.hidden(params, tokens, valid)  # [n,T,D]
      # Padding may have any values, even NaN.
      x = jnp.where(before[..., None], x, 0).sum(axis=1)
      logp = jax.nn.log_softmax(self.model.unembed(params, x), axis=-1)
      return logp[:, choices]

    # A verdict is drawn from the state of the token before it.
    before = jnp.roll(batch.observed, -1, axis=1)
    parts = math.gcd(len(before), self.parts)
    rows = batch_lib.split((batch.tokens, batch.valid, before), parts)
    return batch_lib.join(jax.lax.map(of_part, rows))

  def probability(
    self, params, rows: Rows, question: Mapping[str, jax.Array] | None = None
  ) -> jax.Array:
    """Computes p(yes) / (p(yes) + p(no)) after rows of N completions, f32 [N].

    Args:
      params: weights of the model that is asked.
      question: of each row, see `with_question`.
    """
    every = jnp.ones(len(rows.tokens), bool)
    whole = self.with_question(rows.tokens, rows.valid, every, every, question)
    logp = self.logps(params, whole)
    return jax.nn.sigmoid(logp[:, 0] - logp[:, 1])


def _widened(x: jax.Array, columns: int) -> jax.Array:
  """Adds columns of zeros to [N,T,...]."""
  return jnp.pad(x, ((0, 0), (0, columns)) + ((0, 0),) * (x.ndim - 2))


def summary(logp: jax.Array, right: jax.Array, counts: jax.Array) -> Metrics:
  """Summarises verdicts over the rows that count; NaN without such a row.

  Args:
    logp: [N,2], of yes and no.
    right: f32 [N], 1 or 0; counts: bool [N].
  """
  yes, no = logp[:, 0], logp[:, 1]
  score = yes - no  # log-odds
  named = jnp.where(right > 0.5, yes, no)
  n = counts.sum()

  def mean(x):
    return jnp.where(counts, x, 0).sum() / n

  agrees = (score > 0) == (right > 0.5)
  return {
    'verdict/accuracy': mean(agrees.astype(jnp.float32)),
    'verdict/auroc': probe.auroc(score, right, counts),
    'verdict/loss': -mean(named),
    'verdict/mass': mean(jnp.exp(yes) + jnp.exp(no)),
    'verdict/right': mean(right),
  }
