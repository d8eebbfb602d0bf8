"""The figures of metrics, and their axes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

COLORS = (
  '#2563eb', '#dc2626', '#059669', '#d97706', '#7c3aed', '#0891b2', '#be185d',
  '#4d7c0f',
)  # fmt: skip
DASHES = ('solid', 'dash', 'dot', 'dashdot', 'longdash')


@dataclasses.dataclass(frozen=True)
class Panel:
  """The metrics of a figure.

  Attributes:
    title, unit: of the figure and its values.
    names: of metrics; a name that ends in '/' is a prefix.
    span: least span of the vertical axis, so that noise does not fill it.
    low, high: values that the axis has to include, or None.
    log: a logarithmic axis.
    stage: the only stage that is shown; '': all.
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
  _panel('Entropy', 'nats a token', 'train/entropy train/answer_entropy',
         span=0.2, low=0.0),
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
  _panel(
    'Stated confidence', 'share', 'eval/heldout/stated_confidence '
    'eval/heldout/brier eval/heldout/ece eval/heldout/auroc', **SHARE,
  ),
  _panel('Advantages', 'advantage', 'train/advantage_rms train/advantage_max',
         span=0.5, stage='rl'),
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
  """Returns the common layout of all figures."""
  return {
    'title': {'text': title, 'font': {'size': 15}, 'x': 0.02},
    'xaxis': {'title': {'text': x, 'standoff': 4}},
    'yaxis': {'title': {'text': unit}},
    'margin': {'l': 60, 'r': 15, 't': 40, 'b': 80},
    'legend': {'orientation': 'h', 'y': -0.28, 'font': {'size': 11}},
    'height': 340,
    'hovermode': 'x unified',
    'shapes': [],
    'annotations': [],
  }


def axis(panel: Panel, values: list[float]) -> dict[str, Any]:
  """Returns a vertical axis with a least span."""
  if panel.log and max(values) > 0:
    return {'type': 'log', 'exponentformat': 'power'}
  low, high = spanned(values, panel.span, panel.low, panel.high)
  return {'range': [low, high]}


def spanned(
  values: list[float], span: float, low: float | None, high: float | None
) -> tuple[float, float]:
  """Returns the ends of an axis that includes all values, `low` and `high`, and
  has at least `span`.
  """
  bottom = min(values) if low is None else min(low, *values)
  top = max(values) if high is None else max(high, *values)
  if top - bottom < span:
    middle = (top + bottom) / 2
    bottom = bottom if low is not None else middle - span / 2
    top = bottom + span
  room = 0.05 * (top - bottom) or 0.5
  return bottom - room, top + room


def band(steps, low, high, color: str, group: str) -> dict[str, Any]:
  """Returns an area between two lines."""
  return {
    'x': [*steps, *steps[::-1]],
    'y': [*high, *low[::-1]],
    'fill': 'toself',
    'fillcolor': f'{color}22',
    'line': {'width': 0},
    'hoverinfo': 'skip',
    'showlegend': False,
    'legendgroup': group,
    'type': 'scatter',
    'mode': 'lines',
  }


def line(x, y, name: str, color: str, dash: int = 0, **more) -> dict:
  return {
    'x': x,
    'y': y,
    'name': name,
    'legendgroup': name,
    'type': 'scatter',
    'mode': 'lines+markers',
    'marker': {'size': 4},
    'line': {'color': color, 'width': 2, 'dash': DASHES[dash % len(DASHES)]},
  } | more


def with_errors(found: list[tuple], name: str, number: int, dash: int) -> list:
  """Returns a curve of (k, mean, standard error) with its band.

  Args:
    number: of its colour; dash: of its line.
  """
  color = COLORS[number % len(COLORS)]
  ks = [k for k, _, _ in found]
  low = [max(v - e, 0) for _, v, e in found]
  high = [min(v + e, 1) for _, v, e in found]
  return [
    band(ks, low, high, color, name),
    line(ks, [v for _, v, _ in found], name, color, dash),
  ]


def bars_with_errors(found: list[tuple], name: str, number: int) -> dict:
  """Draws horizontal bars of (label, value, standard error) in the colour of a
  number.
  """
  return {
    'type': 'bar',
    'orientation': 'h',
    'name': name,
    'y': [_broken(label) for label, _, _ in found],
    'x': [value for _, value, _ in found],
    'error_x': {'type': 'data', 'array': [error for _, _, error in found]},
    'marker': {'color': COLORS[number % len(COLORS)]},
  }


def _broken(label: str) -> str:
  """Splits a label into lines: suite, options, prompt."""
  return label.replace('?', '<br>?', 1).replace(', ', '<br>', 1)


def bar_layout(title: str, unit: str) -> dict[str, Any]:
  """Returns the layout of `bars_with_errors`, the first bar at the top."""
  out = layout(title, '', unit)
  out['yaxis'] |= {'automargin': True, 'autorange': 'reversed'}
  return out | {'showlegend': True, 'hovermode': 'closest'}


def pass_layout(title: str) -> dict[str, Any]:
  """Returns the layout of pass@k."""
  out = layout(title, 'share of problems', 'k')
  out['xaxis'] |= {'type': 'log', 'dtick': 0.30103}
  out['yaxis']['range'] = [-0.02, 1.02]
  return out


def solved_by(before: int, after: int) -> str:
  """Describes when a problem is solved, by the numbers of samples."""
  other = f', before by any of {before}' if before != after else ''
  return f'solved by any of {after}{other}'


def of_changes(
  found: dict[str, list[int]], title: str, what: str, texts: Mapping[int, str]
) -> dict:
  """Draws a figure of `pass_at_k.changes`, with the gained and lost problems in
  its notes.

  Args:
    texts: of problems; a problem without a text is shown by its number.
  """
  figure = layout(title, 'problems', what)
  counts = [len(ids) for ids in found.values()]
  bars = {
    'type': 'bar',
    'x': [*found],
    'y': counts,
    'text': counts,
    'marker': {'color': ['#6b7280', '#059669', '#dc2626', '#d1d5db']},
  }
  notes = [
    f'{name}: {_some([texts.get(i, f"problem {i}") for i in found[name]])}'
    for name in ('gained', 'lost')
    if found[name]
  ]
  return {'figure': {'data': [bars], 'layout': figure}, 'notes': notes}


def _some(texts: list[str], most: int = 12, width: int = 60) -> str:
  """Lists the first texts, shortened, and counts the others."""
  more = len(texts) - most
  short = (f'{x[:width]}…' if len(x) > width else x for x in texts[:most])
  said = ' · '.join(short)
  return f'{said} and {more} more' if more > 0 else said
