"""Rules of the loss together with its samples, rewards and groups.

There are three policies: the sampler; the proximal policy, which is the
trainer's before the updates of a batch; and the trained policy. With
rl.old_logp='trainer' a ratio is trained / proximal, and a correction weighs by
proximal / sampler. With 'sampler' the two are one ratio, trained / sampler.
With 'loglinear' the proximal policy is interpolated between the sampler and the
trained policy.
"""

from collections.abc import Mapping
from typing import Any

from jaxrl_reason import losses
from jaxrl_reason.config import RL, rules
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.rollouts import rescue
from jaxrl_reason.run.rl import turn_settings as turns
from jaxrl_reason.update.learner import LOGLINEAR, OLD_LOGP

# Settings that weigh a token by proximal / sampler.
WEIGHTS = (
  'correction', 'reject_low', 'reject_high', 'veto', 'max_second_moment',
)  # fmt: skip
# Advantages of the best of loss.pass_k samples.
BEST_OF = ('passk', 'pkpo')
# Filters that leave at most rl.filter_args.keep rows of a group.
KEEPING = ('shortest', 'efficient', 'best', 'varied')
# Terms of rl.shaping that incorrect completions may receive.
BONUSES = 'laser_explore historical'


def check(c: RL, objective: losses.Objective) -> None:
  """Refuses off-policy samples without weights, weights that are always 1,
  rewards that the advantage does not read, or reads as another quantity, and
  groups in which it is 0.

  Raises:
    ValueError: names the key.
  """
  if c.old_logp == 'sampler':
    rules.refuse(weight_rules, c, objective)
  if c.old_logp == LOGLINEAR:
    rules.refuse(interpolation_rules, c, objective)
  # A divergence from a teacher over the vocabulary holds for any samples.
  distils = 'teacher_kl' in losses.needs(objective)
  only_distils = objective['advantage'] == 'none' and distils
  if not (objective.policy.any_policy or only_distils):
    if not objective.has_ratio:
      rules.refuse(sample_rules, c, objective)
    elif c.old_logp != 'sampler' and not objective.corrects:
      rules.refuse(unweighed_rules, c)
  if objective['kl_to'] == 'old':
    rules.refuse(kl_rules, c, objective)
  for table in (group_rules, part_weight_rules, term_rules, success_rules):
    rules.refuse(table, c, objective)


def weight_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  keys = [k for k in WEIGHTS if objective[k] not in (None, 'none')]
  named = ', '.join(f'rl.loss.{k}={objective[k]!r}' for k in keys)
  return (
    (
      keys,
      f'{named}: weighs by the proximal policy over the sampler, which are one '
      'policy with rl.old_logp="sampler", so every weight would be 1; set '
      'rl.old_logp to "trainer"',
    ),
  )


def interpolation_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses interpolated log-probs that nothing reads, or that do not exist."""
  key = f'rl.old_logp={c.old_logp!r}'
  older = c.staleness or c.in_flight.batches or c.replay.rows
  older = older or (c.refill_rounds and c.refill_keep)
  return (
    (
      not older,
      f'{key} interpolates by the updates since a sample was drawn, which are '
      '0 for every sample; set it to "trainer", or set rl.staleness, '
      'rl.in_flight.batches, rl.replay.rows or rl.refill_keep',
    ),
    (
      objective['correction_normalise'],
      f'{key} and rl.loss.correction_normalise=True: the mean weight of a '
      'batch is not known before its log-probs; set one of them to its '
      'default',
    ),
    *rules.apart(
      f' and {key}: a second try was sampled under another prompt, by the same '
      'policy; set rl.old_logp to "trainer"',
      rl__hints__when=c.second_try,
    ),
  )


def _earlier(c: RL) -> dict[str, Any]:
  """Returns the settings by which samples are of an earlier policy."""
  return {
    'rl__staleness': c.staleness,
    'rl__in_flight__batches': c.in_flight.batches,
    'rl__replay__rows': c.replay.rows,
    'rl__refill_keep': c.refill_rounds and c.refill_keep,
    'rl__hints__when': c.second_try,
  }


def unweighed_rules(c: RL) -> rules.Rows:
  """Refuses samples of an earlier policy that nothing weighs."""
  return rules.apart(
    f' and rl.old_logp="{c.old_logp}": nothing weighs the samples of an '
    'earlier policy; set rl.loss.correction to truncate, or rl.old_logp to '
    '"sampler"',
    **_earlier(c),
  )


def sample_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses samples of an earlier policy for a loss without a ratio."""
  weighed = c.old_logp != 'sampler' and objective.corrects
  no_ratio = (
    f': rl.loss.policy={objective["policy"]!r} with rl.loss.ratio_to='
    f'{objective["ratio_to"]!r} (rl.algorithm={c.algorithm!r}) has no ratio to '
    'the policy that sampled; '
  )
  return (
    *rules.apart(
      f'{no_ratio}set rl.loss.policy to ppo_clip, or rl.old_logp to "trainer" '
      'and rl.loss.correction to truncate',
      **{k: not weighed and x for k, x in _earlier(c).items()},
    ),
    *rules.apart(
      f'{no_ratio}from the second update of a batch on its samples are '
      'off-policy; set it to 1 (rl.micro_batches splits one update), or '
      'rl.loss.policy to ppo_clip',
      rl__epochs=c.epochs > 1 and c.epochs,
      rl__minibatches=c.minibatches > 1 and c.minibatches,
    ),
  )


def kl_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses a KL to the policy before the updates that is always 0."""
  penalised = 'kl_coef' in objective.terms
  return (
    (
      penalised and c.old_logp == 'trainer' and c.epochs * c.minibatches == 1,
      "rl.loss.kl_to='old': with one update per batch the old policy is the "
      'current one, and the KL is 0; set rl.minibatches or rl.epochs to 2 or '
      "more, rl.old_logp to 'sampler', or rl.loss.kl_coef to 0",
    ),
  )


def old_logp_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses old log-probs that no loss reads, or that the sampler lacks."""
  key, needs = f'rl.old_logp={c.old_logp!r}', losses.needs(objective)
  whole = needs & {'old_mean_logp', 'sum_p_squared'}
  by_sampler = c.old_logp == 'sampler' and objective.scores_samples
  return (
    rules.choice('rl.old_logp', c.old_logp, OLD_LOGP),
    (
      c.demos or c.hints.learn or whole,
      f'{key}: the sampler computes no log-probs of demonstrations (rl.demos, '
      'rl.hints.learn) or whole vocabularies (rover, otb); use "trainer"',
    ),
    (
      'old_logp' not in needs,
      f'{key}: rl.algorithm={c.algorithm!r} reads no log-probs from before the '
      'updates; set it to "trainer"',
    ),
    *rules.apart(
      f' and {key}: the KL in the reward, or the teacher, would be compared '
      'with the sampler under a hint; set rl.old_logp to "trainer" and '
      'rl.loss.correction to truncate',
      rl__hints__when=by_sampler and c.second_try,
    ),
  )


def demo_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  reads = 'is_offpolicy' in losses.needs(objective)
  if not c.demos and not c.hints.learn:
    lacks = (
      f'rl.algorithm={c.algorithm!r} learns from demonstrations: set '
      'rl.demos=1 or more, or rl.hints.learn=True'
    )
    return ((reads, lacks),)
  learns = reads and not objective.drop_offpolicy
  late, prompt = c.demos_after, c.demos_prompt
  key = f'rl.demos_when={c.demos_when!r}'
  key = f'rl.demos_prompt={prompt!r}' if prompt else key
  fields = {*informed_prompts.FIELDS.findall(prompt)}
  return (
    (
      c.demos >= c.samples,
      f'rl.demos={c.demos} leaves no sample of rl.samples={c.samples}; set it '
      'lower',
    ),
    rules.choice('rl.demos_when', c.demos_when, rescue.WHEN),
    (
      prompt and 'prompt' not in fields,
      f'{key} lacks {{prompt}}, the problem: write it in',
    ),
    (
      prompt and not fields & {'solution', 'answer'},
      f'{key} adds something to the problem only with {{answer}} or '
      '{solution}: write one of them in',
    ),
    (
      informed_prompts.fields(prompt),
      f'{key} may have {{prompt}}, {{solution}} and {{answer}} only: the other '
      'fields are of a teacher; remove them',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__extra__groups=late and c.extra.groups,
      rl__replay__rows=late and c.replay.rows,
      rl__staleness=late and c.staleness,
      rl__replay_routes=late and c.replay_routes,
      rl__turns__env=late and c.turns.env,
      rl__chunks__tokens=prompt and c.chunks.tokens,
    ),
    *rules.apart(
      f': rl.algorithm={c.algorithm!r} has no loss of tokens that the policy '
      'did not sample; set rl.loss.offpolicy to luffy, rl_plus or sft',
      rl__hints__learn=not learns and c.hints.learn,
      rl__demos=not reads and c.demos,
    ),
  )


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


def part_weight_rules(c: RL, objective: losses.Objective) -> rules.Rows:
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
