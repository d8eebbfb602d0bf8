"""Alarms on lines of metrics, for the console of a run and its report.

An alarm begins when its rule holds for `LINES` lines of training in a row, so
that a single batch raises none. It ends with the first line that breaks it.
"""

import collections
import statistics
from collections.abc import Callable, Mapping
from typing import NamedTuple

LINES = 3
PAST = 20  # number of earlier lines for comparisons
Line = Mapping[str, float]


class Rule(NamedTuple):
  """An alarm.

  Attributes:
    metrics: names in a line of metrics, without 'train/'.
    holds: (their values, values of earlier lines, newest last) -> bool.
    advice: what to try.
  """

  name: str
  metrics: tuple[str, ...]
  holds: Callable[[list[float], list[list[float]]], bool]
  advice: str


def _spikes(now: list[float], past: list[list[float]]) -> bool:
  before = [x for (x,) in past]
  return len(before) >= PAST / 2 and now[0] > 10 * statistics.median(before)


RULES = (
  Rule(
    'rewards that fail',
    ('reward_invalid',),
    lambda now, past: now[0] > 0.05,
    'read the first failure above; correct the reward or raise rl.timeout_s',
  ),
  Rule(
    'groups without signal',
    ('dead_rows',),
    lambda now, past: now[0] > 0.9,
    'choose problems nearer to the level of the policy (data.controller), '
    "raise rl.samples, or set rl.filter='dead_groups' with rl.refill_rounds",
  ),
  Rule(
    'completions at the limit of their length',
    ('truncated',),
    lambda now, past: now[0] > 0.5,
    'raise data.completion_len, or set rl.overlong',
  ),
  Rule(
    'no gradient',
    ('grad_norm',),
    lambda now, past: now[0] == 0,
    'no row has an advantage: read groups without signal',
  ),
  Rule(
    'gradients that grow',
    ('grad_norm',),
    _spikes,
    'lower rl.optimizer.lr or rl.optimizer.clip_norm',
  ),
  Rule(
    'entropy collapse',
    ('entropy', 'groups_solved_all'),
    lambda now, past: now[0] < 0.01 and now[1] < 0.5,
    'raise rl.loss.clip_high, or set rl.temperature_control.entropy',
  ),
  Rule(
    'far from the reference',
    ('kl',),
    lambda now, past: now[0] > 1,
    'raise rl.loss.kl_coef, or lower rl.optimizer.lr',
  ),
  Rule(
    'sampler and trainer differ',
    ('gap_mean',),
    lambda now, past: now[0] > 0.1,
    'use more precision (model.dtype, model.cache_dtype) or rl.loss.correction',
  ),
)


class LineAlarms:
  """The alarms of one stage.

  Attributes:
    on: name -> evidence of each alarm that has begun.
  """

  def __init__(self):
    self.on: dict[str, str] = {}
    self._held = collections.Counter()
    self._past = collections.defaultdict(lambda: collections.deque(maxlen=PAST))

  def add(self, line: Line) -> list[str]:
    """Returns a text for each alarm that begins with a line of training."""
    begun = []
    for rule in RULES:
      keys = [f'train/{name}' for name in rule.metrics]
      if any(line.get(key) is None for key in keys):
        continue
      now, past = [line[key] for key in keys], self._past[rule.name]
      holds = rule.holds(now, list(past))
      self._held[rule.name] = holds * (self._held[rule.name] + 1)
      if not holds:  # the next line is not compared with a spike
        past.append(now)
        self.on.pop(rule.name, None)
      elif self._held[rule.name] == LINES:
        values = zip(rule.metrics, now)
        evidence = ', '.join(f'{name} {x:.3g}' for name, x in values)
        self.on[rule.name] = f'{evidence}: {rule.advice}'
        begun.append(f'{rule.name} ({evidence}): {rule.advice}')
    return begun
