"""Rules of the rl section together with the loss and the model."""

from jaxrl_reason import losses
from jaxrl_reason.config import RL, Data, rules
from jaxrl_reason.rollouts import in_flight
from jaxrl_reason.run.checks import loss_checks, teacher_checks
from jaxrl_reason.run.rl import (
  generation_settings,
  hidden_settings,
  reward_functions,
  search_settings,
  verdict_settings,
)
from jaxrl_reason.run.rl import turn_settings as turns
from jaxrl_reason.run.rl.temperature_control import RESIDUAL
from jaxrl_reason.update import packing
from jaxrl_reason.update.learner import REFERENCE


def check(c: RL, d: Data, objective: losses.Objective, adapted: bool) -> None:
  """Refuses an rl section that cannot work, or has settings without effect.

  Args:
    adapted: whether adapters or vectors are trained beside the model.

  Raises:
    ValueError: names the key.
  """
  loss_checks.check(c, objective)
  needs = losses.needs(objective)
  rules.refuse(loss_checks.demo_rules, c, objective)
  if c.old_logp != 'trainer':
    rules.refuse(loss_checks.old_logp_rules, c, objective)
  if objective.likelihood or objective.resample:
    rules.refuse(likelihood_rules, c, objective)
    rules.refuse(reward_functions.answer_rules, c, objective)
  if c.league.share or c.role_decay:
    rules.refuse(role_rules, c, objective)
  if c.delay:
    rules.refuse(queue_rules, c)
  if c.temperature_control.entropy or c.temperature_control.residual:
    rules.refuse(temperature_rules, c, needs)
  if 'old_divergence' in needs:
    rules.refuse(region_rules, c, needs)
  chunked = generation_settings.chunks_of(c, d) is not None
  penalties = c.repetition_penalty, c.presence_penalty, c.frequency_penalty
  if penalties != (1, 0, 0):
    rules.refuse(generation_settings.penalty_rules, c, needs, chunked)
  if c.regex or c.json_schema:
    rules.refuse(generation_settings.grammar_rules, c, objective, chunked)
  if c.reference.moves or c.reference_memory != 'device':
    rules.refuse(reference_rules, c, objective, adapted)
  teacher_checks.check(c, needs)
  if c.padding != 'whole' and not chunked:  # chunks have rows of their own
    rules.refuse(padding_rules, c, d, needs)
  if c.league.share:
    rules.refuse(turns.league_rules, c, d)
  if c.turns.env or 'segment_reward' in needs:
    turns.check(c, d, needs)
  if c.chunks.tokens or c.chunks.carry:
    generation_settings.check_chunks(c, d, needs)
  rules.refuse(hidden_settings.hidden_rules, c, needs, chunked)
  rules.refuse(verdict_settings.verdict_rules, c, d, objective)
  if c.in_flight.batches:
    rules.refuse(flight_rules, c, chunked, needs)
  if c.tree.width:
    rules.refuse(generation_settings.tree_rules, c, d)
  if c.search.simulations:
    rules.refuse(search_settings.search_rules, c, d, objective)
  rules.refuse(path_rules, c, d.completion_len)
  if c.path == 'host':
    rules.refuse(host_rules, c)
  if c.slots or c.cache_segments != RL.cache_segments:
    rules.refuse(cache_rules, c, chunked)


def queue_rules(c: RL) -> rules.Rows:
  """Refuses what a queue of batches does not work with."""
  return (
    *rules.apart(
      f' and rl.staleness={c.staleness}: the queue holds rl.prompts groups of '
      'one generation; set one of them to its default',
      rl__extra__groups=c.extra.groups,
      rl__replay__rows=c.replay.rows,
      rl__refill_keep=c.refill_rounds and c.refill_keep,
      rl__replay_routes=c.replay_routes,
      rl__turns__env=c.turns.env,
    ),
    (
      c.delay >= c.steps,
      f'rl.staleness={c.staleness}: no batch leaves the queue in rl.steps='
      f'{c.steps} steps; set rl.steps higher',
    ),
  )


def flight_rules(c: RL, chunked: bool, needs: frozenset[str]) -> rules.Rows:
  """Refuses groups in flight that cannot be, and what they do not work with."""
  batches, limit = c.in_flight.batches, c.in_flight.max_staleness
  key = f'rl.in_flight.batches={batches}'
  return (
    (
      batches == 1,
      f'{key}: no group would stay in flight; set it to 2 or more, or 0',
    ),
    (
      batches > c.steps,
      f'{key}: no step of rl.steps={c.steps} would train; set rl.steps higher',
    ),
    rules.choice('rl.in_flight.cache', c.in_flight.cache, in_flight.CACHES),
    (
      0 < limit < batches - 1,
      f'rl.in_flight.max_staleness={limit}: {key} trains on every group after '
      f'{batches - 1} steps on average; set it to that or more, or 0',
    ),
    (
      'greedy_reward' in needs,
      f'{key}: rl.algorithm={c.algorithm!r} reads a greedy completion of the '
      'same weights; set it to 0',
    ),
    (
      c.cache_segments not in (1, RL.cache_segments),
      f'rl.cache_segments={c.cache_segments} and {key}: rows in flight are of '
      f'all lengths, so all columns are cached; set it to {RL.cache_segments}',
    ),
    *rules.apart(
      f' and {key} cannot be combined; set one of them to its default',
      rl__path=c.path == 'host' and c.path,
      rl__staleness=c.staleness,
      rl__refill_rounds=c.refill_rounds,
      rl__extra__groups=c.extra.groups,
      rl__replay__rows=c.replay.rows,
      rl__hints__room=c.hints.room,
      rl__demos=c.demos,
      rl__replay_routes=c.replay_routes,
      rl__turns__env=c.turns.env,
      rl__chunks__tokens=chunked and c.chunks.tokens,
      rl__temperature_control__entropy=c.temperature_control.entropy,
      rl__temperature_control__residual=c.temperature_control.residual,
      rl__repetition_penalty=c.repetition_penalty != 1 and c.repetition_penalty,
      rl__presence_penalty=c.presence_penalty,
      rl__frequency_penalty=c.frequency_penalty,
    ),
  )


def region_rules(c: RL, needs: frozenset[str]) -> rules.Rows:
  """Refuses a trust region of whole distributions that cannot be computed."""
  key = f'rl.loss.policy of rl.algorithm={c.algorithm!r}'
  return (
    (
      c.epochs * c.minibatches == 1,
      f'{key} compares the policy with the one before the updates of a batch, '
      'and rl.epochs=1, rl.minibatches=1 make one update: they are equal; '
      'raise one of them, or set rl.loss.policy to dppo',
    ),
    (
      'teacher_kl' in needs,
      f'{key} and rl.loss.distill both compare whole distributions, and a '
      'step compares two; set rl.loss.policy to dppo, or rl.loss.distill to '
      'advantage',
    ),
    *rules.apart(
      f' and {key}: the policy before the updates would choose other experts; '
      'set one of them to its default',
      rl__replay_routes=c.replay_routes,
    ),
    (
      not c.logprob_chunk,
      f'{key} would hold the logits of two policies at once with '
      'rl.logprob_chunk=0; set it to the columns that may be held, such as 64',
    ),
  )


def likelihood_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  observes = objective.likelihood_on('observations')
  shared = packing.choose(c, 1)
  return (
    (
      observes and not c.turns.env,
      f"rl.loss.sft_on='observations' (rl.algorithm={c.algorithm!r}): "
      'completions without an environment have no observations; set '
      "rl.turns.env, or rl.loss.sft_on='right'",
    ),
    (
      objective.resample and isinstance(shared, packing.Shared),
      f'rl.padding={c.padding!r} and rl.loss.resample='
      f'{objective["resample"]!r}: the rows drawn of a prompt may be more than '
      'rl.samples, which share it; choose whole',
    ),
  )


def role_rules(c: RL, objective: losses.Objective) -> rules.Rows:
  """Refuses running baselines of roles, and past versions as players, beside
  baselines of groups.
  """
  s, share = objective, c.league.share
  apart = s['advantage'] == 'segments' and s['segment_baseline'] == 'none'
  of_group = 'group' in objective.advantage.reads and not apart
  return (
    (
      share and turns.is_game(c) and of_group,
      f'rl.league.share={share}: rl.loss.advantage={s["advantage"]!r} has a '
      'baseline of the group, which has the rows of past versions too; set it '
      'to reinforce, and rl.role_decay to a decay such as 0.95',
    ),
    (
      c.role_decay and of_group,
      f'rl.role_decay={c.role_decay}: rl.loss.advantage={s["advantage"]!r} '
      'subtracts a baseline of the group as well; set it to reinforce, or with '
      "rl.turns.env='chain' to segments and rl.loss.segment_baseline to none",
    ),
  )


def reference_rules(
  c: RL, objective: losses.Objective, adapted: bool
) -> rules.Rows:
  r = c.reference
  moves = r.moves
  key = f'rl.reference.{moves[0]}={r[moves[0]]}' if moves else ''
  reads = losses.needs(objective) & {'ref_logp', 'process_reward'}
  reads = reads or c.teacher.weights == REFERENCE
  measures = 'kl_coef' in objective.terms and objective['kl_to'] == 'ref'
  host = c.reference_memory if c.reference_memory == 'host' else ''
  return (
    *rules.apart(
      f": rl.algorithm={c.algorithm!r} reads no reference; set it to 'device'",
      rl__reference_memory=not reads and host,
    ),
    *rules.apart(
      ': the reference of a model with adapters is the model without them, '
      "which is no copy; set it to 'device'",
      rl__reference_memory=adapted and host,
    ),
    (
      moves and not reads,
      f'{key}: rl.algorithm={c.algorithm!r} reads no reference; set '
      'rl.loss.kl_coef above 0, or rl.teacher.weights=reference',
    ),
    (
      moves and adapted,
      f'{key}: the reference of a model with adapters is the model without '
      'them, which does not move; set it to 0',
    ),
    (
      moves and c.reference_memory != 'device',
      f'{key} and rl.reference_memory={c.reference_memory!r}: a reference that '
      "moves stays on the device; set it to 'device'",
    ),
    (
      r.kl and not measures,
      f'rl.reference.kl={r.kl}: no term of the loss is a KL to the reference; '
      "set rl.loss.kl_coef above 0, kl_in='loss' and kl_to='ref'",
    ),
  )


def temperature_rules(c: RL, needs: frozenset[str]) -> rules.Rows:
  t = c.temperature_control
  key = 'rl.temperature_control'
  return (
    (
      t.entropy and 'full_logits' in needs,
      f'{key}.entropy={t.entropy}: rl.algorithm={c.algorithm!r} has no entropy '
      'of the sampled tokens; set it to 0',
    ),
    (
      (t.entropy and c.temperature < t.low) or c.temperature > t.high,
      f'rl.temperature={c.temperature} is not within {key}.low={t.low} and '
      f'{key}.high={t.high}',
    ),
    rules.choice(f'{key}.residual_of', t.residual_of, RESIDUAL),
    (
      t.residual and c.samples == 1,
      f'{key}.residual={t.residual} and rl.samples=1: one sample of a problem '
      'never differs from others; set rl.samples to 2 or more',
    ),
  )


def padding_rules(c: RL, d: Data, needs: frozenset[str]) -> rules.Rows:
  columns = d.prompt_len + c.hints.room
  packed = packing.choose(c, columns)
  is_shared = isinstance(packed, packing.Shared)
  is_packed = isinstance(packed, packing.Packing)
  longest = columns + d.completion_len
  hints = f'+ rl.hints.room {c.hints.room} ' if c.hints.room else ''
  return (
    (
      is_shared and c.demos and c.replay_routes,
      f'rl.padding={c.padding!r} with rl.demos={c.demos} and '
      'rl.replay_routes=True: a demonstration and the samples of its problem '
      'choose different experts for the prompt, which cannot be shared; choose '
      'whole',
    ),
    (
      isinstance(packed, packing.Tree) and c.replay_routes,
      f'rl.padding={c.padding!r} and rl.replay_routes=True: samples that begin '
      'with the same tokens may have chosen different experts for them; choose '
      'whole',
    ),
    (
      is_shared and c.hints.learn,
      f'rl.padding={c.padding!r} and rl.hints.learn=True: a prompt that is '
      'shared has no loss; choose whole',
    ),
    (
      is_packed and packed.length < longest,
      f'rl.padding={c.padding!r} is less than data.prompt_len {d.prompt_len} '
      f'{hints}+ data.completion_len {d.completion_len} = {longest}, the '
      'longest sequence',
    ),
    (
      is_packed and 'full_logits' in needs,
      f'rl.padding={c.padding!r}: rl.algorithm={c.algorithm!r} reads whole '
      'logits, which are not packed; choose buckets:N',
    ),
  )


def cache_rules(c: RL, chunked: bool) -> rules.Rows:
  """Refuses settings of the sampler's cache that have no effect."""
  hosted = c.path == 'host' and c.turns.env
  grows = c.cache_segments not in (1, RL.cache_segments)
  return (
    (
      c.slots >= c.samples,
      f'rl.slots={c.slots} of rl.samples={c.samples}: all samples of a problem '
      'would be decoded at a time; set it lower, or to 0',
    ),
    *rules.apart(
      f' and rl.cache_segments={c.cache_segments}: the cache has all of its '
      f'columns from the start; set rl.cache_segments to {RL.cache_segments}',
      rl__chunks__tokens=grows and chunked and c.chunks.tokens,
      rl__turns__env=grows and hosted,
    ),
  )


def path_rules(c: RL, completion_len: int) -> rules.Rows:
  compared = reward_functions.of_group(c.rewards)
  return (
    (
      compared and c.samples == 1,
      f'rl.samples=1: rl.rewards.{"".join(compared[:1])} compares the samples '
      'of a problem; use 2 or more',
    ),
    rules.choice('rl.path', c.path, ('fused', 'host')),
    rules.choice('rl.reference_memory', c.reference_memory, ('device', 'host')),
    (
      c.overlong > completion_len,
      f'rl.overlong={c.overlong} tokens of data.completion_len='
      f'{completion_len}: choose from 0 to that',
    ),
    (
      c.shaping.repetition and c.shaping.repetition_n >= completion_len,
      f'rl.shaping.repetition_n={c.shaping.repetition_n} of '
      f'data.completion_len={completion_len} tokens: none is long enough to '
      'repeat it; choose fewer',
    ),
  )


def host_rules(c: RL) -> rules.Rows:
  return (
    *rules.apart(
      f' has no effect with rl.turns.env={c.turns.env!r}: episodes are not '
      f'split into parts; set it to {RL.parts}',
      rl__parts=c.turns.env and c.parts != RL.parts and c.parts,
    ),
    (
      c.steps_per_dispatch != 1,
      'rl.steps_per_dispatch must be 1 with rl.path="host": rewards in Python '
      'are computed between generation and update',
    ),
  )
