"""Networks trained beside the policy, whose output the advantages read.

  'values'          a value head on a separate body: PPO, VC-PPO, VAPO
                    (https://arxiv.org/abs/1707.06347, 2503.01491, 2504.05118)
  'process_reward'  an implicit process reward model, trained on outcomes only:
                    PRIME (https://arxiv.org/abs/2502.01456)
  'reward_model'    a reward of whole rows, trained on pairs in a stage of its
                    own (https://arxiv.org/abs/2203.02155)
  'step_reward'     the same for steps of a solution, trained on a label of each
                    (https://arxiv.org/abs/2305.20050)

All start as copies of the policy's trained weights and share its frozen
weights: with adapters a critic is a second set of adapters, not a second model.
The outputs of the first two are computed with the weights before the step. They
then take one update per update of the policy, on the same rows (PRIME's paper
updates the reward model first and reads it after).
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from jaxrl_reason import losses, trees
from jaxrl_reason.base import Batch, Model, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs


@struct.dataclass
class CriticState:
  """The trained weights and optimizer state of a critic; part of a
  TrainState.
  """

  params: Any
  opt_state: Any
  updates: jax.Array  # i32 [], done so far


@dataclasses.dataclass(frozen=True, eq=False)
class Critic:
  """A critic; static, so it selects a program.

  Attributes:
    output: a key of `KINDS`: the field of a Batch that it computes, or one of
      REWARD_MODELS.
    model: the policy's functions, which its body shares.
    objective: the loss, from `losses.resolve`; None for a reward model.
    tx: its optimizer; None for a reward model that is only read.
    start: first column trained on.
    warmup_updates: its first updates, during which the policy is not updated
      (value pretraining of VC-PPO).
    trainable: regex over the paths of the trained parameters, the same as the
      policy's; the frozen ones are the policy's.
  """

  output: str
  model: Model
  objective: Any
  tx: optax.GradientTransformation
  start: int
  warmup_updates: int = 0
  trainable: str = '.*'


def init_state(critic: Critic, params) -> CriticState:
  """Builds a critic's state from the policy's weights."""
  own = first_params(critic, params)
  return CriticState(own, critic.tx.init(own), jnp.int32(0))


def first_params(critic: Critic, params) -> Any:
  """Returns a critic's first weights, from the policy's weights."""
  return KINDS[critic.output][0](critic, params)


def evaluate(
  critic: Critic,
  params,
  policy,
  batch: Batch | Rows,
  sampling: Sampling | None = None,
) -> jax.Array:
  """Computes the critic's output [N,T], float32; entry t is about token t. The
  output of a reward model is [N].

  Args:
    params: of the critic; policy: of the policy, whose frozen weights it
      shares.
    sampling: the settings of `batch.ref_logp`, for an implicit process reward;
      None: neutral settings.
  """
  how = _of_logps(critic, sampling)
  return KINDS[critic.output][1](critic, params, policy, batch, *how)


def _of_logps(critic: Critic, sampling: Sampling | None) -> tuple:
  """Returns (settings of log-probs,) if the output is a ratio of them."""
  if critic.output != PROCESS:
    return ()
  return (Sampling.fixed() if sampling is None else sampling,)


def targets(critic: Critic, batch: Batch) -> jax.Array | None:
  """Computes the regression targets of the output, [N,T]; None if it is
  trained on the outcome alone.
  """
  if critic.output != VALUES:
    return None
  return losses.critic_targets(
    critic.objective,
    batch.reward,
    batch.values,
    batch.mask,
    reward_valid=batch.reward_valid,
    old_logp=batch.sampler_logp if batch.old_logp is None else batch.old_logp,
    ref_logp=batch.ref_logp,
  )


def loss_fn(
  params,
  critic: Critic,
  policy,
  batch: Batch,
  target,
  denominators,
  sampling: Sampling | None = None,
):
  """Computes a (micro-)batch's share of the critic's loss, and its metrics.

  Args:
    sampling: see `evaluate`.
  """
  given = critic, params, policy, batch, target, denominators
  return KINDS[critic.output][2](*given, *_of_logps(critic, sampling))


def apply(critic: Critic, state: CriticState, grads) -> CriticState:
  """Applies one update from summed gradients."""
  updates, opt_state = critic.tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  return CriticState(params, opt_state, state.updates + 1)


def _copy(critic: Critic, params):
  return jax.tree.map(jnp.copy, trees.split(params, critic.trainable)[0])


def _body(critic: Critic, own, policy):
  """Joins a critic's parameters with the policy's frozen parameters."""
  return trees.join(own, trees.split(policy, critic.trainable)[1])


def _with_head(name: str, critic: Critic, params):
  """Returns first weights with a head of that name, which is zero."""
  one = jnp.zeros((1, 1), jnp.int32)
  hidden = jax.eval_shape(critic.model.hidden, params, one, one > 0)
  head = jnp.zeros(hidden.shape[-1])
  return {'body': _copy(critic, params), name: head}


def _values(critic: Critic, params, policy, batch: Batch) -> jax.Array:
  """Computes V of the state before token t, from the hidden state at t - 1."""
  body = _body(critic, params['body'], policy)
  hidden = critic.model.hidden(body, batch.tokens, batch.valid)
  hidden = hidden[:, critic.start - 1 : -1].astype(jnp.float32)
  highest = jax.lax.Precision.HIGHEST  # TPUs would multiply in bfloat16
  values = jnp.matmul(hidden, params[VALUE_HEAD], precision=highest)
  return jnp.pad(values, ((0, 0), (critic.start, 0)))


def _value_loss(critic: Critic, params, policy, batch, target, denominators):
  return losses.critic_loss(
    critic.objective,
    _values(critic, params, policy, batch),
    target,
    batch.mask & batch.reward_valid[:, None],
    old_values=batch.values,
    denominators=denominators,
  )


def _prm_logp(critic, params, policy, batch: Batch, sampling) -> jax.Array:
  body, rows = _body(critic, params, policy), batch.replace(routes=None)
  given = critic.model, body, rows, sampling
  return logprobs.score(*given, start=critic.start)[0]


def _implicit_reward(critic, params, policy, batch, sampling) -> jax.Array:
  logp = _prm_logp(critic, params, policy, batch, sampling)
  return losses.implicit_reward(logp, batch.ref_logp, batch.mask)


def _prm_loss(critic, params, policy, batch, target, denominators, sampling):
  """Computes the cross-entropy of correctness on the summed implicit reward. A
  row is correct if its first reward part is above 0.5.
  """
  del target
  rows = losses.implicit_prm(
    _prm_logp(critic, params, policy, batch, sampling),
    batch.ref_logp,
    batch.reward_parts[:, 0] > 0.5,
    batch.mask,
    valid=batch.reward_valid,
  )
  loss = rows.sum() / jnp.maximum(denominators['rows'], 1)
  return loss, {'prm_loss': jax.lax.stop_gradient(loss)}


def _last(rows: Batch | Rows) -> jax.Array:
  """Returns the column of each row's last token, i32 [N]."""
  columns = jnp.arange(rows.tokens.shape[1])
  return jnp.max(jnp.where(rows.valid, columns, 0), axis=1)


def _reward(critic: Critic, params, policy, rows: Batch | Rows) -> jax.Array:
  """Computes the reward of each row, [N], from the hidden state of its last
  token.
  """
  return _at(_last(rows), HEAD, critic, params, policy, rows)


def state_values(
  critic: Critic, stop: jax.Array, params, policy, rows: Rows
) -> jax.Array:
  """Computes V of the state after the last token of rows, [N]; of rows that
  have ended, V of the state before that token: V is not trained after it.

  Args:
    critic: of output VALUES; stop: i32 [E], tokens that end a completion.
  """
  last = _last(rows)
  token = jnp.take_along_axis(rows.tokens, last[:, None], axis=1)
  last -= jnp.any(token == stop, axis=1)
  return _at(last, VALUE_HEAD, critic, params, policy, rows)


def _at(last, head: str, critic: Critic, params, policy, rows) -> jax.Array:
  """Computes the output of a head at a column of each row, [N]."""
  body = _body(critic, params['body'], policy)
  hidden = critic.model.hidden(body, rows.tokens, rows.valid)
  at_last = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]
  # A sum, not a product of matrices: TPUs multiply in bfloat16.
  return jnp.sum(at_last.astype(jnp.float32) * params[head], axis=-1)


def _step_logits(critic: Critic, params, policy, rows) -> jax.Array:
  """Computes the logit that the step which ends at a token is correct, of every
  token, [N,T].
  """
  body = _body(critic, params['body'], policy)
  hidden = critic.model.hidden(body, rows.tokens, rows.valid)
  return jnp.sum(hidden.astype(jnp.float32) * params[HEAD], axis=-1)


def over_steps(
  critic: Critic,
  how: str,
  separator: jax.Array,
  room: int,
  params,
  policy,
  rows: Rows,
) -> jax.Array:
  """Computes the reward of rows [N] from the probabilities that their steps are
  correct.

  A step ends at a separator in the completion, or at the last token of the row.

  Args:
    how: a key of `OVER`.
    separator: i32 [E], tokens that end a step.
    room: C, the last columns, which are those of completions.
  """
  p = jax.nn.sigmoid(_step_logits(critic, params, policy, rows))
  columns = jnp.arange(rows.tokens.shape[1])
  ends = jnp.any(rows.tokens[..., None] == separator, axis=-1)
  ends &= rows.valid & (columns >= len(columns) - room)
  return OVER[how](p, ends | (columns == _last(rows)[:, None]))


# How the reward of a row follows from those of its steps: (probabilities [N,T],
# mask of the ends of steps) -> [N].
OVER = {
  'min': lambda p, ends: jnp.min(jnp.where(ends, p, 1), axis=1),
  'mean': lambda p, ends: jnp.where(ends, p, 0).sum(axis=1) / ends.sum(axis=1),
  'product': lambda p, ends: jnp.prod(jnp.where(ends, p, 1), axis=1),
}


def _step_loss(critic: Critic, params, policy, batch, target, denominators):
  """Computes the mean cross-entropy of the labels of steps, whose last tokens
  are the mask.
  """
  del target
  logit, label = _step_logits(critic, params, policy, batch), batch.step_label
  rows = losses.binary_cross_entropy(logit, label, valid=batch.mask)
  n = jnp.maximum(denominators['tokens'], 1)
  wrong, found = batch.mask & (label < 0.5), jax.lax.stop_gradient(logit) <= 0
  right = batch.mask & (found == (label < 0.5))
  loss = rows.sum() / n
  return loss, {
    'loss': jax.lax.stop_gradient(loss),
    'steps/accuracy': right.sum() / n,
    'steps/wrong': wrong.sum() / n,
    'steps/wrong_found': (wrong & found).sum() / n,
    'steps/number': batch.mask.sum().astype(jnp.float32),
  }


def _pair_loss(critic: Critic, params, policy, batch, target, denominators):
  """Computes the loss of pairs: the first half of the rows are the chosen
  answers, the second half the rejected answers in the same order.
  """
  del target
  rewards = _reward(critic, params, policy, batch).reshape(2, -1)
  pairs = denominators['rows'] / 2
  loss = losses.bradley_terry(*rewards).sum() / pairs
  chosen, rejected = jax.lax.stop_gradient(rewards)
  return loss, {
    'loss': jax.lax.stop_gradient(loss),
    'preferred': (chosen > rejected).sum() / pairs,
    'preference_margin': (chosen - rejected).sum() / pairs,
  }


VALUES, VALUE_HEAD = 'values', 'value_head'
PROCESS = 'process_reward'
REWARD_MODEL, STEPS, HEAD = 'reward_model', 'step_reward', 'reward_head'
REWARD_MODELS = REWARD_MODEL, STEPS  # trained alone, in stages of their own
_value_init = functools.partial(_with_head, VALUE_HEAD)
_reward_init = functools.partial(_with_head, HEAD)

# output -> (own first weights, output, loss).
KINDS = {
  VALUES: (_value_init, _values, _value_loss),
  PROCESS: (_copy, _implicit_reward, _prm_loss),
  REWARD_MODEL: (_reward_init, _reward, _pair_loss),
  STEPS: (_reward_init, _step_logits, _step_loss),
}


def kind_of(needs: frozenset[str]) -> str | None:
  """Returns the name of the critic that computes what a loss needs, or None."""
  return next((k for k in KINDS if k in needs), None)


def while_warm(critic: Critic, state: CriticState, old, new) -> Any:
  """Returns the policy's `new` state, or `old` during the critic's warm-up."""
  if not critic.warmup_updates:
    return new
  warm = state.updates >= critic.warmup_updates
  return trees.where(warm, new, old)
