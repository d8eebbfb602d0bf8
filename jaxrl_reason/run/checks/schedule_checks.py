"""Rules of a run's schedules: intervals, warm-ups, learning rates, the steps to
profile and time limits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_reason.config import Optimizer, Run, rules, unread
from jaxrl_reason.config.run import Checkpoint, Watchdog
from jaxrl_reason.config.training import Critic
from jaxrl_reason.run.process import compile_log
from jaxrl_reason.run.stage_list import Planned
from jaxrl_reason.update import critics, optim


def check(run: Run, stages: Sequence[Planned]) -> None:
  """Refuses schedules that are about all stages.

  Raises:
    ValueError: names the key.
  """
  rules.refuse(critic_rules, [p.config for p in stages if p.kind == 'rl'])
  if any(p.config.rl.critic.warmup_updates for p in stages):
    rules.refuse(critic_warmup_rules, stages)
  if run.profile.steps:
    steps = sum(p.config.training(p.kind).steps for p in stages)
    rules.refuse(profile_rules, run.profile.steps, steps)
  rules.refuse(watchdog_rules, run.watchdog)


def check_stages(run: Run) -> None:
  """Refuses schedules of a config whose stages have no settings of their own.

  Raises:
    ValueError: names the key.
  """
  intervals = {
    'eval.every': run.eval.every,
    'checkpoint.every': run.checkpoint.every,
  }
  rules.refuse(interval_rules, intervals, run.log_every)
  if run.checkpoint.emergency_every:
    rules.refuse(emergency_rules, run.checkpoint)
  for kind in dict.fromkeys(run.stages):
    c = run.training(kind)
    key = f'{kind}.optimizer'
    if kind == 'rl':
      _check_optimizer(key, c.optimizer, c.policy_updates)
      critic = c.critic.optimizer
      _check_optimizer('rl.critic.optimizer', critic, c.updates)
    else:
      _check_optimizer(key, c.optimizer, c.steps * c.minibatches)
    rules.refuse(dispatch_rules, kind, c, run.log_every)


def _check_optimizer(key: str, c: Optimizer, updates: int) -> None:
  try:
    optim.make(c, updates)
  except ValueError as e:
    raise ValueError(f'{key}: {e}') from e
  rules.refuse(rate_rules, key, c, updates)


def rate_rules(key: str, c: Optimizer, updates: int) -> rules.Rows:
  """Refuses a learning rate whose schedule begins after the last update."""
  return (
    (
      c.schedule != 'constant' and c.warmup_steps >= updates > 0,
      f'{key}.schedule={c.schedule!r} has no effect: {key}.warmup_steps='
      f'{c.warmup_steps} covers all {updates} updates of the stage; lower it, '
      "or set the schedule to 'constant'",
    ),
  )


def interval_rules(intervals: Mapping[str, int], log_every: int) -> rules.Rows:
  """Refuses evaluations and checkpoints between two lines of metrics."""
  return tuple(
    rules.divides(key, every, log_every=log_every)
    for key, every in intervals.items()
  )


def emergency_rules(c: Checkpoint) -> rules.Rows:
  return (
    (
      c.emergency_every >= c.every,
      f'checkpoint.emergency_every={c.emergency_every} is not below '
      f'checkpoint.every={c.every}: make it a few steps, or 0',
    ),
    (
      '://' in c.emergency_dir,
      f'checkpoint.emergency_dir={c.emergency_dir!r}: must be a folder on a '
      'disk of each host; the checkpoints of the workdir are the ones that '
      'outlive hosts',
    ),
  )


def dispatch_rules(kind: str, c: Any, log_every: int) -> rules.Rows:
  k = {f'{kind}.steps_per_dispatch': c.steps_per_dispatch}
  return (
    rules.divides(f'{kind}.steps', c.steps, **k),
    rules.divides('log_every', log_every, **k),
  )


def critic_rules(stages: Sequence[Run]) -> rules.Rows:
  """Refuses settings of a critic if no rl stage has one."""
  if any(critics.kind_of(run.objective.needs) for run in stages):
    return ()
  critic = (
    x for run in stages for x in unread.changed(run.rl.critic, Critic())
  )
  key, value, default = next(critic, 3 * ('',))
  return (
    (
      key,
      f'rl.critic{key}={value!r}: no algorithm of a stage has a critic; set it '
      f'to {default!r}, or rl.algorithm to one with values or process rewards, '
      'such as ppo',
    ),
  )


def critic_warmup_rules(stages: Sequence[Planned]) -> rules.Rows:
  """Refuses a critic's warm-up that lasts until the end of its last stage, so
  that the policy is never trained.
  """
  updates, never = 0, []
  for i, p in enumerate(stages):
    rl, kept = p.config.rl, 'critic' in p.keep
    updates = rl.updates + (updates if kept else 0)
    goes_on = any('critic' in after.keep for after in stages[i + 1 : i + 2])
    has = p.kind == 'rl' and critics.kind_of(p.config.objective.needs)
    if has and not goes_on and rl.critic.warmup_updates >= updates > 0:
      never.append((p.name, rl.critic.warmup_updates, updates))
  name, warmup, updates = (*never, ('', 0, 0))[0]
  return (
    (
      name,
      f'rl.critic.warmup_updates={warmup}: stage {name!r} ends after {updates} '
      'updates, so the policy would never be trained; lower it, or keep the '
      "critic in a stage after this one (keep=('critic',))",
    ),
  )


def profile_rules(text: str, steps: int) -> rules.Rows:
  """Refuses steps to profile that no stage reaches."""
  profiled = compile_log.profiled(text)
  return (
    (
      profiled and profiled[0] > steps,
      f'profile.steps={text!r}: the stages have {steps} steps together, and '
      'none would be profiled; choose steps from 1 to that',
    ),
  )


def watchdog_rules(c: Watchdog) -> rules.Rows:
  """Refuses a limit of first operations that the smallest limit replaces."""
  return (
    (
      c.first_s < c.floor_s and c.first_s != Watchdog.first_s,
      f'watchdog.first_s={c.first_s:g} has no effect: it is below watchdog.'
      f'floor_s={c.floor_s:g}, the smallest limit; raise it, or lower floor_s',
    ),
  )
