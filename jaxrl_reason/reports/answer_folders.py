"""Reads the answers of evaluations: a folder with `answers/*.jsonl`, records
(`verifiers.records`) of answers of models to suites.
"""

import dataclasses
from collections.abc import Iterable, Iterator

from etils import epath

from jaxrl_reason.reports import metrics_file, panels, workdirs
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.reports.answer_pages import Blocks, is_record
from jaxrl_reason.reports.signs import is_right

MANY = 2000  # answers of a cell that a page shows
ABOUT = ('model', 'suite', 'variant', 'temperature')  # settings of a cell


@dataclasses.dataclass
class Cell:
  """The answers of a model to a suite, with one prompt variant and sampling.

  Attributes:
    model: its name; suite: with the prompt and the temperature.
    right: problem -> number of correct samples.
    samples: of a problem.
    kl: nats per token to the base model of the evaluation, and the standard
      error; None without a base model.
    base: name of the base model.
    problems: their prompts.
  """

  model: str
  suite: str
  right: dict[int, int]
  samples: int
  kl: tuple[float, float] | None = None
  base: str = ''
  problems: dict[int, str] = dataclasses.field(default_factory=dict)

  def curve(self) -> list[tuple[int, float, float]]:
    """Returns (k, pass@k, standard error)."""
    return passk.curve([*self.right.values()], self.samples)


def is_folder(path: epath.PathLike) -> bool:
  """Returns whether a path is an evaluation and not a run."""
  return (epath.Path(path) / 'answers').is_dir()


def read(path: epath.PathLike, number: int, blocks: Blocks) -> list[Cell]:
  """Reads the cells of a folder, and their first answers into blocks.

  Args:
    number: of the first cell, among runs and cells.
  """
  cells = []
  for file in _files(epath.Path(path)):
    rows = [
      r for r in map(workdirs.finite, metrics_file.lines(file)) if is_record(r)
    ]
    if cell := _cell(rows):
      cell.base = _settings(file).get('base') or ''
      cell.problems = {r['problem']: r['prompt'] for r in rows if 'prompt' in r}
      for row in rows[:MANY]:
        blocks.add(number + len(cells), row)
      cells.append(cell)
  return cells


def _files(path: epath.Path) -> list[epath.Path]:
  """Lists the files of answers: first those of results.json, in the order of
  its command, then the others by name.
  """
  results = workdirs.whole(path / 'results.json').get('results') or []
  order = [[row.get(k) for k in ABOUT] for row in results]

  def place(file: epath.Path) -> int:
    settings = _settings(file)
    about = [settings.get(k) for k in ABOUT]
    return order.index(about) if about in order else len(order)

  return sorted(sorted((path / 'answers').glob('*.jsonl')), key=place)


def _cell(rows: list[dict]) -> Cell | None:
  """Builds the cell of records: of the samples, or of the greedy answers if
  there are no samples; None without a verified answer.
  """
  judged = [r for r in rows if r.get('verdict')]
  drawn = [r for r in judged if r['sample'] > 0]
  right: dict[int, int] = {}
  count: dict[int, int] = {}
  for row in drawn or judged:
    number = row['problem']
    right[number] = right.get(number, 0) + is_right(row)
    count[number] = count.get(number, 0) + 1
  # An unfinished file lacks samples of its last problems.
  samples = max(count.values(), default=0)
  right = {i: n for i, n in right.items() if count[i] == samples}
  if not right:
    return None
  first = (drawn or judged)[0]
  sampling = f'T {first.get("temperature", 1):g}' if drawn else 'greedy'
  asked = [str(first.get(k, '')) for k in ('suite', 'variant')] + [sampling]
  name = str(first.get('model', ''))
  return Cell(name, ', '.join(asked), right, samples, _kl(drawn))


def _kl(drawn: list[dict]) -> tuple[float, float] | None:
  """Returns (mean of log (policy / base) over the sampled tokens, its standard
  error over problems); None without a base.
  """
  sums: dict[int, list[float]] = {}  # problem -> [nats, tokens]
  for r in drawn:
    of_model = r.get('temperature', 1) == 1  # older files have others
    if of_model and _numbers(r, 'logp', 'base_logp', 'length') and r['length']:
      of = sums.setdefault(r['problem'], [0.0, 0.0])
      of[0] += r['logp'] - r['base_logp']
      of[1] += r['length']
  return passk.ratio(*zip(*sums.values())) if sums else None


def _numbers(row: dict, *names: str) -> bool:
  return all(isinstance(row.get(k), int | float) for k in names)


def _settings(file: epath.Path) -> dict:
  """Reads the settings of a file of records from the file beside it."""
  return workdirs.whole(file.with_suffix('.json'))


def by_suite(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
  """Groups the cells by suite, prompt and sampling."""
  out: dict[str, list[Cell]] = {}
  for cell in cells:
    out.setdefault(cell.suite, []).append(cell)
  return out


def pass_at_k(cells: list[Cell]) -> list[dict]:
  """Draws a figure for each suite with a line per model; `notes` have the k at
  which the first model and another cross, on problems of both.
  """
  out = []
  for suite, group in by_suite(cells).items():
    traces = []
    for i, cell in enumerate(group):
      traces += panels.with_errors(cell.curve(), cell.model, i, 0)
    first, *others = group
    notes = [_crossing(first, *found) for found in _shared(first, others)]
    figure = panels.pass_layout(f'pass@k, {suite}')
    out.append({'figure': {'data': traces, 'layout': figure}, 'notes': notes})
  return out


def _crossing(a: Cell, b: Cell, problems: list[int]) -> str:
  """Describes the k from which one of two models is ahead on some problems."""
  a, b = (
    dataclasses.replace(x, right={i: x.right[i] for i in problems})
    for x in (a, b)
  )
  for one, other in ((a, b), (b, a)):
    if at := passk.crossover(one.curve(), other.curve()):
      return f'{one.model} is ahead of {other.model} from k = {at}'
  return f'{a.model} and {b.model} do not cross'


def forgetting(cells: list[Cell]) -> list[dict]:
  """Draws the changes of models against the first by suite, and the KL to the
  base model; [] for one model without a base.
  """
  changes: dict[str, list[tuple[str, float, float]]] = {}
  kl: dict[str, list[tuple[str, float, float]]] = {}
  for suite, (first, *others) in by_suite(cells).items():
    for other, both in _shared(first, others):
      found = passk.paired(
        [first.right[i] / first.samples for i in both],
        [other.right[i] / other.samples for i in both],
      )
      changes.setdefault(other.model, []).append((suite, *found))
    for cell in (first, *others):
      if cell.kl and cell.model != cell.base:  # 0 to the base itself
        name = f'{cell.model} to {cell.base or "the base"}'
        kl.setdefault(name, []).append((suite, *cell.kl))
  out = [_bars(changes, 'Change of pass@1', 'share of problems')]
  out += [_bars(kl, 'KL to the base', 'nats a token')]
  return [figure for figure in out if figure['figure']['data']]


def _shared(
  first: Cell, others: Iterable[Cell]
) -> Iterator[tuple[Cell, list[int]]]:
  """Yields the other cells that have problems of the first, and the numbers of
  these problems. Suites of one name may have other problems.
  """
  for other in others:
    both = sorted(
      i
      for i in first.right.keys() & other.right.keys()
      if first.problems.get(i) == other.problems.get(i)
    )
    if both:
      yield other, both


def _bars(found: dict[str, list[tuple]], title: str, unit: str) -> dict:
  """Draws (suite, value, standard error) by name, with the values in the
  notes.
  """
  bars = [
    panels.bars_with_errors(rows, name, i)
    for i, (name, rows) in enumerate(found.items())
  ]
  notes = [
    f'{name}, {suite}: {value:+.4f} ± {error:.4f}'
    for name, rows in found.items()
    for suite, value, error in rows
  ]
  figure = panels.bar_layout(title, unit)
  return {'figure': {'data': bars, 'layout': figure}, 'notes': notes}


def support(cells: list[Cell]) -> list[dict]:
  """Draws the problems that models gained and lost against the first of a
  suite.
  """
  out = []
  for suite, (first, *others) in by_suite(cells).items():
    for other, both in _shared(first, others):
      found = passk.changes(
        [first.right[i] for i in both], [other.right[i] for i in both]
      )
      found = {k: [both[i] for i in at] for k, at in found.items()}
      out.append(
        panels.of_changes(
          found,
          f'{suite}: {panels.solved_by(first.samples, other.samples)}',
          f'{other.model} against {first.model}',
          first.problems,
        )
      )
  return out
