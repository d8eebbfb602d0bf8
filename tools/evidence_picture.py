"""Draws the effects of studies, a panel for each, as one picture.

  tools/run study --config=configs/studies/adapters.py --out=studies/adapters
  .venv/bin/python tools/evidence_picture.py studies/*/results.json \\
    --out=docs/pictures/evidence.png

Each line is one criterion: its effect with the 95 % t interval over seeds, in
the color of its verdict. The text of the criterion contains its bound.
"""

import argparse
import json
import pathlib
from collections.abc import Sequence

from matplotlib.figure import Figure

from jaxrl_reason.studies import verdicts

COLORS = {
  verdicts.HOLDS: 'tab:green',
  verdicts.NOT: 'tab:red',
  verdicts.UNKNOWN: 'tab:gray',
}
COLUMNS = 3


def criteria(path: pathlib.Path) -> list[dict]:
  """Reads the criteria of a study, in the order of its claims, each once.

  Raises:
    SystemExit: the study has no claims.
  """
  claims = json.loads(path.read_text()).get('claims', [])
  found = [c for claim in claims for c in claim['criteria']]
  if not found:
    raise SystemExit(f'error: {path} has no claims: name another study')
  return list({c['criterion']: c for c in found}.values())


def label(criterion: str) -> str:
  """Shortens the text of a criterion."""
  for long, short in (
    ('eval/heldout/', ''),
    ('eval/', ''),
    ('train/', ''),
    (' of the gain of ', ' gain of '),
  ):
    criterion = criterion.replace(long, short)
  return criterion


def draw(paths: Sequence[pathlib.Path]) -> Figure:
  """Draws a panel for the results of each study."""
  rows = -(-len(paths) // COLUMNS)
  each = [criteria(path) for path in paths]
  most = [
    max(map(len, each[i : i + COLUMNS])) for i in range(0, len(each), COLUMNS)
  ]
  figure = Figure(
    figsize=(7.0 * COLUMNS, 0.27 * sum(most) + 0.9 * rows), layout='constrained'
  )
  axes = figure.subplots(
    rows, COLUMNS, squeeze=False, gridspec_kw={'height_ratios': most}
  ).flat
  for ax, path, found in zip(axes, paths, each):
    _panel(ax, path.parent.name, found)
  for ax in axes:  # the remaining ones
    ax.set_axis_off()
  handles = [
    figure.axes[0].errorbar([], [], [], fmt='o', color=c)
    for c in COLORS.values()
  ]
  figure.legend(handles, COLORS, loc='outside lower center', ncols=len(COLORS))
  return figure


def _panel(ax, title: str, found: list[dict]) -> None:
  for y, c in enumerate(found):
    effect, color = c['effect'], COLORS[c['verdict']]
    ax.errorbar(effect['mean'], y, xerr=effect['half'], fmt='o', color=color)
  ax.axvline(0, color='black', linewidth=0.8)
  ax.set_yticks(range(len(found)), [label(c['criterion']) for c in found])
  ax.invert_yaxis()
  ax.grid(alpha=0.3, axis='x')
  ax.set_title(title)


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  p.add_argument('results', nargs='+', type=pathlib.Path)
  p.add_argument('--out', type=pathlib.Path, required=True)
  a = p.parse_args(argv)
  draw(a.results).savefig(a.out, dpi=80)


if __name__ == '__main__':
  main()
