"""Rewards without a verifier: what the policy thinks of its own completions,
of the reference answer, or of what its other samples say. And the controls.

Pure functions of arrays, for any place inside jit. Letters as in `base`: `mask`
bool [N,C] marks the tokens that count; `logp`, `entropy`, `kl` f32 [N,C] are of
the policy itself (no temperature, no filter), from `logprobs.over_columns`.
Everything returns f32 [N].

Rules of all of them. What stands outside the mask is never read, NaN included.
A mask without a token gives 0. `group` int [N] has ids of any value in any
order, and no result depends on the order of the rows. An `answer_id` below 0
means that there is no answer; it agrees with nothing and scores 0. A row that
is not `valid` is in no count and scores 0.

These rewards have no truth in them: they sharpen what the policy already
believes, and collapse when run for long. "Spurious Rewards"
(https://arxiv.org/abs/2506.10947) found that for some models even random ones
raise accuracy, which is what the controls below are for.
"""

import math

import jax
import jax.numpy as jnp

from jaxrl_reason.losses.arrays import as_float, as_mask, keep, safe_divide
from jaxrl_reason.losses.groups import over_group, segment_ids

# --- of the tokens sampled ----------------------------------------------------


def uniform_kl(logits: jax.Array, vocab: int | None = None) -> jax.Array:
  """Computes KL(U || p) [...] in nats of logits [..., V], at least 0.

    -1/V sum_v log(V p_v) = logsumexp(l) - mean(l) - log V

  Args:
    vocab: the ids that count, 0 to vocab - 1, where V is padded; None: all.
  """
  size = logits.shape[-1] if vocab is None else vocab
  real = jnp.arange(logits.shape[-1]) < size
  logits = as_float(logits)
  # A mask, not a slice: a vocabulary split over devices stays split.
  total = jnp.sum(jnp.where(real, logits, 0), axis=-1)
  top = jax.nn.logsumexp(jnp.where(real, logits, -jnp.inf), axis=-1)
  return top - total / size - math.log(size)


def token_sum(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes sum_t x_t over the mask."""
  return keep(mask, x).sum(axis=1)


def token_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes 1/n sum_t x_t over the n tokens of the mask."""
  return safe_divide(token_sum(x, mask), as_float(as_mask(mask)).sum(axis=1))


def self_certainty(kl: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes 1/n sum_t KL(U || p_t), `uniform_kl` per token: Intuitor.

  https://arxiv.org/abs/2505.19590. At least 0.
  """
  return token_mean(kl, mask)


def neg_entropy(entropy: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes -1/n sum_t H(p_t): RENT, https://arxiv.org/abs/2505.22660; the
  token-level reward of https://arxiv.org/abs/2505.15134. At most 0.
  """
  return -token_mean(entropy, mask)


def seq_logp(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes log p(y|x) = sum_t log p_t: the sequence-level reward of EM-RL
  (https://arxiv.org/abs/2505.15134). It falls with length.

  With the mask of a spliced reference (`splice_reference`): the
  log-likelihood of the reference answer, of which JEPO
  (https://arxiv.org/abs/2503.19618) takes the expectation.
  """
  return token_sum(logp, mask)


def mean_logp(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes 1/n sum_t log p_t: the same, whatever the length."""
  return token_mean(logp, mask)


# --- of the reference answer --------------------------------------------------


def seq_prob(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes p(answer | prompt, reasoning) = prod_t p_t: VeriFree,
  https://arxiv.org/abs/2505.21493. In [0, 1]; 0, not 1, where there is no
  token, for then nothing was scored.
  """
  return jnp.where(as_mask(mask).any(1), jnp.exp(token_sum(logp, mask)), 0.0)


def mean_prob(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes 1/n sum_t p_t: RLPR, https://arxiv.org/abs/2506.18254, whose
  authors prefer it to the product because one rare token does not decide. In
  [0, 1].
  """
  return token_mean(jnp.exp(keep(mask, logp)), mask)


def debiased(with_reasoning: jax.Array, without: jax.Array) -> jax.Array:
  """Computes clip(r - r', 0, 1): RLPR's reward less the one of the reference
  straight after the prompt, so that an answer that is likely anyway earns
  nothing.
  """
  return jnp.clip(as_float(with_reasoning) - as_float(without), 0.0, 1.0)


def splice_reference(
  tokens: jax.Array,
  start: jax.Array,
  reference: jax.Array,
  n_reference: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Replaces the answer of completions by the reference answer.

    t < start          the completion (the reasoning, up to the answer)
    start <= t < end   the reference, end = start + n_reference
    t >= end           nothing

  Args:
    tokens: int [N,C]; start: int [N], where the answer begins (see
      `kernels.token_bytes.after_marker`); below 0: nowhere.
    reference: int [N,A], with what ends it (the stop token, a closing tag);
      n_reference: int [N].

  Returns:
    (tokens i32 [N,C+A], valid bool [N,C+A], answer mask bool [N,C+A]): append
    them to the prompts, score them, and give the mask to the functions above.
    Rows without an answer have neither valid nor masked tokens, so score 0.
  """
  start, n = start[:, None], n_reference[:, None]
  at = jnp.arange(tokens.shape[1] + reference.shape[1])
  own = jnp.pad(tokens, ((0, 0), (0, reference.shape[1])))
  place = jnp.clip(at - start, 0, reference.shape[1] - 1)  # [N,C+A]
  given = jnp.take_along_axis(reference, place, axis=1)
  valid = (start >= 0) & (at < start + n)
  answer = valid & (at >= start)
  spliced = jnp.where(answer, given, own)
  return jnp.where(valid, spliced, 0).astype(jnp.int32), valid, answer


# --- of a stated confidence ---------------------------------------------------


def brier(correct: jax.Array, confidence: jax.Array) -> jax.Array:
  """Computes -(q - c)^2, in [-1, 0], of correctness c in {0, 1} and the
  confidence q that the completion states. A q outside [0, 1] or NaN (none
  stated) is -1, the worst, so that to say nothing is never the better choice.
  """
  c, q = as_float(correct), as_float(confidence)
  stated = (q >= 0) & (q <= 1)
  return jnp.where(stated, -jnp.square(jnp.where(stated, q, 0) - c), -1.0)


def calibrated(correct: jax.Array, confidence: jax.Array) -> jax.Array:
  """Computes c - (q - c)^2, in [-1, 1]: RLCR, https://arxiv.org/abs/2507.16806:
  largest for right answers and an honest q.
  """
  return as_float(correct) + brier(correct, confidence)


# --- of what the other samples say --------------------------------------------


def _present(answer_id: jax.Array, valid: jax.Array | None) -> jax.Array:
  rows = jnp.ones(answer_id.shape, bool) if valid is None else as_mask(valid)
  return rows & (answer_id >= 0)


def _votes(answer_id: jax.Array, group: jax.Array, voters: jax.Array):
  """Counts the voters of each row's group that have its answer, f32 [N]; 0 for
  rows that do not vote.
  """
  same = (group[:, None] == group) & (answer_id[:, None] == answer_id)
  same &= voters[:, None] & voters  # [N,N]
  return same.sum(axis=1).astype(jnp.float32)


def majority(
  answer_id: jax.Array, group: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
  """Returns 1 for the commonest answer of the group: TTRL,
  https://arxiv.org/abs/2504.16084.

  Args:
    answer_id: int [N], equal answers share one; -1: no answer.
    group: int [N]; valid: bool [N] or None.

  Differs from the authors' code in ties: there the answer seen first wins,
  which depends on the order of the rows; here all the commonest do. A group
  whose answers all differ, or with one row, is then all 1: without a signal.
  """
  votes = _votes(answer_id, group, _present(answer_id, valid))
  most = over_group(votes, segment_ids(group), jax.ops.segment_max)
  return ((votes == most) & (votes > 0)).astype(jnp.float32)


def cluster_share(
  cluster_id: jax.Array, group: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
  """Computes |my cluster| / |my group|: EMPO, https://arxiv.org/abs/2504.05812.
  In [0, 1].

  Args:
    cluster_id: int [N], equal meanings share one (final answers' ids, or an
      entailment model's clusters); -1: none. Rows without one are counted in
      the group.
  """
  votes = _votes(cluster_id, group, _present(cluster_id, valid))
  rows = jnp.ones(group.shape) if valid is None else as_float(as_mask(valid))
  return safe_divide(votes, over_group(rows, segment_ids(group)))


# --- controls -----------------------------------------------------------------


def random(uniform: jax.Array, p: float = 0.5) -> jax.Array:
  """Returns 1 with probability p, whatever the completion says.

  Args:
    uniform: f32 [N] in [0, 1), of keys folded by row (`uniforms`).
  """
  return (uniform < p).astype(jnp.float32)


def uniforms(key: jax.Array, n: int) -> jax.Array:
  """Draws f32 [n]; a row's depends on the key and its number, not on n."""
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n))
  return jax.vmap(jax.random.uniform)(keys)


def wrong_label(
  answer_id: jax.Array,
  gold_id: jax.Array,
  group: jax.Array,
  valid: jax.Array | None = None,
) -> jax.Array:
  """Returns 1 for the group's commonest wrong answer: the incorrect labels of
  https://arxiv.org/abs/2506.10947 (there a majority vote of the starting
  policy, kept where it is wrong; here of the batch). Right answers score 0.
  Ties as in `majority`.
  """
  return majority(jnp.where(answer_id == gold_id, -1, answer_id), group, valid)
