"""Proposals of problems, as set by `rl.propose`."""

import dataclasses
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.config import Run, rules
from jaxrl_reason.data import token_bias
from jaxrl_reason.models import adapters
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rollouts import proposals
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.update import packing

REWARD = {'reward': 'task'}
ROLES = 'proposer', 'solver'
STRINGS = 'string_functions', 'proposed_strings'
EVALUATED = ROLES.index('solver')


def around(
  source: FusedSource,
  ask: str,
  task: str,
  task_kernel: Any,
  tokenizer: Any,
  by_role: bool = False,
) -> proposals.ProposalSource:
  """Builds the source of proposals and answers around that of completions.

  Args:
    task: `data.name`.
    by_role: proposer and solver have adapters of their own.

  Raises:
    ValueError: `ask` is no single token, or the program cannot evaluate
      problems of the task.
  """
  ids = token_bias.encoded(ask, tokenizer, 'rl.propose')
  if len(ids) != 1:
    raise ValueError(
      f'rl.propose={ask!r} has {len(ids)} tokens; choose a text of one token'
    )
  evaluate = proposals.integers
  if task in STRINGS:
    evaluate = proposals.strings
  elif task_kernel != 'integer':
    raise ValueError(
      f'rl.propose={ask!r} evaluates integer arithmetic or string functions, '
      f'and the kernel of data.name={task} is {task_kernel!r}; set data.name '
      f'to arithmetic, proposed, {" or ".join(STRINGS)}'
    )
  both = source, source
  if by_role:
    both = (_with_adapters(source, i) for i in range(len(ROLES)))
  table = kernels.token_bytes_table(tokenizer)
  return proposals.ProposalSource(*both, ids[0], *table, by_role, evaluate)


def _with_adapters(source: FusedSource, role: int) -> FusedSource:
  model = adapters.of_role(source.gen.model, role, len(ROLES))
  gen = dataclasses.replace(source.gen, model=model)
  return dataclasses.replace(source, gen=gen)


def moved_rows(run: Run) -> dict:
  """Returns the settings, for `rules.apart`, that may add, remove or reorder
  rows: with them the position of a row does not give its role.
  """
  c = run.rl
  return dict(
    rl__path=c.path == 'host' and c.path,
    sampler_mesh=run.sampler_mesh and tuple(run.sampler_mesh),
    rl__chunks__tokens=c.chunks.tokens,
    rl__tree__width=c.tree.width,
    rl__in_flight__batches=c.in_flight.batches,
    rl__staleness=c.staleness,
    rl__refill_rounds=c.refill_rounds,
    rl__extra__groups=c.extra.groups,
    rl__hints__room=c.hints.room,
    rl__demos=c.demos,
    rl__replay__rows=c.replay.rows,
  )


def proposal_rules(run: Run) -> rules.Rows:
  """Refuses what proposals do not work with."""
  c, d = run.rl, run.data
  key = f'rl.propose={c.propose!r}'
  needs = losses.needs(run.objective)
  specs = [
    {k: v for k, v in x.items() if k != 'weight'} for x in c.rewards.values()
  ]
  return (
    (
      c.samples < 2,
      f'rl.samples={c.samples} and {key}: one answer to a proposal is all '
      'right or all wrong; set it to 2 or more',
    ),
    (
      specs != [REWARD],
      f'rl.rewards={dict(c.rewards)} and {key}: an answer has the reward of '
      "the task alone; set rl.rewards={'answer': {'reward': 'task'}}",
    ),
    (
      'greedy_reward' in needs,
      f'rl.algorithm={c.algorithm!r} and {key}: a greedy proposal has no '
      'reward; use another algorithm',
    ),
    (
      d.has_pool,
      f'data.controller.name={d.controller.name!r}, or data.sources, and '
      f'{key}: statistics of problems would count proposals; set '
      'data.controller.name=none',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      **moved_rows(run),
      rl__turns__env=c.turns.env,
      rl__role_decay=c.role_decay,
      rl__teacher__prompt=c.teacher.prompt,
      rl__archive=c.archive,
      rl__shaping__historical=c.shaping.historical,
      rl__padding=isinstance(packing.choose(c, 1), packing.Shared)
      and c.padding,
    ),
  )
