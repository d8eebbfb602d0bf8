"""The picture of a run: `curves.png` from a workdir's metrics.jsonl."""

from etils import epath

from jaxrl_reason.reports import metrics_file

PANELS = (
  (
    'accuracy',
    (
      ('eval/heldout/pass@1', 'held-out, sampled'),
      ('eval/heldout/greedy', 'held-out, greedy'),
      ('eval/harder/pass@1', 'harder, sampled'),
    ),
  ),
  ('reward', (('train/reward_mean', 'mean'), ('train/reward_std', 'std'))),
  ('entropy, nats per token', (('train/entropy', 'entropy'),)),
  ('completion length, tokens', (('train/length_mean', 'mean'),)),
)


def curves(workdir: epath.PathLike):
  """A matplotlib figure of the run in `workdir`."""
  from matplotlib.figure import Figure  # no pyplot: no display, no state

  rows = metrics_file.read(workdir)
  figure = Figure(figsize=(10, 6), layout='constrained')
  starts = {}
  for row in rows:
    starts.setdefault(row['stage'], row['step'])
  for axes, (title, lines) in zip(figure.subplots(2, 2).flat, PANELS):
    for name, label in lines:
      steps, values = metrics_file.series(rows, name)
      if steps:
        axes.plot(steps, values, '.-', label=label, markersize=3)
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
    axes.set_title(title, fontsize=10, pad=12)
    axes.set_xlabel('step', fontsize=8)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
      axes.legend(fontsize=8, frameon=False)
  figure.axes[0].set_ylim(-0.02, 1.02)
  return figure


def save(workdir: epath.PathLike) -> epath.Path:
  """Writes curves.png into the workdir; returns its path."""
  path = epath.Path(workdir) / 'curves.png'
  with path.open('wb') as f:
    curves(workdir).savefig(f, format='png', dpi=120)
  return path
