"""The learner of each stage, built from its configuration."""

import dataclasses

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.run.rl import chain, problem_pool, teachers
from jaxrl_reason.run.rl import chunk_settings as run_chunks
from jaxrl_reason.run.rl import turn_settings as run_turns
from jaxrl_reason.update import chunked, critics, optim, packing
from jaxrl_reason.update.learner import Learner

# A supervised step is a policy gradient in which every advantage is 1.
SUPERVISED = {
  'advantage': 'reinforce',
  'policy': 'log_likelihood',
  'aggregation': 'token_mean',
}


def learner(
  config: ml_collections.ConfigDict,
  model: Model,
  name: str,
  facts: problem_pool.Facts | None = None,
) -> Learner:
  """Builds the learner of stage `name`.

  Args:
    facts: of the problems of the rl stage's pool; None if there is no pool, and
      no part that counts problems.
  """
  c, d, chunks = config[name], config.data, run_chunks.of(config)
  common = dict(
    model=model,
    micro_batches=c.micro_batches,
    logprob_chunk=c.logprob_chunk,
    trainable=config_lib.trainable(config),
    balance_coef=c.balance_coef,
  )
  if name != 'rl':
    start = 1 if name == 'pretrain' else d.prompt_len
    padded = packing.choose(c, start, f'{name}.padding')
    return Learner(
      objective=dataclasses.replace(
        losses.resolve(SUPERVISED), policy=losses.SUPERVISED[c.loss]()
      ),
      tx=optim.make(c.optimizer, c.steps),
      start=start,
      packing=chunked.choose(chunks, d.prompt_len) or padded,
      **common,
    )
  objective = config_lib.algorithm(config)
  updates = c.steps * c.epochs * c.minibatches
  tx = optim.make(c.optimizer, updates)
  facts = problem_pool.unknown(0) if facts is None else facts
  room = config_lib.prompt_room(config)
  return Learner(
    objective=objective,
    tx=tx,
    # A hint that is trained on needs log-probs too.
    start=d.prompt_len if c.hints.learn else room,
    epochs=c.epochs,
    minibatches=c.minibatches,
    old_logp=c.old_logp,
    reference_memory=c.reference_memory,
    teacher=teachers.of(config, model),
    packing=chunked.choose(chunks, room, c.padding) or packing.choose(c, room),
    critic=_critic(config, model, objective, updates),
    part_names=run_turns.part_names(c),
    chain=chain.make(config, tx, facts),
    **common,
  )


def _critic(config, model: Model, objective, updates: int):
  """Builds the critic that the loss needs, or returns None."""
  output = critics.kind_of(objective.needs)
  if output is None:
    return None
  c = config.rl.critic
  return critics.Critic(
    output,
    model,
    objective,
    optim.make(c.optimizer, updates),
    config_lib.prompt_room(config),
    c.warmup_updates,
    config_lib.trainable(config),
  )
