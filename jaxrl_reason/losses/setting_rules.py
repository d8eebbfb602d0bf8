"""Combinations of settings that are refused: (condition, message).

A condition is a function of the full settings; `_when` makes one from values.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl_reason.losses.bellman import BELLMAN
from jaxrl_reason.losses.correction import ROW_STATISTICS
from jaxrl_reason.losses.defaults import TOKEN_ADVANTAGES


@dataclasses.dataclass(frozen=True)
class _But:
  """All values except these."""

  values: tuple


def _but(*values) -> _But:
  return _But(values)


def _is(value: Any, wanted: Any) -> bool:
  if isinstance(wanted, _But):
    return value not in wanted.values
  return value in wanted if isinstance(wanted, tuple) else value == wanted


def _when(*also: Callable, **wanted) -> Callable:
  """Returns the condition that settings have all these values (one of a tuple,
  none of `_But`), and that all functions `also` are true.
  """

  def impossible(s):
    named = all(_is(s[key], value) for key, value in wanted.items())
    return named and all(f(s) for f in also)

  return impossible


def _uses_kl(s):
  return bool(s['kl_coef'])


def _per_token(s):
  return (
    s['advantage'] in TOKEN_ADVANTAGES or s['entropy_alpha'] != 0 or _teaches(s)
  )


def _teaches(s):
  return bool(s['distill_coef']) and s['distill'] == 'advantage'


def _of_tokens(s):
  return _per_token(s) or s['whiten'] == 'tokens'


def _dual_clip_is_inside(s):
  return s['dual_clip'] is not None and s['dual_clip'] <= 1 + (
    s['clip_high'] or 0
  )


def _kl_is_straight_through(s):
  return s['kl'].endswith('+')


def _inverted(low, high):
  def impossible(s):
    return s[low] is not None and s[high] is not None and s[low] > s[high]

  message = f'{low}={{{low}!r}} exceeds {high}={{{high}!r}}: swap them'
  return impossible, message


def _falling(key):
  def impossible(s):
    return s[key][0] > s[key][1]

  return impossible, f'{key}={{{key}!r}} is (low, high) and falls: swap them'


NO_REWARD = ('none', 'gdpo', 'rank', 'positives', 'signs', 'passk')

RULES = (
  (
    _when(_per_token, ratio='sequence_mean'),
    "ratio='sequence_mean' takes one advantage per row, and advantage="
    '{advantage!r} with entropy_alpha={entropy_alpha!r} and distill_coef='
    '{distill_coef!r} gives one per token: '
    "use ratio='sequence_mean_token'",
  ),
  (
    _when(_per_token, policy='gmpo'),
    "policy='gmpo' takes one advantage per row, and advantage={advantage!r} "
    'with entropy_alpha={entropy_alpha!r} and distill_coef={distill_coef!r} '
    'gives one per token: use an '
    "advantage per row, or policy='ppo_clip'",
  ),
  (
    _when(policy='gmpo', aggregation=_but('seq_mean_token_mean')),
    "policy='gmpo' is a loss per row, spread over its tokens: aggregation="
    "{aggregation!r} would weigh it by length; use 'seq_mean_token_mean'",
  ),
  (
    _when(
      policy='mirror_descent',
      md_level='sequence',
      aggregation=_but('seq_mean_token_sum'),
    ),
    "policy='mirror_descent' squares a row's log ratio and spreads it over its "
    'tokens: aggregation={aggregation!r} would divide it by length; use '
    "'seq_mean_token_sum', or md_level='token'",
  ),
  (
    _when(advantage=TOKEN_ADVANTAGES, whiten='rows'),
    "whiten='rows' needs one advantage per row and advantage={advantage!r} "
    "gives one per token: use whiten='tokens'",
  ),
  (
    _dual_clip_is_inside,
    'dual_clip={dual_clip!r} has to exceed 1 + clip_high (clip_high='
    '{clip_high!r}): raise it (3 is common), or set it to None',
  ),
  (
    _when(_kl_is_straight_through, kl_in='reward'),
    "kl={kl!r}: the '+' changes the gradient only, and kl_in='reward' has "
    "none: drop the '+', or use kl_in='loss'",
  ),
  (
    _when(_uses_kl, kl_in='reward', advantage=NO_REWARD),
    "kl_in='reward' has no meaning with advantage={advantage!r}, which does "
    "not read the reward as a number to add to: use kl_in='loss'",
  ),
  (
    _when(correction='mask', correction_low=None, correction_high=None),
    "correction='mask' needs correction_low or correction_high",
  ),
  (
    _when(ratio_to='sampler', correction=_but('none')),
    "ratio_to='sampler' already divides by the sampler, and correction="
    "{correction!r} would do so again: use ratio_to='old' or correction='none'",
  ),
  (
    _when(pos_weight=0, neg_weight=0),
    'pos_weight=0 and neg_weight=0 leave no token to train on: raise one',
  ),
  (
    _when(_of_tokens, policy=tuple(BELLMAN)),
    'policy={policy!r} takes one advantage per row, and advantage='
    '{advantage!r} with whiten={whiten!r}, entropy_alpha={entropy_alpha!r} and '
    'distill_coef={distill_coef!r} gives one per token: use an advantage per '
    "row, whiten='none' or 'rows', entropy_alpha=0 and distill_coef=0",
  ),
  (
    _when(reject_by=_but('ratio'), reject_level=_but('token', *ROW_STATISTICS)),
    'reject_by={reject_by!r} is no ratio and reject_level={reject_level!r} a '
    "level of ratios: use 'token', 'sum', 'mean' or 'max'",
  ),
  (
    _when(kl_target=_but(None), kl_coef=0),
    'kl_target={kl_target!r} adapts kl_coef by a factor, and kl_coef=0 would '
    'stay 0: set kl_coef above 0, or kl_target to None',
  ),
  (
    _when(advantage='gdpo', reward_low=_but(None)),
    'reward_low={reward_low!r} has no effect on the parts that '
    "advantage='gdpo' reads: remove it",
  ),
  (
    _when(advantage='gdpo', reward_high=_but(None)),
    'reward_high={reward_high!r} has no effect on the parts that '
    "advantage='gdpo' reads: remove it",
  ),
  (
    _when(distill='jsd', distill_beta=(0, 1)),
    "distill='jsd' has distill_beta={distill_beta!r}, where it is 0 for any "
    "two policies: use a value between 0 and 1, or 'forward' or 'reverse'",
  ),
  _inverted('reward_low', 'reward_high'),
  _inverted('reject_low', 'reject_high'),
  _inverted('correction_low', 'correction_high'),
  _inverted('cov_low', 'cov_high'),
  _inverted('entropy_coef_min', 'entropy_coef_max'),
  _falling('topr_pos'),
  _falling('topr_neg'),
)
