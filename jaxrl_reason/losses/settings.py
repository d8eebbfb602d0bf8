"""Settings: one flat dict of plain values, checked and read once.

A settings dict holds what differs from `DEFAULTS`, and may name a preset:
`{'name': 'dapo', 'clip_high': 0.3}`. `resolve` fills it in, refuses what cannot
mean anything and reads it into an `Objective`; `needs` says which arrays that
will ask for.
"""

import dataclasses
import math
import numbers
import types
from collections.abc import Mapping
from typing import Any

from jaxrl_reason.losses import selection, shaping
from jaxrl_reason.losses.aggregation import Aggregate
from jaxrl_reason.losses.arrays import choose, nearest
from jaxrl_reason.losses.correction import CORRECTIONS, Reject
from jaxrl_reason.losses.defaults import (
  ADVANTAGES,
  CHOICES,
  DEFAULTS,
  INTEGERS,
  PAIRS,
  POSITIVE,
  RANGES,
)
from jaxrl_reason.losses.entropy import EntropyBonus
from jaxrl_reason.losses.imitation import Imitate, Likelihood, Luffy
from jaxrl_reason.losses.kl import KL
from jaxrl_reason.losses.policy import ArcherClip
from jaxrl_reason.losses.presets import PRESETS
from jaxrl_reason.losses.record import Objective
from jaxrl_reason.losses.rules import RULES
from jaxrl_reason.losses.token_advantage import ValueTargets
from jaxrl_reason.losses.token_baseline import LengthPreference
from jaxrl_reason.losses.value import ValueLoss

# Keys that choose or switch on a part.
SWITCHES = frozenset(
  'name reward_low reward_high length_lambda advantage policy aggregation '
  'count_empty whiten entropy_alpha adv_max '
  'pos_weight neg_weight entropy_share random_share max_row_drift '
  'drop_truncated offpolicy '
  'correction reject_low reject_high veto kl_coef entropy_coef sft_coef '
  'kl_target entropy_target'.split()
)


def resolve(settings: Objective | Mapping[str, Any] | str) -> Objective:
  """Reads settings into an objective: preset over defaults, the given over
  both.

  Accepts a dict, anything `dict()` takes, a preset's name, or an objective,
  which is given back as it is. Raises ValueError on an unknown key or choice,
  on a value out of range, on combinations that cannot be, and on settings that
  nothing reads.
  """
  if isinstance(settings, Objective):
    return settings
  given = {'name': settings} if isinstance(settings, str) else dict(settings)
  given = {key: _checked(key, value) for key, value in given.items()}
  preset = PRESETS.get(given.get('name'), {})
  base = {**DEFAULTS, **{k: v for k, v in preset.items() if k in DEFAULTS}}
  s = {**base, **given}
  _fill_clips(s)
  for impossible, message in RULES:
    if impossible(s):
      raise ValueError(f'losses: {message.format(**s)}.')
  objective = dataclasses.replace(_read(s), settings=types.MappingProxyType(s))
  _check_read(objective, given, {**base, 'name': s['name']})
  # Worked out now, so that nothing is while a program is traced.
  _ = objective.needs, objective.coefs, objective.takes_logits
  _ = objective.terms
  _ = [part.options for part in objective.parts]
  return objective


def needs(settings: Objective | Mapping[str, Any] | str) -> frozenset[str]:
  """Names the arrays a run with these settings has to compute, by name.

  Among `record.ARRAYS`, and 'entropy_grad' (entropy with a gradient),
  'full_logits', 'sft_mask', 'truncated', 'is_offpolicy', 'key', 'selected'
  (call `select_tokens` on the whole batch before splitting it). `policy_loss`
  does without 'old_logp' where the policy has not moved since it sampled.
  """
  return resolve(settings).needs


def keys_read(settings: Objective | Mapping[str, Any] | str) -> set[str]:
  """Names the settings that have an effect, given the others."""
  o = resolve(settings)
  names = set(SWITCHES).union(*(part.keys_read for part in o.parts))
  return names | {
    key
    for key, on in {
      'ratio_to': 'old_logp' in o.policy.reads,
      'skip_empty': 'group' in o.advantage.reads,
      'clip_high_entropy': o['policy'] == 'ppo_clip',
    }.items()
    if on
  }


def _fill_clips(s):
  """Gives bounds that are None the default of the policy in use."""
  part = CHOICES['policy'][s['policy']]
  for field, _, key in part.names:
    if key in ('clip_low', 'clip_high') and s[key] is None:
      s[key] = getattr(part, field)


def _read(s) -> Objective:
  """The parts that the full settings describe."""
  policy = CHOICES['policy'][s['policy']]
  if s['clip_high_entropy'] is not None and s['policy'] == 'ppo_clip':
    policy = ArcherClip
  return Objective(
    reward=_when(_any(s, 'reward_low', 'reward_high'), shaping.ClipReward, s),
    advantage=ADVANTAGES[s['advantage']].read(s),
    shaping=_chosen(
      s,
      (s['whiten'] != 'none', shaping.Whiten),
      (s['entropy_alpha'] != 0, shaping.EntropyShape),
      (s['adv_max'] is not None, shaping.ClipAdvantage),
      ((s['pos_weight'], s['neg_weight']) != (1, 1), shaping.WeighSigns),
      (s['length_lambda'] is not None, LengthPreference),
    ),
    policy=policy.read(s),
    ratio_to=s['ratio_to'],
    row_entropy=_when(
      s['clip_high_entropy'] is not None or s['kl_high_entropy'] != 1,
      selection.HighEntropy,
      s,
    ),
    select=_select(s),
    weights=_chosen(
      s,
      (s['correction'] != 'none', CORRECTIONS.get(s['correction'])),
      (_any(s, 'reject_low', 'reject_high', 'veto'), Reject),
      (s['max_row_drift'] is not None, selection.DropDrifted),
      (s['entropy_share'] is not None, selection.OnlySelected),
      (s['random_share'] is not None, selection.OnlyDrawn),
    ),
    offpolicy=_when(
      s['offpolicy'] in ('luffy', 'sft'),
      {'luffy': Luffy, 'sft': Imitate}.get(s['offpolicy']),
      s,
    ),
    kl=_when(s['kl_coef'] or s['kl_target'] is not None, KL, s),
    entropy=_when(
      s['entropy_coef'] or s['entropy_target'] is not None, EntropyBonus, s
    ),
    likelihood=_when(s['sft_coef'] > 0, Likelihood, s),
    aggregation=Aggregate.read(s),
    critic=_chosen(s, (True, ValueTargets), (True, ValueLoss))
    if s['advantage'] == 'gae'
    else None,
    skip_empty=s['skip_empty'],
    drop_truncated=s['drop_truncated'],
    drop_offpolicy=s['offpolicy'] == 'drop',
  )


def _when(on, part, s):
  return part.read(s) if on else None


def _chosen(s, *candidates):
  return tuple(part.read(s) for on, part in candidates if on)


def _any(s, *keys):
  return any(s[key] is not None for key in keys)


def _select(s):
  """The parts that choose tokens, by the name of what they give."""
  cov = selection.COV_TOKENS.get(s['policy'])
  chosen = {} if cov is None else {'cov_tokens': cov.read(s)}
  if s['entropy_share'] is not None:
    chosen['top_entropy'] = selection.TopEntropy.read(s)
  if s['random_share'] is not None:
    chosen['random'] = selection.RandomTokens.read(s)
  return chosen


def _checked(key, value):
  """The value of one setting, or a ValueError that says what it may be."""
  if key not in DEFAULTS:
    raise ValueError(
      f'losses: unknown setting {key!r} (= {value!r}). '
      f'{nearest(key, DEFAULTS)}losses.DEFAULTS has all of them.'
    )
  default = DEFAULTS[key]
  if value is None and default is None:
    return value
  if key == 'correction_high' and value is None:
    return value
  if key in CHOICES:
    choose(key, value, {k: k for k in CHOICES[key]})
    return value
  if isinstance(default, bool):
    if not isinstance(value, bool):
      raise ValueError(f'losses: {key}={value!r} has to be True or False.')
    return value
  if isinstance(default, tuple):
    _check_tuple(key, value)
    return tuple(value)
  _check_number(key, value, value)
  return int(value) if key in INTEGERS else value


def _check_tuple(key, value):
  if not isinstance(value, (tuple, list)):
    raise ValueError(f'losses: {key}={value!r} has to be a tuple of numbers.')
  if key in PAIRS and len(value) != 2:
    raise ValueError(f'losses: {key}={value!r} has to be a tuple of 2 numbers.')
  for x in value:
    _check_number(key, x, value)


def _check_number(key, x, value):
  """Refuses what is no number, not finite, or out of range."""
  whole = 'a whole number' if key in INTEGERS else 'a number'
  real = isinstance(x, numbers.Real) and not isinstance(x, bool)
  if not real or not math.isfinite(x) or key in INTEGERS and x != int(x):
    raise ValueError(f'losses: {key}={value!r} has to be {whole}, and finite.')
  if key in POSITIVE and x <= 0:
    raise ValueError(f'losses: {key}={value!r} has to be above 0.')
  low, high = RANGES.get(key, (None, None))
  if (low is not None and x < low) or (high is not None and x > high):
    raise ValueError(
      f'losses: {key}={value!r} is outside [{low}, {high}]; set {key} to a '
      'value inside.'
    )


_CHOOSERS = ('advantage', 'policy', 'aggregation', 'kl_coef', 'correction')


def _check_read(objective, given, base):
  """Refuses what was given, differs from the preset, and has no effect."""
  read = keys_read(objective)
  for key, value in given.items():
    if key not in read and value != base[key]:
      chosen = ', '.join(f'{k}={objective[k]!r}' for k in _CHOOSERS)
      raise ValueError(
        f'losses: {key}={value!r} has no effect with {chosen}: remove it, or '
        'choose the part that reads it.'
      )
