"""Settings: one flat dict of plain values, checked once.

A settings dict holds what differs from `DEFAULTS`, and may name a recipe:
`{'name': 'dapo', 'clip_high': 0.3}`. `resolve` fills it in and refuses what
cannot mean anything; `needs` says which arrays it will ask for.

There is no registry: a part is a plain function in a plain dict, called with
the settings and arrays its own signature names. The signature is the only list
of what a part reads, so no setting is accepted and then ignored.
"""

import difflib
import functools
import inspect
import numbers

from jaxrl_reason.losses import correction, imitation, selection, shaping
from jaxrl_reason.losses.defaults import (
  ADVANTAGES,
  BELLMAN,
  CHOICES,
  DEFAULTS,
  RANGES,
  TOKEN_ADVANTAGES,
)
from jaxrl_reason.losses.recipes import RECIPES
from jaxrl_reason.losses.token_advantage import value_targets
from jaxrl_reason.losses.value import value_loss

# Arrays a run has to compute only if some part asks for them.
ARRAYS = frozenset(
  'old_logp ref_logp sampler_logp entropy values greedy_reward reward_parts '
  'process_reward segment_reward segment_ids node_ids old_mean_logp'.split()
)
# Keys that choose or switch on a part.
SWITCHES = frozenset(
  'name advantage policy aggregation count_empty whiten entropy_alpha adv_max '
  'pos_weight neg_weight entropy_share max_row_drift drop_truncated offpolicy '
  'correction reject_low reject_high veto kl_coef entropy_coef sft_coef '
  'kl_target entropy_target'.split()
)


@functools.cache
def parameters(fn):
  """The names a function can be called with."""
  return inspect.signature(fn).parameters


def required(pool, name):
  """pool[name], or an error that says what to do about its absence."""
  if pool.get(name) is None:
    raise ValueError(
      f'losses: these settings need the array {name!r}, which is missing: pass '
      'it, or choose settings that do without it (losses.needs(settings) lists '
      'what a run has to compute).'
    )
  return pool[name]


def call(fn, pool):
  """Calls `fn` with those of its parameters that `pool` holds.

  A required array that is None is an error, except `old_logp`: on-policy.
  """
  given = {}
  for name, parameter in parameters(fn).items():
    if parameter.default is parameter.empty and name != 'old_logp':
      given[name] = required(pool, name)
    elif name in pool:
      given[name] = pool[name]
  return fn(**given)


def policy_of(s):
  """The function that turns log-probabilities, or logits, into a loss."""
  return CHOICES['policy'][s['policy']]


def uses_kl(s):
  return bool(s['kl_coef']) or s['kl_target'] is not None


def uses_entropy_bonus(s):
  return bool(s['entropy_coef']) or s['entropy_target'] is not None


def uses_row_entropy(s):
  return s['clip_high_entropy'] is not None or s['kl_high_entropy'] != 1


def parts(s):
  """The functions in use, by stage."""
  policy = policy_of(s)
  rejects = (s['reject_low'], s['reject_high'], s['veto'])
  optional = dict(
    whiten=(s['whiten'] != 'none', shaping.whiten),
    entropy_shape=(s['entropy_alpha'] != 0, shaping.entropy_shape),
    clip_advantage=(s['adv_max'] is not None, shaping.clip_advantage),
    weigh_signs=(
      (s['pos_weight'], s['neg_weight']) != (1, 1),
      shaping.weigh_signs,
    ),
    value_targets=(s['advantage'] == 'gae', value_targets),
    value_loss=(s['advantage'] == 'gae', value_loss),
    cov_tokens=(
      'cov_tokens' in parameters(policy),
      getattr(selection, s['policy'] + '_tokens', None),
    ),
    top_entropy=(s['entropy_share'] is not None, selection.top_entropy_tokens),
    row_entropy=(uses_row_entropy(s), selection.high_entropy_in_row),
    drift=(s['max_row_drift'] is not None, selection.off_policy_rows),
    luffy=(s['offpolicy'] == 'luffy', imitation.luffy),
    correction=(s['correction'] != 'none', correction.correction_weight),
    rejection=(
      any(x is not None for x in rejects),
      correction.rejection_weight,
    ),
  )
  chosen = {stage: fn for stage, (on, fn) in optional.items() if on}
  return dict(advantage=ADVANTAGES[s['advantage']], policy=policy, **chosen)


def _conditional(s):
  """Keys read by the objective itself, given the others."""
  kl_in_loss = uses_kl(s) and s['kl_in'] == 'loss'
  use = parts(s)
  return {
    'kl': uses_kl(s),
    'kl_in': uses_kl(s),
    'kl_max': uses_kl(s),
    'kl_to': kl_in_loss,
    'kl_weighted': kl_in_loss,
    'kl_high_entropy': kl_in_loss,
    'kl_horizon': s['kl_target'] is not None,
    'entropy_bonus_share': uses_entropy_bonus(s),
    'entropy_step': s['entropy_target'] is not None,
    'entropy_coef_max': s['entropy_target'] is not None,
    'clip_high_entropy': s['policy'] == 'ppo_clip',
    'ratio_to': 'old_logp' in parameters(use['policy']),
    'fixed_length': s['aggregation'] == 'fixed_length',
    'skip_empty': 'group' in parameters(use['advantage']),
    'keep_by': s['advantage'] == 'gfpo',
    'correction_normalise': 'correction' in use,
    'sft_loss': s['sft_coef'] > 0 or s['offpolicy'] == 'sft',
    'sft_coef_end': s['sft_coef'] > 0,
    'sft_steps': s['sft_coef_end'] is not None,
    'sft_shape': s['sft_coef_end'] is not None,
  }


def keys_read(s):
  """The settings that have an effect, given the others."""
  names = set(SWITCHES)
  for fn in parts(s).values():
    names |= set(parameters(fn))
  names |= {key for key, on in _conditional(s).items() if on}
  return names & set(DEFAULTS)


def _nearest(word, choices):
  close = difflib.get_close_matches(str(word), list(choices), 1, 0.5)
  return f'Did you mean {close[0]!r}? ' if close else ''


def _check_value(key, value):
  if key not in DEFAULTS:
    raise ValueError(
      f'losses: unknown setting {key!r} (= {value!r}). '
      f'{_nearest(key, DEFAULTS)}The settings are: {", ".join(DEFAULTS)}.'
    )
  if key in CHOICES:
    choices = CHOICES[key]
    if value not in choices and not (key == 'name' and value is None):
      raise ValueError(
        f'losses: {key}={value!r} is no choice. {_nearest(value, choices)}'
        f'Choose one of: {", ".join(choices)}.'
      )
    return
  _check_number(key, value)


def _check_number(key, value):
  default = DEFAULTS[key]
  if (
    value is None and default is None or key == 'correction_high' and not value
  ):
    return
  if isinstance(default, tuple):
    ok = isinstance(value, (tuple, list)) and all(map(_is_number, value))
    kind = 'a tuple of numbers'
  elif isinstance(default, bool):
    ok, kind = isinstance(value, bool), 'True or False'
  else:
    ok, kind = _is_number(value), 'a number'
  if not ok:
    raise ValueError(f'losses: {key}={value!r} has to be {kind}.')
  low, high = RANGES.get(key, (None, None))
  if (low is not None and value < low) or (high is not None and value > high):
    raise ValueError(
      f'losses: {key}={value!r} is outside [{low}, {high}]; set {key} to a '
      'value inside.'
    )


def _is_number(value):
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


# (what cannot be, what to do): checked on the full settings.
RULES = (
  (
    lambda s: s['advantage'] in TOKEN_ADVANTAGES and s['ratio'] == 'sequence',
    "ratio='sequence' takes one advantage per row and advantage={advantage!r} "
    "gives one per token: use ratio='sequence_token'",
  ),
  (
    lambda s: s['advantage'] in TOKEN_ADVANTAGES and s['policy'] == 'gmpo',
    "policy='gmpo' takes one advantage per row and advantage={advantage!r} "
    "gives one per token: use an advantage per row, or policy='ppo_clip'",
  ),
  (
    lambda s: s['advantage'] in TOKEN_ADVANTAGES and s['whiten'] == 'rows',
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
      s['kl_in'] == 'reward'
      and uses_kl(s)
      and s['advantage'] in ('gdpo', 'rank', 'positives', 'signs', 'passk')
    ),
    "kl_in='reward' has no meaning with advantage={advantage!r}, which does "
    "not read the reward as a number to add to: use kl_in='loss'",
  ),
  (
    lambda s: (
      s['correction'] == 'mask'
      and (s['correction_low'] is None and s['correction_high'] is None)
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
    lambda s: s['policy'] in BELLMAN and (uses_kl(s) or uses_entropy_bonus(s)),
    'policy={policy!r} has no KL or entropy term: set kl_coef and entropy_coef '
    'to 0',
  ),
)


def _check_together(s, given, base):
  for impossible, message in RULES:
    if impossible(s):
      raise ValueError(f'losses: {message.format(**s)}.')
  read = keys_read(s)
  for key, value in given.items():
    if key not in read and value != base[key]:
      chosen = ', '.join(f'{k}={s[k]!r}' for k in _CHOOSERS)
      raise ValueError(
        f'losses: {key}={value!r} has no effect with {chosen}: remove it, or '
        'choose the part that reads it.'
      )


_CHOOSERS = ('advantage', 'policy', 'aggregation', 'kl_coef', 'correction')


def resolve(settings):
  """The full settings: recipe over defaults, the given ones over both.

  Accepts a dict, anything `dict()` takes, or a recipe's name. Resolving twice
  changes nothing. Raises ValueError on an unknown key or choice, on a value out
  of range, on combinations that cannot be, and on settings that nothing reads.
  """
  given = {'name': settings} if isinstance(settings, str) else dict(settings)
  for key, value in given.items():
    _check_value(key, value)
  recipe = RECIPES.get(given.get('name'), {})
  base = {**DEFAULTS, **{k: v for k, v in recipe.items() if k in DEFAULTS}}
  s = {**base, **given}
  for key in ('clip_low', 'clip_high'):  # None: the policy's own
    own = parameters(policy_of(s)).get(key)
    if s[key] is None and own is not None:
      s[key] = own.default
  _check_together(s, given, {**base, 'name': s['name']})
  return s


def needs(settings):
  """The arrays a run with these settings has to compute, by name.

  Among ARRAYS, and 'entropy_grad' (entropy with a gradient), 'full_logits',
  'sft_mask', 'truncated', 'is_offpolicy', 'key', 'selected' (call
  `select_tokens` on the whole batch before splitting it). `policy_loss` does
  without 'old_logp' where the policy has not moved since it sampled.
  """
  s = resolve(settings)
  use = parts(s)
  names = set()
  for stage, fn in use.items():
    wanted = {k for k, p in parameters(fn).items() if p.default is p.empty}
    if stage in ('policy', 'drift') and 'old_logp' in wanted:
      wanted = wanted - {'old_logp'} | {s['ratio_to'] + '_logp'}
    names |= wanted & ARRAYS
  if uses_kl(s):
    in_reward = s['kl_in'] == 'reward'
    names |= {s['kl_to'] + '_logp'} | ({'old_logp'} if in_reward else set())
  batch_level = {'cov_tokens', 'top_entropy'} & set(use)
  extra = {
    'entropy_grad': uses_entropy_bonus(s),
    'entropy': s['entropy_bonus_share'] is not None,
    'full_logits': s['policy'] in BELLMAN,
    'sft_mask': s['sft_coef'] > 0,
    'truncated': s['drop_truncated'],
    'is_offpolicy': s['offpolicy'] != 'same',
    'key': s['policy'] == 'clip_cov',
    'selected': batch_level or s['entropy_bonus_share'] is not None,
  }
  return frozenset(names | {name for name, on in extra.items() if on})
