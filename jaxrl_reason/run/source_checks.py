"""What filters, refill and replay of the rl section must satisfy."""

import ml_collections

from jaxrl_reason import config as config_lib
from jaxrl_reason.rollouts import filters, replay

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
