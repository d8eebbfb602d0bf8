"""Compares the data, tokenizer, stages and code of a checkpoint and a run.

A checkpoint's record has this origin, and processes that start together compare
theirs. With other data, another tokenizer or other earlier stages, a run would
silently continue with other numbers, so these are refused. Other code causes a
warning, because a run may have to continue after a repair.
"""

from typing import Any

from absl import logging


class Other(ValueError):
  """A checkpoint belongs to another run."""


def check(path, record: dict, now: dict[str, Any], *, same_data: bool) -> None:
  """Refuses to resume from a checkpoint of another run.

  Args:
    path: the checkpoint, for messages.
    record: the checkpoint's.
    now: `of_run`, or a part of it; only keys that both have are compared.
    same_data: refuse other data; False: warn.

  Raises:
    Other: names the difference and the remedy.
  """
  before = record.get('origin', {})
  both = before.keys() & now.keys()
  if 'code' in both and before['code'] != now['code']:
    logging.warning(
      '%s was saved by jaxrl_reason %s; this is %s: from here on numbers may '
      'differ from those of the code that began the run.',
      path,
      before['code'],
      now['code'],
    )
  if 'named_code' in both:
    _warn_of_edits(path, before['named_code'], now['named_code'])
  if 'stages' in now:
    _check_stages(path, record, before.get('stages'), now['stages'])
  for what in sorted(both & {'data', 'tokenizer'}):
    if before[what] != now[what]:
      _refuse(path, what, _differing(before[what], now[what]), same_data)


def _warn_of_edits(path, before: dict[str, str], now: dict[str, str]) -> None:
  """Warns of code named by the recipe that was edited since the checkpoint."""
  for name in sorted(before.keys() & now.keys()):
    if before[name] != now[name]:
      logging.warning(
        '%s was saved with another version of %s: from here on its rewards, '
        'tools or environments are those of the file as it is now.',
        path,
        name,
      )


def _differing(before, now) -> str:
  if not isinstance(before, dict):
    return ''
  names = [k for k in now if before.get(k) != now[k]]
  return f' ({", ".join(names)})'


def _refuse(path, what: str, where: str, same_data: bool) -> None:
  text = f'{path} was saved by a run with other {what}{where}'
  if what == 'data' and not same_data:
    logging.warning(
      '%s; going on with those of this config, as checkpoint.same_data=False '
      'asks.',
      text,
    )
    return
  more = ', --config.checkpoint.same_data=False' if what == 'data' else ''
  raise Other(
    f'{text}: config.seed, a key of config.data, the pairs or the files '
    f'behind them have changed since. Set them back{more}, use another '
    '--workdir, or --fresh'
  )


def _check_stages(path, record: dict, before, now: list[str]) -> None:
  at = record.get('stage', 0)
  if at >= len(now):
    raise Other(
      f'{path} stands in stage {at + 1} of its run, and config.stages='
      f'{tuple(now)} has {len(now)}. Use the stages it was made with, another '
      '--workdir, or --fresh'
    )
  if before is not None and list(before[: at + 1]) != list(now[: at + 1]):
    raise Other(
      f'{path} stands in stage {at + 1} of {tuple(before)}, and config.stages '
      f'is {tuple(now)}: what has been trained must stay. Use those stages, '
      'another --workdir, or --fresh'
    )
