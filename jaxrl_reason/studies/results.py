"""Results of a study, read from the workdirs of its runs."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_reason.reports import metrics_file, workdirs
from jaxrl_reason.reports import pass_at_k as passk
from jaxrl_reason.run.records import events
from jaxrl_reason.studies import base_kl, fits, targets, verdicts
from jaxrl_reason.studies.grid import Study
from jaxrl_reason.studies.metric_names import (
  BUDGET,
  EVAL,
  GAIN,
  LATER,
  LEAD,
  OLD,
  SLOPE,
  START,
  STEPS_TO,
  TARGET,
  TOKENS_TO,
)  # fmt: skip
from jaxrl_reason.studies.telling import DIVERGED

REWARD, ENTROPY = 'train/reward_mean', 'train/entropy'
SLOPE_STEPS = 100  # unit of a slope


@dataclasses.dataclass
class Told:
  """The metrics of one run.

  Attributes:
    rows: of its metrics; diverged: whether it ended with numbers that are not
      finite.
    last: last value of every metric, the columns of `_slopes`, `_old`,
      `_leads`, `base_kl` and `targets.at_tokens`, and of every metric of
      evaluations the first value as `start/<metric>` and the gain as
      `gain/<metric>`.
    first: first value of every metric: evaluations before step 1; slopes,
      leads, gains and the KL divergence are 0.
    reached: whether the run reaches the target. `last` has the steps and tokens
      until then, as `target/steps` and `target/tokens`. If the run does not
      reach the target, they are those of the whole run, which are too few.
    before, after: split -> [(k, pass@k, error over problems)].
    fits: law -> fitted parameters.
  """

  rows: list[dict]
  diverged: bool
  last: dict[str, float]
  first: dict[str, float]
  reached: bool
  before: dict[str, list[tuple]]
  after: dict[str, list[tuple]]
  fits: dict[str, dict[str, float]]


@dataclasses.dataclass
class Found:
  """The runs of a study, by setting and seed."""

  study: Study
  told: Mapping[str, Mapping[int, Told]]

  def ended(self, setting: str) -> dict[int, Told]:
    """Returns the runs of a setting that have not diverged."""
    return {s: t for s, t in self.told[setting].items() if not t.diverged}

  def final(self, setting: str, metric: str) -> fits.Value:
    """Returns a metric at the end, over seeds."""
    runs = self.ended(setting).values()
    return fits.over([t.last[metric] for t in runs if metric in t.last])

  def start(self, metric: str) -> fits.Value:
    """Returns a metric before the first step, over seeds."""
    runs = self.ended(self.study.base).values()
    return fits.over([t.first[metric] for t in runs if metric in t.first])

  def gain(self, setting: str, metric: str) -> fits.Value:
    """Returns the gain of a metric since its first value, seed by seed."""
    runs = self.ended(setting).values()
    both = [t for t in runs if metric in t.last and metric in t.first]
    return fits.over([t.last[metric] - t.first[metric] for t in both])

  def score(self, setting: str, metric: str) -> float:
    """Returns the mean of a metric at the end; -inf if a run has diverged or
    lacks it.
    """
    has = [t for t in self.ended(setting).values() if metric in t.last]
    lacking = len(has) < self.study.seeds
    return -math.inf if lacking else self.final(setting, metric).mean

  def paired(self, setting: str, metric: str) -> fits.Value:
    """Returns the difference to the base setting, seed by seed."""
    own, base = self.ended(setting), self.ended(self.study.base)
    both = [
      (own[s].last, base[s].last) for s in sorted(own.keys() & base.keys())
    ]
    return fits.over(
      [a[metric] - b[metric] for a, b in both if metric in a and metric in b]
    )

  def reaching(self, setting: str) -> int:
    """Returns the number of seeds that come to the target."""
    return sum(t.reached for t in self.ended(setting).values())

  def p_values(self, metric: str) -> dict[str, float]:
    """Returns the two-sided p of the difference of each setting to the base,
    corrected by Holm's method for the number of settings.
    """
    names = [name for name in self.study.settings if name != self.study.base]
    above = [self.paired(name, metric).above for name in names]
    known = [i for i, p in enumerate(above) if p == p]
    p = verdicts.holm([2 * min(above[i], 1 - above[i]) for i in known])
    return {names[i]: x for i, x in zip(known, p)}

  def effects(self, c: verdicts.Criterion) -> verdicts.Effects:
    """Returns the differences of a criterion by seed, and gains of `over`. A
    seed with a run that has diverged or lacks the metric is left out, and of a
    ratio one with a value of 0. Costs to a target lack only diverged runs.
    """
    of, over = self.ended(c.of), self.ended(c.over or c.of)
    values, gains = [], []
    for seed in sorted(of.keys() & over.keys()):
      there = over[seed].last if c.over else over[seed].first
      if c.metric not in of[seed].last or c.metric not in there:
        continue
      a, b = of[seed].last[c.metric], there[c.metric]
      if c.ratio and min(a, b) <= 0:
        continue
      values.append(math.log(a / b) if c.ratio else a - b)
      gains.append(b - over[seed].first.get(c.metric, math.nan))
    seeds = len(self.told[c.of].keys() & self.told[c.over or c.of].keys())
    if not c.metric.startswith(TARGET):
      return verdicts.Effects(values, gains, left_out=seeds - len(values))
    costs = [
      [(t.last[c.metric], t.reached) for t in runs.values()]
      for runs in (of, over)
    ]
    left_out = seeds - len(of.keys() & over.keys())
    return verdicts.Effects(values, gains, tuple(costs), left_out)

  def lacking(self) -> list[tuple[str, str]]:
    """Lists (setting, metric) of the criteria for which no run that ended has
    the metric of training. Those of evaluations are known before the first run,
    and may have no value: an area under a curve needs incorrect answers.
    """
    pairs = [
      (name, c.metric)
      for claim in self.study.claims
      for c in claim.criteria
      for name in filter(None, (c.of, c.over))
    ]
    return [
      (name, metric)
      for name, metric in dict.fromkeys(pairs)
      if metric.startswith(LATER)
      and (runs := self.ended(name).values())
      and not any(metric in t.last for t in runs)
    ]

  def decided(self) -> list[tuple[verdicts.Claim, list[verdicts.Decided]]]:
    """Decides the claims of the study, corrected for all their criteria."""
    every = [c for claim in self.study.claims for c in claim.criteria]
    rest = iter(verdicts.decide(every, self.effects))
    return [
      (claim, [next(rest) for _ in claim.criteria])
      for claim in self.study.claims
    ]

  def fitted(self, setting: str, law: str, name: str) -> fits.Value:
    """Returns a number of a fitted law, over seeds."""
    runs = self.ended(setting).values()
    return fits.over([t.fits[law][name] for t in runs if name in t.fits[law]])

  def pass_at_k(
    self, setting: str, split: str, when: str
  ) -> list[tuple[int, fits.Value]]:
    """Returns pass@k over seeds; `when`: 'before' or 'after'."""
    curves = [
      dict((k, v) for k, v, _ in getattr(t, when)[split])
      for t in self.ended(setting).values()
      if split in getattr(t, when)
    ]
    ks = sorted(set().union(*curves)) if curves else []
    return [(k, fits.over([c[k] for c in curves if k in c])) for k in ks]

  def splits(self) -> list[str]:
    """Lists the splits that were evaluated."""
    runs = [t for own in self.told.values() for t in own.values()]
    return list(dict.fromkeys(name for t in runs for name in t.after))

  def data(self) -> dict[str, Any]:
    """Returns all results as JSON values."""
    study = self.study
    return {
      'against': study.base,
      'seeds': study.seeds,
      'target': list(study.target),
      'start': {m: _plain(self.start(m)) for m in study.shown},
      'pass_at_k_before': self._by_split(study.base, 'before'),
      'settings': {name: self._of_setting(name) for name in study.settings},
      'claims': [_decided_claim(*decided) for decided in self.decided()],
    }

  def _of_setting(self, name: str) -> dict[str, Any]:
    """Returns the results of a setting as JSON values."""
    metrics = self.study.shown
    return {
      'changes': dict(self.study.settings[name]),
      'diverged': [s for s, t in self.told[name].items() if t.diverged],
      'final': {m: _plain(self.final(name, m)) for m in metrics},
      'gain': {m: _plain(self.gain(name, m)) for m in metrics},
      'paired': {m: _plain(self.paired(name, m)) for m in metrics},
      'p': {m: self.p_values(m).get(name) for m in metrics},
      'target': {
        'steps': _plain(self.final(name, STEPS_TO)),
        'tokens': _plain(self.final(name, TOKENS_TO)),
        'runs': self.reaching(name),
      },
      'pass_at_k': self._by_split(name, 'after'),
      'fits': {
        law: {x: _plain(self.fitted(name, law, x)) for x in names}
        for law, names in LAWS.items()
      },
    }

  def _by_split(self, name: str, when: str) -> dict[str, Any]:
    """Returns pass@k of a setting by split, as JSON values."""
    return {
      split: {k: _plain(v) for k, v in self.pass_at_k(name, split, when)}
      for split in self.splits()
    }


def _plain(value: fits.Value) -> dict[str, Any]:
  """Returns a value as JSON values; None for numbers that are not known."""
  row = dataclasses.asdict(value) | {'half': value.half}
  return {k: None if x != x else x for k, x in row.items()}


def _decided_claim(
  claim: verdicts.Claim, parts: Sequence[verdicts.Decided]
) -> dict[str, Any]:
  """Returns a decided claim as JSON values."""
  criteria = [
    {
      'criterion': str(d.criterion),
      'verdict': d.verdict,
      'effect': _plain(d.effect),
      'p': d.for_it,
      'p_against': d.against_it,
      'left_out': d.left_out,
    }
    for d in parts
  ]
  verdict = verdicts.of_claim(parts)
  return {'claim': claim.text, 'verdict': verdict, 'criteria': criteria}


# The parameters of every law.
LAWS = {'power': ('b', 'c', 'r2'), 'entropy': ('a', 'b', 'r2')}


def of(study: Study, folders: Mapping[tuple[str, int], pathlib.Path]) -> Found:
  """Reads the runs of a study.

  Args:
    folders: workdirs by (setting, seed).
  """
  told = {name: {} for name in study.settings}
  seeds = {seed for _, seed in folders}
  aims = {seed: targets.of_seed(study, folders, seed) for seed in seeds}
  for (setting, seed), folder in folders.items():
    told[setting][seed] = read(folder, aims[seed], study.old, study.tokens)
  return Found(study, told)


def read(
  folder: pathlib.Path,
  target: tuple[str, float],
  old: Sequence[str] = (),
  budget: int = 0,
) -> Told:
  """Reads one run.

  Args:
    old: sources of the data whose mean accuracy has columns of its own.
    budget: `Study.tokens`.
  """
  rows = metrics_file.read(folder)
  steps, rewards = metrics_file.series(rows, REWARD)
  both = [(r[ENTROPY], r[REWARD]) for r in rows if ENTROPY in r and REWARD in r]
  found = {
    'power': fits.power(steps, rewards),
    'entropy': fits.entropy_law(*zip(*both)) if both else {},
  }
  curves = [_curves(e) for e in workdirs.read(folder).evaluations] or [{}]
  steps, tokens, came = targets.reach(rows, *target)
  last, first = _ends(rows)
  last |= _old(last, old)
  first |= _old(first, old)
  bought = targets.at_tokens(rows, budget) if budget else {}
  last |= {BUDGET + k: x for k, x in bought.items()}
  first |= {BUDGET + k: first[k] for k in bought if k in first}
  evaluated = [k for k in first if k.startswith(EVAL)]
  begun = {START + k: first[k] for k in evaluated}
  changes = _slopes(rows) | _leads(first) | base_kl.read(folder)
  changes |= {GAIN + k: last[k] - first[k] for k in evaluated if k in last}
  last |= changes
  first |= dict.fromkeys(changes, 0.0)
  return Told(
    rows,
    DIVERGED in events.last_end(folder),
    last | begun | {STEPS_TO: steps, TOKENS_TO: tokens},
    first | begun,
    came,
    curves[0],
    curves[-1],
    found,
  )


def _ends(rows: Sequence[Mapping]) -> tuple[dict, dict]:
  """Returns the last and the first value of every metric. Those of evaluations
  are of the last and the first evaluation, which may lack a metric that others
  have.
  """
  steps = [r['step'] for r in rows if any(k.startswith(EVAL) for k in r)]

  def values(rows, step: int | None) -> dict:
    return {
      k: v
      for row in rows
      for k, v in row.items()
      if row['step'] == step or not k.startswith(EVAL)
    }

  last, first = max(steps, default=None), min(steps, default=None)
  return values(rows, last), values(rows[::-1], first)


def _leads(first: Mapping[str, float]) -> dict[str, float]:
  """Returns by how much the majority is correct more often than a sample, in
  the first evaluation.
  """
  out = {}
  for name in first:
    split, _, kind = name.rpartition('/')
    if name.startswith(EVAL) and kind.startswith('maj@'):
      out[LEAD + name] = first[name] - first[f'{split}/pass@1']
  return out


def _slopes(rows: Sequence[Mapping]) -> dict[str, float]:
  """Returns the slopes of training metrics by least squares, in 100 steps."""
  out = {}
  for name in dict.fromkeys(k for row in rows for k in row):
    if name.startswith('train/'):
      line = fits.line(*metrics_file.series(rows, name))
      if line is not None:
        out[SLOPE + name] = SLOPE_STEPS * line.slope
  return out


def _old(values: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
  """Returns the metrics of evaluations, as means over the named sources."""
  if not names:
    return {}
  prefix = f'eval/heldout/{names[0]}/'
  kinds = [k.removeprefix(prefix) for k in values if k.startswith(prefix)]
  out = {}
  for kind in kinds:
    each = [values.get(f'eval/heldout/{name}/{kind}') for name in names]
    if None not in each:
      out[OLD + kind] = sum(each) / len(each)
  return out


def _curves(evaluation: dict) -> dict[str, list[tuple]]:
  return {
    name: passk.curve(split['right'], split['samples'])
    for name, split in evaluation['splits'].items()
    if split['samples']
  }
