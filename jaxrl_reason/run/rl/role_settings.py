"""Adapters and losses of roles: names of the roles, and rules.

A role is the proposer or the solver of `rl.propose`, or a player of a game.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.base import Model
from jaxrl_reason.config import RL, Run, rules
from jaxrl_reason.models import adapters
from jaxrl_reason.rollouts.role_adapters import RoleAdapters
from jaxrl_reason.rollouts.role_rewards import RoleRewards
from jaxrl_reason.run.rl import (
  hidden_settings,
  proposal_settings,
  turn_settings,
)
from jaxrl_reason.update import critics, packing
from jaxrl_reason.update.learner import ADAPTIVE

# Arrays that losses of roles may read.
READABLE = frozenset(
  'old_logp ref_logp sampler_logp entropy entropy_grad'.split()
)
KEYS = {'algorithm', 'loss'}


def names(c: RL) -> tuple[str, ...]:
  """Returns the names of the roles; () if the rl stage has one role."""
  if c.propose:
    return proposal_settings.ROLES
  return ('0', '1') if turn_settings.is_game(c) else ()


def number(c: RL) -> int:
  """Returns the number of roles with adapters of their own, or 1."""
  return len(names(c)) if c.role_adapters else 1


def evaluated(c: RL, model: Model) -> Model:
  """Returns the model that evaluations sample from: with adapters of roles,
  that of the role that reads the problems of the data.
  """
  if not c.role_adapters:
    return model
  role = proposal_settings.EVALUATED if c.propose else 0
  return adapters.of_role(model, role, number(c))


def part(c: RL) -> RoleAdapters:
  """Returns the part of a step that measures the adapters of roles."""
  return RoleAdapters(names(c))


def rewards(c: RL, objective: losses.Objective) -> RoleRewards:
  """Returns the part of a step that marks the roles of rows, and subtracts
  their running baselines.
  """
  roles, by_turn = names(c) or ('0',), False
  if turn_settings.is_chain(c) and objective['advantage'] == 'segments':
    roles, by_turn = tuple(map(str, range(len(c.turns.links)))), True
  first = c.rows if c.propose else 0
  return RoleRewards(roles, c.role_decay, by_turn, first, bool(c.roles))


def objectives(
  c: RL, completion_len: int
) -> tuple[tuple[str, losses.Objective], ...]:
  """Returns names and losses of the roles of `rl.roles`."""
  return tuple((k, c.role_objective(k, completion_len)) for k in names(c))


def losses_of(run: Run) -> list[tuple[str, RL, losses.Objective]]:
  """Lists the losses of roles: the prefix of messages about the loss, the rl
  section with its algorithm and settings, and its objective.
  """
  c, found = run.rl, objectives(run.rl, run.data.completion_len)
  return [(f'rl.roles.{k}: ', c.of_role(k), x) for k, x in found]


def _is_role(x: Any) -> bool:
  return isinstance(x, Mapping) and isinstance(x.get('loss', {}), Mapping)


def loss_rules(run: Run) -> rules.Rows:
  """Refuses losses of roles that cannot be computed."""
  c = run.rl
  unknown = [k for k in c.roles if k not in names(c)]
  if wrong := [k for k, own in c.roles.items() if not _is_role(own)]:
    return (
      (
        wrong,
        f"rl.roles.{wrong[0]} must be dict(algorithm='rloo', loss={{...}}), of "
        'which each may be left out',
      ),
    )
  fields = {x for own in c.roles.values() for x in own} - KEYS
  known = () if unknown or fields else objectives(c, run.data.completion_len)
  named = [(f'rl.roles.{k}', x) for k, x in known]
  own = [k for k in names(c) if 'algorithm' in c.roles.get(k, {})]
  loss = {k: x for k, x in c.loss.to_dict().items() if x is not None}
  unused = [f'{k}={x!r}' for k, x in loss.items() if len(own) == 2]
  unread = [f'{k}: {x}' for k, o in named for x in sorted(o.needs - READABLE)]
  adaptive = [f'{k}: {x}' for k, o in named for x in ADAPTIVE if o[x]]
  others = [k for k, o in named if o.resample or o.offpolicy]
  return (
    (
      unknown,
      f'rl.roles.{min(unknown, default="")}: the roles of this run are '
      f'{", ".join(names(c)) or "none"}; set rl.propose, or rl.turns.env to a '
      'game of two players',
    ),
    (
      fields,
      f'rl.roles: {min(fields, default="")!r} is no key of a role; choose '
      f'{" or ".join(sorted(KEYS))}',
    ),
    (
      unread,
      f'{"".join(unread[:1])} cannot be read by the loss of a role; use '
      'another algorithm, such as reinforce, rloo or dapo',
    ),
    (
      adaptive,
      f'{"".join(adaptive[:1])} changes a coefficient of all rows; set it to '
      'None',
    ),
    (
      others,
      f'{"".join(others[:1])}: resampled rows and off-policy tokens have no '
      'loss of a role; use another algorithm, such as reinforce, rloo or dapo',
    ),
    (
      unused,
      f'rl.loss.{"".join(unused[:1])} has no effect: both roles name an '
      'algorithm in rl.roles; move it to the loss of a role, and set it to '
      'None',
    ),
    *rules.apart(
      ' and rl.roles cannot be combined; set one of them to its default',
      **proposal_settings.moved_rows(run),
      rl__league__share=c.league.share,
    ),
  )


def role_rules(run: Run) -> rules.Rows:
  """Refuses adapters of roles that cannot be, and what they do not work
  with.
  """
  c, key = run.rl, 'rl.role_adapters=True'
  others = [kind for kind in run.stages if kind != 'rl']
  objective = run.objective
  shared = isinstance(packing.choose(c, 1), packing.Shared)
  hidden = hidden_settings.rewards_of(c)
  return (
    (
      not names(c),
      f'{key}: the rl stage has one role; set rl.propose, or rl.turns.env to a '
      'game of two players, or rl.role_adapters=False',
    ),
    (
      others,
      f'stages={tuple(run.stages)} and {key}: rows of the stage '
      f'{", ".join(others)} have no role; train it in a run of its own, and '
      'begin with init_from',
    ),
    (
      critics.kind_of(objective.needs) is not None,
      f'rl.algorithm={c.algorithm!r} and {key}: a critic reads rows without '
      'their role; use an algorithm without a critic, such as reinforce',
    ),
    (
      hidden,
      f'rl.rewards.{min(hidden, default="")} and {key}: a reward of hidden '
      'states reads rows without their role; use other rewards',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      model__numerics=run.model.numerics == 'exact' and run.model.numerics,
      rl__league__share=c.league.share,
      rl__padding=shared and c.padding,
      rl__probe__rate=c.probe.rate,
      rl__replay_routes=c.replay_routes,
      rl__teacher__prompt=c.teacher.prompt,
      rl__reward_model__weights=c.reward_model.weights,
      rl__loss__sft_on=objective['sft_on'] == 'verdict' and 'verdict',
    ),
  )


def stage_rules(run: Run, stages: Mapping[str, Run]) -> rules.Rows:
  """Refuses stages whose roles are not those of the run's model.

  Args:
    stages: configs of stages by name.
  """
  on = run.rl.role_adapters
  others = [k for k, x in stages.items() if x.rl.role_adapters != on]
  return (
    (
      others,
      f'rl.role_adapters={on} in the run, and {not on} in named.'
      f'{min(others, default="")}: all stages have one model; change it in the '
      'run alone',
    ),
  )
