"""Feedback in the prompt of a teacher: the verdict on the completion that it
scores, the message of the verifier, another sample of the group, and the
observations of the completion.

SDPO (https://arxiv.org/abs/2601.20802) distils the policy under such a prompt
into the policy under the problem alone. The rows of `data.informed_prompts`
have the tokens of all texts. This part keeps the tokens that the verdicts
choose, and puts the texts of the step at their places, by one gather. The
pieces of a prompt are encoded one by one.

The sample of a row is the next correct sample of its group, in the order of
rows, and after the last row the first one. It is never the row itself, a
demonstration, or a completion after a hint. Its stop token is left out.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.data import informed_prompts as informed
from jaxrl_reason.parts import Part, Step


@dataclasses.dataclass(frozen=True, eq=False)
class Feedback(Part):
  """Assembles the prompts of a teacher after the verdicts; static.

  Attributes:
    start: first column of completions.
    stops: stop tokens, of which one may end a completion.
    reads_sample: the prompt has a place for a sample.
  """

  start: int
  stops: tuple[int, ...]
  reads_sample: bool
  name: str = 'feedback'

  def before(self, memory: None, step: Step) -> tuple[None, Step, Metrics]:
    """Replaces the rows of `data.informed_prompts` by prompts."""
    sampled = step.sampled
    other, found = another_correct(sampled)
    tokens, valid = self._assembled(sampled, other, found)
    prompts = dict(teacher_tokens=tokens, teacher_valid=valid)
    batch = step.batch.replace(**prompts, detail=None)
    metrics = {'feedback/sample': jnp.mean(found)} if self.reads_sample else {}
    return memory, step._replace(batch=batch), metrics

  def _assembled(
    self, batch: Batch, other: jax.Array, found: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns tokens i32 [N,Q], left-padded, and valid bool [N,Q].

    Args:
      other, found: of `another_correct`.
    """
    ids, kinds = batch.teacher_tokens, batch.teacher_valid
    texts, lengths = self._texts(batch, other, found)
    width = _widths(kinds, batch, found, lengths)
    end = jnp.cumsum(width, axis=1)
    q = ids.shape[1]
    at = jnp.arange(q) - (q - end[:, -1:])  # place in the prompt
    source = jax.vmap(lambda ends, at: jnp.searchsorted(ends, at, 'right'))
    piece = jnp.minimum(source(end, at), q - 1)

    def of_piece(x):
      return jnp.take_along_axis(x, piece, axis=1)

    inside = at - of_piece(end - width)
    kind, tokens = of_piece(kinds), of_piece(ids)
    for name, text in texts.items():
      place = jnp.clip(inside, 0, text.shape[1] - 1)
      text = jnp.take_along_axis(text, place, axis=1)
      tokens = jnp.where(kind == name, text, tokens)
    valid = at >= 0
    return sharding.rows(jnp.where(valid, tokens, 0)), sharding.rows(valid)

  def _texts(self, batch: Batch, other: jax.Array, found: jax.Array):
    """Returns the texts of the step, i32 [N,C] by kind: the sample and the
    observations of each row, and the message of the verifier, [N,M], if there
    are messages; and their lengths, i32 [N] by kind.
    """
    own = batch.tokens[:, self.start :]
    valid = batch.valid[:, self.start :]
    c = own.shape[1]
    last = jnp.max(jnp.where(valid, jnp.arange(c), -1), axis=1)
    is_last = jnp.arange(c) == last[:, None]
    is_stop = is_last & jnp.isin(own, jnp.asarray(self.stops))
    sample, n = batch_lib.packed(own, valid & ~is_stop)
    observed = batch.observed[:, self.start :]
    observations, m = batch_lib.packed(own, observed)
    texts = [sample[other], observations]
    lengths = [jnp.where(found, n[other], 0), m]
    if batch.detail is not None:
      texts.append(batch.detail)
      lengths.append(jnp.sum(batch.detail >= 0, axis=1))
    return (dict(zip(informed.PLACES, x)) for x in (texts, lengths))


def _widths(
  kinds: jax.Array, batch: Batch, found: jax.Array, lengths: dict
) -> jax.Array:
  """Returns, for each token of a row, the number of tokens of the prompt that
  replace it, i32 [N,Q].

  Args:
    lengths: of the texts of the step, i32 [N] by kind.
  """
  right, known = batch.reward_parts[:, 0] > 0.5, batch.reward_valid
  counts = lengths | {
    informed.ALWAYS: jnp.ones_like(known),
    informed.RIGHT: known & right,
    informed.WRONG: known & ~right,
    informed.NO_SAMPLE: ~found,
  }
  width = jnp.zeros(kinds.shape, jnp.int32)
  for kind, n in counts.items():
    width = jnp.where(kinds == kind, n[:, None].astype(jnp.int32), width)
  return width


def another_correct(batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Returns, for each row, another correct row of its group, i32 [N], and
  whether there is one, bool [N].
  """
  seen = batch_lib.outcomes(batch)
  n = len(seen.group)
  right = seen.own & (seen.reward_parts[:, 0] > 0.5)
  ahead = (jnp.arange(n) - jnp.arange(n)[:, None]) % n
  same = seen.group == seen.group[:, None]
  ahead = jnp.where(same & right & (ahead > 0), ahead, n)
  return jnp.argmin(ahead, axis=1), jnp.min(ahead, axis=1) < n
