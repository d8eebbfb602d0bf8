"""Results of an evaluation: results.json, a table, a picture of pass@k.

rows = [Outcome(...), ...]        one for each model and suite
write(folder, rows)               results.json, table.md, pass_at_k.png
"""

import dataclasses
import json
import math
import operator
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from jaxrl_reason.checkpoints import files
from jaxrl_reason.evals import estimators, scores
from jaxrl_reason.evals.estimators import Estimate

ABOUT = ('model', 'suite', 'variant', 'temperature')
ALL = 'all'  # in place of a temperature
# Further columns of a table, if there is such a metric.
SHOWN = (
  'cot_pass@1', 'brier', 'ece', 'auroc', 'kl_base', 'truncated', 'invalid',
  'length', 'generated',
)  # fmt: skip
MOST_K = 5  # columns of pass@k
FRACTIONS = (
  'Some scores are fractions: greedy, maj@k and judge_vote@k are mean scores; '
  'pass@k and the others count scores above 0.5.'
)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Attributes:
  about: by `ABOUT`; problems, samples: their numbers.
  metrics: with intervals; against: differences to the first model with the
    same problems; {} for the first itself.
  contaminated: share of the problems with n-grams in training texts; None:
    not compared.
  fractions: some scores are between 0 and 1.
  """

  about: Mapping[str, Any]
  problems: int
  samples: int
  metrics: Mapping[str, Estimate]
  against: Mapping[str, Estimate]
  contaminated: float | None = None
  fractions: bool = False


def make(
  about: Mapping[str, Any],
  rows: Sequence[Mapping],
  base: Sequence[Mapping] | None,
  contaminated: float | None,
) -> Outcome:
  """Summarises records.

  Args:
    base: records of the first model with the same problems; None: this one.
  """
  problems = len({row['problem'] for row in rows})
  against = {} if base is None else scores.differences(rows, base)
  n = max(row['sample'] for row in rows)
  found = scores.estimates(rows)
  fractions = any(row['verdict']['score'] not in (0, 1) for row in rows)
  return Outcome(about, problems, n, found, against, contaminated, fractions)


def _plain(estimates: Mapping[str, Estimate]) -> dict[str, dict]:
  """Converts to JSON values: null for numbers that are not finite."""

  def number(x):
    return x if math.isfinite(x) else None

  return {
    name: {k: number(v) for k, v in dataclasses.asdict(e).items()}
    for name, e in estimates.items()
  }


def as_json(rows: Iterable[Outcome]) -> str:
  """Returns the outcomes as values of results.json."""
  found = [
    {
      **row.about,
      'problems': row.problems,
      'samples': row.samples,
      'contaminated': row.contaminated,
      'metrics': _plain(row.metrics),
      'difference_to_first': _plain(row.against),
    }
    for row in rows
  ]
  level = {'interval': estimators.LEVEL, 'bootstrap': estimators.DRAWS}
  return json.dumps({**level, 'results': found}, indent=1)


def _columns(rows: Sequence[Outcome]) -> list[str]:
  names = dict.fromkeys(name for row in rows for name in row.metrics)
  ks = [name for name in names if name.startswith('pass@')]
  step = max(1, -(-len(ks) // MOST_K))
  passes = [*ks[:-1:step], *ks[-1:]]
  largest = [
    name
    for kind in ('maj', 'best', 'judge_vote', 'judge_best')
    for row in rows
    for name in [k for k in row.metrics if k.startswith(f'{kind}@')][-1:]
  ]
  cut = [name for name in names if name.endswith('/pass@1')]
  wanted = ['greedy', *passes, *dict.fromkeys(largest), *cut, *SHOWN]
  return [name for name in wanted if name in names]


def _cell(e: Estimate | None, digits: int = 3) -> str:
  if e is None or math.isnan(e.value):
    return ''
  return f'{e.value:.{digits}f} ± {e.se:.{digits}f}'


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
  """Returns the rows of a Markdown table, aligned."""
  widths = [max(map(len, column)) for column in zip(*cells)]
  rows = [
    '| ' + ' | '.join(t.ljust(w) for t, w in zip(row, widths)) + ' |'
    for row in cells
  ]
  rule = '|' + '|'.join('-' * (w + 2) for w in widths) + '|'
  return [rows[0], rule, *rows[1:]]


def table(rows: Sequence[Outcome]) -> str:
  """Lays out values with standard errors by suite, and the differences."""
  out = []
  for suite in dict.fromkeys(row.about['suite'] for row in rows):
    of = [row for row in rows if row.about['suite'] == suite]
    out.append(_heading(suite, of))
    columns = _columns(of)
    cells = [['model', 'prompt', 'T', *columns]]
    for row in of:
      digits = {'length': 1}
      cells.append(
        [_short(row.about['model']), row.about['variant'],
         temperature_text(row.about['temperature']),
         *(_cell(row.metrics.get(c), digits.get(c, 3)) for c in columns)]
      )  # fmt: skip
    out += ['', *_lines(cells), '']
    if any(row.fractions for row in of):
      out += [FRACTIONS, '']
    out += [line for row in of for line in _compared(row)]
  return '\n'.join(out).rstrip() + '\n'


def _heading(suite: str, rows: Sequence[Outcome]) -> str:
  """Returns the heading of a table: the suite, and the share trained on."""
  one = rows[0]
  text = f'{suite}: {one.problems} problems x {one.samples} samples'
  shares = [r.contaminated for r in rows if r.contaminated is not None]
  if shares:
    text += f'; {max(shares):.2%} have words in common with training texts'
  return text


def temperature_text(temperature: float | str) -> str:
  """Returns the text of a temperature; `ALL`: samples of several
  temperatures.
  """
  return temperature if temperature == ALL else f'{temperature:g}'


def _short(model: str) -> str:
  return '/'.join(pathlib.PurePath(model).parts[-2:])


def _compared(row: Outcome) -> list[str]:
  """Lists differences of pass@k, with their intervals."""
  of = {k: e for k, e in row.against.items() if k.startswith('pass@')}
  if not of:
    return []
  name = f'{_short(row.about["model"])} minus the first'
  told = [
    f'{k} {e.value:+.3f} [{e.low:+.3f}, {e.high:+.3f}]' for k, e in of.items()
  ]
  return [f'{name}: {", ".join(told)}']


def figure(rows: Sequence[Outcome]):
  """Draws pass@k by k with intervals, a panel per suite; None without
  samples.
  """
  from matplotlib.figure import Figure  # no pyplot: no display, no state

  suites = list(dict.fromkeys(row.about['suite'] for row in rows))
  if not any('pass@1' in row.metrics for row in rows):
    return None
  made = Figure(figsize=(5 * len(suites), 4), layout='constrained')
  for axes, suite in zip(
    made.subplots(1, len(suites), squeeze=False)[0], suites
  ):
    for row in rows:
      if row.about['suite'] == suite:
        _draw(axes, row)
    axes.set(xscale='log', xlabel='k', ylabel='pass@k', ylim=(-0.02, 1.02))
    axes.set_xscale('log', base=2)
    axes.set_title(suite, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
  return made


def _draw(axes, row: Outcome) -> None:
  found = {
    int(name.removeprefix('pass@')): e
    for name, e in row.metrics.items()
    if name.startswith('pass@')
  }
  about = row.about
  label = f'{_short(about["model"])}, {about["variant"]}'
  label += f', T={temperature_text(about["temperature"])}'
  values = [e.value for e in found.values()]
  below = [e.value - e.low for e in found.values()]
  above = [e.high - e.value for e in found.values()]
  axes.errorbar(
    list(found), values, yerr=[below, above],
    marker='.', capsize=3, linewidth=1.2, label=label,
  )  # fmt: skip


def joined_temperatures(rows: Sequence[Sequence[dict]]) -> list[dict]:
  """Interleaves the samples of several temperatures of each problem, so that k
  consecutive samples have equal shares of the temperatures. The greedy sample
  occurs once.
  """
  found = []
  for i, own in enumerate(rows):
    for row in own:
      sample = row['sample']
      if sample or not i:
        number = sample and (sample - 1) * len(rows) + i + 1
        found.append({**row, 'sample': number})
  return sorted(found, key=operator.itemgetter('problem', 'sample'))


def write(folder: epath.Path, rows: Sequence[Outcome]) -> str:
  """Writes results.json, table.md and pass_at_k.png; returns the table."""
  files.write_whole(folder / 'results.json', as_json(rows))
  text = table(rows)
  files.write_whole(folder / 'table.md', text)
  picture = figure(rows)
  if picture is not None:
    with (folder / 'pass_at_k.png').open('wb') as f:
      picture.savefig(f, format='png', dpi=120)
  return text
