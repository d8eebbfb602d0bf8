"""Every setting changes the program of a loss, or is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import losses

N, T, V = 4, 3, 5
# Another value of every setting. Settings with choices try every choice.
OTHER = dict(
  reward_low=-0.5, reward_high=0.5, advantage='group_mean', ddof=0, eps=0.3,
  singleton='reward', skip_empty=True, baseline=0.3, threshold=0.3, keep_k=2,
  resample='max_min', resample_power=3.0, value_beta=0.3,
  keep_by='efficient', part_weights=(0.5, 2.0), pass_k=2, pkpo_baseline='loo',
  gamma=0.5, gae_lambda=0.5, lambda_alpha=0.3, value_lambda=0.5, value_clip=0.3,
  segment_gamma=0.5, segment_baseline='group_zscore', tree_global=0.3,
  tree_local=0.3, tree_power=0.3, otb_places='token', divide_by_std=True,
  whiten='rows', whiten_ddof=0, whiten_eps=0.3, entropy_alpha=0.3,
  entropy_kappa=3.0, adv_max=0.3, pos_weight=0.3, neg_weight=0.3,
  policy='cispo', ratio='sequence_mean_token', ratio_to='ref', clip_low=0.33,
  clip_high=0.33, clip_high_entropy=0.33, dual_clip=7.0, kl_cov_coef=0.3,
  cov_share=0.3, cov_low=0.3, cov_high=7.0, tau_pos=0.3, tau_neg=0.3,
  drift_coef=0.3, divergence='kl', divergence_top_k=2, max_divergence=0.3,
  mask_sides='both',
  ratio_max=7.0, md_tau=0.3, md_level='token', vespo_pos=(0.3, 0.4),
  vespo_neg=(0.3, 0.4), topr_pos=(0.3, 0.4), topr_neg=(0.3, 0.4),
  tbrm_beta=0.3, rover_rho=0.3, entropy_share=0.3, random_share=0.3,
  low_entropy_share=0.3,
  max_second_moment=0.3, max_prompt_tv=0.3,
  entropy_quantile=0.3, max_row_drift=0.3, drop_truncated=True,
  offpolicy='drop', luffy_gamma=0.3, rl_plus_gamma=0.3, correction='clip',
  correction_level='sequence_mean', correction_low=0.3, correction_high=7.0,
  correction_normalise=True, reject_by='k3', reject_level='token',
  reject_low=0.3, reject_high=7.0, veto=0.3, sft_coef=0.3, sft_coef_end=0.7,
  sft_steps=7, sft_shape='cosine', sft_loss='dft', sft_on='observations',
  length_lambda=0.3,
  length_spread=0.3, aggregation='fixed_length', fixed_length=7,
  count_empty=True, kl_coef=0.3, kl='k2', kl_in='reward', kl_to='sampler',
  kl_max=0.3, kl_max_on='weighted', kl_weighted=True, kl_high_entropy=0.3,
  kl_target=0.3, kl_horizon=77, entropy_coef=0.3, entropy_bonus_share=0.3,
  entropy_target=0.3, entropy_step=0.3, entropy_coef_min=0.3,
  entropy_coef_max=0.3, distill='k2', distill_coef=0.3, distill_beta=0.3,
  distill_top_k=2, distill_top_of='policy', distill_gamma=0.3, distill_max=0.3,
)  # fmt: skip
# Settings that together have every part: presets, or several parts at once.
BASES = {
  name: {'name': name}
  for name in 'tbrm rover vapo gspo grpo_passk mt_grpo prime archer'.split()
} | {
  'weights': dict(correction='mask', veto=0.1, reject_high=3.0, kl_coef=0.1),
  'segments': dict(advantage='segments'),
  'teacher': dict(distill='jsd', distill_coef=0.1),
  'top': dict(distill='tv', distill_coef=0.1, distill_top_k=3),
  'drawn': dict(resample='power', advantage='optimal_value'),
  'region': dict(policy='dppo_top_k', clip_high=None),
  'taught': dict(distill_coef=0.1, adv_max=7.0),
  'veto': dict(policy='log_likelihood', veto=0.1, entropy_target=0.5),
  'reward': dict(advantage='gae', kl_coef=0.1, kl_in='reward', kl_max=9.0),
  'others': dict(policy='dppo', offpolicy='luffy', whiten='tokens'),
  'plus': dict(offpolicy='rl_plus'),
  'sum': dict(aggregation='token_sum', policy='mirror_descent',
              md_level='token', advantage='pkpo'),
}  # fmt: skip


def rows(*shape):
  return jnp.asarray(np.random.default_rng(0).random(shape), jnp.float32)


ARRAYS = dict.fromkeys(
  'logp old_logp ref_logp sampler_logp entropy values process_reward '
  'old_mean_logp sum_p_squared teacher_logp teacher_kl '
  'old_divergence'.split(),
  -rows(N, T),
)
GROUP, TOKENS = jnp.array([0, 0, 1, 1]), jnp.zeros((N, T), int)
PARTS = dict(
  reward_parts=rows(N, 2),
  greedy_reward=rows(N),
  pass_rate=rows(N),
  segment_reward=rows(N, 2),
  segment_ids=TOKENS,
  node_ids=TOKENS,
)
OF_ADVANTAGES = (
  'old_logp ref_logp entropy values process_reward sum_p_squared '
  'teacher_logp sampler_logp'.split()
)


def outputs(o, a, mask, reward):
  """Computes all results of the public functions for an objective."""
  mask = losses.loss_mask(o, mask, truncated=reward > 0, is_offpolicy=~mask)
  named = {k: a[k] for k in OF_ADVANTAGES}
  adv = losses.advantages(o, reward, GROUP, mask=mask, **named, **PARTS)
  kept = {k: a[k] for k in ('old_logp', 'ref_logp')}
  if o.takes_logits:
    logits = jnp.broadcast_to(a['logp'][..., None], (N, T, V)) * jnp.arange(V)
    mean = a['old_mean_logp']
    loss, metrics = losses.bellman_loss(
      o, logits, TOKENS, adv, mask, **kept, old_mean_logp=mean
    )
    coefs = {}
  else:
    key, coefs = jax.random.key(0), losses.init_coefs(o)
    names = (
      'sampler_logp entropy teacher_kl teacher_logp old_divergence'
    ).split()
    more = {k: a[k] for k in names} | {'group': GROUP}
    loss, metrics = losses.policy_loss(
      o, a['logp'], adv, mask, sft_mask=mask, is_offpolicy=mask, key=key,
      coefs=None, **kept, **more,
    )  # fmt: skip
    coefs = losses.next_coefs(o, coefs, metrics, rows=N)
  out = adv, loss, metrics, coefs
  if o.distill is not None and o.distill.exact:
    z = jnp.broadcast_to(a['logp'][..., None], (N, T, V))
    out += (o.distill.compare(z, z * jnp.arange(V)),)
  if 'old_divergence' in o.needs:
    z = jnp.broadcast_to(a['logp'][..., None], (N, T, V))
    out += (o.policy.compare(z, z * jnp.arange(V)),)
  if o.likelihood is not None:
    out += (o.likelihood.tokens(mask, reward, reward > 0.1, ~mask),)
  if o.resample is not None:
    out += (o.resample({'reward': reward, 'valid': reward > 0}),)
  if o.critic is None:
    return out
  values, old = a['values'], a['values']
  targets = losses.critic_targets(o, reward, values, mask, **kept)
  critic = losses.critic_loss(o, values, targets, mask, old_values=old)
  return out, targets, critic


def program(o):
  fn = functools.partial(outputs, o)
  made = jax.make_jaxpr(fn)(ARRAYS, rows(N, T) > 0.3, rows(N))
  return str(made), [np.asarray(x).tolist() for x in made.consts]


def test_every_setting_has_another_value_here():
  assert set(OTHER) == set(losses.DEFAULTS) - {'name'}


@pytest.mark.parametrize('base', BASES)
def test_a_setting_changes_the_program_or_is_refused(base):
  before, silent, accepted = losses.resolve(BASES[base]), [], 0
  program_before = program(before)
  assert program(losses.resolve(BASES[base])) == program_before
  for key, value in OTHER.items():
    if before[key] == value:
      continue
    try:
      o = losses.resolve({**BASES[base], key: value})
    except ValueError:
      continue
    accepted += 1
    if program(o) == program_before:
      silent.append(key)
  assert not silent and accepted > 2, silent


REFUSED = (
  [('rover', key) for key in (
    'correction reject_high veto entropy_share low_entropy_share random_share '
    'max_row_drift kl_coef entropy_coef sft_coef entropy_alpha ratio_to'
  ).split()]
  + [('tbrm', key) for key in 'correction veto offpolicy aggregation'.split()]
  + [('vapo', 'gae_lambda'), ('dapo', 'count_empty'), ('gspo', 'entropy_alpha'),
     ('veto', 'reject_by')]
)  # fmt: skip


@pytest.mark.parametrize('base,key', REFUSED, ids=str)
def test_a_setting_without_effect_is_refused_by_name(base, key):
  settings = BASES.get(base, {'name': base})
  value = {'offpolicy': 'luffy'}.get(key, OTHER[key])
  with pytest.raises(ValueError, match=key):
    losses.resolve({**settings, key: value})


def test_settings_of_a_preset_are_read_or_refused():
  with pytest.raises(ValueError, match='kl_coef=0.04 has no effect'):
    losses.resolve({'name': 'grpo', 'policy': 'rover'})


def test_parts_that_a_loss_of_logits_lacks_are_refused():
  with pytest.raises(ValueError, match='leave kl out'):
    losses.Objective(policy=losses.resolve('rover').policy, kl=losses.KL())
