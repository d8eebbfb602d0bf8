"""Alarms on lines of metrics, for the console of a run and its report.

An alarm begins when its rule holds for several lines in a row, so that a single
batch raises none. It ends with the first line that breaks the rule. An alarm is
a reason to read answers. It proves nothing.
"""

import collections
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

LINES = 3  # in a row; 2 for trends, which are medians of lines already
PAST = 40  # number of earlier lines that a spike is compared with
RISE, SHARE = 0.1, 0.2  # of answers: a rise, and a level
GAIN, FALL = 0.02, 0.05  # of the reward, and of the accuracy
FOLLOWS = 0.1  # least correlation of reward and correctness
LONGER = 1.3  # factor of the length
MOST = 100  # values of a third that its median reads
Line = Mapping[str, float | None]


class Thirds(NamedTuple):
  """Medians of a metric over the thirds of a stage so far."""

  early: float
  middle: float
  late: float


class Rule(NamedTuple):
  """An alarm.

  Attributes:
    metrics: names; the rule is checked at every line that has the last one.
    holds: takes for each metric its values so far, newest last, or the Thirds
      of a trend.
    advice: what to try.
  """

  name: str
  metrics: tuple[str, ...]
  holds: Callable[..., bool]
  advice: str
  trend: bool = False


class Alarm(NamedTuple):
  """An alarm that has begun.

  Attributes:
    since: step at which it began; until: step at which it ended, or None.
  """

  evidence: str
  since: int
  until: int | None = None


def thirds(values: Sequence[float]) -> Thirds | None:
  """Returns the medians of thirds; None for fewer than three values."""
  n = len(values) // 3
  if not n:
    return None
  ends = (0, n), (n, len(values) - n), (len(values) - n, len(values))
  return Thirds(
    *(statistics.median(values[a : b : 1 + (b - a) // MOST]) for a, b in ends)
  )


def _spikes(norms: Sequence[float]) -> bool:
  """Returns whether the last norm is far above earlier ones. A quartile changes
  little while a spike lasts.
  """
  before = sorted(norms[-PAST - 1 : -1])
  return len(before) >= 10 and norms[-1] > 10 * before[len(before) // 4]


def _risen(share: Thirds) -> bool:
  return share.late >= SHARE and share.late - share.early >= RISE


RULES = (
  Rule(
    'rewards that fail',
    ('train/reward_invalid',),
    lambda invalid: invalid[-1] > 0.05,
    'read the first failure above; correct the reward or raise rl.timeout_s',
  ),
  Rule(
    'groups without signal',
    ('train/dead_rows',),
    lambda dead: dead[-1] > 0.9,
    'choose problems nearer to the level of the policy (data.controller), '
    "raise rl.samples, or set rl.filter='dead_groups' with rl.refill_rounds",
  ),
  Rule(
    'completions at the limit of their length',
    ('train/truncated',),
    lambda truncated: truncated[-1] > 0.5,
    'raise data.completion_len, or set rl.overlong',
  ),
  Rule(
    'no gradient',
    ('train/grad_norm',),
    lambda norms: norms[-1] == 0,
    'no row has an advantage: read groups without signal',
  ),
  Rule(
    'gradients that grow',
    ('train/grad_norm',),
    _spikes,
    'lower rl.optimizer.lr or rl.optimizer.clip_norm',
  ),
  Rule(
    'entropy collapse',
    ('train/entropy', 'train/groups_solved_all'),
    lambda entropy, solved: entropy[-1] < 0.01 and solved[-1] < 0.5,
    'raise rl.loss.clip_high, or set rl.temperature_control.entropy',
  ),
  Rule(
    'far from the reference',
    ('train/kl',),
    lambda kl: kl[-1] > 1,
    'raise rl.loss.kl_coef, or lower rl.optimizer.lr',
  ),
  Rule(
    'updates that go far',
    ('train/approx_kl',),
    lambda kl: kl[-1] > 0.2,
    'lower rl.optimizer.lr, rl.epochs or rl.minibatches',
  ),
  Rule(
    'sampler and trainer differ',
    ('train/gap_mean',),
    lambda gap: gap[-1] > 0.1,
    'use more precision (model.dtype, model.cache_dtype) or rl.loss.correction',
  ),
  Rule(
    'repeated completions',
    ('rollouts/repeats', 'rollouts/copies'),
    lambda repeats, copies: repeats[-1] > SHARE or copies[-1] > 0.5,
    'read the answers; set rl.shaping.repetition or rl.shaping.repeats, or '
    'raise rl.temperature',
  ),
  Rule(
    'reward rises while evaluation falls',
    ('train/reward_mean', 'eval/heldout/pass@1'),
    lambda reward, held: (
      reward.late - reward.early > GAIN
      and reward.late >= reward.middle
      and max(held.early, held.middle) - held.late > FALL
    ),
    'read the answers with the highest reward; correct the reward, use an '
    'earlier checkpoint, or raise rl.loss.kl_coef',
    trend=True,
  ),
  Rule(
    'reward does not follow correctness',
    ('train/reward_correlation',),
    lambda correlation: correlation[-1] < FOLLOWS,
    'read incorrect answers with a high reward; correct rl.rewards',
  ),
  Rule(
    'longer completions, no better reward',
    ('train/length_mean', 'train/reward_mean'),
    lambda length, reward: (
      length.late > LONGER * length.early and reward.late - reward.early < GAIN
    ),
    'set rl.overlong or rl.shaping.brevity',
    trend=True,
  ),
  Rule(
    'format passes while answers fail',
    ('rollouts/format_only',),
    _risen,
    'lower the weight of the format in rl.rewards',
    trend=True,
  ),
  Rule(
    'the answer stands before the reasoning',
    ('rollouts/early',),
    _risen,
    'read the answers; reward a format with the reasoning first (rl.rewards)',
    trend=True,
  ),
  Rule(
    'verifiers disagree',
    ('rollouts/disagree',),
    _risen,
    'read answers on which they differ; correct the laxer one of rl.rewards',
    trend=True,
  ),
)
METRICS = dict.fromkeys(name for rule in RULES for name in rule.metrics)


class LineAlarms:
  """The alarms of one stage.

  Attributes:
    raised: name -> the latest alarm of each rule that has raised one.
  """

  def __init__(self):
    self.raised: dict[str, Alarm] = {}
    self._held = collections.Counter()
    self._values = collections.defaultdict(list)

  def missing(self, rule: Rule) -> list[str]:
    """Returns the metrics of a rule that no line had."""
    return [name for name in rule.metrics if not self._values[name]]

  def add(self, step: int, line: Line) -> list[str]:
    """Returns a text for each alarm that begins with a line."""
    new = {n for n in METRICS if isinstance(line.get(n), int | float)}
    for name in new:
      self._values[name].append(line[name])
    return [*self._begun(step, (r for r in RULES if r.metrics[-1] in new))]

  def _begun(self, step: int, rules: Iterable[Rule]) -> Iterable[str]:
    for rule in rules:
      values = [self._values[name] for name in rule.metrics]
      if rule.trend:
        values = [*map(thirds, values)]
      if not all(values):  # a metric is missing, or too short for a trend
        continue
      held = self._held[rule.name] + 1 if rule.holds(*values) else 0
      self._held[rule.name] = held
      last = self.raised.get(rule.name)
      if held == (2 if rule.trend else LINES):
        evidence = _evidence(rule, values)
        self.raised[rule.name] = Alarm(evidence, step)
        yield f'{rule.name} ({evidence}): {rule.advice}'
      elif not held and last and last.until is None:
        self.raised[rule.name] = last._replace(until=step)


def _evidence(rule: Rule, values: Sequence[Sequence[float]]) -> str:
  """Returns the newest values of a rule's metrics, or their thirds."""
  shown = (v if rule.trend else v[-1:] for v in values)
  texts = (' to '.join(f'{x:.3g}' for x in v) for v in shown)
  return ', '.join(f'{n} {text}' for n, text in zip(rule.metrics, texts))
