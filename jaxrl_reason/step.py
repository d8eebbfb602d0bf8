"""One update: Batch -> advantages -> log-probs -> loss -> gradients -> optax.

`update` is a pure function of (state, batch): the fused step calls it inside
the program that generated the batch, the host path as a program of its own,
and supervised stages with advantages of 1. Micro-batches give the whole
batch's gradient exactly, because every mean in the loss divides by a count of
the whole batch (`losses.denominators`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import logprobs, losses, optim
from jaxrl_reason.base import Batch, Metrics, Model, TrainState
from jaxrl_reason.logits import Sampling


@dataclasses.dataclass(frozen=True)
class Learner:
  """What an update is made of; static, so it selects a program.

  Attributes:
    model: the policy's functions.
    settings: of the loss, from `losses.resolve`.
    tx: the optimizer.
    start: first column trained on (the prompt length, or 1).
    epochs, minibatches: passes over a batch and updates per pass; 1 and 1 is
      on-policy, with a ratio of exactly 1.
    micro_batches: pieces a minibatch's gradient is summed over.
    logprob_chunk: columns of logits alive at once; 0: all.
  """

  model: Model
  settings: dict[str, Any]
  tx: optax.GradientTransformation
  start: int
  epochs: int = 1
  minibatches: int = 1
  micro_batches: int = 1
  logprob_chunk: int = 0

  @property
  def n_updates(self) -> int:
    return self.epochs * self.minibatches


def init_state(learner: Learner, params) -> TrainState:
  """A state at step 0; keeps a reference only when the loss asks for one."""
  needs = losses.needs(learner.settings)
  ref = jax.tree.map(jnp.copy, params) if 'ref_logp' in needs else None
  return TrainState(
    step=jnp.int32(0),
    params=params,
    opt_state=learner.tx.init(params),
    ref_params=ref,
  )


def _score(learner: Learner, params, batch: Batch, sampling: Sampling):
  return logprobs.score(
    learner.model,
    params,
    batch.tokens,
    batch.valid,
    sampling.replace(temperature=batch.temperature),
    start=learner.start,
    chunk=learner.logprob_chunk,
  )


def _score_all(learner: Learner, params, batch: Batch, sampling: Sampling):
  """Log-probs [N,T] without gradient, a micro-batch at a time."""
  parts = learner.minibatches * learner.micro_batches
  score = lambda part: _score(learner, params, part, sampling)[0]
  return batch_lib.join(jax.lax.map(score, batch_lib.split(batch, parts)))


def trained(learner: Learner, batch: Batch) -> jax.Array:
  """The sampled tokens that the loss settings leave in, bool [N,T]."""
  offpolicy = batch.is_offpolicy
  if offpolicy is None:
    offpolicy = jnp.zeros_like(batch.mask)
  return losses.loss_mask(
    learner.settings,
    batch.mask,
    truncated=batch.truncated,
    is_offpolicy=offpolicy,
    reward_valid=batch.reward_valid,
  )


def add_logps(
  learner: Learner, state: TrainState, batch: Batch, sampling: Sampling
) -> Batch:
  """Old and reference log-probs where the loss needs them and only there."""
  if 'ref_logp' in losses.needs(learner.settings) and batch.ref_logp is None:
    ref = _score_all(learner, state.ref_params, batch, sampling)
    batch = batch.replace(ref_logp=ref)
  if learner.n_updates > 1 and batch.old_logp is None:
    old = _score_all(learner, state.params, batch, sampling)
    batch = batch.replace(old_logp=old)
  return batch


def advantages(learner: Learner, batch: Batch) -> jax.Array:
  """[N] or [N,T], without gradient."""
  return losses.advantages(
    learner.settings,
    batch.reward,
    batch.group,
    mask=batch.mask,
    reward_valid=batch.reward_valid,
    reward_parts=batch.reward_parts,
    logp=batch.sampler_logp,
    old_logp=batch.old_logp,
    ref_logp=batch.ref_logp,
  )


def loss_fn(params, learner: Learner, batch, adv, denominators, sampling):
  """The (micro-)batch's share of the whole loss, and its metrics."""
  logp, entropy = _score(learner, params, batch, sampling)
  if 'entropy_grad' not in losses.needs(learner.settings):
    entropy = jax.lax.stop_gradient(entropy)
  return losses.policy_loss(
    learner.settings,
    logp,
    adv,
    batch.mask,
    old_logp=batch.old_logp,
    ref_logp=batch.ref_logp,
    sampler_logp=batch.sampler_logp,
    entropy=entropy,
    token_weight=batch.token_weight,
    is_offpolicy=batch.is_offpolicy,
    denominators=denominators,
  )


def gradients(learner: Learner, params, batch, adv, sampling):
  """Gradient and metrics of a minibatch, summed over its micro-batches."""
  denominators = losses.denominators(
    learner.settings,
    batch.mask,
    old_logp=batch.old_logp,
    sampler_logp=batch.sampler_logp,
  )
  grad_fn = jax.grad(loss_fn, has_aux=True)

  def part(xs):
    return grad_fn(params, learner, *xs, denominators, sampling)

  if learner.micro_batches == 1:
    return part((batch, adv))
  parts = batch_lib.split((batch, adv), learner.micro_batches)

  def body(total, xs):
    grads, metrics = part(xs)
    return jax.tree.map(jnp.add, total, grads), metrics

  zeros = jax.tree.map(jnp.zeros_like, params)
  grads, metrics = jax.lax.scan(body, zeros, parts)
  return grads, losses.combine(metrics)


def _one_update(learner: Learner, state: TrainState, batch, adv, sampling):
  grads, metrics = gradients(learner, state.params, batch, adv, sampling)
  updates, opt_state = learner.tx.update(grads, state.opt_state, state.params)
  metrics['grad_norm'] = optax.global_norm(grads)
  metrics['nonfinite_leaf_max'] = optim.first_nonfinite(grads)
  params = optax.apply_updates(state.params, updates)
  return state.replace(params=params, opt_state=opt_state), metrics


def update(
  learner: Learner,
  state: TrainState,
  batch: Batch,
  sampling: Sampling,
  key: jax.Array,
) -> tuple[TrainState, Metrics]:
  """All updates of one batch: epochs x minibatches of rows in a fresh order.

  Args:
    sampling: the filters the batch was drawn with (its temperature is the
      batch's own).
    key: of this step; only the order of minibatches depends on it.

  Returns:
    The next state, and metrics averaged over the updates (`_max`: the
    largest).
  """
  batch = batch.replace(mask=trained(learner, batch))
  batch = add_logps(learner, state, batch, sampling)
  adv = advantages(learner, batch)
  if learner.n_updates == 1:
    state, metrics = _one_update(learner, state, batch, adv, sampling)
  else:
    state, metrics = _many_updates(learner, state, batch, adv, sampling, key)
  metrics = losses.summarize(metrics)
  return state.replace(step=state.step + 1), metrics


def _many_updates(learner, state, batch, adv, sampling, key):
  n, m = batch.tokens.shape[0], learner.minibatches

  def epoch(state, epoch_key):
    order = jax.random.permutation(epoch_key, n)
    rows = jax.tree.map(lambda x: x[order], (batch, adv))
    return jax.lax.scan(
      lambda s, xs: _one_update(learner, s, *xs, sampling),
      state,
      batch_lib.split(rows, m),
    )

  keys = jax.random.split(key, learner.epochs)
  state, metrics = jax.lax.scan(epoch, state, keys)
  reduce = lambda k, v: v.max() if k.endswith('_max') else v.mean()
  return state, {k: reduce(k, v) for k, v in metrics.items()}
