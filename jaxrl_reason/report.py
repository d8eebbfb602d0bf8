"""Writes the report of runs: one HTML file, which needs no network.

  jaxrl report WORKDIR... [--out=FILE.html] [--open]
  jaxrl report WORKDIR EVALUATION...
  jaxrl report WORKDIR... --live [--port=8765] [--open]

An evaluation is a folder with answers/*.jsonl, the records of answers. Models
with the same suites and prompts are compared. Runs that differ only in their
seed are drawn as one line with a band. The command reads only files, so it
works for runs that continue, were killed or failed (docs/reports.md). --live
serves a page on this machine that follows runs until Ctrl-C.
"""

import argparse
import contextlib
import json
import sys
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxrl_reason import command

if TYPE_CHECKING:
  from etils import epath

  from jaxrl_reason.reports import live


def parser() -> command.Parser:
  """Defines the flags."""
  p = command.Parser('report', __doc__)
  p.add_argument(
    'workdirs', nargs='+', metavar='WORKDIR', help='of runs, or evaluations'
  )
  p.text('--out', '', 'the file; default: report.html of the first workdir')
  p.switch('--open', 'in the browser')
  p.switch('--live', 'serve a page that follows the runs')
  p.number('--port', 0, 'of --live; 0: a free one')
  return p


def _defaults() -> dict:
  """Returns the default configuration as a run writes its own."""
  from jaxrl_reason import config as config_lib
  from jaxrl_reason.reports import workdirs

  text = config_lib.default().to_json_best_effort()
  return workdirs.flat(json.loads(text))


def _folders(a: argparse.Namespace) -> tuple[list[str], list[str], list[str]]:
  """Returns the given folders: all, those of runs and those of evaluations."""
  from jaxrl_reason.reports import answer_folders

  given = list(dict.fromkeys(p.rstrip('/') for p in a.workdirs))
  evaluations = [p for p in given if answer_folders.is_folder(p)]
  return given, [p for p in given if p not in evaluations], evaluations


def serve(a: argparse.Namespace) -> 'live.Server':
  """Starts the server of a page that follows the runs.

  Raises:
    ValueError: a flag does not go with --live, or the port is in use.
  """
  from jaxrl_reason.reports import live

  _, paths, evaluations = _folders(a)
  if a.out:
    raise ValueError('--live writes no file: leave out --out')
  if not paths:
    raise ValueError('--live follows runs: name a workdir at least')
  try:  # before the rollouts are read, which may take minutes
    server = live.Server(a.port)
  except (OSError, OverflowError) as e:
    raise ValueError(f'--port={a.port}: {e}; 0 chooses a free one') from e
  with contextlib.ExitStack() as unless_ready:
    unless_ready.callback(server.server_close)
    server.live = live.Live(paths, evaluations, _defaults())
    unless_ready.pop_all()
  print(f'{server.address} follows {", ".join(paths)}', file=sys.stderr)
  if a.open:
    webbrowser.open(server.address)
  return server


def run(a: argparse.Namespace) -> 'epath.Path':
  """Writes the report; returns its path."""
  # Imported late, so that a wrong flag is refused at once.
  from etils import epath

  from jaxrl_reason.reports import html, workdirs

  given, paths, evaluations = _folders(a)
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
    if a.live:
      with contextlib.suppress(KeyboardInterrupt):
        serve(a).follow()
      return
    if a.port:
      raise ValueError(f'--port={a.port} is of --live')
    print(run(a), file=sys.stderr)


if __name__ == '__main__':
  main()
