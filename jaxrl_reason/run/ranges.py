"""The values that numbers of a configuration or a command may have.

`RANGES` has a row for every number of `config.default()`, by its dotted key;
`check` refuses what lies outside, and names key, value and range.
"""

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
  """Numbers from low to high, both included unless said otherwise."""

  low: float
  high: float = math.inf
  whole: bool = True
  above: bool = False  # low itself is out
  below: bool = False  # high itself is out

  def holds(self, value: Any) -> bool:
    """Tells whether a value is a number of this range."""
    kind = numbers.Integral if self.whole else numbers.Real
    if not isinstance(value, kind) or isinstance(value, bool):
      return False
    low = value > self.low if self.above else value >= self.low
    high = value < self.high if self.below else value <= self.high
    return low and high and math.isfinite(value)

  def __str__(self):
    kind = 'a whole number' if self.whole else 'a number'
    words = f'{kind} {"above" if self.above else "of at least"} {self.low:g}'
    if math.isinf(self.high):
      return words
    return f'{words} and {"below" if self.below else "at most"} {self.high:g}'


COUNT = Range(1)
COUNT_OR_NONE = Range(0)
POSITIVE = Range(0, whole=False, above=True)
AMOUNT = Range(0, whole=False)
SHARE = Range(0, 1, whole=False)
NUCLEUS = Range(0, 1, whole=False, above=True)
MEMORY = Range(0, 1, whole=False, below=True)  # of a running mean
SEED = Range(0, 2**31 - 1)

OPTIMIZER = {
  'lr': AMOUNT,
  'warmup_steps': COUNT_OR_NONE,
  'b1': MEMORY,
  'b2': MEMORY,
  'eps': AMOUNT,
  'weight_decay': AMOUNT,
  'clip_norm': AMOUNT,
}


def _inside(section: str, table: Mapping[str, Range]) -> dict[str, Range]:
  return {f'{section}.{key}': range_ for key, range_ in table.items()}


STAGE = {
  'steps': COUNT,
  'micro_batches': COUNT,
  'steps_per_dispatch': COUNT,
  'logprob_chunk': COUNT_OR_NONE,
  'balance_coef': AMOUNT,
  **_inside('optimizer', OPTIMIZER),
}
SUPERVISED = {**STAGE, 'stop_loss': AMOUNT, 'rows': COUNT}
MODEL = {
  **dict.fromkeys(
    ('layers', 'width', 'mlp', 'heads', 'kv_heads', 'head_dim'), COUNT
  ),
  'rope_theta': POSITIVE,
  'rope_scale': Range(1, whole=False),
  'norm_eps': AMOUNT,
  'experts': COUNT_OR_NONE,
  'experts_per_token': COUNT_OR_NONE,
}
DATA = {
  'files.heldout': MEMORY,
  'vocab': COUNT,
  'shots': COUNT_OR_NONE,
  'prompt_len': COUNT,
  'completion_len': COUNT,
  **_inside(
    'controller',
    {
      'window': COUNT,
      'refresh': COUNT_OR_NONE,
      'memory': MEMORY,
      'prior': SHARE,
    },
  ),
}
# Of `data.controller`, where they are not None.
CONTROLLER = {
  **dict.fromkeys(('window', 'retest', 'steps', 'rungs'), COUNT),
  **dict.fromkeys(
    ('prior', 'floor', 'low', 'high', 'easy', 'hard', 'above'), SHARE
  ),
  **dict.fromkeys(('goal', 'climb', 'review', 'learn'), SHARE),
  **dict.fromkeys(('explore', 'keep', 'nearest', 'change'), NUCLEUS),
  **dict.fromkeys(('power', 'width', 'slope', 'temperature'), POSITIVE),
  'memory': MEMORY,
}
# Of sampling, in training and in `generate`.
SAMPLING = {
  'temperature': AMOUNT,
  'top_k': COUNT_OR_NONE,
  'top_p': NUCLEUS,
  'min_p': SHARE,
}
# Of a budget that is forced (`rollouts/forcing.py`).
FORCING = {'least': COUNT_OR_NONE, 'most': COUNT_OR_NONE}
# Of the commands that ask a model: `evaluate`, `curate`.
EVALUATE = {
  **{k: v for k, v in SAMPLING.items() if k != 'temperature'},
  **FORCING,
  'chunk': COUNT_OR_NONE,
  'carry': COUNT_OR_NONE,
  'k': COUNT_OR_NONE,
  'batch': COUNT,
  'max_new': COUNT_OR_NONE,
  'seed': SEED,
  'ngram': COUNT,
  'contamination_limit': SHARE,
  'workers': COUNT,
  'timeout_s': POSITIVE,
}
CURATE = {
  'k': COUNT,
  'temperature': POSITIVE,
  'near_duplicates': SHARE,
  'heldout': MEMORY,
}
RL = {
  **STAGE,
  **SAMPLING,
  'prompts': COUNT,
  'samples': COUNT,
  'overlong': COUNT_OR_NONE,
  'filter_args.keep': COUNT_OR_NONE,
  'filter_args.spread': AMOUNT,
  'filter_args.low': SHARE,
  'filter_args.high': SHARE,
  'refill_rounds': COUNT_OR_NONE,
  'archive': COUNT_OR_NONE,
  'reference.every': COUNT_OR_NONE,
  'reference.kl': AMOUNT,
  'reference.patience': COUNT_OR_NONE,
  'reference.ema': MEMORY,
  'heat.entropy': AMOUNT,
  'heat.rate': POSITIVE,
  'heat.low': POSITIVE,
  'heat.high': POSITIVE,
  **_inside(
    'shaping',
    {
      **dict.fromkeys(
        'alp laser laser_explore price price_rate price_most historical '
        'repeats'.split(),
        AMOUNT,
      ),
      'price_goal': SHARE,
      'laser_every': COUNT,
    },
  ),
  'hints.room': COUNT_OR_NONE,
  'extra.groups': COUNT_OR_NONE,
  'replay.rows': COUNT_OR_NONE,
  'replay.capacity': COUNT_OR_NONE,
  'epochs': COUNT,
  'minibatches': COUNT,
  # Exploration needs more than 0, which is greedy.
  'temperature': POSITIVE,
  'slots': COUNT_OR_NONE,
  'chunks.tokens': COUNT_OR_NONE,
  'chunks.carry': COUNT_OR_NONE,
  'turns.most': COUNT,
  'turns.tokens': COUNT_OR_NONE,
  'turns.observation': COUNT,
  'turns.chunk': COUNT_OR_NONE,
  'turns.reward': AMOUNT,
  'turns.workers': COUNT,
  'turns.timeout_s': POSITIVE,
  'turns.start_s': POSITIVE,
  'turns.burst': COUNT,
  'cache_segments': COUNT,
  'demos': COUNT_OR_NONE,
  'critic.warmup_updates': COUNT_OR_NONE,
  **_inside('critic.optimizer', OPTIMIZER),
  'staleness': Range(0, 1),
  'parts': COUNT,
  'workers': COUNT,
  'timeout_s': POSITIVE,
}
EVAL = {
  'every': COUNT,
  'problems': COUNT,
  'samples': COUNT,
  'batch': COUNT_OR_NONE,
  'temperature': AMOUNT,
  'show': COUNT_OR_NONE,
}
RANGES = {
  'seed': SEED,
  'remat_gib': POSITIVE,
  'log_every': COUNT,
  'watchdog.times': AMOUNT,
  'watchdog.floor_s': POSITIVE,
  'watchdog.first_s': POSITIVE,
  **_inside('model', MODEL),
  **_inside('lora', {'rank': COUNT_OR_NONE, 'alpha': POSITIVE}),
  **_inside('data', DATA),
  **_inside('pretrain', SUPERVISED),
  **_inside('sft', SUPERVISED),
  **_inside('rl', RL),
  **_inside('eval', EVAL),
  **_inside(
    'rollouts', {'every': COUNT_OR_NONE, 'problems': COUNT, 'mib': POSITIVE}
  ),
  **_inside(
    'checkpoint',
    {'every': COUNT, 'keep': COUNT, 'emergency_every': COUNT_OR_NONE},
  ),
}


def check(
  values: Mapping[str, Any], table: Mapping[str, Range], prefix: str = ''
) -> None:
  """Refuses values outside their range.

  Args:
    values: by key; those that the table does not have are not looked at.
    prefix: written before a key, '--' for the flags of a command.

  Raises:
    ValueError: names key, value and range.
  """
  for key, range_ in table.items():
    if key in values and not range_.holds(values[key]):
      raise ValueError(f'{prefix}{key}={values[key]!r}: must be {range_}')
