"""Rules of rewards and groups together with the advantage of the loss."""

from collections.abc import Mapping

from jaxrl_reason import losses
from jaxrl_reason.config import RL, rules
from jaxrl_reason.run.rl import turn_settings as turns

# Advantages of the best of loss.pass_k samples.
BEST_OF = ('passk', 'pkpo')
# Filters that leave at most rl.filter_args.keep rows of a group.
KEEPING = ('shortest', 'efficient', 'best', 'varied')
# Terms of rl.shaping that incorrect completions may receive.
BONUSES = 'laser_explore historical'


def check(c: RL, objective: losses.Objective) -> None:
  """Refuses rewards that the advantage does not read, or reads as another
  quantity, and groups in which it is 0.

  Raises:
    ValueError: names the key.
  """
  for table in (group_rules, weight_rules, term_rules, success_rules):
    rules.refuse(table, c, objective)


def group_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses groups so small that every advantage is 0."""
  name, advantage = objective['advantage'], objective.advantage
  one_is_enough = (
    getattr(advantage, 'singleton', None) == 'reward'
    or (name == 'segments' and objective['segment_baseline'] == 'none')
    or name in BEST_OF
  )
  keep_k, pass_k = objective['keep_k'], objective['pass_k']
  size, key = _group_size(c, name, keep_k)
  return (
    (
      name in BEST_OF and pass_k > size,
      f'{key}: rl.loss.advantage={name!r} is 0 with fewer samples of a problem '
      f'than rl.loss.pass_k={pass_k}',
    ),
    (
      name == 'pkpo' and objective['pkpo_baseline'] == 'loo' and pass_k == size,
      f"{key}: rl.loss.pkpo_baseline='loo' reads rl.loss.pass_k={pass_k} other "
      "samples of a problem; lower pass_k, or choose 'loo_minus_one'",
    ),
    (
      name == 'gfpo' and keep_k >= c.samples > 1,
      f'rl.loss.keep_k={keep_k} of rl.samples={c.samples}: rl.loss.advantage='
      "'gfpo' would drop nothing; choose fewer",
    ),
    (
      size == 1 and 'group' in advantage.reads and not one_is_enough,
      f'{key}: rl.algorithm={c.algorithm!r} compares the samples of a problem '
      f'(advantage={name!r}), and is 0 for one alone; use 2 or more, or '
      'another rl.loss.advantage (reinforce)',
    ),
  )


def _group_size(c: RL, advantage: str, keep_k: int) -> tuple[int, str]:
  """Returns the most rows of a group that an advantage compares, and the
  setting that limits them.
  """
  sizes = [(c.samples, f'rl.samples={c.samples}')]
  keep = c.filter_args.keep
  if {*c.filter.split('+')} & {*KEEPING}:
    sizes.append((keep, f'rl.filter_args.keep={keep}'))
  if advantage == 'gfpo':
    sizes.append((keep_k, f'rl.loss.keep_k={keep_k}'))
  return min(sizes, key=lambda x: x[0])


def weight_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses weights that an advantage of single parts cannot apply."""
  if 'part_weights' not in objective.part_keys:
    return ()
  names, given = turns.part_names(c), c.loss.part_weights or ()
  scheduled = (
    name
    for name, part in c.rewards.items()
    if isinstance(part.get('weight'), Mapping)
  )
  name = next(scheduled, '')
  return (
    (
      given and len(given) != len(names),
      f'rl.loss.part_weights={given} for the parts {", ".join(names)} of the '
      'reward: set one weight for each, or () for those of rl.rewards',
    ),
    (
      name,
      f'rl.rewards.{name}.weight is a schedule, and rl.algorithm='
      f'{c.algorithm!r} weighs parts by constants; set it to a number',
    ),
  )


def term_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses terms of a reward that nothing reads."""
  name, reads = objective['advantage'], objective.advantage.reads
  unread = name == 'none' or 'reward' not in reads
  unread &= not (objective.resample or objective.likelihood_on('right'))
  if not unread:
    return ()
  terms = {'rl.overlong': c.overlong}
  terms |= {f'rl.shaping.{k}': x for k, x in c.shaping.terms.items()}
  key = next((k for k, x in terms.items() if x), '')
  return (
    (
      key,
      f'{key}={terms.get(key)} has no effect with rl.algorithm='
      f'{c.algorithm!r}: rl.loss.advantage={name!r} does not read the sum of '
      'rewards, to which it is added; set it to its default',
    ),
  )


def success_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses bonuses by which incorrect completions count as correct."""
  if 'threshold' not in objective.part_keys or c.loss.threshold is not None:
    return ()
  bonuses = {f'rl.shaping.{k}': c.shaping[k] for k in BONUSES.split()}
  bonuses |= {f'rl.rewards.{k}.weight': w for k, w in _further(c).items()}
  key = next((k for k, x in bonuses.items() if x), '')
  return (
    (
      key,
      f'{key}={bonuses.get(key)}: incorrect completions may receive it, and '
      f'rl.algorithm={c.algorithm!r} counts each reward above 0 as correct; '
      'set rl.loss.threshold to the reward above which a completion is correct',
    ),
  )


def _further(c: RL) -> dict[str, float | Mapping]:
  """Returns the weights of parts of a reward that are added to the first one
  with a weight, also if that one is 0.
  """
  weights = {k: p.get('weight', 1.0) for k, p in c.rewards.items()}
  weighted = [k for k, w in weights.items() if w != 0]

  apart = {k for k, p in c.rewards.items() if 'task' in p or 'domain' in p}
  met = {*weighted[:1]}  # parts that count only if the first one does
  for _ in c.rewards:
    met |= {k for k, p in c.rewards.items() if met & _needs(p)}
  return {
    k: weights[k]
    for k in weighted[1:]
    if k not in apart | met
    and (isinstance(weights[k], Mapping) or weights[k] > 0)
  }


def _needs(part: Mapping) -> set[str]:
  needs = part.get('needs', ())
  return {needs} if isinstance(needs, str) else {*needs}
