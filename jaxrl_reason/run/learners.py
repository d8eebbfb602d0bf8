"""What the updates of a stage are made of, by its configuration."""

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.rollouts import filters
from jaxrl_reason.run import asking, heat, memory
from jaxrl_reason.run import chunks as run_chunks
from jaxrl_reason.run import turns as run_turns
from jaxrl_reason.update import chunked, critics, optim, packing, shown
from jaxrl_reason.update.learner import Learner

# A supervised step is policy gradient with every advantage 1.
SUPERVISED = {
  'advantage': 'reinforce',
  'policy': 'log_likelihood',
  'aggregation': 'token_mean',
}


def learner(
  config: ml_collections.ConfigDict, model: Model, name: str
) -> Learner:
  """Puts together what the updates of stage `name` are made of."""
  c, d, chunks = config[name], config.data, run_chunks.of(config)
  common = dict(
    model=model,
    micro_batches=c.micro_batches,
    logprob_chunk=c.logprob_chunk,
    trainable=config_lib.trainable(config),
    balance_coef=c.balance_coef,
  )
  if name != 'rl':
    return Learner(
      objective=losses.resolve(SUPERVISED),
      tx=optim.make(c.optimizer, c.steps),
      start=1 if name == 'pretrain' else d.prompt_len,
      packing=chunked.choose(chunks, d.prompt_len),
      **common,
    )
  objective = config_lib.algorithm(config)
  updates = c.steps * c.epochs * c.minibatches
  room = config_lib.prompt_room(config)
  return Learner(
    objective=objective,
    tx=optim.make(c.optimizer, updates),
    # Of hints that are learnt log-probs are wanted too.
    start=d.prompt_len if c.hints.learn else room,
    epochs=c.epochs,
    minibatches=c.minibatches,
    old_logp=c.old_logp,
    reference_memory=c.reference_memory,
    packing=chunked.choose(chunks, room, c.padding) or packing.choose(c, room),
    critic=_critic(config, model, objective, updates),
    select=_selection(config),
    part_names=run_turns.part_names(c),
    shaping=memory.shaper(config),
    archive=memory.archiver(config),
    refresh=memory.refreshed(config),
    heat=heat.make(c),
    shown=shown.make(config.rollouts, c.prompts, c.samples),
    observe=asking.observer(asking.chooser(config)),
    **common,
  )


def _critic(config, model: Model, objective, updates: int):
  """The network beside the policy that the loss asks for, if any."""
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


def _selection(config: ml_collections.ConfigDict) -> filters.Selection | None:
  """What of a batch is learnt from; None: all of it."""
  c = config.rl
  chosen = filters.make(c.filter, c.filter_args)
  if chosen is None and not c.overlong:
    return None
  return filters.Selection(chosen, c.overlong, config.data.completion_len)
