"""Prints plans beside published runs on TPUs, with columns to fill in.

  .venv/bin/python tools/ledger.py                 prints the ledger
  .venv/bin/python tools/ledger.py --plan
      plans all runs again (needs libtpu)
  .venv/bin/python tools/ledger.py --plan=A,B      plans these runs again
  .venv/bin/python tools/ledger.py --page          writes docs/predictions.md

The runs are those of configs/published/runs.py. Their plans are stored in
configs/published/plans.json, so printing compiles nothing. Each run is planned
in its own process (`jaxrl plan`), since compilers keep memory.
"""

import argparse
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
RECIPE = ROOT / 'configs' / 'published' / 'runs.py'
PLANS = RECIPE.with_name('plans.json')
PAGE = ROOT / 'docs' / 'predictions.md'
BEGIN = '<!-- ledger: tools/ledger.py --page -->\n'
END = '<!-- end of ledger -->\n'
KEPT = ('step_seconds', 'ordered_seconds', 'serial_seconds', 'hbm_gib', 'fits')
COLUMNS = (
  'run',
  'chips',
  'rows x tokens',
  's if all overlaps',
  'in order',
  'if nothing does',
  'GiB',
  'published s',
  'published / plan',
  'floor',
  's on chips',
  'GiB on chips',
)


def runs() -> dict:
  """Returns the published runs by name."""
  return runpy.run_path(str(RECIPE))['RUNS']


def plan(name: str, run) -> dict:
  """Compiles a run for its chips and returns the figures to store."""
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder, 'plan.json')
    flags = [
      f'--config={RECIPE}:{name}',
      f'--topology={run.topology}',
      f'--only={",".join(run.only)}',
      f'--json={out}',
      '--nolargest',
    ]
    flags += ['--by_depth'] if run.by_depth else []
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    subprocess.run(
      [sys.executable, '-m', 'jaxrl_reason', 'plan', *flags],
      env=os.environ | {'PYTHONPATH': path},
      stdout=subprocess.DEVNULL,
    )
    # If the recipe does not fit, the command writes the file and then fails.
    if not out.exists():
      raise SystemExit(f'{name}: no plan')
    facts = json.loads(out.read_text())
  kept = {key: facts[key] for key in KEPT if key in facts}
  return kept | {'needs_gib': max(p['needs_gib'] for p in facts['phases'])}


def plans() -> dict:
  """Returns the stored plans by name."""
  return json.loads(PLANS.read_text()) if PLANS.exists() else {}


def row(name: str, run, found: dict) -> list[str]:
  """Returns the cells of a run; '-': not planned, or not published."""
  of = '{} x {}, {:,} + {:,}'.format(*run.rows, *run.tokens)
  if run.only == ('pretrain',):
    of = f'{run.rows[0]:,} x {sum(run.tokens):,}'
  times = [found.get(f'{k}_seconds') for k in ('step', 'ordered', 'serial')]
  ratios = [run.seconds / t if t else 0 for t in times]
  floor = 'yes' if ratios[0] >= 1 else 'no'
  return [
    f'`{name}`',
    run.topology,
    of,
    *map(number, times),
    memory(found),
    number(run.seconds),
    ' / '.join(f'{r:.2f}' if r else '-' for r in ratios),
    floor if ratios[0] else '-',
    '',
    '',
  ]


def number(x: float | None) -> str:
  return f'{x:.3g}' if x else '-'


def memory(found: dict) -> str:
  """Returns the cell with the memory of the largest phase and of a chip."""
  if 'needs_gib' not in found:
    return '-'
  text = f'{found["needs_gib"]:.1f} of {found["hbm_gib"]:.1f}'
  return text if found['fits'] else f'{text}, does not fit'


def table(rows) -> str:
  """Returns rows of cells as a Markdown table."""
  lines = [COLUMNS, ['---'] * len(COLUMNS), *rows]
  return ''.join(f'| {" | ".join(cells)} |\n' for cells in lines)


def ledger() -> str:
  """Returns the table and the list of sources."""
  found, known = plans(), runs()
  rows = [row(name, run, found.get(name, {})) for name, run in known.items()]
  sources = [
    f'- `{name}`: {run.model}; {run.figure}; [source]({run.source})'
    + (f'. Differences: {run.differs}.\n' if run.differs else '.\n')
    for name, run in known.items()
  ]
  return table(rows) + '\n' + ''.join(sources)


def page(text: str) -> str:
  """Returns the page with the ledger between its marks."""
  before, _, rest = text.partition(BEGIN)
  return before + BEGIN + ledger() + END + rest.partition(END)[2]


def main():
  p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  p.add_argument('--plan', nargs='?', const='', help='names of runs, or all')
  p.add_argument('--page', action='store_true', help='write the page')
  args = p.parse_args()
  known = runs()
  names = [] if args.plan is None else args.plan.split(',')
  for name in known if names == [''] else names:
    made = plan(name, known[name])
    PLANS.write_text(json.dumps(plans() | {name: made}, indent=1) + '\n')
  if args.page:
    PAGE.write_text(page(PAGE.read_text()))
  print(ledger(), end='')


if __name__ == '__main__':
  main()
