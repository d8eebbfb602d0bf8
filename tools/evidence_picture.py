"""Draws the effects of studies, a panel for each, as one picture.

  tools/run study --config=configs/studies/adapters.py --out=studies/adapters
  .venv/bin/python tools/evidence_picture.py studies/*/results.json \\
    --out=docs/pictures/evidence.png

Each line is one criterion: its effect with the 95 % t interval over seeds, in
the color of its verdict. The text of the criterion contains its bound.

With a page instead of results, it draws a picture for each section of the page
that shows `pictures/effects_*.png`, from the numbers `x ± y` of the section's
tables: those of the rows `effect...`, or the columns of a wider table.

  .venv/bin/python tools/evidence_picture.py docs/evidence.md \\
    --out=docs/pictures
"""

import argparse
import json
import pathlib
import re
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from jaxrl_reason.studies import verdicts

COLORS = {
  verdicts.HOLDS: 'tab:green',
  verdicts.NOT: 'tab:red',
  verdicts.UNKNOWN: 'tab:gray',
}
COLUMNS = 3
# The label, mean and half of the interval of an effect in a cell.
EFFECT = re.compile(r'([^;,:|]*?)([+−]?[0-9.]+) ± ([0-9.]+)')
PICTURE = re.compile(r'\(pictures/(effects_\w+\.png)\)')
# (title, [(label, mean, half)])
Panel = tuple[str, list[tuple[str, float, float]]]


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
  _lines(ax, title, [label(c['criterion']) for c in found])


def _lines(ax, title: str, labels: Sequence[str]) -> None:
  ax.axvline(0, color='black', linewidth=0.8)
  ax.set_yticks(range(len(labels)), labels)
  ax.set_ylim(len(labels) - 0.5, -0.5)
  ax.grid(alpha=0.3, axis='x')
  ax.set_title(title)


def sections(page: str) -> dict[str, list[Panel]]:
  """Returns the effects that the page has, for each picture that it shows.

  Raises:
    SystemExit: a section with a picture has no effects.
  """
  out = {}
  for section in page.split('\n## ')[1:]:
    if match := PICTURE.search(section):
      out[match[1]] = list(_panels(section))
      if not out[match[1]]:
        raise SystemExit(f'error: no effects of {match[1]} are in its section')
  return out


def _panels(section: str) -> Iterator[Panel]:
  """Yields the effects of a row, or of a column of a wider table."""
  for table in re.findall(r'(?:^\|.*\n)+', section, re.MULTILINE):
    header, _, *rows = [_cells(line) for line in table.splitlines()]
    if len(header) > 2:
      for column, *cells in zip(header[1:], *(row[1:] for row in rows)):
        found = map(EFFECT.search, cells)
        yield column, [(row[0], *_numbers(m)) for row, m in zip(rows, found)]
      continue
    for name, text in rows:
      found = list(EFFECT.finditer(text)) if name.startswith('effect') else []
      if found:
        yield name, [(_label(m[1]), *_numbers(m)) for m in found]


def _cells(line: str) -> list[str]:
  return [cell.strip() for cell in line.replace('`', '')[1:-2].split(' | ')]


def _label(text: str) -> str:
  return text.partition('(')[0].strip()


def _numbers(effect: re.Match) -> tuple[float, float]:
  return float(effect[2].replace('−', '-')), float(effect[3])


def draw_panels(panels: Sequence[Panel]) -> Figure:
  """Draws the effects of a section, a panel for each of its rows. More than
  two panels with the same labels are side by side.
  """
  rows = {tuple(label for label, *_ in x) for _, x in panels}
  alike = len(rows) == 1 and len(panels) > 2
  sizes = [len(effects) for _, effects in panels[: 1 if alike else None]]
  across = len(panels) // len(sizes)
  figure = Figure(
    figsize=(4.8 + 1.4 * across, 0.22 * sum(sizes) + 0.75 * len(sizes)),
    layout='constrained',
  )
  axes = figure.subplots(
    len(sizes),
    across,
    squeeze=False,
    sharey=alike,
    gridspec_kw={'height_ratios': sizes},
  )
  for ax, (title, effects) in zip(axes.flat, panels):
    labels, means, halves = zip(*effects)
    ax.errorbar(means, range(len(means)), xerr=halves, fmt='o', markersize=4)
    ax.locator_params(axis='x', nbins=3 if alike else 6)
    _lines(ax, title, labels)
  return figure


def draw_page(page: pathlib.Path, folder: pathlib.Path) -> None:
  """Draws the pictures of a page. Each contains the effects as a text."""
  for name, panels in sections(page.read_text()).items():
    text = {'Description': json.dumps(panels)}
    draw_panels(panels).savefig(folder / name, dpi=100, metadata=text)


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  p = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  p.add_argument(
    'results', nargs='+', type=pathlib.Path, help='results.json, or a page.md'
  )
  p.add_argument('--out', type=pathlib.Path, required=True)
  a = p.parse_args(argv)
  if a.results[0].suffix == '.md':
    draw_page(a.results[0], a.out)
  else:
    draw(a.results).savefig(a.out, dpi=80)


if __name__ == '__main__':
  main()
