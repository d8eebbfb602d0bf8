"""Rules of the rl stage's filters, refill, replay, hints and shaped rewards."""

from jaxrl_reason.config import RL, rules
from jaxrl_reason.rollouts import extra, filters, hints, progress, replay
from jaxrl_reason.rollouts import reward_shaping as shaping
from jaxrl_reason.run.rl import reward_functions

# Filters that drop groups; the others leave rows in every group.
BY_REWARD = ('dead_groups', 'spread', 'band')
OF_GROUPS = (*BY_REWARD, 'random')
PAST_ROWS = (
  'it compares the rows of a group, which has rows of past versions; set one '
  'of them to its default'
)


def filter_rules(c: RL) -> rules.Rows:
  names, args, share = c.filter.split('+'), c.filter_args, c.league.share
  varied = {'dead_groups', 'spread'} & {*names}
  return (
    *rules.apart(
      f' and rl.league.share={share} cannot be combined: {PAST_ROWS}',
      rl__filter=share and {*names} & {*BY_REWARD} and c.filter,
    ),
    (
      c.samples == 1 and varied,
      f'rl.samples=1, rl.filter={c.filter!r}: every group of one sample has no '
      'variance and would be dropped; set rl.samples to 2 or more',
    ),
    (
      args.low > args.high,
      f'rl.filter_args.low={args.low} is above rl.filter_args.high={args.high}'
      ': no group is in between',
    ),
    (
      'band' in names and not _has_share(c.samples, args.low, args.high),
      f'rl.filter_args.low={args.low}, rl.filter_args.high={args.high}: no '
      f'share of rl.samples={c.samples} samples is in between, so every group '
      'would be dropped; widen the band',
    ),
    (
      'band' in names and args.low <= 0 and args.high >= 1,
      f'rl.filter={c.filter!r} with rl.filter_args.low={args.low} and '
      f'rl.filter_args.high={args.high}: the band keeps every group; raise low '
      'above 0, or lower high below 1',
    ),
    (
      'random' in names and args.share >= 1,
      f'rl.filter={c.filter!r} with rl.filter_args.share={args.share}: every '
      'group remains; set it below 1',
    ),
    (
      args.keep >= c.samples and any('keep' in _arguments(n) for n in names),
      f'rl.filter_args.keep={args.keep} of rl.samples={c.samples}: '
      f'rl.filter={c.filter!r} would drop nothing; choose fewer',
    ),
  )


def archive_rules(c: RL) -> rules.Rows:
  return (
    (
      c.turns.env,
      f'rl.archive={c.archive} and rl.turns.env={c.turns.env!r}: an episode '
      "contains the environment's text and is no solution; set one of them to "
      'its default',
    ),
  )


def _arguments(name: str) -> tuple[str, ...]:
  """Returns the filter_args that a filter reads."""
  f = filters.FILTERS[name]
  return () if f is None else filters.arguments(f)


def _has_share(samples: int, low: float, high: float) -> bool:
  """Returns whether n of `samples` is a share from low to high for some n."""
  return any(
    low * samples - 1e-4 <= n <= high * samples + 1e-4
    for n in range(samples + 1)
  )


def same_step(c: RL, **values) -> rules.Rows:
  """Returns the rows of settings that need a step's verdicts for the next."""
  ahead = values if c.overlaps else dict.fromkeys(values)
  return rules.apart(
    f' and rl.staleness={c.staleness}: the samples of the next step depend on '
    'the verdicts of this one; set one of them to 0',
    **ahead,
  )


def round_rules(c: RL) -> rules.Rows:
  groups, share = c.extra.groups, c.league.share
  return (
    *rules.apart(
      f' and rl.league.share={share} cannot be combined: {PAST_ROWS}',
      rl__extra__groups=share and groups,
    ),
    (
      c.refill_rounds and not {*c.filter.split('+')} & {*OF_GROUPS},
      f'rl.refill_rounds={c.refill_rounds} replaces groups that rl.filter '
      f'drops, and rl.filter={c.filter!r} drops none; set it to one of '
      f'{", ".join(OF_GROUPS)}',
    ),
    *same_step(c, rl__refill_rounds=c.refill_rounds),
    rules.choice('rl.extra.by', c.extra.by, extra.GAINS),
    *rules.apart(
      f' and rl.extra.groups={groups}: refill moves single groups, and would '
      'take those of one problem apart; set one of them to 0',
      rl__refill_rounds=groups and c.refill_rounds,
    ),
    *rules.apart(
      f' and rl.extra.groups={groups}: the groups of one problem share a '
      "baseline already; set rl.replay.mix='groups'",
      rl__replay__mix=groups
      and c.replay.rows
      and c.replay.mix == 'rows'
      and c.replay.mix,
    ),
  )


def replay_rules(c: RL) -> rules.Rows:
  r, made = c.replay, c.prompts + c.extra.groups
  return (
    rules.choice('rl.replay.by', r.by, replay.CHOICES),
    rules.choice('rl.replay.mix', r.mix, replay.MIX),
    (
      bool(r.rows) != bool(r.capacity),
      f'rl.replay.rows={r.rows} and rl.replay.capacity={r.capacity}: set both, '
      'or neither',
    ),
    (
      r.rows % c.samples,
      f'rl.replay.rows={r.rows}: whole groups are replayed, so it must be a '
      f'multiple of rl.samples={c.samples}',
    ),
    (
      r.rows and r.capacity < max(made, r.rows // c.samples),
      f'rl.replay.capacity={r.capacity} groups are fewer than a step makes '
      f'(rl.prompts={c.prompts} + rl.extra.groups={c.extra.groups}) or replays '
      f'(rl.replay.rows={r.rows} / '
      f'rl.samples={c.samples}); raise it',
    ),
    *same_step(c, rl__replay__rows=r.rows),
  )


def hint_rules(c: RL) -> rules.Rows:
  h = c.hints
  again, of_policy = h.when == 'failed', ('solve_rate', 'mean_length')
  numbers = all(map(rules.is_number, (*h.at, *h.share)))
  rise = numbers and h.at and sorted({*h.at}) == [*h.at]
  blind = reward_functions.scheduled_by(c.rewards, of_policy)
  return (
    rules.choice('rl.hints.when', h.when, hints.WHEN),
    rules.choice('rl.hints.by', h.by, (*progress.NAMES, progress.HINTED)),
    *rules.apart(
      ': all rows begin with a hint, and none measures the policy alone; set '
      "it to step or hinted_solve_rate, or rl.hints.when='failed'",
      rl__hints__by=not again and h.by in of_policy and h.by,
    ),
    (
      blind and not again,
      f'rl.rewards.{"".join(blind[:1])}.weight follows rows without hints, and '
      "rl.hints.when='always' leaves none; set its 'by' to step or "
      "hinted_solve_rate, or rl.hints.when='failed'",
    ),
    *rules.apart(
      ' follows the solve rate of rows without hints, and rl.hints.when='
      "'always' leaves none; set it to 0",
      rl__reference__patience=not again and c.reference.patience,
    ),
    (
      not rise or len(h.at) != len(h.share),
      f'rl.hints.at={h.at} and rl.hints.share={h.share}: set numbers, as many '
      'shares as points, and points that rise',
    ),
    (
      numbers and not all(0 <= x <= 1 for x in h.share),
      f'rl.hints.share={h.share}: must be shares from 0 to 1',
    ),
    (
      h.learn and h.when != 'always',
      f'rl.hints.learn=True and rl.hints.when={h.when!r}: a second try is '
      "trained on without its hint; set rl.hints.when='always'",
    ),
    *rules.apart(
      f' and rl.hints.room={h.room}: a completion after a hint is no whole '
      'solution; set one of them to 0',
      rl__archive=c.archive,
    ),
    *rules.apart(
      f' and rl.hints.room={h.room}: a whole solution does not follow its own '
      'beginning; set one of them to 0',
      rl__demos=c.demos,
    ),
    *same_step(c, rl__hints__when=again and h.when),
    *rules.apart(
      " and rl.hints.when='failed': further samples follow the solve rates of "
      'rows without hints; set one of them to its default',
      rl__extra__groups=again and c.extra.groups,
    ),
  )


def _rises(lengths: tuple) -> bool:
  """Returns whether these are numbers above 0, each above the one before."""
  positive = all(rules.is_number(x) and x > 0 for x in lengths)
  return positive and sorted({*lengths}) == [*lengths]


def shaping_rules(rl: RL) -> rules.Rows:
  c, env, share = rl.shaping, rl.turns.env, rl.league.share
  unanswered = env and not rl.rewards
  return (
    *rules.apart(
      f' and rl.league.share={share} cannot be combined: {PAST_ROWS}',
      **{
        f'rl__shaping__{key}': share and c[key]
        for key in ('alp', 'laser', 'repeats', 'brevity')
      },
    ),
    (
      not _rises(c.laser_lengths),
      f'rl.shaping.laser_lengths={c.laser_lengths}: must be numbers of tokens '
      'above 0 that rise',
    ),
    (
      bool(c.laser) != bool(c.laser_lengths),
      f'rl.shaping.laser={c.laser} and rl.shaping.laser_lengths='
      f'{c.laser_lengths}: set both, or neither',
    ),
    rules.choice('rl.shaping.price_by', c.price_by, shaping.BY),
    (
      c.price_rate and c.price > c.price_most,
      f'rl.shaping.price={c.price} is above rl.shaping.price_most='
      f'{c.price_most}; lower it',
    ),
    *rules.apart(
      ' and rl.samples=1: it compares the samples of a problem, and is 0 for '
      'one alone; set rl.samples to 2 or more, or it to 0',
      rl__shaping__repeats=rl.samples == 1 and c.repeats,
      rl__shaping__brevity=rl.samples == 1 and c.brevity,
    ),
    *rules.apart(
      f' and rl.turns.env={env!r} without rl.rewards: the term compares final '
      'answers, which only rl.rewards read; set it to 0, or set rl.rewards',
      rl__shaping__historical=unanswered and c.historical,
      rl__shaping__repeats=unanswered and c.repeats,
    ),
  )
