"""Rules for samples of another policy than the trained one.

There are three policies: the sampler; the proximal policy, which is the
trainer's before the updates of a batch; and the trained policy. With
rl.old_logp='trainer' a ratio is trained / proximal, and a correction weighs by
proximal / sampler. With 'sampler' the two are one ratio, trained / sampler.
With 'loglinear' the proximal policy is interpolated between the sampler and the
trained policy.
"""

from jaxrl_reason import losses
from jaxrl_reason.config import RL, rules
from jaxrl_reason.data import informed_prompts
from jaxrl_reason.rollouts import rescue
from jaxrl_reason.update.learner import LOGLINEAR

# Settings that weigh a token by proximal / sampler.
WEIGHTS = (
  'correction', 'reject_low', 'reject_high', 'veto', 'max_second_moment',
)  # fmt: skip


def check(c: RL, objective: losses.Objective) -> None:
  """Refuses off-policy samples without weights, and weights that are always 1.

  Raises:
    ValueError: names the key.
  """
  rules.refuse(weight_rules, c, objective)
  rules.refuse(interpolation_rules, c, objective)
  rules.refuse(sample_rules, c, objective)
  rules.refuse(old_logp_rules, c, objective)


def weight_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  keys = [k for k in WEIGHTS if objective[k] not in (None, 'none')]
  named = ', '.join(f'rl.loss.{k}={objective[k]!r}' for k in keys)
  return (
    (
      keys and c.old_logp == 'sampler',
      f'{named}: weighs by the proximal policy over the sampler, which are one '
      'policy with rl.old_logp="sampler", so every weight would be 1; set '
      'rl.old_logp to "trainer"',
    ),
  )


def interpolation_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses interpolated log-probs that nothing reads, or that do not exist."""
  if c.old_logp != LOGLINEAR:
    return ()
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
      rl__hints__when=c.hints.room
      and c.hints.when == 'failed'
      and c.hints.when,
    ),
  )


def sample_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses samples of an earlier policy without a ratio or a weight."""
  # A divergence from a teacher over the vocabulary holds for any samples.
  only_distils = objective['advantage'] == 'none' and (
    'teacher_kl' in losses.needs(objective)
  )
  if objective.policy.any_policy or only_distils:
    return ()
  earlier = {
    'rl__staleness': c.staleness,
    'rl__in_flight__batches': c.in_flight.batches,
    'rl__replay__rows': c.replay.rows,
    'rl__refill_keep': c.refill_rounds and c.refill_keep,
    'rl__hints__when': c.hints.room and c.hints.when == 'failed' and 'failed',
  }
  coupled = c.old_logp == 'sampler'
  ratio, weighed = objective.has_ratio, objective.corrects
  no_ratio = (
    f': rl.loss.policy={objective["policy"]!r} with rl.loss.ratio_to='
    f'{objective["ratio_to"]!r} (rl.algorithm={c.algorithm!r}) has no ratio to '
    'the policy that sampled; '
  )
  return (
    *rules.apart(
      f'{no_ratio}set rl.loss.policy to ppo_clip, or rl.old_logp to "trainer" '
      'and rl.loss.correction to truncate',
      **{
        k: not ratio and (coupled or not weighed) and x
        for k, x in earlier.items()
      },
    ),
    *rules.apart(
      ' and rl.old_logp="trainer": nothing weighs the samples of an earlier '
      'policy; set rl.loss.correction to truncate, or rl.old_logp to "sampler"',
      **{k: not coupled and not weighed and x for k, x in earlier.items()},
    ),
    *rules.apart(
      f'{no_ratio}from the second update of a batch on its samples are '
      'off-policy; set it to 1 (rl.micro_batches splits one update), or '
      'rl.loss.policy to ppo_clip',
      rl__epochs=not ratio and c.epochs > 1 and c.epochs,
      rl__minibatches=not ratio and c.minibatches > 1 and c.minibatches,
    ),
  )


def old_logp_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses old log-probs that no loss reads, or that are the current ones."""
  penalised = 'kl_coef' in objective.terms and objective['kl_to'] == 'old'
  return (
    (
      penalised and c.old_logp == 'trainer' and c.epochs * c.minibatches == 1,
      "rl.loss.kl_to='old': with one update per batch the old policy is the "
      'current one, and the KL is 0; set rl.minibatches or rl.epochs to 2 or '
      "more, rl.old_logp to 'sampler', or rl.loss.kl_coef to 0",
    ),
    (
      c.old_logp != 'trainer' and 'old_logp' not in losses.needs(objective),
      f'rl.old_logp={c.old_logp!r}: rl.algorithm={c.algorithm!r} reads no '
      'log-probs from before the updates; set it to "trainer"',
    ),
    *rules.apart(
      f' and rl.old_logp={c.old_logp!r}: the KL in the reward, or the teacher, '
      'would be compared with the sampler under a hint; set rl.old_logp to '
      '"trainer" and rl.loss.correction to truncate',
      rl__hints__when=c.old_logp == 'sampler'
      and objective.scores_samples
      and c.hints.room
      and c.hints.when == 'failed'
      and c.hints.when,
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
