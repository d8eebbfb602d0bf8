"""Runs a study from its start to its table: warm starts, cells, results.

  OUT/warm/<setting>--s<seed>    a workdir for each warm start
  OUT/cells/<setting>--s<seed>   a workdir for each cell, as `report` reads it
  OUT/results.json  table.md  study.png

Finished runs are not repeated, so the same command continues after a kill.
"""

import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxrl_reason import sharding
from jaxrl_reason.checkpoints import manager
from jaxrl_reason.config import Run, changes, leaves
from jaxrl_reason.hosts import reading
from jaxrl_reason.run import train
from jaxrl_reason.run.checks import config_checks
from jaxrl_reason.run.process import identity, memory_maps
from jaxrl_reason.run.records import events
from jaxrl_reason.studies import (
  base_kl,
  grid,
  grid_checks,
  metric_names,
  pages,
  together,
  traced,
)
from jaxrl_reason.studies import results as outcome
from jaxrl_reason.studies.grid import Cell, Study
from jaxrl_reason.studies.telling import DIVERGED


def run(study: Study, out: pathlib.Path, say: Callable[[str], Any]) -> str:
  """Runs the remaining runs of a study.

  Returns:
    The table; '' if a signal ended the study, with its state saved.

  Raises:
    ValueError: names the wrong setting, key or folder.
  """
  grid_checks.check(study)
  out.mkdir(parents=True, exist_ok=True)
  tries = grid.trials(study)
  if tries:
    found = _made(tries, out, say)
    if found is None:
      return ''
    metric = study.tuning.metric
    study = grid.tuned(study, lambda name: found.score(name, metric))
  found = _made(study, out, say)
  if found is None:
    return ''
  (out / 'results.json').write_text(json.dumps(found.data(), indent=1) + '\n')
  table = pages.table(found)
  (out / 'table.md').write_text(table + '\n')
  pages.save_plot(found, out / 'study.png')
  return table


def _made(study: Study, out: pathlib.Path, say) -> outcome.Found | None:
  """Runs the remaining runs of a study; None if a signal ended them."""
  cells = grid.cells(study, str(out / 'warm'))
  warm = grid.warm_starts(study)
  for name, config in warm.items():
    _refuse_other(out / 'warm' / name, config.json_values())
    _check(f'warm start {name!r}', config)
  for cell in cells:
    _refuse_other(_folder(out, cell), cell.config.json_values(), cell.warm)
  for cell in cells:
    _check(f'setting {cell.setting!r}', cell.config)
  if not _run_warm_starts(warm, out / 'warm', say):
    return None
  if not _run_cells(study, cells, out, say):
    return None
  if study.kl_on:
    runs = ((_folder(out, cell), cell.config) for cell in cells)
    base_kl.measure(study.kl_on, runs, say)
  return outcome.of(study, _folders(cells, out))


def _check(name: str, config: Run) -> None:
  """Refuses a run that is impossible, before the first warm start."""
  try:
    if config.sampler_mesh:
      raise ValueError(
        f'sampler_mesh={config.sampler_mesh}: the runs of a study have one '
        'mesh; set it to ()'
      )
    shards = sharding.row_shards(sharding.make_mesh(config.mesh))
    config_checks.check(config, shards)
  except ValueError as e:
    raise ValueError(f'{name}: {e}') from e


def _folder(out: pathlib.Path, cell: Cell) -> pathlib.Path:
  return out / 'cells' / cell.name


def _folders(cells: Sequence[Cell], out: pathlib.Path) -> dict:
  """Returns the workdirs by (setting, seed)."""
  return {(c.setting, c.seed): _folder(out, c) for c in cells}


def _refuse_other(folder: pathlib.Path, now: dict, warm: str = '') -> None:
  """Refuses a folder whose run was begun with another configuration.

  Args:
    now: the configuration of today, as JSON values.
    warm: name of its warm start, '' without one.
  """
  path = folder / 'config.json'
  if not path.exists():
    return
  before = _read(path)
  # The same warm start, for any spelling of the folder.
  if warm and pathlib.Path(before['init_from']).name == warm:
    before['init_from'] = now['init_from']
  if keys := _differing(before, now) or _differing(
    *map(changes.orders, (before, now))
  ):
    raise ValueError(
      f'{path.parent} was begun with another {", ".join(keys[:3])}; name '
      'another --out, or remove that folder'
    )


def _read(path: pathlib.Path) -> dict[str, Any]:
  """Returns a stored config with the defaults of keys that are newer than it.
  One with a key that exists no more is returned as it is, and so differs.
  """
  values = reading.json_object(path)
  try:
    return Run().changed(leaves(values, Run)).json_values()
  except ValueError:
    return values


def _differing(a: Any, b: Any, prefix: str = '') -> list[str]:
  """Returns the dotted keys in which two trees differ."""
  if not (isinstance(a, dict) and isinstance(b, dict)):
    return [] if a == b else [prefix]
  keys = [*dict.fromkeys([*a, *b])]
  return [
    path
    for k in keys
    for path in _differing(a.get(k), b.get(k), f'{prefix}.{k}'.strip('.'))
  ]


def _run_warm_starts(
  warm: Mapping[str, Run], folder: pathlib.Path, say
) -> bool:
  """Runs the remaining warm starts; returns whether all are done."""
  for name, config in warm.items():
    if events.last_end(folder / name) == 'finished':
      continue
    memory_maps.free_programs()
    say(f'warm start {name}')
    if train.run(config, folder / name) is None:
      return False
  return True


def is_over(folder: pathlib.Path) -> bool:
  """Returns whether a cell has ended or diverged."""
  how = events.last_end(folder)
  return how == 'finished' or DIVERGED in how


def _run_cells(study: Study, cells: Sequence[Cell], out, say) -> bool:
  """Runs the remaining cells; returns whether all are done."""
  groups = traced.groups([c.config for c in cells], study.at_once)
  groups = [_left([cells[i] for i in group], out) for group in groups]
  left = sum(map(len, groups))
  say(
    f'{len(cells)} runs of {len(study.settings)} settings in {len(groups)} '
    f'programs; {left} runs are left'
  )
  began, made = time.monotonic(), 0
  for group in filter(None, groups):
    if not _run_group(group, out, say):
      return False
    _refuse_unknown(study, group, out)
    made, left = made + len(group), left - len(group)
    rest = (time.monotonic() - began) / made * left
    say(f'{made} runs done, {left} left: about {rest / 60:.1f} min more')
  return True


def _refuse_unknown(study: Study, group: Sequence[Cell], out) -> None:
  """Refuses a criterion whose metric no run of a program has. Runs are only
  read if a criterion has a metric that was not checked before them.
  """
  criteria = (c for claim in study.claims for c in claim.criteria)
  if not any(c.metric.startswith(metric_names.LATER) for c in criteria):
    return
  found = outcome.of(study, _folders(group, out))
  for setting, metric in found.lacking():
    raise ValueError(
      f'a claim names the metric {metric!r}, and no run of setting '
      f'{setting!r} has it: correct the name in the study, and start it again'
    )


def _left(group: list[Cell], out: pathlib.Path) -> list[Cell]:
  """Returns the remaining cells of a program: all of them if they were begun
  together.
  """
  left = [c for c in group if not is_over(_folder(out, c))]
  under_way = (_shared(group, out) / manager.CHECKPOINTS).exists()
  return group if left and under_way else left


def _shared(group: Sequence[Cell], out: pathlib.Path) -> pathlib.Path:
  """Returns the folder of shared files of unfinished cells."""
  values = [c.config.json_values() for c in group]
  orders = filter(None, map(changes.orders, values))
  name = identity.digest([*values, *orders])
  return out / 'groups' / name


def _run_group(group: Sequence[Cell], out: pathlib.Path, say) -> bool:
  """Runs cells of one program; returns whether they are done."""
  names = list(dict.fromkeys(c.setting for c in group))
  folders = [_folder(out, c) for c in group]
  memory_maps.free_programs()
  say(f'{", ".join(names)}: {len(group)} runs')
  if len(group) > 1:
    configs = [c.config for c in group]
    return together.run(configs, folders, _shared(group, out))
  try:
    return train.run(group[0].config, folders[0]) is not None
  except FloatingPointError as e:
    say(f'{group[0].name} has diverged: {e}')
    return True
