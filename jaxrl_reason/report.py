"""Writes the report of runs: one HTML file, which needs no network.

  python -m jaxrl_reason.report WORKDIR... [--out=FILE.html] [--open]

Runs that differ in their seed alone become one line with a band. It reads what
is on disk, of a run that goes on, was killed or has failed as well
(docs/reports.md).
"""

import argparse
import json
import pathlib
import sys
import webbrowser

from jaxrl_reason import config as config_lib
from jaxrl_reason.reports import html, workdirs


def _parser() -> argparse.ArgumentParser:
  p = argparse.ArgumentParser(prog='report', description=__doc__)
  p.formatter_class = argparse.RawDescriptionHelpFormatter
  p.add_argument('workdirs', nargs='+', metavar='WORKDIR', help='of runs')
  p.add_argument('--out', help='the file [report.html of the first workdir]')
  p.add_argument('--open', action='store_true', help='in the browser')
  return p


def _defaults() -> dict:
  """The default configuration as a run writes its own."""
  text = config_lib.default().to_json_best_effort()
  return workdirs.flat(json.loads(text))


def run(a: argparse.Namespace) -> pathlib.Path:
  """Writes what the arguments ask for; returns the file."""
  given = list(dict.fromkeys(p.rstrip('/') for p in a.workdirs))
  found = workdirs.names(given)
  runs = [workdirs.read(p, name) for p, name in zip(given, found)]
  out = pathlib.Path(a.out or pathlib.Path(given[0]) / 'report.html')
  html.write(out, runs, _defaults())
  if a.open:
    webbrowser.open(out.resolve().as_uri())
  return out


def main() -> int:
  try:
    print(run(_parser().parse_args()), file=sys.stderr)
  except (ValueError, OSError) as e:
    print(f'report: {e}', file=sys.stderr)
    return 1
  return 0


if __name__ == '__main__':
  sys.exit(main())
