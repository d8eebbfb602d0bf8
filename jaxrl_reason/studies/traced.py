"""Groups runs that share a program, and their different numbers.

Two runs share a program if their configurations differ only in the seed, the
warm start, sections of other stages and the numbers below, and their losses
have the same parts. The compiled program has these numbers as arguments, one
value per run.
"""

import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, STAGES, Run, changes, rules
from jaxrl_reason.logits import Sampling
from jaxrl_reason.losses.shaping import WeighSigns
from jaxrl_reason.run import stages
from jaxrl_reason.run.rl import reward_functions
from jaxrl_reason.update import optim

SAMPLING = ('temperature', 'top_k', 'top_p', 'min_p')
LOSS = 'kl_coef entropy_coef clip_low clip_high pos_weight neg_weight'.split()
# Sections of the stages before the last one, which the program does not read.
OTHER_STAGES = tuple(kind for kind in STAGES if kind != 'rl')
# A part without effect at its defaults, so all runs may have it.
NEUTRAL = WeighSigns


def values(c: RL, objective: losses.Objective) -> dict[str, np.ndarray]:
  """Returns the numbers of a run that are arguments of its program."""
  out = {f'rl.{k}': c[k] for k in SAMPLING}
  out['rl.optimizer.lr'] = c.optimizer.lr
  out |= {
    f'rl.loss.{k}': objective[k] for k in LOSS if rules.is_number(objective[k])
  }
  if 'part_weights' not in objective.part_keys:  # static weights of the parts
    out |= _weights(c.rewards)
  return {k: np.float32(x) for k, x in out.items()}


def _weights(parts: Mapping) -> dict[str, float]:
  """Returns the weights of rewards that are not schedules; {} if a reward is a
  likelihood, because the trained tokens depend on which weights are 0.
  """
  if any(p['reward'] in reward_functions.LIKELIHOODS for p in parts.values()):
    return {}
  found = {k: p.get('weight', 1.0) for k, p in parts.items()}
  return {
    f'rl.rewards.{k}.weight': w for k, w in found.items() if rules.is_number(w)
  }


def program_of(config: Run) -> str | None:
  """Returns a key of a run's program; None if runs cannot share it, because
  it is of another stage, the rewards are in Python, a controller chooses
  problems or roles have losses of their own, whose numbers are no arguments.
  """
  if config.stages != ('rl',) or config.rl.path != 'fused':
    return None
  if config.data.has_pool or config.rl.roles:
    return None
  objective = config.objective
  own, plain = values(config.rl, objective), config.json_values()
  flat = changes.flat(plain)
  flat = {k.replace('/', '.'): x for k, x in flat.items()}
  rest = {
    k: x
    for k, x in flat.items()
    if k not in ('seed', 'init_from', *own)
    and k.partition('.')[0] not in OTHER_STAGES
    and k.removeprefix('rl.loss.') not in LOSS
  }
  parts = [type(p).__name__ for p in objective.parts if type(p) is not NEUTRAL]
  return json.dumps([rest, sorted(own), parts, sorted(objective.needs)])


def groups(configs: Sequence[Run], at_once: int) -> list[list[int]]:
  """Groups the numbers of runs that share a program, in order.

  Args:
    at_once: most runs of one program.
  """
  by_program: dict[str, list[int]] = {}
  for i, config in enumerate(configs):
    by_program.setdefault(program_of(config) or f'alone {i}', []).append(i)
  return [
    found[at : at + at_once]
    for found in by_program.values()
    for at in range(0, len(found), at_once)
  ]


def richest(configs: Sequence[Run]) -> Run:
  """Returns the configuration whose loss has the most parts."""
  return max(configs, key=lambda c: len(c.objective.parts))


def maker(
  config: Run, model: Model, kernel: Any, tokenizer: Any
) -> Callable[[dict], tuple]:
  """Returns the argument `made` of `several_runs.rl_seeds`: a function from
  values to the (learner, source, sampling) of a run's steps.

  Args:
    config: of one of the runs (`richest`).
    kernel: of the task's device reward.
  """
  c = config.rl

  def made(values: dict):
    """Builds them from values, which may be traced."""
    learner = stages.learner(config, model, 'rl', tokenizer=tokenizer)
    read = learner.objective.part_keys
    numbers = {k: values[f'rl.loss.{k}'] for k in LOSS if k in read}
    section = c.optimizer.to_dict() | {'lr': values['rl.optimizer.lr']}
    learner = dataclasses.replace(
      learner,
      objective=learner.objective.with_numbers(numbers),
      tx=optim.make(types.SimpleNamespace(**section), c.policy_updates),
    )
    weights = [
      values.get(f'rl.rewards.{k}.weight', p.get('weight', 1.0))
      for k, p in c.rewards.items()
    ]
    source, _, fixed = stages.fused_source(
      c, config.data, learner, kernel, tokenizer, weights
    )
    settings = [values[f'rl.{k}'] for k in SAMPLING]
    settings[1] = jnp.asarray(settings[1], jnp.int32)
    sampling = Sampling.make(*settings)
    same = dict(penalties=fixed.penalties, bias=fixed.bias)
    return learner, source, sampling.replace(**same)

  return made
