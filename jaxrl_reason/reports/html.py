"""The report: one HTML file with all data and scripts.

  write(path, runs, defaults)

Texts and tokens of rollouts are in compressed blocks, which the page opens on
demand. So a file with hundreds of MB opens at once.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from etils import epath

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
    raise ValueError(
      f"{e.name} is not installed: pip install 'jaxrl_reason[report]'"
    ) from e
  env = jinja2.Environment(
    loader=jinja2.FileSystemLoader(PAGE), autoescape=True, trim_blocks=True
  )
  return env.get_template('report.html.j2'), get_plotlyjs()


def write(
  path: epath.Path,
  runs: list[Run],
  evaluations: Sequence[str],
  defaults: dict[str, Any],
) -> None:
  """Writes the report of some runs and evaluations.

  Args:
    evaluations: folders of evaluations.
    defaults: of the configuration, by dotted key.
  """
  template, plotly = _libraries()
  blocks = answers.Blocks()
  found = [answers.read(run, i, blocks) for i, run in enumerate(runs)]
  cells = []
  for folder in evaluations:
    cells += answer_folders.read(folder, len(runs) + len(cells), blocks)
  sizes = blocks.close()
  shown = {
    'pass': answer_folders.pass_at_k(cells) + figures.pass_at_k(runs),
    'curves': figures.curves(runs),
    'answers': figures.of_answers(runs, found),
    'forgetting': answer_folders.forgetting(cells),
    'support': answer_folders.support(cells) + figures.of_support(runs, found),
  }
  names = [r.name for r in runs]
  names += [f'{c.model}, {c.suite}' for c in cells]
  context = {
    'runs': [_told(run, own) for run, own in zip(runs, found)],
    'tops': [(r.name, own.top) for r, own in zip(runs, found) if own.top],
    'differing': state.differing(runs),
    'changed': [(r.name, state.changed(r, defaults)) for r in runs],
    'names': [r.name for r in runs],
    'title': ', '.join([r.name for r in runs] or map(str, evaluations)),
    'figures': shown,
    'why': missing.WHY,
    'commands': missing.commands(runs),
    'data': _json({'figures': shown, 'names': names} | sizes),
    'columns': answers.packed(blocks.columns),
    'texts': blocks.texts,
    'tokens': blocks.tokens,
    'plotly': plotly,
    'style': (PAGE / 'report.css').read_text(),
    'script': (PAGE / 'report.js').read_text(),
  }
  with epath.Path(path).open('w') as f:
    template.stream(**context).dump(f)


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
