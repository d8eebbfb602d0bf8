"""The tokens of a batch that an update trains on, and how often its rows."""

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Metrics
from jaxrl_reason.update.learner import Learner

# Fields of a Batch that `losses.loss_mask` takes under the same name.
OF_MASK = 'truncated is_offpolicy reward_valid'.split()


def with_forced(batch: Batch) -> Batch:
  """Adds the tokens of hints, as off-policy tokens, to the trained tokens of
  the rows that the filter keeps.
  """
  forced = batch.forced & jnp.any(batch.mask, axis=1, keepdims=True)
  return batch.replace(mask=batch.mask | forced, is_offpolicy=forced)


def mask(learner: Learner, batch: Batch) -> jax.Array:
  """Returns the mask of the sampled tokens that the loss settings train on,
  [N,T].
  """
  given = {name: getattr(batch, name) for name in OF_MASK}
  if learner.objective.drop_offpolicy and batch.is_offpolicy is None:
    given['is_offpolicy'] = jnp.zeros_like(batch.mask)
  return losses.loss_mask(learner.objective, batch.mask, **given)


def resampled(learner: Learner, rows, key):
  """Draws the rows of a batch again, with the weights of the loss settings.

  Args:
    rows: (batch, advantages, targets of the critic or None), [N,...].
  """
  batch = rows[0]
  there = batch.reward_valid & jnp.any(batch.mask, axis=1)
  given = {'reward': batch.reward, 'valid': there}
  key = trees.named_key(key, 'resample')
  return trees.take(rows, learner.objective.resample.draw(given, key))


def likelihood_mask(learner: Learner, batch: Batch):
  """Returns the mask of the likelihood term (`losses.imitation.SFT_ON`), or
  None if there is no such term.
  """
  if 'sft_mask' not in learner.needs:
    return None
  return learner.objective.likelihood.tokens(
    batch.mask, batch.reward, batch.reward_valid, batch.observed
  )


def has_tokens(learner: Learner, batch: Batch) -> tuple[jax.Array, jax.Array]:
  """Returns whether a minibatch has tokens with a gradient, and tokens that the
  policy sampled, bool [] each.
  """
  likelihood = likelihood_mask(learner, batch)
  trained = batch.mask if likelihood is None else batch.mask | likelihood
  return jnp.any(trained), jnp.any(batch_lib.own_tokens(batch))


def spread(adv: jax.Array, mask: jax.Array) -> Metrics:
  """Counts the trained tokens, and summarises the magnitude of their
  advantages [N] or [N,T].
  """
  size = jnp.abs(losses.rows_to_tokens(adv, mask))
  n = mask.sum()
  rms, most = jnp.sqrt(jnp.square(size).sum() / jnp.maximum(n, 1)), size.max()
  return {'trained_tokens': n, 'advantage_rms': rms, 'advantage_max': most}
