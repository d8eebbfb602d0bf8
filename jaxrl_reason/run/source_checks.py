"""What filters, refill and replay of the rl section must satisfy."""

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason.rollouts import (
  extra,
  filters,
  hints,
  progress,
  replay,
  shaping,
)

# Filters that drop groups; the others leave rows to every group.
OF_GROUPS = ('dead_groups', 'spread', 'band')


def check(c: ml_collections.ConfigDict) -> None:
  """Refuses what would drop all, or never be used.

  Raises:
    ValueError: names the key.
  """
  filters.make(c.filter, c.filter_args)
  names, args = c.filter.split('+'), c.filter_args
  if c.samples == 1 and 'dead_groups' in names:
    raise ValueError(
      f'rl.samples=1, rl.filter={c.filter!r}: every group of one sample is '
      'without variance, and all would be dropped'
    )
  if args.low > args.high:
    raise ValueError(
      f'rl.filter_args.low={args.low} is above rl.filter_args.high='
      f'{args.high}: no group falls in between'
    )
  if 'band' in names and not _shares_inside(c.samples, args.low, args.high):
    raise ValueError(
      f'rl.filter_args.low={args.low}, rl.filter_args.high={args.high}: no '
      f'share of rl.samples={c.samples} samples lies in between, so that every '
      'group would be dropped'
    )
  chooses = {n for n in names if 'keep' in _arguments(n)}
  if chooses and args.keep >= c.samples:
    raise ValueError(
      f'rl.filter_args.keep={args.keep} of rl.samples={c.samples}: '
      f'rl.filter={c.filter!r} would drop nothing; choose fewer'
    )
  _check_refill(c, names)
  _check_replay(c)
  _check_extra(c)
  _check_shaping(c.shaping)
  if c.archive and c.turns.env:
    raise ValueError(
      f'rl.archive={c.archive} and rl.turns.env={c.turns.env!r}: a solution '
      'with what an environment says in it is none to learn; set one of them'
    )
  if c.hints.room:
    _check_hints(c)


def _check_shaping(c: ml_collections.ConfigDict) -> None:
  lengths = list(c.laser_lengths)
  numbers = all(
    isinstance(x, int | float) and not isinstance(x, bool) and x > 0
    for x in lengths
  )
  if not numbers or sorted(set(lengths)) != lengths:
    raise ValueError(
      f'rl.shaping.laser_lengths={c.laser_lengths}: numbers of tokens above 0 '
      'that rise'
    )
  if bool(c.laser) != bool(lengths):
    raise ValueError(
      f'rl.shaping.laser={c.laser} and rl.shaping.laser_lengths='
      f'{c.laser_lengths}: set both, or neither'
    )
  if c.laser_explore and not c.laser:
    raise ValueError(
      f'rl.shaping.laser_explore={c.laser_explore} goes with rl.shaping.laser, '
      'which is 0'
    )
  if c.price_by not in shaping.BY:
    raise ValueError(
      f'rl.shaping.price_by={c.price_by!r}: choose {" or ".join(shaping.BY)}'
    )
  if c.price > c.price_most:
    raise ValueError(
      f'rl.shaping.price={c.price} is above rl.shaping.price_most='
      f'{c.price_most}'
    )


def _check_hints(c: ml_collections.ConfigDict) -> None:
  h, known = c.hints, progress.NAMES
  if h.when not in hints.WHEN:
    raise ValueError(
      f'rl.hints.when={h.when!r}: choose {" or ".join(hints.WHEN)}'
    )
  if h.by not in known:
    raise ValueError(f'rl.hints.by={h.by!r}: choose of {", ".join(known)}')
  if len(h.at) != len(h.share) or not h.at or sorted(set(h.at)) != [*h.at]:
    raise ValueError(
      f'rl.hints.at={h.at} and rl.hints.share={h.share}: as many shares as '
      'points, and points that rise'
    )
  if not all(0 <= x <= 1 for x in h.share):
    raise ValueError(f'rl.hints.share={h.share}: shares from 0 to 1')
  if h.learn and h.when != 'always':
    raise ValueError(
      f'rl.hints.learn=True and rl.hints.when={h.when!r}: what is learnt there '
      "is the problem without its hint; set rl.hints.when='always'"
    )
  if c.archive:
    raise ValueError(
      f'rl.hints.room={h.room} and rl.archive={c.archive}: a completion of a '
      'hint is no whole solution; set one of them to 0'
    )
  if c.demos:
    raise ValueError(
      f'rl.hints.room={h.room} and rl.demos={c.demos}: a whole solution does '
      'not follow its own beginning; set one of them to 0'
    )
  if h.when != 'failed':
    return
  _needs_sampler(c, 'rl.hints.when', repr(h.when))
  _refuse_staleness(c, 'rl.hints.when', repr(h.when))
  twice = {'refill_rounds': c.refill_rounds, 'extra.groups': c.extra.groups}
  for key, value in twice.items():
    if value:
      raise ValueError(
        f"rl.hints.when='failed' and rl.{key}={value} both ask a second time: "
        'set one of them to its default'
      )


def _check_extra(c: ml_collections.ConfigDict) -> None:
  n = c.extra.groups
  if c.extra.by not in extra.GAINS:
    raise ValueError(
      f'rl.extra.by={c.extra.by!r}: choose {" or ".join(extra.GAINS)}'
    )
  if n and c.path != 'fused':
    raise ValueError(
      f'rl.extra.groups={n}: only with rl.path="fused", where rewards are '
      'known within the step'
    )
  for key, value in {
    'rl.refill_rounds': c.refill_rounds,
    'rl.replay.rows': c.replay.rows,
  }.items():
    if n and value:
      raise ValueError(
        f'rl.extra.groups={n} and {key}={value}: one gives more rows to a '
        'problem, the other to more problems; set one of them to 0'
      )


def _arguments(name: str) -> tuple[str, ...]:
  f = filters.FILTERS[name]
  return () if f is None else filters.arguments(f)


def _shares_inside(samples: int, low: float, high: float) -> bool:
  return any(
    low * samples - 1e-4 <= n <= high * samples + 1e-4
    for n in range(samples + 1)
  )


def _check_refill(c: ml_collections.ConfigDict, names: list[str]) -> None:
  if c.refill_keep and not c.refill_rounds:
    raise ValueError(
      'rl.refill_keep=True keeps what rounds leave over, and '
      'rl.refill_rounds=0 makes none; set it to 1 or more'
    )
  if c.refill_rounds and not set(names) & set(OF_GROUPS):
    raise ValueError(
      f'rl.refill_rounds={c.refill_rounds} replaces groups that rl.filter '
      f'drops, and rl.filter={c.filter!r} drops none; set it to one of '
      f'{", ".join(OF_GROUPS)}'
    )
  _needs_sampler(c, 'rl.refill_keep', c.refill_keep)
  _refuse_staleness(c, 'rl.refill_rounds', c.refill_rounds)


def _check_replay(c: ml_collections.ConfigDict) -> None:
  r = c.replay
  if r.by not in replay.CHOICES:
    raise ValueError(
      f'rl.replay.by={r.by!r}: choose one of {", ".join(replay.CHOICES)}.'
      f'{config_lib.nearest(r.by, replay.CHOICES)}'
    )
  if r.mix not in replay.MIX:
    raise ValueError(
      f'rl.replay.mix={r.mix!r}: choose {" or ".join(replay.MIX)}'
    )
  if bool(r.rows) != bool(r.capacity):
    raise ValueError(
      f'rl.replay.rows={r.rows} and rl.replay.capacity={r.capacity}: set both, '
      'or neither'
    )
  if r.rows % c.samples:
    raise ValueError(
      f'rl.replay.rows={r.rows}: whole groups are replayed, so it must be a '
      f'multiple of rl.samples={c.samples}'
    )
  if r.rows and r.capacity < max(c.prompts, r.rows // c.samples):
    raise ValueError(
      f'rl.replay.capacity={r.capacity} groups are fewer than a step makes '
      f'(rl.prompts={c.prompts}) or replays (rl.replay.rows={r.rows} / '
      f'rl.samples={c.samples}); raise it'
    )
  _needs_sampler(c, 'rl.replay.rows', r.rows)
  _refuse_staleness(c, 'rl.replay.rows', r.rows)


def _needs_sampler(c: ml_collections.ConfigDict, key: str, value) -> None:
  if value and c.old_logp != 'sampler':
    raise ValueError(
      f'{key}={value} needs rl.old_logp="sampler": samples of an earlier '
      'policy are off-policy by the ratio to that policy'
    )


def _refuse_staleness(c: ml_collections.ConfigDict, key: str, value) -> None:
  if value and c.staleness:
    raise ValueError(
      f'{key}={value} and rl.staleness={c.staleness}: what the next step '
      'generates depends on the verdicts of this one; set one of them to 0'
    )
