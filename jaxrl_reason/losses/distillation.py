"""Distillation: trains on a teacher's distribution at the policy's own samples.

The teacher carries no gradient. Three forms of one objective, KL(pi || teacher)
or a relative of it:

  advantage   log teacher - log pi of each sampled token, added to its advantage
  k1 .. k3+   an estimate from the sampled tokens, a term of the loss
  reverse     KL(pi || teacher) over the vocabulary, a term of the loss
  forward     KL(teacher || pi)
  jsd         beta KL(teacher || m) + (1 - beta) KL(pi || m),
              m = beta teacher + (1 - beta) pi
  tv          the total variation between pi and the teacher

On-policy distillation: https://arxiv.org/abs/2306.13649 (all of the above over
the vocabulary) and https://thinkingmachines.ai/blog/on-policy-distillation (the
advantage). Together with a verifiable reward: https://arxiv.org/abs/2506.02208.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import (
  Array,
  Arrays,
  Metrics,
  Sums,
  absolute,
  as_float,
  check_shapes,
  choose,
  keep,
  possible,
  rows_to_tokens,
  safe_divide,
  stop,
)
from jaxrl_reason.losses.diagnostics import token_share
from jaxrl_reason.losses.kl import (
  KL_ESTIMATORS,
  at_tokens,
  clamp,
  kl_penalty,
  over_tokens,
)
from jaxrl_reason.losses.objective_part import Part, flat_names, part


def _kl(a: jax.Array, b: jax.Array) -> jax.Array:
  """Computes KL(a || b) of log-probabilities [.., V]."""
  # A token of probability 0 contributes 0, not NaN.
  p = jnp.exp(a)
  there = p > 0
  gap = jnp.where(there, a, 0.0) - jnp.where(there, b, 0.0)
  return (p * gap).sum(-1)


def _reverse(pi, teacher, beta):
  del beta
  return _kl(pi, teacher)


def _forward(pi, teacher, beta):
  del beta
  return _kl(teacher, pi)


def _jsd(pi, teacher, beta):
  mixed = jnp.logaddexp(teacher + jnp.log(beta), pi + jnp.log1p(-beta))
  return beta * _kl(teacher, mixed) + (1 - beta) * _kl(pi, mixed)


def _tv(pi, teacher, beta):
  del beta
  return 0.5 * absolute(jnp.exp(pi) - jnp.exp(teacher)).sum(-1)


DIVERGENCES = {
  'reverse': _reverse,
  'forward': _forward,
  'jsd': _jsd,
  'tv': _tv,
}
TOP_OF = {'policy': 0, 'teacher': 1}
LEAST = -40.0  # smallest stored log-probability of the other tokens, in nats


def _top(
  pi: jax.Array, teacher: jax.Array, k: int, top_of: str
) -> list[jax.Array]:
  """Reduces log-probabilities [.., V] to those of the k likeliest tokens of one
  of the two and of all other tokens together, [.., k + 1].
  """
  which = choose('top_of', top_of, TOP_OF)
  _, index = jax.lax.top_k(stop((pi, teacher)[which]), k)
  return [_reduced(pi, index), _reduced(teacher, index)]


def _reduced(x: jax.Array, index: jax.Array) -> jax.Array:
  """Reduces log-probabilities [.., V] to those of the tokens `index` [.., k],
  and of all other tokens together, [.., k + 1].
  """
  hit = jnp.zeros(x.shape, bool)
  hit = jnp.put_along_axis(
    hit, index, True, axis=-1, inplace=False, mode='drop'
  )
  first = _at(x, index)
  rest = jax.nn.logsumexp(jnp.where(hit, -jnp.inf, x), -1, keepdims=True)
  return jnp.concatenate([first, rest], axis=-1)


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
  """Returns log-probabilities of tokens, LEAST for those above V."""
  return jnp.take_along_axis(x, index, axis=-1, mode='fill', fill_value=LEAST)


def likeliest(logits: Array, k: int) -> tuple[jax.Array, jax.Array]:
  """Returns the k likeliest tokens of a distribution, to be stored: logits
  [.., V] -> (ids i32 [.., k], log-probabilities f32 [.., k + 1]).

  The last log-probability is that of all other tokens together, LEAST if there
  are none.
  """
  logp = jax.nn.log_softmax(as_float(jnp.asarray(logits)))
  first, ids = jax.lax.top_k(logp, k)
  if k == logp.shape[-1]:
    rest = jnp.full_like(first[..., :1], LEAST)
    return ids, jnp.concatenate([first, rest], axis=-1)
  return ids, jnp.maximum(_reduced(logp, ids), LEAST)


def stored_divergence(
  logits: Array, ids: Array, logp: Array, *, kind: str = 'forward'
) -> jax.Array:
  """Computes a divergence from a stored distribution, [.., V] -> [..], nats.

  It compares the stored tokens, and the total of all other tokens. With all
  tokens of the vocabulary it equals `divergence`. Tokens that the vocabulary of
  `logits` lacks, as padding, are left out. Only `logits` have a gradient. The
  share of the teacher in the mixture of 'jsd' is 0.5.

  Args:
    ids: i32 [.., k]; logp: f32 [.., k + 1]; as `likeliest` returns them.
    kind: a key of DIVERGENCES.
  """
  f = choose('kind', kind, DIVERGENCES)
  pi = jax.nn.log_softmax(as_float(jnp.asarray(logits)))
  ids, teacher = jnp.asarray(ids), stop(as_float(jnp.asarray(logp)))
  k, size = ids.shape[-1], pi.shape[-1]
  known = jnp.where(ids < size, teacher[..., :k], LEAST)
  if k >= size:
    return f(_at(pi, ids), known, 0.5)
  teacher = jnp.concatenate([known, teacher[..., k:]], axis=-1)
  return f(_reduced(pi, ids), teacher, 0.5)


def divergence(
  logits: Array,
  teacher_logits: Array,
  *,
  mask: Array | None = None,
  kind: str = 'reverse',
  beta: float = 0.5,
  top_k: int = 0,
  top_of: str = 'teacher',
  chunk: int | None = None,
) -> jax.Array:
  """Computes a divergence over the vocabulary: [.., V], [.., V] -> [..], nats.

  Only `logits` have a gradient. If the two vocabularies are padded to different
  sizes, the tokens that one of them lacks are left out of both.

  Args:
    mask: [..]; where it is 0, the result is 0.
    kind: a key of DIVERGENCES.
    beta: share of the teacher in the mixture of 'jsd'.
    top_k: compare the likeliest k tokens and the total of all other tokens.
      This is at most the whole divergence. 0: all tokens.
    top_of: whose tokens are the likeliest, 'teacher' or 'policy' (SDPO,
      https://arxiv.org/abs/2601.20802).
    chunk: tokens computed at a time; the backward pass recomputes them.
  """
  f = choose('kind', kind, DIVERGENCES)
  both = jnp.asarray(logits), jnp.asarray(teacher_logits)
  size = min(x.shape[-1] for x in both)
  given = [at_tokens(mask, x[..., :size]) for x in both]

  def one(z, z_teacher):
    pi = jax.nn.log_softmax(as_float(z))
    teacher = jax.nn.log_softmax(stop(as_float(z_teacher)))
    if 0 < top_k < size:
      pi, teacher = _top(pi, teacher, top_k, top_of)
    return f(pi, teacher, beta)

  return over_tokens(one, *given, chunk=chunk)


def teach(
  adv: Array,
  old_logp: Array,
  teacher_logp: Array,
  mask: Array,
  *,
  distill_coef: float = 1.0,
  distill_max: float | None = None,
  distill_gamma: float = 0.0,
) -> jax.Array:
  """Computes A_t + coef w_t (log teacher - log pi)(y_t): [N] or [N, T] ->
  [N, T].

  The second term is minus the k1 estimate of KL(pi || teacher) of the token
  alone, without its effect on later tokens. `distill_max` clamps
  it to +-distill_max nats before it is multiplied by w_t and coef.

  IW-OPD (https://arxiv.org/abs/2606.22600) weighs tokens by the discrepancy a
  of the tokens before them: w_t = 1 + gamma (1 - sum_{s < t} |a_s| / sum_s
  |a_s|), a the log-ratio of teacher and policy. gamma = 0 weighs all the same.
  """
  check_shapes(mask=mask, adv=adv, old_logp=old_logp, teacher_logp=teacher_logp)
  mask = possible(mask, old_logp, teacher_logp)
  gap = keep(mask, teacher_logp) - keep(mask, old_logp)
  size = jnp.abs(gap)
  before = safe_divide(size.cumsum(-1) - size, size.sum(-1, keepdims=True))
  weight = 1 + distill_gamma * (1 - before)
  gap = weight * clamp(gap, distill_max)
  return rows_to_tokens(adv, mask) + distill_coef * gap


class Teach(part('Teach', teach)):
  """`teach` as a part."""

  @property
  def keys_read(self) -> set[str]:
    return super().keys_read | {'distill'}


@dataclasses.dataclass(frozen=True)
class Distill(Part):
  """A divergence from the teacher, as a term of the loss.

  Attributes:
    kind: a key of DIVERGENCES or of KL_ESTIMATORS.
    coef: weight per nat.
    beta, top_k, top_of: of `divergence`.
    max: clamp per token, in nats, of an estimate.
    on: name of the part of `Objective.select` that chooses the tokens of this
      loss; '': all tokens.
  """

  kind: str = 'reverse'
  coef: float = 1.0
  beta: float = 0.5
  top_k: int = 0
  top_of: str = 'teacher'
  max: float | None = None
  on: str = ''
  names = (
    ('kind', 'kind', 'distill'),
    *flat_names('distill', 'coef beta top_k top_of max'),
  )

  @property
  def exact(self) -> bool:
    """Returns whether the divergence is one over the vocabulary."""
    return self.kind in DIVERGENCES

  @property
  def reads(self) -> tuple[str, ...]:
    own = ('teacher_kl',) if self.exact else ('logp', 'teacher_logp')
    return (*own, 'mask')

  @property
  def keys_read(self) -> set[str]:
    top = {'distill_top_k', 'distill_top_of'}
    unread = {'distill_max'} if self.exact else top
    unread |= set() if self.top_k else {'distill_top_of'}
    unread |= set() if self.kind == 'jsd' else {'distill_beta'}
    return super().keys_read - unread

  def compare(self, logits: Array, teacher_logits: Array) -> jax.Array:
    """Computes the divergence over the vocabulary, [.., V] -> [..]."""
    return divergence(
      logits,
      teacher_logits,
      kind=self.kind,
      beta=self.beta,
      top_k=self.top_k,
      top_of=self.top_of,
    )

  def __call__(self, arrays: Arrays) -> jax.Array:
    given = self.take(arrays)
    if self.exact:
      return keep(given[1], given[0])
    logp, teacher_logp, mask = given
    return kl_penalty(logp, teacher_logp, self.kind, mask=mask, kl_max=self.max)

  def sums(self, arrays: Arrays) -> dict[str, jax.Array]:
    """Returns {}: no sums over the batch are needed."""
    return {}

  def term(
    self, arrays: Arrays, mean: Callable, denominators: Sums
  ) -> tuple[jax.Array, Metrics]:
    """Computes the mean divergence, as a loss and as a metric."""
    kl, mask = self(arrays), arrays['mask']
    metrics = {'teacher_kl': token_share(kl, mask, denominators)}
    learnt = keep(arrays[self.on], kl) if self.on else kl
    return mean(learnt, mask, denominators), metrics


@dataclasses.dataclass(frozen=True)
class Stored(Part):
  """The divergence from a stored distribution, as the loss of a token.

  Attributes:
    kind: a key of DIVERGENCES.
  """

  kind: str = 'forward'
  reads = ('teacher_kl', 'mask')

  def compare(self, logits: Array, ids: Array, logp: Array) -> jax.Array:
    """Computes `stored_divergence`, [.., V] -> [..]."""
    return stored_divergence(logits, ids, logp, kind=self.kind)

  def __call__(self, arrays: Arrays) -> jax.Array:
    kl, mask = self.take(arrays)
    return keep(mask, kl)


DISTILL = ('advantage', *DIVERGENCES, *KL_ESTIMATORS)
