"""Kernels that score the likelihood of the reference answer under the policy,
instead of verifying the sampled answer.

  views: {'reference': f32 [N,A], log-probs of the tokens of the reference
            answer after the sampled reasoning; -inf if the completion has no
            answer that the reference can replace,
          'direct': f32 [N,A], the same after the prompt and the marker alone,
          'reference_mask': bool [N,A], the tokens of the reference}
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.rewards.kernels import likelihood
from jaxrl_reason.verifiers.tasks import problem

PART = 'reference'  # the encoded answers of these kernels
VIEWS = frozenset(['reference', 'direct'])
MAX_TOKENS = 64


def columns(max_new: int) -> int:
  """Returns the number of columns of encoded answers."""
  return min(max_new, MAX_TOKENS)


def encode(
  example: problem.Example, tokenizer, max_new: int
) -> dict[str, np.ndarray]:
  """Encodes the reference answer with a stop token as A = min(max_new, 64)
  tokens, and the marker.

  Raises:
    ValueError: the answer is not a text, or has too many tokens.
  """
  answer, size = example.get('answer'), columns(max_new)
  if not isinstance(answer, str) or not answer:
    raise ValueError(
      f'answer={answer!r}: rewards of its likelihood need a text'
    )
  marker = tokenizer.encode(problem.MARKER)
  ids = tokenizer.encode(problem.MARKER + answer)
  # Some tokenizers put a space before the first word of a text.
  joined = ids[: len(marker)] != marker
  ids = tokenizer.encode(answer) if joined else ids[len(marker) :]
  ids = [*ids, tokenizer.eos_ids[0]]
  if len(ids) > size:
    raise ValueError(
      f'the answer has {len(ids)} tokens with its stop token, and rewards of '
      f'its likelihood read at most {size}'
    )
  tokens = np.pad(np.int32(ids), (0, size - len(ids)))
  return {
    'tokens': tokens,  # [A]
    'n_tokens': np.int32(len(ids)),
    'marker': np.int32(marker),  # [M]
  }


def seq_prob(text, length, answer, views) -> jax.Array:
  return likelihood.seq_prob(views['reference'], views['reference_mask'])


def mean_prob(text, length, answer, views) -> jax.Array:
  return likelihood.mean_prob(views['reference'], views['reference_mask'])


def gain(text, length, answer, views) -> jax.Array:
  """Computes `likelihood.debiased` of the two mean probabilities."""
  both = (views['reference'], views['direct'])
  probs = (likelihood.mean_prob(x, views['reference_mask']) for x in both)
  return likelihood.debiased(*probs)


def seq_logp(text, length, answer, views, *, floor: float = -20.0) -> jax.Array:
  """Computes `likelihood.seq_logp`, at least `floor`, which is the score of a
  completion without an answer.
  """
  logp = likelihood.seq_logp(views['reference'], views['reference_mask'])
  return jnp.maximum(logp, floor)


def group_logp(
  text, length, answer, views, *, floor: float = -20.0
) -> jax.Array:
  """Computes `likelihood.gain_of_sample` of the scores of `seq_logp`."""
  logp = seq_logp(text, length, answer, views, floor=floor)
  return likelihood.gain_of_sample(logp, views['group'])


def mean_logp(text, length, answer, views, *, floor: float = -5.0) -> jax.Array:
  """Computes `likelihood.mean_logp`, at least `floor`, as `seq_logp`."""
  logp = likelihood.mean_logp(views['reference'], views['reference_mask'])
  return jnp.maximum(logp, floor)
