"""The learner of each stage, built from its configuration."""

import dataclasses
from typing import Any

import optax

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Data, Run
from jaxrl_reason.config.run import Model as ModelSection
from jaxrl_reason.config.run import Rollouts
from jaxrl_reason.config.training import (
  Preference,
  RewardModel,
  Supervised,
  Training,
)
from jaxrl_reason.losses import aggregation
from jaxrl_reason.run.rl import (
  generation_settings,
  part_chain,
  problem_pool,
  reward_models,
  role_settings,
  teachers,
)
from jaxrl_reason.run.rl import turn_settings as run_turns
from jaxrl_reason.update import chunked, critics, optim, packing
from jaxrl_reason.update.learner import REFERENCE, Learner, Teacher

# A supervised step is a policy gradient in which every advantage is 1.
SUPERVISED = {
  'advantage': 'reinforce',
  'policy': 'log_likelihood',
  'aggregation': 'token_mean',
}


def learner(
  config: Run,
  model: Model,
  name: str,
  facts: problem_pool.Facts | None = None,
  tokenizer: Any = None,
) -> Learner:
  """Builds the learner of stage `name`.

  Args:
    facts: of the problems of the rl stage's pool; None if there is no pool, and
      no part that counts problems.
    tokenizer: encodes the texts of `rl.verdict`.
  """
  c, d = config[name], config.data
  common = dict(
    model=model,
    micro_batches=c.micro_batches,
    logprob_chunk=c.logprob_chunk,
    trainable=config.trained_paths,
    balance_coef=c.balance_coef,
  )
  if name == 'rl':
    return _rl(c, d, config.model, config.rollouts, common, facts, tokenizer)
  if name == 'reward_model':
    return _reward_model(c, d.prompt_len, common)
  chunks = generation_settings.chunks_of(config.rl, d)
  return _supervised(c, name, d.prompt_len, chunks, common)


def _reward_model(c: RewardModel, start: int, common: dict) -> Learner:
  tx = optim.make(c.optimizer, c.steps)
  return Learner(
    objective=losses.resolve(SUPERVISED),
    tx=optax.identity(),  # the policy is not trained
    start=start,
    critic=critics.Critic(
      critics.STEPS if c.labels else critics.REWARD_MODEL,
      *(common['model'], None, tx, start),
      trainable=common['trainable'],
    ),
    **common,
  )


def _supervised(
  c: Training, name: str, prompt_len: int, chunks, common: dict
) -> Learner:
  objective = _supervised_objective(c)
  start = 1 if name == 'pretrain' else prompt_len
  padded = packing.choose(c, start, f'{name}.padding')
  # The distributions of a stored teacher are in the rows.
  compares = 'teacher_kl' in objective.needs and c.loss != 'topk'
  teacher = Teacher(common['model'], REFERENCE) if compares else None
  return Learner(
    objective=objective,
    tx=optim.make(c.optimizer, c.steps * c.minibatches),
    start=start,
    minibatches=c.minibatches,
    starts_as_reference=True,
    teacher=teacher,
    packing=chunked.choose(chunks, prompt_len) if chunks else padded,
    **common,
  )


def _rl(
  c: RL,
  d: Data,
  policy: ModelSection,
  kept: Rollouts,
  common: dict,
  facts: problem_pool.Facts | None,
  tokenizer: Any,
) -> Learner:
  model, trainable = common['model'], common['trainable']
  objective = c.objective(d.completion_len)
  room = d.prompt_len + c.hints.room
  tx = optim.make(c.optimizer, c.policy_updates)
  facts = problem_pool.unknown(0) if facts is None else facts
  # A hint that is trained on needs log-probs too.
  start = d.prompt_len if c.hints.learn else room
  teacher = reward_model = critic = None
  if c.teacher.weights:
    teacher = teachers.of(c.teacher, policy, model)
  if weights := c.reward_model.weights:
    reward_model = reward_models.of(weights, policy, model, trainable)
  if output := critics.kind_of(objective.needs):
    own = optim.make(c.critic.optimizer, c.updates)
    given = model, objective, own, start, c.critic.warmup_updates, trainable
    critic = critics.Critic(output, *given)
  if chunks := generation_settings.chunks_of(c, d):
    packed = chunked.choose(chunks, room, c.padding)
  else:
    packed = packing.choose(c, room)
  return Learner(
    objective=objective,
    roles=role_settings.objectives(c, d.completion_len) if c.roles else (),
    tx=tx,
    start=start,
    epochs=c.epochs,
    minibatches=c.minibatches,
    old_logp=c.old_logp,
    reference_memory=c.reference_memory,
    teacher=teacher,
    reward_model=reward_model,
    packing=packed,
    critic=critic,
    part_names=run_turns.part_names(c),
    reprompted=bool(c.second_try),
    waits=c.waiting > 0,
    chain=part_chain.make(c, d, kept, trainable, tx, facts, model, tokenizer),
    **common,
  )


def _supervised_objective(c: Supervised | Preference) -> losses.Objective:
  """Returns the loss of a supervised stage, or of a stage of pairs."""
  plain = losses.resolve(SUPERVISED)
  if not isinstance(c, Preference):
    return dataclasses.replace(plain, **losses.SUPERVISED[c.loss](c))
  of_loss = {
    'dpo': {'label_smoothing': c.label_smoothing},
    'simpo': {'margin': c.margin},
  }
  numbers = of_loss.get(c.loss, {})
  policy = losses.PREFERENCES[c.loss](beta=c.beta, **numbers)
  mean = aggregation.RowMean(count_empty=True)
  return dataclasses.replace(plain, policy=policy, aggregation=mean)
