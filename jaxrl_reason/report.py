"""Writes the report of runs: one HTML file, which needs no network.

  python -m jaxrl_reason.report WORKDIR... [--out=FILE.html] [--open]
  python -m jaxrl_reason.report WORKDIR EVALUATION...

An evaluation is a folder with answers/*.jsonl, records of what models said;
models that were asked the same are compared. Runs that differ in their seed
alone become one line with a band. It reads what is on disk, of a run that goes
on, was killed or has failed as well (docs/reports.md).
"""

import argparse
import json
import sys
import webbrowser

from etils import epath

from jaxrl_reason import command
from jaxrl_reason import config as config_lib
from jaxrl_reason.reports import evaluated, html, workdirs


def parser() -> command.Parser:
  """Defines the flags."""
  p = command.Parser('jaxrl_reason.report', __doc__)
  p.add_argument(
    'workdirs', nargs='+', metavar='WORKDIR', help='of runs, or evaluations'
  )
  p.text('--out', '', 'the file; default: report.html of the first workdir')
  p.switch('--open', 'in the browser')
  return p


def _defaults() -> dict:
  """Returns the default configuration as a run writes its own."""
  text = config_lib.default().to_json_best_effort()
  return workdirs.flat(json.loads(text))


def run(a: argparse.Namespace) -> epath.Path:
  """Writes what the arguments ask for; returns the file."""
  given = list(dict.fromkeys(p.rstrip('/') for p in a.workdirs))
  evaluations = [p for p in given if evaluated.is_folder(p)]
  paths = [p for p in given if p not in evaluations]
  runs = [workdirs.read(*each) for each in zip(paths, workdirs.names(paths))]
  out = epath.Path(a.out or epath.Path(given[0]) / 'report.html')
  html.write(out, runs, evaluations, _defaults())
  if a.open:
    webbrowser.open(out.resolve().as_uri())
  return out


def main() -> None:
  try:
    print(run(parser().parse_args()), file=sys.stderr)
  except command.USER_ERRORS as e:
    command.fail(e)


if __name__ == '__main__':
  main()
