"""Reads settings of a loss: one flat dict of plain values.

A settings dict has the differences from `DEFAULTS`, and may name a preset:
`{'name': 'dapo', 'clip_high': 0.3}`. `resolve` adds the defaults, refuses
invalid values and builds an `Objective`. `needs` names the arrays that the
objective reads.
"""

import types
from collections.abc import Mapping
from typing import Any

from jaxrl_reason.losses import selection
from jaxrl_reason.losses import shaping as shaping_lib
from jaxrl_reason.losses.aggregation import Aggregate, RowMean
from jaxrl_reason.losses.arrays import choose
from jaxrl_reason.losses.bellman import BELLMAN
from jaxrl_reason.losses.correction import CORRECTIONS, Reject
from jaxrl_reason.losses.defaults import (
  ADVANTAGES,
  CHOICES,
  DEFAULTS,
  INTEGERS,
  PAIRS,
  PEER_NAMES,
  check_number,
)
from jaxrl_reason.losses.distillation import Distill, Teach
from jaxrl_reason.losses.entropy import EntropyBonus
from jaxrl_reason.losses.imitation import Imitate, Likelihood, Luffy, RLPlus
from jaxrl_reason.losses.kl import KL
from jaxrl_reason.losses.objective_record import Objective
from jaxrl_reason.losses.policy import ArcherClip
from jaxrl_reason.losses.presets import PRESETS
from jaxrl_reason.losses.resampling import Resample
from jaxrl_reason.losses.setting_rules import RULES
from jaxrl_reason.losses.token_advantage import ValueTargets
from jaxrl_reason.losses.token_baseline import LengthPreference
from jaxrl_reason.losses.value import ValueLoss
from jaxrl_reason.names import nearest


def resolve(settings: Objective | Mapping[str, Any] | str) -> Objective:
  """Builds an objective from settings: they override the preset, and the preset
  overrides the defaults.

  Accepts a dict, anything `dict()` accepts, a preset's name, or an objective,
  which is returned unchanged. Raises ValueError for an unknown key or choice, a
  value out of range, a refused combination, and a setting that no part reads.
  """
  if isinstance(settings, Objective):
    return settings
  if settings is None:
    raise ValueError(
      "losses: settings is None: pass a preset's name, a dict of settings, or "
      'an Objective; {} has every default.'
    )
  given = {'name': settings} if isinstance(settings, str) else settings
  if not isinstance(given, Mapping) and not hasattr(given, 'keys'):
    raise ValueError(
      f"losses: settings={given!r} has to be a preset's name, a dict of "
      'settings, or an Objective.'
    )
  given = dict(given)
  given = {key: _checked(key, value) for key, value in given.items()}
  preset = PRESETS.get(given.get('name'), {})
  base = {**DEFAULTS, **{k: v for k, v in preset.items() if k in DEFAULTS}}
  s = {**base, **given}
  _fill_clips(s)
  for impossible, message in RULES:
    if impossible(s):
      raise ValueError(f'losses: {message.format(**s)}.')
  fields = {name: value for name, (_, value) in _slots(s).items()}
  objective = Objective(**fields, settings=types.MappingProxyType(s))
  _check_read(objective, given, {**base, 'name': s['name']})
  # Computed now, and not while a program is traced.
  _ = objective.needs, objective.coefs, objective.takes_logits
  _ = objective.terms
  _ = [part.options for part in objective.parts]
  return objective


def needs(settings: Objective | Mapping[str, Any] | str) -> frozenset[str]:
  """Names the arrays a run with these settings has to compute, by name.

  Among `record.ARRAYS`, and 'entropy_grad' (entropy with a gradient),
  'full_logits', 'sft_mask', 'truncated', 'is_offpolicy', 'key', 'selected'
  (call `select_tokens` on the whole batch before splitting it). `policy_loss`
  does not need 'old_logp' if the policy was not updated after sampling.
  """
  return resolve(settings).needs


def keys_read(settings: Objective | Mapping[str, Any] | str) -> set[str]:
  """Names the settings that have an effect, given the others."""
  o = resolve(settings)
  return _switches(o.settings) | o.part_keys


def _fill_clips(s):
  """Replaces bounds that are None by the defaults of the policy loss."""
  part = CHOICES['policy'][s['policy']]
  for field, _, key in part.names:
    if key in ('clip_low', 'clip_high') and s[key] is None:
      s[key] = getattr(part, field)


def _slots(s) -> dict[str, tuple[str, Any]]:
  """Returns {field of the objective: (settings that switch it, its value)}.

  A policy whose logits are action values (`bellman_loss`) has no ratio, weights
  or further terms, so the settings of those are not read.
  """
  common = _common_slots(s)
  return common if s['policy'] in BELLMAN else common | _ratio_slots(s)


def _common_slots(s):
  advantage = ADVANTAGES[s['advantage']].read(s)
  by_group = 'group' in advantage.reads or s['whiten'] == 'rows'
  archer = s['policy'] == 'ppo_clip'
  policy = CHOICES['policy'][s['policy']]
  if archer and s['clip_high_entropy'] is not None:
    policy = ArcherClip
  how = RowMean if policy.per_row else Aggregate
  dropped = s['offpolicy'] in ('same', 'drop')
  shaping = _chosen(
    s,
    (s['whiten'] != 'none', shaping_lib.Whiten),
    (s['entropy_alpha'] != 0, shaping_lib.EntropyShape),
    (s['adv_max'] is not None, shaping_lib.ClipAdvantage),
    ((s['pos_weight'], s['neg_weight']) != (1, 1), shaping_lib.WeighSigns),
    (s['length_lambda'] is not None, LengthPreference),
    (s['distill_coef'] and s['distill'] == 'advantage', Teach),
  )
  clip = _when(_any(s, 'reward_low', 'reward_high'), shaping_lib.ClipReward, s)
  critic = (ValueTargets.read(s), ValueLoss.read(s))
  return dict(
    reward=('reward_low reward_high', clip),
    advantage=('advantage', advantage),
    shaping=(
      'whiten entropy_alpha adv_max pos_weight neg_weight length_lambda '
      'distill_coef',
      shaping,
    ),
    policy=('policy clip_high_entropy' if archer else 'policy', policy.read(s)),
    aggregation=('' if policy.per_row else 'aggregation', how.read(s)),
    critic=('', critic if s['advantage'] == 'gae' else None),
    skip_empty=('skip_empty' if by_group else '', s['skip_empty']),
    resample=('resample', _when(s['resample'] != 'none', Resample, s)),
    drop_truncated=('drop_truncated', s['drop_truncated']),
    drop_offpolicy=('offpolicy' if dropped else '', s['offpolicy'] == 'drop'),
  )


def _ratio_slots(s):
  """Returns the slots that only `policy_loss` has."""
  weights = _chosen(
    s,
    (s['correction'] != 'none', CORRECTIONS.get(s['correction'])),
    (_any(s, 'reject_low', 'reject_high', 'veto'), Reject),
    (s['max_row_drift'] is not None, selection.DropDrifted),
    (s['entropy_share'] is not None, selection.OnlySelected),
    (s['low_entropy_share'] is not None, selection.OnlyLow),
    (s['random_share'] is not None, selection.OnlyDrawn),
    (s['max_second_moment'] is not None, selection.OnlyModerate),
    (s['max_prompt_tv'] is not None, selection.OnlyWithinTV),
  )
  kl = _when(s['kl_coef'], KL, s)
  policy, select = CHOICES['policy'][s['policy']], _select(s)
  anchored = (policy, *weights, *select.values(), *([kl] if kl else []))
  has_ratio = any('old_logp' in part.reads for part in anchored)
  archer = s['policy'] == 'ppo_clip' and s['clip_high_entropy'] is not None
  by_entropy = archer or (kl is not None and kl.split)
  entropy_on = s['entropy_coef'] or s['entropy_target'] is not None
  distills = s['distill_coef'] and s['distill'] != 'advantage'
  others = {'luffy': Luffy, 'rl_plus': RLPlus, 'sft': Imitate}
  others = others.get(s['offpolicy'])
  return dict(
    ratio_to=('ratio_to' if has_ratio else '', s['ratio_to']),
    row_entropy=('', _when(by_entropy, selection.HighEntropy, s)),
    select=('', select),
    weights=(
      'correction reject_low reject_high veto max_row_drift entropy_share '
      'low_entropy_share random_share max_second_moment max_prompt_tv',
      weights,
    ),
    offpolicy=('offpolicy', _when(others, others, s)),
    kl=('kl_coef', kl),
    entropy=('entropy_coef entropy_target', _when(entropy_on, EntropyBonus, s)),
    likelihood=('sft_coef', _when(s['sft_coef'] > 0, Likelihood, s)),
    distill=('', _when(distills, Distill, s)),
  )


def _switches(s) -> set[str]:
  keys = ' '.join(switches for switches, _ in _slots(s).values())
  return {'name', *keys.split()}


def _when(on, part, s):
  return part.read(s) if on else None


def _chosen(s, *candidates):
  return tuple(part.read(s) for on, part in candidates if on)


def _any(s, *keys):
  return any(s[key] is not None for key in keys)


def _select(s):
  """Returns the parts that choose tokens, by the name of their choice."""
  cov = selection.COV_TOKENS.get(s['policy'])
  chosen = {} if cov is None else {'cov_tokens': cov.read(s)}
  if s['entropy_share'] is not None:
    chosen['top_entropy'] = selection.TopEntropy.read(s)
  if s['low_entropy_share'] is not None:
    chosen['low_entropy'] = selection.LowEntropy.read(s)
  if s['random_share'] is not None:
    chosen['random'] = selection.RandomTokens.read(s)
  if s['max_second_moment'] is not None:
    chosen['second_moment'] = selection.SecondMoment.read(s)
  if s['max_prompt_tv'] is not None:
    chosen['within_tv'] = selection.WithinTV.read(s)
  return chosen


def _checked(key, value):
  """Returns the value of one setting; raises ValueError with the allowed
  values.
  """
  if key not in DEFAULTS:
    raise ValueError(
      f'losses: unknown setting {key!r} (= {value!r}).'
      f'{similar(key)} losses.DEFAULTS has all of them.'
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
  check_number(key, value, value)
  return int(value) if key in INTEGERS else value


def similar(key: str) -> str:
  """Returns ' Did you mean ..?' for another library's name or a misspelling."""
  other = PEER_NAMES.get(key)
  return f' Did you mean {other!r}?' if other else nearest(key, DEFAULTS)


def _check_tuple(key, value):
  if not isinstance(value, (tuple, list)):
    raise ValueError(f'losses: {key}={value!r} has to be a tuple of numbers.')
  if key in PAIRS and len(value) != 2:
    raise ValueError(f'losses: {key}={value!r} has to be a tuple of 2 numbers.')
  for x in value:
    check_number(key, x, value)


_CHOOSERS = ('advantage', 'policy', 'aggregation', 'kl_coef', 'correction')


# Settings that add a part: if one is on, also by a preset, it has to be read.
_ADDING = frozenset(
  'reward_low reward_high whiten entropy_alpha adv_max pos_weight neg_weight '
  'length_lambda resample clip_high_entropy correction reject_low reject_high '
  'veto max_row_drift entropy_share low_entropy_share random_share '
  'max_second_moment max_prompt_tv kl_coef entropy_coef entropy_target '
  'sft_coef distill_coef'.split()
)


def _check_read(objective, given, base):
  """Refuses settings without effect that were set or that add a part."""
  read = keys_read(objective)
  unread = {k: x for k, x in given.items() if k not in read and x != base[k]}
  for key in sorted(_ADDING - read):
    if objective[key] != DEFAULTS[key]:
      unread[key] = objective[key]
  for key, value in unread.items():
    chosen = ', '.join(f'{k}={objective[k]!r}' for k in _CHOOSERS)
    raise ValueError(
      f'losses: {key}={value!r} has no effect with {chosen}: set it to '
      f'{DEFAULTS[key]!r}, or choose the part that reads it.'
    )
