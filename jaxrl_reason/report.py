"""Writes the report of runs: one HTML file, which needs no network.

  jaxrl report WORKDIR... [--out=FILE.html] [--open]
  jaxrl report WORKDIR EVALUATION...

An evaluation is a folder with answers/*.jsonl, the records of answers. Models
with the same suites and prompts are compared. Runs that differ only in their
seed are drawn as one line with a band. The command reads only files, so it
works for runs that continue, were killed or failed (docs/reports.md).
"""

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl_reason import command

if TYPE_CHECKING:
  from etils import epath


def parser() -> command.Parser:
  """Defines the flags."""
  p = command.Parser('report', __doc__)
  p.add_argument(
    'workdirs', nargs='+', metavar='WORKDIR', help='of runs, or evaluations'
  )
  p.text('--out', '', 'the file; default: report.html of the first workdir')
  p.switch('--open', 'in the browser')
  return p


def _defaults() -> dict:
  """Returns the default configuration as a run writes its own."""
  from jaxrl_reason import config as config_lib
  from jaxrl_reason.reports import workdirs

  text = config_lib.default().to_json_best_effort()
  return workdirs.flat(json.loads(text))


def run(a: argparse.Namespace) -> 'epath.Path':
  """Writes the report; returns its path."""
  # Imported late, so that a wrong flag is refused at once.
  from etils import epath

  from jaxrl_reason.reports import answer_folders, html, workdirs

  given = list(dict.fromkeys(p.rstrip('/') for p in a.workdirs))
  evaluations = [p for p in given if answer_folders.is_folder(p)]
  paths = [p for p in given if p not in evaluations]
  runs = [workdirs.read(*each) for each in zip(paths, workdirs.names(paths))]
  out = epath.Path(a.out or epath.Path(given[0]) / 'report.html')
  html.write(out, runs, evaluations, _defaults())
  if a.open:
    webbrowser.open(out.resolve().as_uri())
  return out


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  with command.one_line():
    print(run(a), file=sys.stderr)


if __name__ == '__main__':
  main()
