"""Computes the arrays that a loss reads besides rewards: forward passes over a
batch, without gradient.

Old and reference log-probs, entropies and a critic's output are each computed
only if the loss needs them (`Learner.needs`).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import logits as logits_lib
from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Rows, TrainState
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.update import critics, packing
from jaxrl_reason.update.learner import Learner, reference, teacher_params


def bellman_loss(
  learner: Learner, params, rows, denominators, sampling: Sampling, how
):
  """Computes a loss that needs the full logits. These are not chunked.

  Args:
    rows: (batch, advantages).
    how: see `whole_logits`.

  Returns:
    ((loss, metrics), load balance of experts or None).
  """
  batch, adv = rows
  logits, balance = whole_logits(learner, params, batch, sampling, how)
  names = 'ref_logp', 'old_logp', 'old_mean_logp'
  named = {name: getattr(batch, name) for name in names}
  found = losses.bellman_loss(
    learner.objective,
    logits,
    batch.tokens[:, learner.start :],
    adv,
    batch.mask[:, learner.start :],
    **{k: x[:, learner.start :] for k, x in named.items() if x is not None},
    denominators=denominators,
  )
  return found, balance


def whole_logits(
  learner: Learner, params, batch: Batch, sampling: Sampling, how=None
):
  """Computes the logits [N,C,V] of the distributions of the trained columns.

  Args:
    how: the rows that share a prompt (`models.shared.Layout`); None if every
      row has its own.

  Returns:
    (logits, load balance of experts or None).
  """
  hidden, balance = logprobs.forward(learner.model, params, batch, how)
  if how is None:
    hidden = hidden[:, learner.start - 1 : -1]
  logits = learner.model.unembed(params, hidden)
  drawn = sampling.replace(temperature=batch.temperature[:, None])
  taken = batch.tokens[:, learner.start :]
  sums = learner.model.sums
  return logits_lib.shaped(logits, drawn, taken, sums), balance


def in_parts(learner: Learner, f, batch: Batch, parts: int):
  """Applies f(batch, packed) -> tree of [N,T] without gradient, one part of
  the rows at a time, each part at its smallest sufficient shape (`packing`).
  """
  if learner.packing is None:
    parts = batch_lib.split(batch, parts)
    return batch_lib.join(jax.lax.map(lambda rows: f(rows, None), parts))
  t = batch.tokens.shape[1]

  def widened(x):
    return jnp.pad(x, ((0, 0), (0, t - x.shape[1])))

  def at_size(rows, packed):
    return jax.tree.map(widened, f(rows, packed))

  def of_part(rows):
    return packing.fit(learner.packing, rows, rows, at_size)

  batch, order = packing.arranged(learner.packing, batch, batch, parts)
  out = batch_lib.join(jax.lax.map(of_part, batch_lib.split(batch, parts)))
  if order is None:
    return out
  return trees.take(out, jnp.argsort(order))


def scores(
  learner: Learner, params, batch: Batch, sampling, parts: int, model=None
):
  """Computes (log-probs, entropies) [N,T] of the whole batch without gradient,
  in parts of its rows.

  Args:
    model: that `params` are of; None: the policy's.
  """
  given = learner, params, batch, sampling, parts
  return scores_beside(*given, model=model)[:2]


def scores_beside(
  learner: Learner,
  params,
  batch: Batch,
  sampling,
  parts: int,
  other: logprobs.Other | None = None,
  compare: Callable | None = None,
  model=None,
):
  """Computes `scores`, and compares the distributions of two models: (logp,
  entropy, comparison or None) [N,T].

  Args:
    other, compare: see `logprobs.score_beside`.
  """
  model = learner.model if model is None else model
  how = dict(other=other, compare=compare, **learner.columns)

  def of(rows, packed):
    given = model, params, rows, sampling, packed
    return logprobs.score_beside(*given, **how)[0]

  return in_parts(learner, of, batch, parts)


# Statistics of whole distributions, by the field of a Batch.
OF_LOGITS = {
  'old_mean_logp': losses.mean_logp,
  'sum_p_squared': losses.sum_p_squared,
}


def _with_statistic(
  learner: Learner,
  params,
  sampling: Sampling,
  statistic: Callable[[jax.Array], jax.Array],
  batch: Batch,
  packed,
):
  """Computes the log-probs of tokens and a statistic of the distributions that
  they are drawn from, [N,T] each.

  Args:
    statistic: logits [N,c,V] -> [N,c].
  """
  sums, given = learner.model.sums, (learner.model, batch, sampling, packed)
  shape, beside = logprobs.shaping(*given, **learner.columns)

  def part(logits, taken, *columns):
    logits = shape(logits, taken, *columns)
    logp = logits_lib.token_logp(logits, taken, sums)
    return logp, statistic(logits)

  return logprobs.over_columns(
    learner.model,
    params,
    batch,
    part,
    *beside,
    packed=packed,
    **learner.columns,
  )[0]


def teacher_rows(learner: Learner, batch: Batch) -> Rows | None:
  """Returns the rows that a teacher scores under another prompt."""
  if batch.teacher_tokens is None:
    return None

  def joined(own, x):
    return jnp.concatenate([own, x[:, learner.start :]], axis=1)

  return Rows(
    joined(batch.teacher_tokens, batch.tokens),
    joined(batch.teacher_valid, batch.valid),
    batch.temperature,
  )


def _teacher_logp(
  learner: Learner, params, batch: Batch, sampling: Sampling, parts: int
) -> jax.Array:
  """Computes the teacher's log-probs of the sampled tokens, [N,T]."""
  model, rows = learner.teacher.model, teacher_rows(learner, batch)
  if rows is None:
    return scores(learner, params, batch, sampling, parts, model)[0]
  room = batch.teacher_tokens.shape[1]
  columns = learner.columns | {'start': room}

  def of(rows):
    return logprobs.score(model, params, rows, sampling, **columns)[0]

  logp = jax.lax.map(of, batch_lib.split(rows, parts))
  logp = batch_lib.join(logp)[:, room:]
  return jnp.pad(logp, ((0, 0), (learner.start, 0)))


def may_teach(learner: Learner, batch: Batch) -> bool:
  """Returns whether the loss reads a teacher's log-probs and its prompts are
  known: `rollouts.feedback` assembles prompts that depend on verdicts.
  """
  valid = batch.teacher_valid
  known = valid is None or not informed_prompts.is_open(valid)
  return known and 'teacher_logp' in learner.needs


def add_arrays(
  learner: Learner, state: TrainState, batch: Batch, sampling: Sampling
) -> Batch:
  """Adds old, reference and teacher log-probs, entropies and a critic's output,
  each only if the loss reads it and the batch lacks it.
  """
  parts = learner.minibatches * learner.micro_batches
  # With the experts of their own routers. With the policy's experts a reference
  # would change with the policy.
  own = batch.replace(routes=None)
  if learner.reads_reference and batch.ref_logp is None:
    ref = reference(learner, state)
    logp, _ = scores(learner, ref, own, sampling, parts)
    batch = batch.replace(ref_logp=logp)
  if batch.teacher_logp is None and may_teach(learner, batch):
    params = teacher_params(learner, state)
    logp = _teacher_logp(learner, params, own, sampling, parts)
    batch = batch.replace(teacher_logp=logp)
  if learner.old_logp == 'sampler' and batch.old_logp is None:
    batch = batch.replace(old_logp=batch.sampler_logp)
  for name, statistic in OF_LOGITS.items():
    if name in learner.needs and getattr(batch, name) is None:
      given = learner, state.params, sampling, statistic
      read = functools.partial(_with_statistic, *given)
      old, found = in_parts(learner, read, batch, parts)
      batch = batch.replace(old_logp=old, **{name: found})
  moves = learner.moves and batch.old_logp is None
  early = learner.reads_entropy_early and batch.entropy is None
  if moves or early:
    old, entropy = scores(learner, state.params, batch, sampling, parts)
    batch = batch.replace(entropy=entropy) if early else batch
    batch = batch.replace(old_logp=old) if moves else batch
  critic = learner.critic
  if critic is not None and getattr(batch, critic.output) is None:
    batch = _with_critic(learner, state, batch, sampling, parts)
  return batch


def _with_critic(
  learner: Learner, state, batch: Batch, sampling: Sampling, parts: int
) -> Batch:
  critic = learner.critic

  def read(rows):
    given = critic, state.critic.params, state.params, rows, sampling
    return critics.evaluate(*given)

  output = jax.lax.map(read, batch_lib.split(batch, parts))
  return batch.replace(**{critic.output: batch_lib.join(output)})
