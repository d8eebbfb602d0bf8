"""Rewards without a verifier: from the policy's probabilities of its
completions or of the reference answer, and from its other samples. Also control
rewards.

Pure functions of arrays, for any place inside jit. Letters as in `base`: `mask`
bool [N,C] marks the tokens that count; `logp`, `entropy`, `kl` f32 [N,C] are of
the policy itself (no temperature, no filter), from `logprobs.over_columns`.
All functions return f32 [N].

All functions follow these rules. Values outside the mask are never read,
including NaN. An empty mask returns 0. `group` int [N] has ids of any value in
any order, and no result depends on the order of rows. An `answer_id` below 0
means that there is no answer; the row scores 0. A row that is not `valid` is in
no count and scores 0.

These rewards do not depend on correctness: they sharpen the policy's own
distribution, and long runs collapse. "Spurious Rewards"
(https://arxiv.org/abs/2506.10947) found that even random rewards raise the
accuracy of some models; the controls below test this.
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
    vocab: number of ids without padding; None: V.
  """
  size = logits.shape[-1] if vocab is None else vocab
  real = jnp.arange(logits.shape[-1]) < size
  logits = as_float(logits)
  # A mask instead of a slice keeps a sharded vocabulary sharded.
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
  """Computes 1/n sum_t log p_t, which does not depend on the length."""
  return token_mean(logp, mask)


# --- of the reference answer --------------------------------------------------


def seq_prob(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes p(answer | prompt, reasoning) = prod_t p_t: VeriFree,
  https://arxiv.org/abs/2505.21493. In [0, 1]; 0 without a token.
  """
  return jnp.where(as_mask(mask).any(1), jnp.exp(token_sum(logp, mask)), 0.0)


def mean_prob(logp: jax.Array, mask: jax.Array) -> jax.Array:
  """Computes 1/n sum_t p_t: RLPR, https://arxiv.org/abs/2506.18254, whose
  authors prefer it to the product because a single rare token has less effect.
  In [0, 1].
  """
  return token_mean(jnp.exp(keep(mask, logp)), mask)


def debiased(with_reasoning: jax.Array, without: jax.Array) -> jax.Array:
  """Computes clip(r - r', 0, 1): RLPR's reward minus that of the reference
  directly after the prompt, so an answer that is likely without reasoning has
  no reward.
  """
  return jnp.clip(as_float(with_reasoning) - as_float(without), 0.0, 1.0)


def gain_of_sample(logp: jax.Array, group: jax.Array) -> jax.Array:
  """Computes how much a sample raises the bound of its group, f32 [N]:

    log 1/n sum_j p_j - log 1/(n - 1) sum_{j != i} p_j

  over the n samples of a group. The first term is JEPO's bound of several
  samples (https://arxiv.org/abs/2503.19618), and the second one its baseline,
  which does not depend on the sample. A single sample has the score log p.

  Args:
    logp: f32 [N], log p(answer | prompt, reasoning), finite.
    group: int [N], equal for the samples of a prompt.
  """
  same = group[:, None] == group

  def log_mean(chosen):
    n = jnp.maximum(chosen.sum(axis=1), 1)
    own = jnp.where(chosen, logp, -jnp.inf)
    return jax.nn.logsumexp(own, axis=1) - jnp.log(n)

  others = same & ~jnp.eye(len(group), dtype=bool)
  baseline = jnp.where(others.any(axis=1), log_mean(others), 0.0)
  return log_mean(same) - baseline


def splice_reference(
  tokens: jax.Array,
  start: jax.Array,
  reference: jax.Array,
  n_reference: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Replaces the answer of completions by the reference answer.

    t < start          the completion (the reasoning, up to the answer)
    start <= t < end   the reference, end = start + n_reference
    t >= end           padding

  Args:
    tokens: int [N,C]; start: int [N], first token of the answer (see
      `kernels.token_bytes.after_marker`); below 0: none.
    reference: int [N,A], including its end (the stop token, a closing tag);
      n_reference: int [N].

  Returns:
    (tokens i32 [N,C+A], valid bool [N,C+A], answer mask bool [N,C+A]): append
    them to the prompts, score them, and pass the mask to the functions above.
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
  confidence q that the completion states. A q outside [0, 1] or NaN (no
  confidence) scores -1, the lowest score, so it never pays to omit it.
  """
  c, q = as_float(correct), as_float(confidence)
  stated = (q >= 0) & (q <= 1)
  return jnp.where(stated, -jnp.square(jnp.where(stated, q, 0) - c), -1.0)


def calibrated(correct: jax.Array, confidence: jax.Array) -> jax.Array:
  """Computes c - (q - c)^2, in [-1, 1]: RLCR, https://arxiv.org/abs/2507.16806:
  largest for correct answers and a calibrated q.
  """
  return as_float(correct) + brier(correct, confidence)


# --- of what the other samples say --------------------------------------------


def _present(answer_id: jax.Array, valid: jax.Array | None) -> jax.Array:
  rows = jnp.ones(answer_id.shape, bool) if valid is None else as_mask(valid)
  return rows & (answer_id >= 0)


def _votes(answer_id: jax.Array, group: jax.Array, voters: jax.Array):
  """Counts the valid rows of each row's group with the same answer, f32 [N]; 0
  for rows without a valid answer.
  """
  same = (group[:, None] == group) & (answer_id[:, None] == answer_id)
  same &= voters[:, None] & voters  # [N,N]
  return same.sum(axis=1).astype(jnp.float32)


def majority(
  answer_id: jax.Array, group: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
  """Returns 1 for the most frequent answer of the group: TTRL,
  https://arxiv.org/abs/2504.16084.

  Args:
    answer_id: int [N], equal answers share one; -1: no answer.
    group: int [N]; valid: bool [N] or None.

  Differs from the authors' code for ties: there the first answer wins, which
  depends on the order of rows; here all of the most frequent answers get 1. In
  a group with one row, or with different answers, all rows get 1: no signal.
  """
  votes = _votes(answer_id, group, _present(answer_id, valid))
  most = over_group(votes, segment_ids(group), jax.ops.segment_max)
  return ((votes == most) & (votes > 0)).astype(jnp.float32)


def cluster_share(
  cluster_id: jax.Array, group: jax.Array, valid: jax.Array | None = None
) -> jax.Array:
  """Computes |the row's cluster| / |its group|: EMPO,
  https://arxiv.org/abs/2504.05812. In [0, 1].

  Args:
    cluster_id: int [N], equal for equal meanings (ids of final answers, or
      clusters of an entailment model); -1: none. These rows count in the group.
  """
  votes = _votes(cluster_id, group, _present(cluster_id, valid))
  rows = jnp.ones(group.shape) if valid is None else as_float(as_mask(valid))
  return safe_divide(votes, over_group(rows, segment_ids(group)))


# --- controls -----------------------------------------------------------------


def random(uniform: jax.Array, p: float = 0.5) -> jax.Array:
  """Returns 1 with probability p, for any completion.

  Args:
    uniform: f32 [N] in [0, 1), of keys folded by row (`uniforms`).
  """
  return (uniform < p).astype(jnp.float32)


def uniforms(key: jax.Array, n: int) -> jax.Array:
  """Samples f32 [n]; a row's number depends on the key and its index, not on
  n.
  """
  keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n))
  return jax.vmap(jax.random.uniform)(keys)


def wrong_label(
  answer_id: jax.Array,
  gold_id: jax.Array,
  group: jax.Array,
  valid: jax.Array | None = None,
) -> jax.Array:
  """Returns 1 for the group's most frequent incorrect answer: the wrong labels
  of https://arxiv.org/abs/2506.10947 (there a majority vote of the starting
  policy, kept if it is incorrect; here of the batch). Correct answers score 0.
  Ties as in `majority`.
  """
  return majority(jnp.where(answer_id == gold_id, -1, answer_id), group, valid)
