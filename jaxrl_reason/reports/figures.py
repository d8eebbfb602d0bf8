"""The figures of a report: dictionaries of data and layout for plotly. Runs
that differ only in their seed are one line with a band.
"""

from typing import Any

import numpy as np

from jaxrl_reason.reports import alarms, metrics_file, panels, state
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.reports.answer_pages import QUANTILES, Answers, Step
from jaxrl_reason.reports.workdirs import Run, kind_of


class Origin:
  """The step at which a run's step count starts. With several runs it is the
  beginning of the last stage that all have, since warm starts may differ.
  """

  def __init__(self, runs: list[Run]):
    shared = [s for s in _stages(runs) if all(s in r.stages for r in runs)]
    self.stage = shared[-1] if len(runs) > 1 and shared else None

  def of(self, run: Run) -> int:
    """Returns the step of a run that figures show as 0."""
    return begin(run, self.stage) if self.stage else 0

  @property
  def title(self) -> str:
    return f'step since {self.stage} began' if self.stage else 'step'


def _stages(runs: list[Run]) -> list[str]:
  return [*{s: None for run in runs for s in run.stages}]


def begin(run: Run, stage: str) -> int:
  """Returns the last step before a stage."""
  before = [0]
  for row in run.rows:
    if row['stage'] == stage:
      break
    before.append(row['step'])
  return max(before)


def _average(runs: list[Run], origin: Origin, name: str, stage: str = ''):
  """Returns (steps, mean, low, high) of runs that differ in their seed."""
  found: dict[int, list[float]] = {}
  for run in runs:
    rows = [
      r for r in run.rows if stage in ('', kind_of(run.config, r['stage']))
    ]
    for step, value in zip(*metrics_file.series(rows, name)):
      if value is not None:
        found.setdefault(step - origin.of(run), []).append(value)
  steps = sorted(found)
  columns = [found[s] for s in steps]
  return (
    steps,
    [float(np.mean(c)) for c in columns],
    [min(c) for c in columns],
    [max(c) for c in columns],
  )


def _label(group: list[Run]) -> str:
  return group[0].name + (f' (+{len(group) - 1} seeds)' if group[1:] else '')


def metrics_named(runs: list[Run], names: tuple[str, ...]) -> list[str]:
  """Returns the named metrics that runs have."""
  known = [*{n: None for run in runs for n in run.names()}]
  out = []
  for name in names:
    begins = [k for k in known if name.endswith('/') and k.startswith(name)]
    out += begins or [k for k in known if k == name]
  return out


def of_panel(panel: panels.Panel, runs: list[Run]) -> dict[str, Any] | None:
  """Draws the figure of a panel; None if no run has its metrics."""
  names, origin = metrics_named(runs, panel.names), Origin(runs)
  groups = state.seeds(runs)
  several, traces, values = len(groups) > 1, [], []
  for i, group in enumerate(groups):
    for j, name in enumerate(names):
      color = panels.COLORS[(i if several else j) % len(panels.COLORS)]
      steps, mean, low, high = _average(group, origin, name, panel.stage)
      if not steps:
        continue
      short = name.partition('/')[2]
      label = f'{_label(group)} {short}' if several else short
      if group[1:]:
        traces.append(panels.band(steps, low, high, color, label))
      elif band := _errors(group[0], origin, name):
        traces.append(panels.band(*band, color, label))
      traces.append(panels.line(steps, mean, label, color, j if several else 0))
      values += [*low, *high]
  if not values:
    return None
  figure = panels.layout(panel.title, panel.unit, origin.title)
  figure['yaxis'] |= panels.axis(panel, values)
  # If a theme has only one curve, its title does not name it.
  figure['showlegend'] = bool(panel.unit)
  _mark(figure, runs, origin)
  return {'data': traces, 'layout': figure}


def _errors(run: Run, origin: Origin, name: str):
  """Returns (steps, low, high) of an accuracy by its standard error."""
  parts = name.split('/')
  if parts[0] != 'eval' or parts[2] not in ('greedy', 'pass@1'):
    return None
  points = []
  for e in run.evaluations:
    split = e['splits'].get(parts[1])
    if not split:
      continue
    n = 1 if parts[2] == 'greedy' else split['samples']
    right = split['greedy' if parts[2] == 'greedy' else 'right']
    if right and n:
      _, mean, error = passk.curve(right, n)[0]
      points.append((e['step'] - origin.of(run), mean - error, mean + error))
  return [[*column] for column in zip(*points)] if points else None


def _mark(figure: dict, runs: list[Run], origin: Origin) -> None:
  """Marks the beginnings of stages with their names, and the interruptions of
  runs.
  """
  marks = []
  for run in runs:
    start = origin.of(run)
    marks += [(begin(run, s) - start, s, '#6b7280', 'dot') for s in run.stages]
    marks += [
      (b.at - start, f'{b.how[:20]} at {b.reached}, from {b.at}', '#b91c1c',
       'dash')
      for b in state.breaks(run)
    ]  # fmt: skip
  for x, text, color, dash in dict.fromkeys(marks):
    figure['shapes'].append(
      {'type': 'line', 'x0': x, 'x1': x, 'yref': 'paper', 'y0': 0, 'y1': 1,
       'line': {'color': color, 'width': 1, 'dash': dash}}
    )  # fmt: skip
    along = {'yanchor': 'top', 'xanchor': 'left', 'textangle': 90}
    above = {'yanchor': 'bottom', 'xanchor': 'center', 'textangle': 0}
    figure['annotations'].append(
      {'x': x, 'y': 1, 'yref': 'paper', 'text': text, 'showarrow': False,
       'font': {'size': 11, 'color': color}}
      | (along if dash == 'dash' else above)
    )  # fmt: skip


def curves(runs: list[Run]) -> list[dict]:
  """Draws the figures of all panels with data, and of the metrics without a
  panel.
  """
  shown = [n for p in panels.PANELS for n in metrics_named(runs, p.names)]
  known = [*{n: None for run in runs for n in run.names()}]
  rest = [n for n in known if n not in shown and '/maj@' not in n]
  every = [
    *panels.PANELS,
    *(panels.Panel(n, '', (n,)) for n in rest if _is_panel(n)),
  ]
  figures = [(p, of_panel(p, runs)) for p in every]
  return [
    {'figure': f, 'more': p.title in rest} for p, f in figures if f is not None
  ]


def _is_panel(name: str) -> bool:
  """Returns whether a metric has a panel of its own: pass@k only at k = 1."""
  return '/pass@' not in name or name.endswith('/pass@1')


def pass_at_k(runs: list[Run]) -> list[dict]:
  """Draws pass@k before and after the last stage, a figure for each split;
  `notes` have the k at which the curves cross.
  """
  found: dict[str, list] = {}
  for run in runs:
    both = alarms.before_and_after(run)
    for split in both[1]['splits'] if both else ():
      if split in both[0]['splits']:
        found.setdefault(split, []).append((run, *both))
  out = []
  for split, rows in found.items():
    traces, notes = [], []
    for i, (run, *both) in enumerate(rows):
      of_split = [e['splits'][split] for e in both]
      lines = [passk.curve(s['right'], s['samples']) for s in of_split]
      for e, line, dash in zip(both, lines, (1, 0)):
        name = f'{run.name}, step {e["step"]} ({e["stage"]})'
        traces += panels.with_errors(line, name, i, dash)
      at = passk.crossover(*lines)
      notes.append(
        f'{run.name}: before is ahead from k = {at}'
        if at
        else f'{run.name}: no crossover up to k = {lines[1][-1][0]}'
      )
    figure = panels.pass_layout(f'pass@k, {split}')
    out.append({'figure': {'data': traces, 'layout': figure}, 'notes': notes})
  return out


def of_answers(runs: list[Run], found: list[Answers]) -> list[dict]:
  """Draws the statistics of rollouts by step."""
  origin = Origin(runs)
  specs = (
    ('Entropy of tokens, quantiles', 'nats', 0.2, _quantiles),
    ('Length of right and wrong answers', 'tokens', 4, _lengths),
    ('Spread of advantages', 'standard deviation', 0.5, _spread),
    ('Signs in the text', 'share of answers', 1.0, _signs),
  )
  out = []
  for title, unit, span, lines_of in specs:
    traces, values = [], []
    for i, (run, own) in enumerate(zip(runs, found)):
      for j, (name, points) in enumerate(lines_of(own.steps).items()):
        points = [(s - origin.of(run), v) for s, v in points if v is not None]
        if not points:
          continue
        color = panels.COLORS[(i if runs[1:] else j) % len(panels.COLORS)]
        label = f'{run.name} {name}' if runs[1:] else name
        x, y = zip(*points)
        traces.append(
          panels.line([*x], [*y], label, color, j if runs[1:] else 0)
        )
        values += y
    if values:
      figure = panels.layout(title, unit, origin.title)
      figure['yaxis']['range'] = panels.spanned(values, span, 0.0, None)
      out.append({'figure': {'data': traces, 'layout': figure}})
  return out


def _quantiles(steps: list[Step]) -> dict[str, list]:
  return {
    f'{q} %': [(s.step, s.entropy[i]) for s in steps if s.entropy]
    for i, q in enumerate(QUANTILES)
  }


def _lengths(steps: list[Step]) -> dict[str, list]:
  return {
    name: [(s.step, s.lengths[i]) for s in steps]
    for i, name in enumerate(('right', 'wrong'))
  }


def _spread(steps: list[Step]) -> dict[str, list]:
  return {'std': [(s.step, s.spread) for s in steps]}


def _signs(steps: list[Step]) -> dict[str, list]:
  names = [*steps[0].signs] if steps else []
  return {
    name.partition('/')[2].replace('_', ' '): [
      (s.step, s.signs[name]) for s in steps
    ]
    for name in names
  }


def of_support(runs: list[Run], answers: list[Answers]) -> list[dict]:
  """Draws the problems gained and lost: between two evaluations, and in
  training.
  """
  out = []
  for run, own in zip(runs, answers):
    both = alarms.before_and_after(run)
    for split, after in (both[1]['splits'] if both else {}).items():
      before = both[0]['splits'].get(split)
      if not before or len(before['right']) != len(after['right']):
        continue
      found = passk.changes(before['right'], after['right'])
      out.append(
        panels.of_changes(
          found,
          f'{run.name}, {split}: '
          f'{panels.solved_by(before["samples"], after["samples"])}',
          f'step {both[1]["step"]} against {both[0]["step"]}',
          run.problems.get(split, {}),
        )
      )
    if any(first or lost for _, first, lost in own.support):
      out.append({'figure': _of_training(run, own.support)})
  return out


def _of_training(run: Run, points: list[tuple]) -> dict:
  steps, first, lost = ([*column] for column in zip(*points))
  figure = panels.layout(
    f'{run.name}: problems of training', 'problems of rollouts'
  )
  lines = [
    panels.line(steps, first, 'solved for the first time', panels.COLORS[2]),
    panels.line(steps, lost, 'lost again', panels.COLORS[1]),
  ]
  return {'data': lines, 'layout': figure}
