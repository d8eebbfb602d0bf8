"""Writes the table and the picture of a study: table.md and study.png."""

import pathlib

from etils import epath

from jaxrl_reason.studies import fits, verdicts
from jaxrl_reason.studies.metric_names import STEPS_TO, TOKENS_TO
from jaxrl_reason.studies.results import REWARD, Found

ACROSS = 4  # panels of a row
ROOM = 18  # lines of a column of a legend


def table(found: Found) -> str:
  """Lays out the verdicts of claims, means with intervals, paired differences
  to the base setting, steps and tokens to the target, fits and pass@k.
  """
  study = found.study
  metric, value = study.target
  if isinstance(value, str):
    target = f'the best value of {value!r} of the same seed'
  else:
    target = f'{value:g}'
  warm = 'a warm start of its own for every seed'
  if study.warm == 'shared':
    warm = 'one warm start for all seeds, whose variance is left out'
  lines = [
    *_claims(found),
    f'{study.seeds} seeds of each setting, {warm}; mean ± half of the 95 % '
    f't interval over seeds; gains since the first value and differences to '
    f"{study.base!r} are taken seed by seed; p corrected by Holm's method",
    '',
    *_finals(found),
    '',
    f'until {metric} is {target}; a run that does not reach it counts with '
    'all its steps in means and effects, and with more than these in criteria',
    '',
    *_targets(found),
    '',
    '1 - R = c steps^-b, before the first interval with a reward of 1, and '
    'R = -a e^H + b, of every interval',
    '',
    *_fits(found),
  ]
  for split in found.splits():
    lines += ['', f'pass@k, {split}', '', *_pass_at_k(found, split)]
  return '\n'.join(lines)


def _claims(found: Found) -> list[str]:
  """Returns a table of claims and their criteria, if there are any."""
  rows = []
  for claim, decided in found.decided():
    rows.append([claim.text, '', verdicts.of_claim(decided)])
    for d in decided:
      said = f'{d.verdict}, {_p(d)}'
      if d.left_out:
        said = f'{d.verdict}, {d.left_out} seeds diverged or without a value'
      rows.append([f'- {d.criterion}', d.effect, said])
  names = ['claim', 'effect', 'verdict']
  return [*_rows(names, rows), ''] if rows else []


def _p(d: verdicts.Decided) -> str:
  return _written(min(d.for_it, d.against_it))


def _written(p: float) -> str:
  return 'p < 0.001' if p < 0.0005 else f'p {p:.3f}'


def _rows(names: list[str], rows: list[list]) -> list[str]:
  """Returns the rows of a Markdown table."""
  out = [names, ['---'] * len(names), *rows]
  cells = [[str(x).replace('|', r'\|') for x in row] for row in out]
  return [f'| {" | ".join(row)} |' for row in cells]


def _short(metric: str) -> str:
  return metric.removeprefix('eval/').removeprefix('train/')


def _finals(found: Found) -> list[str]:
  study, names = found.study, ['setting']
  for m in study.shown:
    names += [_short(m), 'gain', 'difference']
  start = ['before']
  for m in study.shown:
    start += [found.start(m), '', '']
  rows = [start]
  p = {m: found.p_values(m) for m in study.shown}
  for setting in study.settings:
    row = [setting + _diverged(found, setting)]
    for m in study.shown:
      row += [found.final(setting, m), found.gain(setting, m)]
      row.append(_difference(found, setting, m, p[m]))
    rows.append(row)
  return _rows(names, rows)


def _difference(found: Found, setting: str, metric: str, p: dict) -> str:
  """Returns the difference to the base with its p, if it has one."""
  if setting == found.study.base:
    return ''
  known = f' ({_written(p[setting])})' if setting in p else ''
  return f'{found.paired(setting, metric)}{known}'


def _diverged(found: Found, setting: str) -> str:
  n = sum(t.diverged for t in found.told[setting].values())
  return f' ({n} diverged)' if n else ''


def _targets(found: Found) -> list[str]:
  rows = []
  for setting in found.study.settings:
    n, runs = found.reaching(setting), len(found.told[setting])
    steps, tokens = (
      found.final(setting, STEPS_TO),
      found.final(setting, TOKENS_TO),
    )
    thousands = fits.Value(tokens.mean / 1e3, tokens.error / 1e3, tokens.n)
    least = '' if n == runs else 'at least '
    rows.append(
      [setting, f'{n} of {runs}', f'{least}{steps}', f'{least}{thousands}']
    )
  return _rows(['setting', 'runs', 'steps', 'thousand tokens'], rows)


def _fits(found: Found) -> list[str]:
  names = ['setting', 'power: b', 'c', 'R²', 'entropy: a', 'b', 'R²']
  rows = [
    [setting]
    + [found.fitted(setting, 'power', x) for x in ('b', 'c', 'r2')]
    + [found.fitted(setting, 'entropy', x) for x in ('a', 'b', 'r2')]
    for setting in found.study.settings
  ]
  return _rows(names, rows)


def _pass_at_k(found: Found, split: str) -> list[str]:
  before = found.pass_at_k(found.study.base, split, 'before')
  ks = [k for k, _ in before]
  rows = [['before', *(v for _, v in before)]]
  for setting in found.study.settings:
    own = dict(found.pass_at_k(setting, split, 'after'))
    rows.append([setting, *(own.get(k, '') for k in ks)])
  return _rows(['setting', *(f'k={k}' for k in ks)], rows)


def save_plot(found: Found, path: pathlib.Path) -> None:
  """Draws the reward by step, and pass@k by split, with bands over seeds."""
  from matplotlib.figure import Figure  # no pyplot: no display, no state

  splits, colours = found.splits(), _colours(len(found.study.settings))
  across, rows = min(1 + len(splits), ACROSS), 1 + len(splits) // ACROSS
  figure = Figure(figsize=(5.2 * across, 4.2 * rows), layout='constrained')
  axes = figure.subplots(rows, across, squeeze=False).flatten().tolist()
  while len(axes) > 1 + len(splits):
    axes.pop().remove()
  shade = {'alpha': min(0.15, 1.0 / len(colours))}
  for setting, colour in zip(found.study.settings, colours):
    _band(axes[0], _by_step(found, setting), colour, setting, **shade)
    for ax, split in zip(axes[1:], splits):
      points = found.pass_at_k(setting, split, 'after')
      _band(ax, points, colour, setting, **shade)
  for ax, split in zip(axes[1:], splits):
    before = found.pass_at_k(found.study.base, split, 'before')
    _band(ax, before, 'black', 'before', '--')
    ax.set_xscale('log', base=2)
    ax.set_title(f'pass@k, {split}')
    ax.set_xlabel('k')
  axes[0].set_title('reward of training')
  axes[0].set_xlabel('step')
  for ax in axes:
    ax.grid(alpha=0.3)
  lines = axes[-1].get_legend_handles_labels()  # of all panels
  columns = -(-len(lines[0]) // ROOM)
  own = dict(fontsize=8, frameon=False, ncols=columns)
  figure.legend(*lines, loc='outside right upper', **own)
  with epath.Path(path).open('wb') as f:
    figure.savefig(f, dpi=120, format='png')


def _colours(n: int) -> list:
  """Returns a colour per setting; more than ten are shades in their order."""
  from matplotlib import colormaps

  if n <= 10:
    return [f'C{i}' for i in range(n)]
  return [colormaps['turbo'](i / (n - 1)) for i in range(n)]


def _by_step(found: Found, setting: str) -> list[tuple[int, fits.Value]]:
  """Returns the reward of a setting by step, over seeds."""
  by_step: dict[int, list[float]] = {}
  for told in found.ended(setting).values():
    for row in told.rows:
      if REWARD in row:
        by_step.setdefault(row['step'], []).append(row[REWARD])
  return [(step, fits.over(x)) for step, x in sorted(by_step.items())]


def _band(
  ax, points, colour, label: str, style: str = '-', alpha: float = 0.15
) -> None:
  """Draws a line with its 95 % intervals."""
  if not points:
    return
  x = [at for at, _ in points]
  y = [v.mean for _, v in points]
  error = [0.0 if v.half != v.half else v.half for _, v in points]
  ax.plot(x, y, style, color=colour, label=label, linewidth=1.3)
  low = [a - e for a, e in zip(y, error)]
  high = [a + e for a, e in zip(y, error)]
  ax.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0)
