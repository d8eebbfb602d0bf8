"""The picture of a run: `curves.png` from a workdir's metrics.jsonl."""

import re

from etils import epath

from jaxrl_reason.reports import metrics_file, panels, workdirs
from jaxrl_reason.reports.panels import Panel

PANELS = (
  Panel(
    'accuracy',
    '',
    ('eval/heldout/pass@1', 'eval/heldout/greedy', 'eval/harder/pass@1'),
    low=0.0,
    high=1.0,
  ),
  Panel('pass@k', '', ('eval/heldout/pass@', 'eval/harder/pass@'),
        low=0.0, high=1.0),
  Panel('reward', '', ('train/reward_mean', 'train/reward_std'), span=0.1),
  Panel('entropy, nats per token', '', ('train/entropy',), span=0.2, low=0.0),
  Panel(
    'completion length, tokens',
    '',
    ('train/length_mean', 'train/length_right', 'train/length_wrong'),
    span=4,
  ),
  Panel(
    'KL, nats per token',
    '',
    ('train/kl', 'train/approx_kl'),
    span=0.01,
    low=0.0,
    stage='rl',
  ),
  Panel('truncated', '', ('train/truncated', 'eval/heldout/truncated'),
        span=0.1, low=0.0),
  Panel(
    'zero-variance groups',
    '',
    ('train/groups_solved_all', 'train/groups_solved_none'),
    low=0.0,
    high=1.0,
  ),
)  # fmt: skip


def _names(rows: list[dict], names: tuple[str, ...]) -> list[str]:
  """Returns the metrics with data; a name that ends in '@' has the largest
  k.
  """
  known = {k: None for row in rows for k in row}
  out = []
  for name in names:
    ks = [int(k[len(name) :]) for k in known if re.fullmatch(name + r'\d+', k)]
    if name.endswith('@') and ks:
      out.append(f'{name}{max(ks)}')
    elif name in known:
      out.append(name)
  return out


def _draw(axes, panel: Panel, rows: list[dict], keys: dict) -> None:
  """Draws the metrics of a panel.

  Args:
    keys: dotted key -> value of the run's recipe.
  """
  shown = []
  for name in _names(rows, panel.names):
    own = [
      r for r in rows if panel.stage in ('', workdirs.kind_of(keys, r['stage']))
    ]
    found = zip(*metrics_file.series(own, name))
    points = [(s, v) for s, v in found if v is not None and abs(v) < 1e30]
    if points:
      steps, values = zip(*points)
      label = re.sub('train/|eval/', '', name).replace('heldout', 'held-out')
      axes.plot(steps, values, '.-', label=label, markersize=3)
      shown += values
  if shown:
    ends = panels.spanned(shown, panel.span, panel.low, panel.high)
    axes.set_ylim(*ends)
    axes.legend(fontsize=8, frameon=False)


def curves(workdir: epath.PathLike):
  """Draws a matplotlib figure of the run in `workdir`."""
  from matplotlib.figure import Figure  # no pyplot: no display, no state

  rows = metrics_file.read(workdir)
  path = epath.Path(workdir) / 'config.json'
  config = workdirs.flat(workdirs.whole(path))
  figure = Figure(figsize=(16, 6.5))
  # A fixed layout, because an automatic one costs another drawing.
  figure.subplots_adjust(0.035, 0.07, 0.99, 0.94, wspace=0.18, hspace=0.36)
  starts = {}
  for row in rows:
    starts.setdefault(row['stage'], row['step'])
  for axes, panel in zip(figure.subplots(2, 4).flat, PANELS):
    _draw(axes, panel, rows, config)
    for stage, step in starts.items():
      axes.axvline(step, color='0.8', linewidth=1, zorder=0)
      axes.text(
        step,
        1.0,
        f' {stage}',
        transform=axes.get_xaxis_transform(),
        va='bottom',
        fontsize=7,
        color='0.4',
      )
    axes.set_title(panel.title, fontsize=10, pad=12)
    axes.set_xlabel('step', fontsize=8)
    axes.grid(alpha=0.3)
  return figure


def save(workdir: epath.PathLike) -> epath.Path:
  """Writes curves.png into the workdir; returns its path."""
  path = epath.Path(workdir) / 'curves.png'
  with path.open('wb') as f:
    curves(workdir).savefig(f, format='png', dpi=120)
  return path
