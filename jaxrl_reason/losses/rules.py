"""Settings that cannot be together: (what cannot be, what to do)."""

from jaxrl_reason.losses.bellman import BELLMAN
from jaxrl_reason.losses.correction import ROW_STATISTICS
from jaxrl_reason.losses.defaults import TOKEN_ADVANTAGES


def _per_token(s):
  return s['advantage'] in TOKEN_ADVANTAGES


def _uses_kl(s):
  return bool(s['kl_coef']) or s['kl_target'] is not None


def _uses_terms(s):
  return (
    _uses_kl(s) or bool(s['entropy_coef']) or s['entropy_target'] is not None
  )


def _inverted(low, high):
  def impossible(s):
    return s[low] is not None and s[high] is not None and s[low] > s[high]

  message = f'{low}={{{low}!r}} exceeds {high}={{{high}!r}}: swap them'
  return impossible, message


def _falling(key):
  def impossible(s):
    return s[key][0] > s[key][1]

  return impossible, f'{key}={{{key}!r}} is (low, high) and falls: swap them'


NO_REWARD = ('gdpo', 'rank', 'positives', 'signs', 'passk')

RULES = (
  (
    lambda s: _per_token(s) and s['ratio'] == 'sequence_mean',
    "ratio='sequence_mean' takes one advantage per row and advantage="
    "{advantage!r} gives one per token: use ratio='sequence_mean_token'",
  ),
  (
    lambda s: _per_token(s) and s['policy'] == 'gmpo',
    "policy='gmpo' takes one advantage per row and advantage={advantage!r} "
    "gives one per token: use an advantage per row, or policy='ppo_clip'",
  ),
  (
    lambda s: (
      s['policy'] == 'gmpo' and s['aggregation'] != 'seq_mean_token_mean'
    ),
    "policy='gmpo' is a loss per row, spread over its tokens: aggregation="
    "{aggregation!r} would weigh it by length; use 'seq_mean_token_mean'",
  ),
  (
    lambda s: (
      (s['policy'], s['md_level']) == ('mirror_descent', 'sequence')
      and s['aggregation'] != 'seq_mean_token_sum'
    ),
    "policy='mirror_descent' squares a row's log ratio and spreads it over its "
    'tokens: aggregation={aggregation!r} would divide it by length; use '
    "'seq_mean_token_sum', or md_level='token'",
  ),
  (
    lambda s: _per_token(s) and s['whiten'] == 'rows',
    "whiten='rows' needs one advantage per row and advantage={advantage!r} "
    "gives one per token: use whiten='tokens'",
  ),
  (
    lambda s: (
      s['dual_clip'] is not None and s['dual_clip'] <= 1 + (s['clip_high'] or 0)
    ),
    'dual_clip={dual_clip!r} has to exceed 1 + clip_high (clip_high='
    '{clip_high!r}): raise it (3 is common), or set it to None',
  ),
  (
    lambda s: s['kl_in'] == 'reward' and s['kl'].endswith('+'),
    'kl={kl!r} differs from {kl[0]}{kl[1]} in its gradient only, and '
    "kl_in='reward' has none: drop the '+', or use kl_in='loss'",
  ),
  (
    lambda s: (
      s['kl_in'] == 'reward' and _uses_kl(s) and s['advantage'] in NO_REWARD
    ),
    "kl_in='reward' has no meaning with advantage={advantage!r}, which does "
    "not read the reward as a number to add to: use kl_in='loss'",
  ),
  (
    lambda s: (
      s['correction'] == 'mask'
      and s['correction_low'] is s['correction_high'] is None
    ),
    "correction='mask' needs correction_low or correction_high",
  ),
  (
    lambda s: s['ratio_to'] == 'sampler' and s['correction'] != 'none',
    "ratio_to='sampler' already divides by the sampler, and correction="
    "{correction!r} would do so again: use ratio_to='old' or correction='none'",
  ),
  (
    lambda s: s['pos_weight'] == 0 and s['neg_weight'] == 0,
    'pos_weight=0 and neg_weight=0 leave nothing to learn from: raise one',
  ),
  (
    lambda s: s['policy'] in BELLMAN and _uses_terms(s),
    'policy={policy!r} has no KL or entropy term: set kl_coef and entropy_coef '
    'to 0',
  ),
  (
    lambda s: (
      s['reject_by'] != 'ratio'
      and s['reject_level'] not in ('token', *ROW_STATISTICS)
    ),
    'reject_by={reject_by!r} is no ratio and reject_level={reject_level!r} a '
    "level of ratios: use 'token', 'sum', 'mean' or 'max'",
  ),
  (
    lambda s: s['advantage'] == 'gdpo' and s['reward_low'] is not None,
    'reward_low={reward_low!r} has no effect on the parts that '
    "advantage='gdpo' reads: remove it",
  ),
  (
    lambda s: s['advantage'] == 'gdpo' and s['reward_high'] is not None,
    'reward_high={reward_high!r} has no effect on the parts that '
    "advantage='gdpo' reads: remove it",
  ),
  _inverted('reward_low', 'reward_high'),
  _inverted('reject_low', 'reject_high'),
  _inverted('correction_low', 'correction_high'),
  _inverted('cov_low', 'cov_high'),
  _falling('topr_pos'),
  _falling('topr_neg'),
)
