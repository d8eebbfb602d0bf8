"""Filters a file of problems for training.

  rows -> repeated, near duplicates, in evaluation files: removed, with reason
       -> pass rate of a model (records that can be resumed)
       -> difficulty -> train, test, failing, or removed

Rows keep all of their fields. Rows with a pass rate get `pass_rate`,
`difficulty` (the share of wrong answers), `difficulty_bucket` and
`mean_length`, which replace fields of these names.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.checkpoints import files as kept_files
from jaxrl_reason.data import example_files as files
from jaxrl_reason.evals import contamination, duplicates, scores
from jaxrl_reason.evals import evaluation as session
from jaxrl_reason.evals.suites import Suite, texts
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import install
from jaxrl_reason.verifiers import records
from jaxrl_reason.verifiers.verdict import FAILED

TRAIN, TEST, FAILING, REMOVED = 'train', 'test', 'failing', 'removed'


@dataclasses.dataclass(frozen=True)
class Options:
  """The values of the command's flags; see its help.

  Attributes:
    fields: names of question, answer and solution in a row.
    asked: the options of the evaluation; without models there is none.
  """

  file: epath.Path
  fields: Mapping[str, str]
  verifier: str
  asked: session.Options
  near_duplicates: float = 0.0
  against: Sequence[str] = ()
  ngram: int = contamination.N
  buckets: Sequence[float] = (0.25, 0.75)
  keep: tuple[float, float] = (0.0, 1.0)
  heldout: float = 0.0
  form: str = 'jsonl'


@dataclasses.dataclass
class Work:
  """The remaining problems, and the removed problems with reasons.

  Attributes:
    left: numbers of the examples that are kept.
    removed: {'row', 'reason', ...} and the row itself.
  """

  examples: list[dict]
  left: list[int]
  removed: list[dict]

  def remove(self, why: Mapping[int, Mapping[str, Any]]) -> None:
    """Removes examples by number, with a reason for each."""
    self.left = [i for i in self.left if i not in why]
    self.removed += [
      {**reason, 'problem': i, 'row': self.examples[i]['meta']}
      for i, reason in sorted(why.items())
    ]


def run(o: Options, say: Callable[[str], Any], bar: Callable) -> str:
  """Filters the problems; returns a summary.

  Raises:
    ValueError: names the error and the remedy in one line.
  """
  _refuse_own(o)
  if o.form == 'parquet':
    _parquet()  # refused before the work
  total = sum(1 for _ in files.rows(o.file))
  found = files.examples([o.file], o.fields)
  work = Work(found, list(range(len(found))), [])
  facts = {'rows': total, 'repeated': total - len(found)}
  if o.near_duplicates:
    _remove_near(o, work, bar)
  if o.against:
    _remove_asked(o, work)
  rates: dict[int, dict] = {}
  if o.asked.models and work.left:
    rates = _pass_rates(o, work, bar)
    known = [r['pass_rate'] for r in rates.values()]
    facts['pass_rate'] = _mean(r for r in known if r is not None)
    _remove_by_rate(o, work, rates)
  if not hosts.is_main():
    return ''
  return _write(o, work, rates, facts)


def _remove_near(o: Options, work: Work, bar: Callable) -> None:
  questions = [work.examples[i]['prompt'] for i in work.left]
  with bar('near duplicates', len(questions), 0, unit='problem') as shown:
    found = duplicates.near(questions, o.near_duplicates, shown.update)
  of = work.left
  work.remove(
    {of[i]: {'reason': 'near duplicate', 'of': of[j]} for i, j in found.items()}
  )


def _remove_asked(o: Options, work: Work) -> None:
  """Removes the problems of evaluation files."""
  questions = [work.examples[i]['prompt'] for i in work.left]
  rows = (row for name in o.against for row in texts(name))
  found = contamination.hits(questions, rows, o.ngram)
  of = work.left
  work.remove(
    {
      of[hit.problem]: {
        'reason': 'in an evaluation file',
        'where': hit.where,
        'words': hit.words,
      }
      for hit in found
    }
  )


def _pass_rates(o: Options, work: Work, bar: Callable) -> dict[int, dict]:
  """Returns the pass rate of each row by the number of its problem; on process
  0.
  """
  examples = [work.examples[i] for i in work.left]
  suite = Suite(o.file.stem, examples, o.verifier)
  plan = session.cells_of(o.asked, [suite])
  session.answer(o.asked, plan, bar)
  out = {}
  for at, rows in scores.by_problem(plan[0].cell.rows()).items():
    # Failed verifications do not count for the pass rate.
    judged = [r for r in rows if r['verdict']['status'] not in FAILED]
    rate = _mean(map(scores.is_right, judged)) if judged else None
    out[work.left[at]] = {
      'pass_rate': rate,
      **({} if rate is None else {'difficulty': 1 - rate}),
      'difficulty_bucket': bucket(rate, o.buckets),
      'mean_length': _mean(r['length'] for r in rows),
    }
  return out


def bucket(rate: float | None, edges: Sequence[float]) -> str:
  """Returns the bucket of a pass rate: '0', '1', or the interval that
  contains it, without its lower edge; 'unknown' without a pass rate.
  """
  if rate is None:
    return 'unknown'
  if rate in (0, 1):
    return f'{rate:g}'
  bounds = [0.0, *edges, 1.0]
  low, high = next((a, b) for a, b in zip(bounds, bounds[1:]) if rate <= b)
  return f'{low:g}-{high:g}'


def _remove_by_rate(o: Options, work: Work, rates: dict[int, dict]) -> None:
  low, high = o.keep
  out = {}
  for i, facts in rates.items():
    rate = facts['pass_rate']
    if rate is None:
      out[i] = {'reason': 'never judged'}
    elif not low <= rate <= high:
      out[i] = {'reason': 'pass rate', **facts}
  work.remove(out)


def _mean(values: Iterable[float]) -> float:
  values = list(values)
  return sum(values) / len(values) if values else 0.0


def _write(
  o: Options, work: Work, rates: dict[int, dict], facts: dict[str, Any]
) -> str:
  """Writes the remaining and the removed problems; returns a summary."""
  row = {i: {**work.examples[i]['meta'], **rates.get(i, {})} for i in rates}
  row |= {i: work.examples[i]['meta'] for i in work.left if i not in rates}
  out = {TRAIN: [], TEST: []}
  for i in work.left:
    held = o.heldout and files.is_heldout(work.examples[i], o.heldout)
    out[TEST if held else TRAIN].append(row[i])
  if rates:
    out[FAILING] = [row[i] for i in rates if rates[i]['pass_rate'] == 0]
  folder = o.asked.out
  folder.mkdir(parents=True, exist_ok=True)
  written = {
    folder / f'{name}.{o.form}': rows
    for name, rows in out.items()
    if rows or name == TRAIN
  }
  for path in _of_before(folder):
    if path not in written:
      path.unlink(missing_ok=True)
  facts |= {
    'removed': dict(collections.Counter(r['reason'] for r in work.removed)),
    'written': {name: len(rows) for name, rows in out.items()},
    'difficulty': dict(
      sorted(
        collections.Counter(
          r['difficulty_bucket'] for r in rates.values()
        ).items()
      )
    ),
  }
  # Before the rows, so that a later call knows what a stopped one has written.
  kept_files.write_whole(folder / 'report.json', json.dumps(facts, indent=1))
  for path, rows in written.items():
    _write_rows(path, rows)
  lines = ''.join(map(records.line_of, work.removed))
  kept_files.write_whole(folder / f'{REMOVED}.jsonl', lines)
  return _said(facts, folder)


def _of_before(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the paths of rows that an earlier call wrote, in either format;
  training would read the files that the new call does not replace.
  """
  report = folder / 'report.json'
  found = reading.json_object(report) if report.exists() else {}
  written = found.get('written', {})
  names = [name for name, n in written.items() if n or name == TRAIN]
  return [folder / f'{name}.{form}' for name in names for form in files.KINDS]


def _refuse_own(o: Options) -> None:
  """Refuses to read a file that the command replaces.

  Raises:
    ValueError: names the file.
  """
  folder = pathlib.Path(o.asked.out).resolve()
  own = [
    folder / f'{x}.{k}' for x in (TRAIN, TEST, FAILING) for k in files.KINDS
  ]
  for name in (o.file, *o.against):
    if pathlib.Path(name).resolve() in own:
      raise ValueError(
        f'--out={o.asked.out}: the command writes or removes {name}, which it '
        'reads; name another folder'
      )


def _said(facts: Mapping[str, Any], folder: pathlib.Path) -> str:
  def counted(name):
    return ', '.join(f'{k} {n}' for k, n in facts[name].items()) or 'none'

  lines = [
    f'{facts["rows"]} rows, {facts["repeated"]} of them repeated',
    f'removed: {counted("removed")}',
  ]
  if 'pass_rate' in facts:
    lines.append(
      f'pass rate {facts["pass_rate"]:.3f}; problems by it: '
      f'{counted("difficulty")}'
    )
  return '\n'.join([*lines, f'written to {folder}: {counted("written")}'])


def _parquet() -> Any:
  try:
    import pyarrow
    import pyarrow.parquet
  except ImportError as e:
    raise ImportError(
      f'Parquet needs pyarrow: {install("curate")}, or write --format=jsonl'
    ) from e
  return pyarrow


def _write_rows(path: pathlib.Path, rows: Sequence[Mapping]) -> None:
  if path.suffix == '.parquet':
    library = _parquet()
    aside = path.with_name(f'.{path.name}')
    # pyarrow reads the names of fields from the first row alone.
    names = dict.fromkeys(name for row in rows for name in row)
    filled = [{name: row.get(name) for name in names} for row in rows]
    library.parquet.write_table(library.Table.from_pylist(filled), aside)
    aside.replace(path)
    return
  kept_files.write_whole(path, ''.join(map(records.line_of, rows)))
