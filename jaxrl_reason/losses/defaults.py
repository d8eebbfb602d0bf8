"""Defines every setting with its default, meaning, unit and allowed values.

Names of choices are keys of dicts of functions. A new part is a new entry.
"""

import collections
import math
import numbers
from typing import Any

from jaxrl_reason.losses import (
  baselines,
  composed,
  correction,
  kl,
  passk,
  policy,
  resampling,
  token_baseline,
  trust_region,
)
from jaxrl_reason.losses import segment_advantage as segment
from jaxrl_reason.losses import token_advantage as token
from jaxrl_reason.losses.aggregation import AGGREGATIONS
from jaxrl_reason.losses.arrays import LEVELS
from jaxrl_reason.losses.bellman import BELLMAN
from jaxrl_reason.losses.distillation import DISTILL, TOP_OF
from jaxrl_reason.losses.imitation import SFT_LOSSES, SFT_ON
from jaxrl_reason.losses.presets import PRESETS
from jaxrl_reason.losses.row_policy import ROW_POLICIES

ADVANTAGES = {
  'none': baselines.NoAdvantage,
  'reinforce': baselines.Reinforce,
  'optimal_value': baselines.OptimalValue,
  'reinforce_rej': baselines.ReinforceRej,
  'positives': baselines.Positives,
  'signs': baselines.Signs,
  'greedy_baseline': baselines.GreedyBaseline,
  'group_mean': baselines.GroupMean,
  'group_zscore': baselines.GroupZScore,
  'leave_one_out': baselines.LeaveOneOut,
  'group_mean_batch_std': baselines.GroupMeanBatchStd,
  'length_weighted': baselines.LengthWeighted,
  'gpg': baselines.GPG,
  'maxrl': baselines.MaxRL,
  'rank': baselines.Rank,
  'bnpo': baselines.BNPO,
  'gfpo': composed.GFPO,
  'gdpo': composed.GDPO,
  'passk': passk.PassK,
  'pkpo': passk.PKPO,
  'returns': token.Returns,
  'gae': token.GAE,
  'prime': token.PRIME,
  'segments': segment.Segments,
  'tree': segment.Tree,
  'optimal_token': token_baseline.OptimalToken,
  'best_of_group': composed.BestOfGroup,
  'leave_one_out_std': composed.LeaveOneOutStd,
}
TOKEN_ADVANTAGES = (
  'returns',
  'gae',
  'prime',
  'segments',
  'tree',
  'optimal_token',
)

DEFAULTS = dict(
  name=None,  # a key of PRESETS
  # --- reward -> advantage
  reward_low=None,  # lower clip of rewards; None: no clip
  reward_high=None,  # upper clip of rewards; None: no clip
  advantage='group_zscore',  # a key of ADVANTAGES
  ddof=1,  # a group's variance is divided by n - ddof
  eps=1e-6,  # added to the standard deviation, in reward units
  singleton='zero',  # a row alone in its group gets 'zero' or its 'reward'
  skip_empty=False,  # exclude rows without tokens from group statistics
  baseline=0.0,  # reinforce: constant subtracted, in reward units
  threshold=0.0,  # positives, signs, passk, sft: rewards above are successes
  value_beta=0.5,  # optimal_value: weight of the KL in V*, reward units
  divide_by_std=False,  # best_of_group: divide by the group's deviation
  keep_k=4,  # gfpo: rows kept per group
  keep_by='short',  # gfpo: 'short' or 'efficient' (reward per token)
  part_weights=(),  # gdpo: one per reward part; (): those of rl.rewards
  pass_k=4,  # passk, pkpo: k, in samples
  pkpo_baseline='loo_minus_one',  # or 'loo', 'none'
  gamma=1.0,  # discount per token
  gae_lambda=0.95,  # lambda of the policy's advantages
  lambda_alpha=None,  # VAPO: lambda = 1 - 1 / (alpha length); None: constant
  value_lambda=1.0,  # lambda of the critic's targets
  value_clip=None,  # clip of the critic's step, in reward units; None: none
  segment_gamma=1.0,  # discount per segment; 0: a turn's own reward only
  segment_baseline='group_mean',  # a key of SEGMENT_BASELINES
  tree_global=1.0,  # weight of V(node) - V(root)
  tree_local=1.0,  # weight of V(node) - V(parent)
  tree_power=0.5,  # divide by the node's leaves to this power
  otb_places='column',  # optimal_token: a key of OTB_PLACES
  # --- advantage -> advantage
  whiten='none',  # 'none', or over the batch's 'rows' or 'tokens'
  whiten_ddof=1,  # divisor of that variance is n - whiten_ddof
  whiten_eps=1e-8,  # added to that variance
  entropy_alpha=0.0,  # weight of the entropy bonus per nat; 0: none
  entropy_kappa=2.0,  # the bonus is at most |A| / kappa
  adv_max=None,  # clip advantages to +-this; None: no clip
  pos_weight=1.0,  # factor on positive advantages
  neg_weight=1.0,  # factor on negative advantages
  # --- rows drawn again, when their advantages are known
  resample='none',  # 'none' or a key of RESAMPLE, by the reward
  resample_power=2.0,  # power: the weight is |reward| to this power
  # --- advantage -> loss per token
  policy='ppo_clip',  # a key of POLICIES, TRUST_REGIONS or BELLMAN
  ratio='token',  # level of the ratio pi / old, a key of LEVELS
  ratio_to='old',  # the ratio's denominator: 'old', 'sampler' or 'ref'
  clip_low=None,  # ratio >= 1 - clip_low (gmpo: e^-clip_low); None: policy's
  clip_high=None,  # ratio <= 1 + clip_high (gmpo: e^clip_high); None: policy's
  clip_high_entropy=None,  # Archer: both clips on high-entropy tokens
  dual_clip=None,  # cap on the ratio where A < 0; None: no cap
  kl_cov_coef=1.0,  # kl_cov: weight of |log ratio| per nat
  cov_share=2e-4,  # clip_cov, kl_cov: share of the batch's tokens
  cov_low=1.0,  # clip_cov: smallest covariance of clipped tokens
  cov_high=5.0,  # clip_cov: largest covariance of clipped tokens
  tau_pos=1.0,  # sapo: temperature where A > 0
  tau_neg=1.05,  # sapo: temperature elsewhere
  drift_coef=0.0,  # cpgd: weight of KL(old || pi) per nat
  divergence='tv',  # dppo, dppo_top_k: 'tv' or 'kl'
  divergence_top_k=20,  # dppo_top_k: the old policy's likeliest; 0: all
  max_divergence=0.15,  # dppo: trust region, a probability ('kl': nats)
  mask_sides='away',  # dppo: a key of MASK_SIDES
  ratio_max=None,  # dppo: cap on the ratio; None: no cap
  md_tau=0.1,  # mirror_descent: weight of the squared log ratio
  md_level='sequence',  # mirror_descent: 'sequence' or 'token'
  vespo_pos=(2.0, 3.0),  # vespo: (c1, c2) where A >= 0
  vespo_neg=(3.0, 2.0),  # vespo: (c1, c2) where A < 0
  topr_pos=(1.0, 1.0),  # topr: (low, high) of the weight where A >= 0
  topr_neg=(0.0, 1.0),  # topr: (low, high) of the weight where A < 0
  tbrm_beta=0.002,  # tbrm: weight of the KL to the reference
  rover_rho=1.0,  # rover: Q = rho log (pi / old)
  entropy_share=None,  # train only on this share of tokens, by entropy
  low_entropy_share=None,  # train only on this share of tokens, the lowest
  random_share=None,  # train only on this share of tokens, drawn at random
  entropy_quantile=0.8,  # Archer: quantile in a row where high entropy starts
  max_row_drift=None,  # drop negative rows with a larger mean drift, in nats
  max_second_moment=None,  # M2PO: largest mean (log old / sampler)^2, nats^2
  max_prompt_tv=None,  # TVPO: largest total variation of a prompt's tokens
  # --- data from another policy
  drop_truncated=False,  # do not train on rows that reach the limit of tokens
  offpolicy='same',  # loss of off-policy tokens, a key of OFFPOLICY
  luffy_gamma=0.1,  # luffy: f(p) = p / (p + gamma)
  rl_plus_gamma=0.5,  # rl_plus: advantages times (1 - p)^gamma
  correction='none',  # 'none' or a key of CORRECTIONS: weight old / sampler
  correction_level='token',  # level of the weight, a key of LEVELS
  correction_low=None,  # smallest weight; None: 0
  correction_high=2.0,  # largest weight; None: unbounded
  correction_normalise=False,  # divide by the batch's mean weight
  reject_by='ratio',  # quantity that rejects rows, a key of REJECT_BY
  reject_level='sequence_mean',  # its level, a key of REJECT_LEVELS
  reject_low=None,  # reject where old / sampler is below; None: never
  reject_high=None,  # reject where old / sampler is above; None: never
  veto=None,  # reject rows with a token's old / sampler below; None: never
  sft_coef=0.0,  # weight of the likelihood of the `sft_mask` tokens
  sft_on='right',  # rows whose tokens these are, a key of SFT_ON
  sft_coef_end=None,  # sft_coef after sft_steps; None: constant
  sft_steps=1,  # updates over which sft_coef changes
  sft_shape='linear',  # shape of this change: 'linear' or 'cosine'
  sft_loss='sft',  # loss of these tokens: 'sft' or 'dft'
  length_lambda=None,  # Lambda-GRPO: weight of rows by length; None: equal
  length_spread=1 / 9,  # change of it per standard deviation of lengths
  # --- loss per token -> loss
  aggregation='token_mean',  # a key of AGGREGATIONS
  fixed_length=None,  # divisor of 'fixed_length', in tokens; None: T
  count_empty=False,  # count rows without tokens in means over rows
  # --- KL
  kl_coef=0.0,  # per nat; 0: no reference is ever computed
  kl='k3',  # a key of KL_ESTIMATORS
  kl_in='loss',  # place of the KL term: 'loss' or 'reward'
  kl_to='ref',  # KL to the policy 'ref', 'old' or 'sampler'
  kl_max=None,  # clamp of the KL per token, in nats; None: no clamp
  kl_max_on='estimate',  # value that kl_max clamps: 'estimate', 'weighted'
  kl_weighted=False,  # times the ratio pi / old (DeepSeek-V3.2)
  kl_high_entropy=1.0,  # Archer: factor on high-entropy tokens
  kl_target=None,  # adaptive coefficient: nats per token; None: constant
  kl_horizon=10000,  # horizon of the adaptive coefficient, in rows
  # --- a teacher
  distill_coef=0.0,  # weight per nat; 0: no teacher
  distill='advantage',  # a key of DISTILL: form of the divergence
  distill_beta=0.5,  # jsd: share of the teacher in the mixture
  distill_top_k=0,  # reverse, forward, jsd, tv: likeliest tokens; 0: all
  distill_top_of='teacher',  # model of these tokens: 'teacher' or 'policy'
  distill_gamma=0.0,  # advantage: IW-OPD's weight of early tokens; 0: none
  distill_max=None,  # clamp of a sampled token's estimate, nats; None: none
  # --- entropy
  entropy_coef=0.0,  # per nat; the bonus is subtracted from the loss
  entropy_bonus_share=None,  # share of tokens with the bonus, by entropy
  entropy_target=None,  # adaptive coefficient: nats per token; None: constant
  entropy_step=1e-3,  # step of the adaptive coefficient per update
  entropy_coef_min=0.0,  # smallest adaptive coefficient while it is active
  entropy_coef_max=1.0,  # largest adaptive coefficient
)

# Names that other libraries give to a setting.
PEER_NAMES = dict(
  beta='kl_coef',
  kl_beta='kl_coef',
  eps_clip='clip_low',
  eps_clip_higher='clip_high',
  kl_loss_coef='kl_coef',
  kl_penalty='kl',
  kl_loss_type='kl',
  epsilon='clip_low',
  epsilon_high='clip_high',
  epsilon_low='clip_low',
  cliprange='clip_low',
  clip_ratio='clip_low',
  clip_ratio_low='clip_low',
  clip_ratio_high='clip_high',
  clip_ratio_c='dual_clip',
  delta='dual_clip',
  lam='gae_lambda',
  adv_estimator='advantage',
  loss_type='aggregation',
  loss_agg_mode='aggregation',
  importance_sampling_level='ratio',
  entropy_coeff='entropy_coef',
  scale_rewards='advantage',
  mask_truncated_completions='drop_truncated',
)

OFFPOLICY = ('same', 'luffy', 'rl_plus', 'sft', 'drop')
# The allowed values of settings with choices.
CHOICES = dict(
  name=PRESETS,
  advantage=ADVANTAGES,
  singleton=('zero', 'reward'),
  keep_by=('short', 'efficient'),
  pkpo_baseline=passk.PKPO_BASELINES,
  segment_baseline=segment.SEGMENT_BASELINES,
  whiten=('none', 'rows', 'tokens'),
  # Views of these dicts, so that a loss added to POLICIES is a choice.
  policy=collections.ChainMap(
    policy.POLICIES, ROW_POLICIES, trust_region.TRUST_REGIONS, BELLMAN
  ),
  resample=('none', *resampling.RESAMPLE),
  ratio=LEVELS,
  ratio_to=('old', 'sampler', 'ref'),
  divergence=trust_region.REGIONS,
  md_level=('sequence', 'token'),
  offpolicy=OFFPOLICY,
  correction=('none', *correction.CORRECTIONS),
  correction_level=LEVELS,
  reject_by=correction.REJECT_BY,
  reject_level=correction.REJECT_LEVELS,
  mask_sides=trust_region.MASK_SIDES,
  otb_places=token_baseline.OTB_PLACES,
  sft_shape=('linear', 'cosine'),
  sft_loss=SFT_LOSSES,
  sft_on=SFT_ON,
  aggregation=AGGREGATIONS,
  kl=kl.KL_ESTIMATORS,
  kl_in=('loss', 'reward'),
  distill=DISTILL,
  distill_top_of=TOP_OF,
  kl_to=('ref', 'old', 'sampler'),
  kl_max_on=('estimate', 'weighted'),
)
INTEGERS = frozenset(
  'ddof keep_k pass_k whiten_ddof sft_steps distill_top_k '
  'divergence_top_k'.split()
)
PAIRS = frozenset('vespo_pos vespo_neg topr_pos topr_neg'.split())
# Numbers that must exceed 0, then the smallest and largest value of others;
# None: unbounded. In a tuple, every number is checked.
POSITIVE = frozenset(
  'lambda_alpha value_clip adv_max tau_pos tau_neg md_tau '
  'max_divergence tbrm_beta rover_rho luffy_gamma correction_high reject_high '
  'veto ratio_max length_spread kl_max kl_target kl_horizon entropy_step '
  'entropy_share entropy_bonus_share low_entropy_share random_share '
  'distill_max max_second_moment max_prompt_tv value_beta'.split()
)
RANGES = {
  **dict.fromkeys(
    'ddof whiten_ddof gamma gae_lambda value_lambda segment_gamma clip_low '
    'clip_high_entropy cov_share entropy_share entropy_bonus_share '
    'low_entropy_share random_share '
    'entropy_quantile distill_beta'.split(),
    (0, 1),
  ),
  **dict.fromkeys(
    'eps whiten_eps tree_global tree_local tree_power entropy_alpha pos_weight '
    'neg_weight clip_high kl_cov_coef drift_coef vespo_pos vespo_neg topr_pos '
    'topr_neg max_row_drift correction_low reject_low sft_coef sft_coef_end '
    'kl_coef kl_high_entropy entropy_target entropy_coef_min entropy_coef_max '
    'distill_coef distill_top_k distill_gamma divergence_top_k '
    'resample_power rl_plus_gamma'.split(),
    (0, None),
  ),
  **dict.fromkeys(
    'keep_k pass_k sft_steps fixed_length entropy_kappa'.split(), (1, None)
  ),
}


def check_number(key: str, x: Any, value: Any) -> None:
  """Refuses values that are not finite numbers in range."""
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
