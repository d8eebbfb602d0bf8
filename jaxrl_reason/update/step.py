"""One update: Batch -> advantages -> log-probs -> loss -> gradients -> optax.

`update` is a pure function of (state, batch): the fused step calls it inside
the program that generated the batch, the host path calls it in a program of its
own, and supervised stages call it with advantages of 1. The gradient summed
over micro-batches is exactly the gradient of the batch, because every mean in
the loss divides by a count of the whole batch (`losses.denominators`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Metrics, TrainState
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.update import (
  critics,
  packing,
  role_losses,
  scoring,
  trained_rows,
)
from jaxrl_reason.update.learner import LOGLINEAR, Learner, teacher_params

# Fields of a Batch that the losses take under the same name.
OF_ADVANTAGES = (
  'mask reward_valid reward_parts greedy_reward old_logp ref_logp entropy '
  'values process_reward teacher_logp sampler_logp sum_p_squared pass_rate '
  'is_offpolicy'
).split()
OF_LOSS = (
  'old_logp ref_logp sampler_logp teacher_logp is_offpolicy group token_weight'
).split()
OF_CHOICE = 'old_logp ref_logp sampler_logp group is_offpolicy'.split()


def update(
  learner: Learner,
  state: TrainState,
  batch: Batch,
  sampling: Sampling,
  key: jax.Array,
) -> tuple[TrainState, Metrics]:
  """Applies all updates of one batch: epochs x minibatches of shuffled rows.

  Args:
    sampling: the filters that the batch was sampled with (its temperature is
      the batch's own).
    key: of this step; it determines the order of minibatches and the random
      choices of losses.

  Returns:
    The next state, and metrics averaged over the updates with a trained token
    (`_max`: the largest).
  """
  if batch.forced is not None:
    batch = trained_rows.with_forced(batch)
  batch = batch.replace(mask=trained_rows.mask(learner, batch))
  if learner.reads_before:
    batch = scoring.add_arrays(learner, state, batch, sampling)
  if learner.old_logp == LOGLINEAR:
    batch = batch.replace(age=state.step - batch.version)
  target = learner.critic and critics.targets(learner.critic, batch)
  rows = batch, advantages(learner, batch), target
  if learner.objective.resample is not None:
    rows = trained_rows.resampled(learner, rows, key)
  one = functools.partial(
    _one_update, learner, sampling, _other(learner, state)
  )
  if learner.n_updates == 1:
    state, metrics = one(state, (rows, key))
  else:
    state, metrics = _many_updates(learner, one, state, rows, key)
  metrics = losses.summarize(metrics) | trained_rows.spread(
    rows[1], rows[0].mask
  )
  return state.replace(step=state.step + 1), metrics


def _other(learner: Learner, state) -> logprobs.Other | None:
  """Returns the model whose logits the loss compares with the policy's: the
  policy before the updates, the teacher, or None.
  """
  if 'old_divergence' in learner.needs:
    return logprobs.Other(learner.model, state.params)
  if 'teacher_kl' not in learner.needs or learner.teacher is None:
    return None
  params = teacher_params(learner, state)
  return logprobs.Other(learner.teacher.model, params)


def advantages(learner: Learner, batch: Batch) -> jax.Array:
  """Computes advantages [N] or [N,T], without gradient."""
  given = {name: getattr(batch, name) for name in OF_ADVANTAGES}
  reward = batch.reward
  if 'node_ids' in {*learner.needs, *learner.objective.advantage.also}:
    given['node_ids'] = batch.node
  if 'segment_reward' in learner.needs:
    # The loss adds a row's outcome to its last turn, so the rewards of turns
    # are subtracted from it.
    own = batch.episode.reward
    given |= {'segment_reward': own, 'segment_ids': batch.turn - 1}
    reward = reward - jnp.nansum(own, axis=1)
  given['logp'] = batch.sampler_logp
  given |= dict(reward=reward, group=batch.group)
  of, first = _losses(learner, batch)
  return of.advantages(*first, **given)


def _losses(learner: Learner, batch: Batch) -> tuple[Any, tuple]:
  """Returns the module whose losses train a batch, and their first arguments:
  those of all rows, or those of the rows of each role.
  """
  if learner.roles:
    return role_losses, (learner.roles, batch.role)
  return losses, (learner.objective,)


def _many_updates(learner: Learner, update: Callable, state, rows, key):
  n, m = rows[0].tokens.shape[0], learner.minibatches

  def epoch(state, epoch_key):
    order = jax.random.permutation(epoch_key, n)
    shuffled = trees.take(rows, order)
    keys = jax.random.split(epoch_key, m)
    parts = batch_lib.split(shuffled, m)
    state, metrics = jax.lax.scan(update, state, (parts, keys))
    counted = functools.partial(trained_rows.has_tokens, learner)
    found = metrics, *jax.vmap(counted)(parts[0])
    if learner.roles:
      found += (role_losses.shares_of_updates(learner.roles, parts[0]),)
    return state, found

  keys = jax.random.split(key, learner.epochs)
  state, found = jax.lax.scan(epoch, state, keys)
  of, _ = _losses(learner, rows[0])
  return state, of.over_updates(*found)


def _one_update(
  learner: Learner, sampling, teacher: logprobs.Other | None, state, minibatch
):
  """Updates the policy, and its critic, on one minibatch.

  Args:
    teacher: whose logits the loss reads, or None.
    minibatch: ((batch, advantages, targets of the critic or None), key).
  """
  (batch, adv, target), key = minibatch
  grads, metrics = gradients(
    learner, state.params, batch, adv, sampling, state.coefs, key, teacher
  )
  chosen, frozen = trees.split(state.params, learner.trainable)
  updates, opt_state = learner.tx.update(grads, state.opt_state, chosen)
  metrics['grad_norm'] = optax.global_norm(grads)
  metrics['nonfinite_leaf_max'] = trees.first_nonfinite(grads)
  params = trees.join(optax.apply_updates(chosen, updates), frozen)
  new = state.replace(params=params, opt_state=opt_state)
  if state.coefs is not None:
    _, sampled = trained_rows.has_tokens(learner, batch)
    given = dict(rows=batch.tokens.shape[0], trained=sampled)
    coefs = losses.next_coefs(learner.objective, state.coefs, metrics, **given)
    new = new.replace(coefs=coefs)
  if learner.critic:
    new, more = _with_critic(learner, state, new, batch, target, sampling)
    metrics |= more
  coefs = new.coefs or {}
  return new, metrics | {k: v for k, v in coefs.items() if k.endswith('_coef')}


def gradients(
  learner: Learner,
  params,
  batch,
  adv,
  sampling,
  coefs=None,
  key=None,
  teacher: logprobs.Other | None = None,
):
  """Computes the gradient of the trained parameters (None elsewhere) and the
  metrics of a minibatch, summed over its micro-batches.

  Args:
    coefs: coefficients that change during the run (`losses.init_coefs`), or
      None.
    key: for losses with random choices of tokens.
    teacher: whose logits the loss reads, or None.
  """
  selected = _selected(learner, params, batch, adv, sampling, key, teacher)
  rows = batch, adv, selected
  chosen, frozen = trees.split(params, learner.trainable)
  stats = _minibatch_stats(learner, batch, coefs, key)
  parts, packed = learner.micro_batches, learner.packing
  grad = jax.grad(loss_fn, has_aux=True)
  if packed is None and parts == 1:
    return grad(chosen, frozen, learner, rows, stats, sampling, None, teacher)

  def of_part(chosen, rows):
    def at_size(rows, packed):
      given = learner, rows, stats, sampling, packed, teacher
      return grad(chosen, frozen, *given)

    return packing.fit(packed, rows[0], rows, at_size)

  rows, _ = packing.arranged(packed, batch, rows, parts)
  return _summed(of_part, chosen, rows, parts)


def _minibatch_stats(learner: Learner, batch: Batch, coefs, key) -> dict:
  """Computes the sums over a minibatch that every micro-batch needs."""
  given = dict(old_logp=batch.old_logp, sampler_logp=batch.sampler_logp)
  given['is_offpolicy'] = batch.is_offpolicy
  given['sft_mask'] = trained_rows.likelihood_mask(learner, batch)
  given['mask'] = batch.mask
  of, first = _losses(learner, batch)
  sums = of.denominators(*first, **given)
  return {'denominators': sums, 'coefs': coefs, 'key': key}


def _selected(learner: Learner, params, batch, adv, sampling, key, teacher):
  """Selects tokens by comparing all tokens of the minibatch. Returns None
  with a single micro-batch, because the loss then selects them itself.
  """
  if 'selected' not in learner.needs or learner.micro_batches == 1:
    return None
  name, compare = _compared(learner)
  read = {x for part in learner.objective.select.values() for x in part.reads}
  other = (teacher, compare) if name in read else (None, None)
  logp, entropy, divergence = scoring.scores_beside(
    learner, params, batch, sampling, learner.micro_batches, *other
  )
  given = {name: getattr(batch, name) for name in OF_CHOICE}
  given['old_logp'] = _old_logp(learner, batch, logp)
  if divergence is not None:
    given[name] = divergence
  return losses.select_tokens(
    learner.objective, logp, adv, batch.mask, entropy=entropy, key=key, **given
  )


def _summed(grad_fn, params, rows, parts: int):
  """Sums the gradient and metrics of grad_fn(params, rows) over parts of the
  rows.
  """
  if parts == 1:
    return grad_fn(params, rows)

  def body(total, rows):
    grads, metrics = grad_fn(params, rows)
    return jax.tree.map(jnp.add, total, grads), metrics

  zeros = jax.tree.map(jnp.zeros_like, params)
  grads, metrics = jax.lax.scan(body, zeros, batch_lib.split(rows, parts))
  return grads, losses.combine(metrics)


def loss_fn(
  chosen,
  frozen,
  learner: Learner,
  rows,
  stats,
  sampling,
  packed=None,
  teacher: logprobs.Other | None = None,
):
  """Computes the (micro-)batch's share of the whole loss, and its metrics.

  Args:
    chosen, frozen: the parameters, as `trees.split` by what is trained.
    rows: (batch, adv, selected tokens or None).
    stats: keyword arguments of the loss with statistics of the minibatch.
    packed: the places of tokens in packed rows, or the layout of shared
      prompts; or None.
    teacher: whose logits the loss reads, or None.
  """
  params = trees.join(chosen, frozen)
  if 'full_logits' in learner.needs:
    given = rows[:2], stats['denominators'], sampling, packed
    found, balance = scoring.bellman_loss(learner, params, *given)
    return _with_balance(learner, balance, *found)
  batch, adv, selected = rows
  other = teacher if batch.teacher_top is None else batch.teacher_top
  name, compare = ('', None) if other is None else _compared(learner)
  if name == 'teacher_kl' and other is teacher:
    other = other._replace(rows=scoring.teacher_rows(learner, batch))
  (logp, entropy, divergence), balance = logprobs.score_beside(
    learner.model,
    params,
    batch,
    sampling,
    packed,
    other=other,
    compare=compare,
    **learner.columns,
  )
  if 'entropy_grad' not in learner.needs:
    entropy = jax.lax.stop_gradient(entropy)
  given = {name: getattr(batch, name) for name in OF_LOSS}
  given['sft_mask'] = trained_rows.likelihood_mask(learner, batch)
  given['selected'] = selected
  given['old_logp'] = _old_logp(learner, batch, logp)
  if divergence is not None:
    given[name] = divergence
  given |= dict(entropy=entropy, **stats)
  given |= dict(logp=logp, adv=adv, mask=batch.mask)
  of, first = _losses(learner, batch)
  found = of.policy_loss(*first, **given)
  return found if balance is None else _with_balance(learner, balance, *found)


def _compared(learner: Learner):
  """Returns the argument of the loss that is a divergence from another model,
  and the function of both logits that computes it, or None.
  """
  old = 'old_divergence' in learner.needs
  parts = learner.objective.parts
  compare = (part.compare for part in parts if hasattr(part, 'compare'))
  return 'old_divergence' if old else 'teacher_kl', next(compare, None)


def _old_logp(learner: Learner, batch: Batch, logp: jax.Array):
  """Returns the log-probs before the updates of the batch; None if they equal
  those of the policy.

  Args:
    logp: of the trained policy; with rl.old_logp='loglinear' they are
      interpolated between it and the sampler.
  """
  if learner.old_logp != LOGLINEAR:
    return batch.old_logp
  return losses.proximal_logp(logp, batch.sampler_logp, batch.age, batch.mask)


def _with_balance(learner: Learner, balance, loss, metrics):
  """Adds the experts' load balance, or None, to the loss. The term is computed
  for each micro-batch and averaged over them. A product of two means over
  tokens is not a sum over rows, so with smaller micro-batches the term asks for
  balance in each of them.
  """
  if balance is None:
    return loss, metrics
  balance = balance / learner.micro_batches
  metrics = metrics | {'load_balance': jax.lax.stop_gradient(balance)}
  if learner.balance_coef:
    loss = loss + learner.balance_coef * balance
    metrics['loss'] = jax.lax.stop_gradient(loss)
  return loss, metrics


def update_critic(
  learner: Learner, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
  """Applies one update of the critic alone."""
  grads, metrics = _critic_gradients(learner, state, batch, None, None)
  metrics['grad_norm'] = optax.global_norm(grads)
  metrics['nonfinite_leaf_max'] = trees.first_nonfinite(grads)
  critic = critics.apply(learner.critic, state.critic, grads)
  return state.replace(step=state.step + 1, critic=critic), metrics


def _critic_gradients(learner: Learner, state, batch: Batch, target, sampling):
  divisors = losses.counts(batch.mask)

  def loss(params, rows):
    batch, target = rows
    return critics.loss_fn(
      params, learner.critic, state.params, batch, target, divisors, sampling
    )

  grad, parts = jax.grad(loss, has_aux=True), learner.micro_batches
  return _summed(grad, state.critic.params, (batch, target), parts)


def _with_critic(learner: Learner, state, new, batch: Batch, target, sampling):
  """Adds the critic's update and metrics; during the critic's warm-up the
  policy and the coefficients of the loss keep their old state.
  """
  grads, metrics = _critic_gradients(learner, state, batch, target, sampling)
  old, moved = (
    {name: getattr(s, name) for name in ('params', 'opt_state', 'coefs')}
    for s in (state, new)
  )
  moved = critics.while_warm(learner.critic, state.critic, old, moved)
  critic = critics.apply(learner.critic, state.critic, grads)
  return new.replace(**moved, critic=critic), metrics
