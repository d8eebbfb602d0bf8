r"""Compares settings of a recipe over seeds, and decides claims about them.

  jaxrl study --config=configs/studies/tokens.py \
    --out=studies/tokens

A study is a Python file with get_study(), which names a recipe, settings that
change keys of the recipe, and the number of seeds (`studies/grid.py`). Runs
whose programs differ only in traced numbers (seed, learning rate, KL, clips,
temperature, weights) run side by side in one program; others run one after
another. If it is interrupted, the same command continues. OUT contains a
workdir for every run (for `report` and `evaluate`), table.md, results.json and
study.png. docs/studies.md explains the table.
"""

import argparse
import sys
from collections.abc import Sequence

from jaxrl_reason import command


def parser() -> command.Parser:
  """Makes the flags."""
  p = command.Parser('study', __doc__)
  p.recipe('file with get_study(): FILE.py, or FILE.py:smoke for a few steps')
  p.text('--out', None, 'folder to write, or to continue', required=True)
  p.number('--seeds', 0, "seeds of every setting; 0: the study's")
  p.number('--first_seed', 0, "lowest seed; 0: the study's")
  p.text('--settings', '', 'settings to run, with commas between')
  p.number('--at_once', 0, "most runs in one program; 0: the study's")
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  with command.resumable():
    run(a)


def run(a: argparse.Namespace) -> None:
  """Runs, or continues, the study of the flags."""
  # Imported late, so that a wrong flag is refused at once.
  from absl import logging

  from jaxrl_reason import hosts
  from jaxrl_reason.run.process import reader_gone
  from jaxrl_reason.run.records import journal
  from jaxrl_reason.studies import options
  from jaxrl_reason.studies import study_run as session

  logging.set_verbosity(logging.WARNING)
  try:
    with reader_gone.tolerated(), command.one_line():
      hosts.find_devices()
      study = options.study_of(a)
      table = session.run(study, command.folder('--out', a.out), journal.say)
  except KeyboardInterrupt:
    command.fail('stopped; start the same command to continue')
  if not table:
    sys.exit(command.SAVED)
  print(table)


if __name__ == '__main__':
  main()
