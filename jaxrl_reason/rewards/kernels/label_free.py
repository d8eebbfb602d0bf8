"""Kernels without a gold answer: `rewards.kernels.likelihood` on the views of a
step.

  views: {'mask': bool [N,C], tokens sampled, ...}, see `rollouts.views`

Votes are counted over final answers, byte for byte (`final.answer_ids`): `#7`
and `#07` are two answers.
"""

import jax

from jaxrl_reason.rewards.kernels import final, likelihood


def self_certainty(text, length, answer, views) -> jax.Array:
  return likelihood.self_certainty(views['uniform_kl'], views['mask'])


def neg_entropy(text, length, answer, views) -> jax.Array:
  return likelihood.neg_entropy(views['entropy'], views['mask'])


def seq_logp(text, length, answer, views) -> jax.Array:
  return likelihood.seq_logp(views['logp'], views['mask'])


def mean_logp(text, length, answer, views) -> jax.Array:
  return likelihood.mean_logp(views['logp'], views['mask'])


def majority(text, length, answer, views) -> jax.Array:
  return likelihood.majority(final.answer_ids(text, length), views['group'])


def cluster_share(text, length, answer, views) -> jax.Array:
  """Computes `likelihood.cluster_share` with equal answers as clusters."""
  ids = final.answer_ids(text, length)
  return likelihood.cluster_share(ids, views['group'])


def wrong_label(text, length, answer, views) -> jax.Array:
  gold = final.bytes_ids(answer['bytes'], answer['n_bytes'])
  ids = final.answer_ids(text, length)
  return likelihood.wrong_label(ids, gold, views['group'])


def random(text, length, answer, views, *, p: float = 0.5) -> jax.Array:
  return likelihood.random(views['uniform'], p)
