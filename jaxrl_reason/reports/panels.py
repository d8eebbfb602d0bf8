"""The figures of metrics: which are shown together, and on what axis."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Panel:
  """What a figure shows of metrics.

  Attributes:
    title, unit: of the figure and its values.
    names: of metrics; one that ends in '/' stands for all that begin so.
    span: the least span of the vertical axis: less than that is no mountain.
    low, high: what the axis has to show, or None.
    log: a logarithmic axis.
    stage: the only one that is shown, where others do not mean it; '': all.
  """

  title: str
  unit: str
  names: tuple[str, ...]
  span: float = 0.0
  low: float | None = None
  high: float | None = None
  log: bool = False
  stage: str = ''


def _panel(title: str, unit: str, names: str, **how) -> Panel:
  return Panel(title, unit, tuple(names.split()), **how)


SHARE = {'low': 0.0, 'high': 1.0}
PANELS = (
  _panel(
    'Accuracy', 'share', 'eval/heldout/pass@1 eval/heldout/greedy '
    'eval/harder/pass@1 eval/harder/greedy', **SHARE,
  ),
  _panel('Reward', 'reward', 'train/reward_mean train/reward_std', span=0.1),
  _panel('Reward parts', 'mean', 'train/reward/', span=0.1),
  _panel('Entropy', 'nats a token', 'train/entropy', span=0.2, low=0.0),
  _panel(
    'Length', 'tokens', 'train/length_mean train/length_max '
    'train/length_right train/length_wrong', span=4,
  ),
  _panel(
    'KL', 'nats a token', 'train/kl train/approx_kl train/approx_kl_rev',
    span=0.01, low=0.0, stage='rl'),
  _panel(
    'Clipped tokens', 'share', 'train/clip_low train/clip_high', span=0.02,
    low=0.0, stage='rl'),
  _panel(
    'Gap of sampler and trainer', 'nats', 'train/gap_mean train/gap_max',
    log=True, stage='rl'),
  _panel(
    'Groups without signal', 'share',
    'train/groups_solved_all train/groups_solved_none train/dead_rows',
    **SHARE, stage='rl'),
  _panel(
    'Cut off, or not verified', 'share',
    'train/truncated train/reward_invalid eval/heldout/truncated '
    'eval/heldout/invalid', span=0.1, low=0.0,
  ),
  _panel('Advantages', 'reward', 'train/advantage_std train/advantage_max',
         span=0.5),
  _panel('Loss', 'loss', 'train/loss train/pg_loss'),
  _panel('Gradient', 'norm before clipping', 'train/grad_norm', low=0.0),
  _panel(
    'Ratio', 'of probabilities', 'train/ratio_mean train/ratio_max',
    span=0.1, stage='rl'),
  _panel(
    'Time by phase', 'seconds a step', 'perf/step_s perf/rollout_s '
    'perf/update_s perf/verify_wait_s', low=0.0,
  ),
  _panel('Speed', 'tokens/s', 'perf/tokens_per_s', low=0.0),
  _panel('Memory, the most so far', 'GiB', 'perf/host_gib perf/device_gib',
         span=1, low=0.0),
  _panel('Verifier pool', 'count or seconds', 'pool/', low=0.0),
  _panel('Problems of finite data', 'share', 'data/', **SHARE),
)  # fmt: skip


def layout(title: str, unit: str, x: str = 'step') -> dict[str, Any]:
  """What all figures have in common."""
  return {
    'title': {'text': title, 'font': {'size': 15}, 'x': 0.02},
    'xaxis': {'title': {'text': x, 'standoff': 4}, 'gridcolor': '#eee'},
    'yaxis': {'title': {'text': unit}, 'gridcolor': '#eee'},
    'margin': {'l': 60, 'r': 15, 't': 40, 'b': 80},
    'legend': {'orientation': 'h', 'y': -0.28, 'font': {'size': 11}},
    'height': 340,
    'hovermode': 'x unified',
    'paper_bgcolor': '#fff',
    'plot_bgcolor': '#fff',
    'shapes': [],
    'annotations': [],
  }


def axis(panel: Panel, values: list[float]) -> dict[str, Any]:
  """A vertical axis that a wobble does not fill."""
  if panel.log and max(values) > 0:
    return {'type': 'log', 'exponentformat': 'power'}
  low, high = spanned(values, panel.span, panel.low, panel.high)
  return {'range': [low, high]}


def spanned(
  values: list[float], span: float, low: float | None, high: float | None
) -> tuple[float, float]:
  """Ends of an axis that shows all values, `low` and `high` included, and at
  least `span`.
  """
  bottom = min(values) if low is None else min(low, *values)
  top = max(values) if high is None else max(high, *values)
  if top - bottom < span:
    middle = (top + bottom) / 2
    bottom = bottom if low is not None else middle - span / 2
    top = bottom + span
  room = 0.05 * (top - bottom) or 0.5
  return bottom - room, top + room
