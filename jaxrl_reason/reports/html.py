"""The report: one HTML file with all data and scripts.

  write(path, runs, defaults)

Texts and tokens of rollouts are in compressed blocks, which the page opens on
demand. So a file with hundreds of MB opens at once.
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from etils import epath

from jaxrl_reason.names import install
from jaxrl_reason.reports import (
  alarms,
  answer_folders,
  figures,
  missing,
  overview,
  panels,
  state,
)
from jaxrl_reason.reports import answer_pages as answers
from jaxrl_reason.reports.workdirs import Run

PAGE = pathlib.Path(__file__).with_name('page')


def _libraries() -> tuple[Any, str]:
  """Returns the template and plotly's script.

  Raises:
    ValueError: they are not installed.
  """
  try:
    import jinja2
    from plotly.offline import get_plotlyjs
  except ImportError as e:
    raise ValueError(f'{e.name} is not installed: {install("report")}') from e
  env = jinja2.Environment(
    loader=jinja2.FileSystemLoader(PAGE), autoescape=True, trim_blocks=True
  )
  return env.get_template('report.html.j2'), get_plotlyjs()


class Report:
  """The page of some runs and evaluations; runs may grow between two pages.

  Attributes:
    plotly: its script.
    blocks: of answers that were read.
  """

  def __init__(
    self, n_runs: int, evaluations: Sequence[str], defaults: dict[str, Any]
  ):
    """Args:
    evaluations: folders of evaluations.
    defaults: of the configuration, by dotted key.
    """
    self._template, self.plotly = _libraries()
    self.blocks = answers.Blocks()
    self._readers = [answers.Reader(i, self.blocks) for i in range(n_runs)]
    self._evaluations, self._defaults = evaluations, defaults
    self._cells = []
    for folder in evaluations:
      number = n_runs + len(self._cells)
      self._cells += answer_folders.read(folder, number, self.blocks)

  @property
  def unread(self) -> int:
    """Returns the number of rollout files that the last page left out."""
    return sum(reader.unread for reader in self._readers)

  def stream(
    self,
    runs: list[Run],
    version: int | None = None,
    limit: float = math.inf,
  ):
    """Returns the stream of the page's text.

    Args:
      version: of a live page, whose script and blocks are not part of the
        text; None: the page contains everything.
      limit: tokens of rollouts of each run to read, after which its other new
        files are left to the next page.
    """
    live = version is not None
    context = self._context(runs, limit) | {
      'unread': self.unread,
      'live': live,
      'blocks': {} if live else self.blocks.named(),
      'plotly': '' if live else self.plotly,
      'style': (PAGE / 'report.css').read_text(),
      'script': (PAGE / 'report.js').read_text(),
    }
    index = {'figures': context['figures'], 'version': version}
    names = [*context['names'], *(f'{c.model}, {c.suite}' for c in self._cells)]
    index |= {'names': names} | self.blocks.sizes()
    return self._template.stream(**context, data=_json(index))

  def _context(self, runs: list[Run], limit: float) -> dict[str, Any]:
    """Returns the values of the template."""
    cells = self._cells
    found = [each.read(run, limit) for each, run in zip(self._readers, runs)]
    support = answer_folders.support(cells) + figures.of_support(runs, found)
    return {
      'runs': [_told(run, own) for run, own in zip(runs, found)],
      'tops': [(r.name, own.top) for r, own in zip(runs, found) if own.top],
      'differing': state.differing(runs),
      'changed': [(r.name, state.changed(r, self._defaults)) for r in runs],
      'names': [r.name for r in runs],
      'title': ', '.join([r.name for r in runs] or map(str, self._evaluations)),
      'figures': {
        'pass': answer_folders.pass_at_k(cells) + figures.pass_at_k(runs),
        'curves': figures.curves(runs),
        'answers': figures.of_answers(runs, found),
        'forgetting': answer_folders.forgetting(cells),
        'support': support,
      },
      'why': missing.WHY,
      'commands': missing.commands(runs),
      'columns': answers.packed(self.blocks.columns),
    }


def write(
  path: epath.Path,
  runs: list[Run],
  evaluations: Sequence[str],
  defaults: dict[str, Any],
) -> None:
  """Writes the report of some runs and evaluations, as `Report`."""
  report = Report(len(runs), evaluations, defaults)
  with epath.Path(path).open('wb') as f:
    # Texts of models may have lone surrogates.
    report.stream(runs).dump(f, encoding='utf-8', errors='replace')


def _told(run: Run, own: answers.Answers) -> dict[str, Any]:
  kind, sentence = state.status(run)
  raised = alarms.of(run, own.steps)
  return {
    'name': run.name,
    'path': str(run.path),
    'kind': kind,
    'status': sentence,
    'stages': run.stages,
    'last': _last(run),
    'breaks': state.breaks(run),
    'alarms': raised,
    'latest': [a for a in raised if a.since is not None][:3],
    'verdict': overview.verdict(run, raised),
    'samples': overview.samples(run, own.worst),
  }


def _last(run: Run) -> list[tuple[str, float]]:
  """Returns the newest values of the main metrics of a run."""
  out = []
  for name in panels.PANELS[0].names + panels.PANELS[1].names[:1]:
    values = [v for v in run.series(name)[1] if v is not None]
    out += [(name.partition('/')[2], values[-1])] if values else []
  return out


def _json(tree: Any) -> str:
  """Encodes JSON for a script element."""
  text = json.dumps(tree, ensure_ascii=False, allow_nan=False)
  return text.replace('<', '\\u003c')
