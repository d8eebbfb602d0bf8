"""Losses for reinforcement learning of reasoning. Imports jax only.

Parts, from your own code:

  from jaxrl_reason import losses
  adv = losses.group_zscore(reward, group)                        # [N]
  loss = losses.aggregate(
    losses.ppo_clip(logp, old_logp, adv, mask), mask, 'token_mean'
  )

Or by settings, a dict that may name one of `losses.PRESETS`, read once into an
objective of frozen parts:

  objective = losses.resolve({'name': 'dapo', 'clip_high': 0.3})
  adv = losses.advantages(objective, reward, group, mask=mask)
  divisors = losses.denominators(objective, mask)
  loss, metrics = losses.policy_loss(
    objective, logp, adv, mask, old_logp=old_logp, denominators=divisors
  )

All functions are pure functions of arrays. They work under jit, grad, vmap and
shard_map. docs/algorithms.md has the table of presets.
"""

# These imports are the public interface, listed compactly.
# ruff: noqa: I001
# fmt: off
from jaxrl_reason.losses.aggregation import (
  AGGREGATIONS, Aggregate, aggregate, counts, group_token_weight,
)
from jaxrl_reason.losses.arrays import (
  LEVELS,
  MAX_LOG_RATIO,
  SHAPES,
  importance_ratio,
  keep,
  log_ratio,
  masked_mean,
  masked_var,
  row_count,
  row_mean,
  row_sum,
  rows_to_tokens,
)
from jaxrl_reason.losses.objective_part import Part
from jaxrl_reason.losses.baselines import (
  bnpo, dead_group_share, gpg, greedy_baseline, group_mean,
  group_mean_batch_std, group_zscore, leave_one_out, length_weighted, maxrl,
  optimal_value, positives, rank, reinforce, reinforce_rej, signs,
)
from jaxrl_reason.losses.bellman import mean_logp, rover, tbrm, token_logp
from jaxrl_reason.losses.composed import (
  best_of_group, filter_metric, gdpo, gfpo, leave_one_out_std,
)
from jaxrl_reason.losses.control import init_coefs, next_coefs
from jaxrl_reason.losses.correction import (
  Clip, Mask, Reject, Truncate, correction_weight, normalise, proximal_logp,
  rejection_weight,
)
from jaxrl_reason.losses.critic import (
  bellman_loss, critic_loss, critic_targets,
)
from jaxrl_reason.losses.defaults import ADVANTAGES, DEFAULTS
from jaxrl_reason.losses.diagnostics import (
  clip_metrics, combine, gap_metrics, over_updates, ratio_metrics, summarize,
)
from jaxrl_reason.losses.distillation import (
  DIVERGENCES, Distill, divergence, likeliest, stored_divergence, teach,
)
from jaxrl_reason.losses.entropy import (
  EntropyBonus, adaptive_entropy, entropy_from_logits, sum_p_squared,
)
from jaxrl_reason.losses.imitation import (
  SUPERVISED, Imitate, Likelihood, Luffy, RLPlus, anneal, dft, luffy, pear,
  rl_plus, sft,
)
from jaxrl_reason.losses.kl import (
  KL, KL_ESTIMATORS, adaptive_kl, kl_penalty,
)
from jaxrl_reason.losses.length import (
  alp_penalty, brevity_bonus, cosine_reward, difficulty, drop_rows, kimi_bonus,
  l1_exact_penalty, l1_max_reward, laser_bonus, laser_d_target,
  o1_pruner_reward, repeated_share, soft_overlong_penalty,
)
from jaxrl_reason.losses.objective import (
  advantages, denominators, loss_mask, policy_loss, select_tokens,
)
from jaxrl_reason.losses.passk import passk, pkpo
from jaxrl_reason.losses.policy import (
  CISPO, POLICIES, PPOClip, PolicyLoss, archer_clip, cispo, clip_cov, cpgd,
  importance_sampling, kl_cov, log_likelihood, ppo_clip, sapo,
)
from jaxrl_reason.losses.preference import (
  PREFERENCES, bradley_terry, dpo, ipo, kto, orpo, simpo,
)
from jaxrl_reason.losses.presets import PRESETS
from jaxrl_reason.losses.objective_record import Objective
from jaxrl_reason.losses.resampling import Resample, resampling_weights
from jaxrl_reason.losses.roles import role_baseline
from jaxrl_reason.losses.row_policy import (
  ROW_POLICIES, gmpo, mirror_descent, topr, vespo,
)
from jaxrl_reason.losses.selection import (
  clip_cov_tokens, covariance, high_entropy_in_row, kl_cov_tokens,
  low_entropy_tokens, moved_tokens, off_policy_rows, random_tokens,
  second_moment_tokens, tokens_within_tv, top_entropy_tokens,
  uncertain_tokens,
)
from jaxrl_reason.losses.segment_advantage import segments, tree
from jaxrl_reason.losses.settings import needs, resolve
from jaxrl_reason.losses.shaping import (
  clip_advantage, clip_reward, entropy_shape, weigh_signs, whiten,
)
from jaxrl_reason.losses.token_advantage import (
  gae, implicit_reward, prime, returns, token_rewards, value_targets,
)
from jaxrl_reason.losses.token_baseline import (
  length_preference, optimal_token,
)
from jaxrl_reason.losses.trust_region import (
  DPPO, DPPOTopK, TRUST_REGIONS, dppo, dppo_top_k,
)
from jaxrl_reason.losses.value import (
  binary_cross_entropy, implicit_prm, value_loss,
)

__all__ = [
  'ADVANTAGES', 'AGGREGATIONS', 'Aggregate', 'CISPO', 'Clip', 'DEFAULTS',
  'DIVERGENCES', 'DPPO', 'DPPOTopK', 'Distill', 'EntropyBonus', 'Imitate',
  'KL', 'KL_ESTIMATORS', 'LEVELS', 'Likelihood', 'Luffy', 'MAX_LOG_RATIO',
  'Mask', 'Objective', 'POLICIES', 'PPOClip', 'PREFERENCES', 'PRESETS', 'Part',
  'PolicyLoss', 'RLPlus', 'ROW_POLICIES', 'Reject', 'Resample', 'SHAPES',
  'SUPERVISED', 'TRUST_REGIONS', 'Truncate', 'adaptive_entropy',
  'adaptive_kl', 'advantages', 'aggregate', 'alp_penalty', 'anneal',
  'archer_clip', 'bellman_loss', 'best_of_group', 'binary_cross_entropy',
  'bnpo', 'bradley_terry', 'brevity_bonus', 'cispo', 'clip_advantage',
  'clip_cov', 'clip_cov_tokens', 'clip_metrics', 'clip_reward', 'combine',
  'correction_weight', 'cosine_reward', 'counts', 'covariance', 'cpgd',
  'critic_loss', 'critic_targets', 'dead_group_share', 'denominators', 'dft',
  'difficulty', 'divergence', 'dpo', 'dppo', 'dppo_top_k', 'drop_rows',
  'entropy_from_logits', 'entropy_shape', 'filter_metric',
  'gae', 'gap_metrics', 'gdpo', 'gfpo', 'gmpo', 'gpg', 'greedy_baseline',
  'group_mean', 'group_mean_batch_std', 'group_token_weight', 'group_zscore',
  'high_entropy_in_row', 'implicit_prm', 'implicit_reward',
  'importance_ratio', 'importance_sampling', 'init_coefs', 'ipo', 'keep',
  'kimi_bonus', 'kl_cov', 'kl_cov_tokens', 'kl_penalty', 'kto',
  'l1_exact_penalty', 'l1_max_reward', 'laser_bonus', 'laser_d_target',
  'leave_one_out', 'leave_one_out_std', 'length_preference',
  'length_weighted', 'likeliest', 'log_likelihood', 'log_ratio', 'loss_mask',
  'luffy',
  'low_entropy_tokens', 'masked_mean', 'masked_var', 'maxrl', 'mean_logp',
  'mirror_descent', 'moved_tokens',
  'needs', 'next_coefs', 'normalise', 'o1_pruner_reward', 'off_policy_rows',
  'optimal_token', 'optimal_value', 'orpo', 'over_updates', 'passk', 'pear',
  'pkpo',
  'policy_loss',
  'positives', 'ppo_clip', 'prime', 'proximal_logp', 'random_tokens', 'rank',
  'ratio_metrics', 'reinforce', 'reinforce_rej', 'rejection_weight',
  'repeated_share', 'resampling_weights', 'resolve', 'returns',
  'rl_plus', 'role_baseline', 'rover', 'row_count', 'row_mean', 'row_sum',
  'rows_to_tokens', 'sapo', 'second_moment_tokens', 'segments',
  'select_tokens', 'sft', 'signs', 'simpo', 'soft_overlong_penalty',
  'stored_divergence', 'sum_p_squared',
  'summarize', 'tbrm', 'teach', 'token_logp', 'token_rewards',
  'tokens_within_tv', 'top_entropy_tokens', 'topr', 'tree',
  'uncertain_tokens', 'value_loss',
  'value_targets', 'vespo', 'weigh_signs', 'whiten',
]


def __dir__() -> list[str]:
  return sorted(__all__)
