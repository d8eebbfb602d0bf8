"""Every setting with its default, meaning and unit, and what it may be.

Names of choices are keys of plain dicts of functions; a new part is a new
function in one of them.
"""

from jaxrl_reason.losses import (
  baselines,
  bellman,
  correction,
  kl,
  passk,
  policy,
)
from jaxrl_reason.losses import token_advantage as token
from jaxrl_reason.losses.aggregation import AGGREGATIONS
from jaxrl_reason.losses.ratio import LEVELS
from jaxrl_reason.losses.recipes import RECIPES

ADVANTAGES = {
  'reinforce': baselines.reinforce,
  'reinforce_rej': baselines.reinforce_rej,
  'positives': baselines.positives,
  'signs': baselines.signs,
  'greedy_baseline': baselines.greedy_baseline,
  'group_mean': baselines.group_mean,
  'group_zscore': baselines.group_zscore,
  'leave_one_out': baselines.leave_one_out,
  'group_mean_batch_std': baselines.group_mean_batch_std,
  'length_weighted': baselines.length_weighted,
  'gpg': baselines.gpg,
  'maxrl': baselines.maxrl,
  'rank': baselines.rank,
  'bnpo': baselines.bnpo,
  'gfpo': baselines.gfpo,
  'gdpo': baselines.gdpo,
  'passk': passk.passk,
  'pkpo': passk.pkpo,
  'returns': token.returns,
  'gae': token.gae,
  'prime': token.prime,
  'segments': token.segments,
  'tree': token.tree,
}
TOKEN_ADVANTAGES = ('returns', 'gae', 'prime', 'segments', 'tree')
BELLMAN = {'tbrm': bellman.tbrm, 'rover': bellman.rover}

DEFAULTS = dict(
  name=None,  # a key of RECIPES
  # --- reward -> advantage
  advantage='group_zscore',  # a key of ADVANTAGES
  ddof=1,  # a group's variance is divided by n - ddof
  eps=1e-6,  # added to the standard deviation, in reward units
  singleton='zero',  # a row alone in its group gets 'zero' or its 'reward'
  skip_empty=False,  # leave rows without a token out of group statistics
  baseline=0.0,  # reinforce: constant subtracted, in reward units
  threshold=0.0,  # positives, signs, passk: a success is a reward above this
  keep_k=4,  # gfpo: rows kept per group
  keep_by='short',  # gfpo: 'short' or 'efficient' (reward per token)
  part_weights=(),  # gdpo: one weight per reward part; (): all 1
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
  # --- advantage -> advantage
  whiten='none',  # 'none', or over the batch's 'rows' or 'tokens'
  whiten_ddof=1,  # divisor of that variance is n - whiten_ddof
  whiten_eps=1e-8,  # added to that variance
  entropy_alpha=0.0,  # weight of the entropy bonus per nat; 0: none
  entropy_kappa=2.0,  # the bonus is at most |A| / kappa
  adv_max=None,  # clip advantages to +-this; None: no clip
  pos_weight=1.0,  # factor on positive advantages
  neg_weight=1.0,  # factor on negative advantages
  # --- advantage -> loss per token
  policy='ppo_clip',  # a key of POLICIES, or of BELLMAN
  ratio='token',  # a key of LEVELS: what pi / old is taken over
  ratio_to='old',  # the ratio's denominator: 'old', 'sampler' or 'ref'
  clip_low=None,  # ratio >= 1 - clip_low (gmpo: e^-clip_low); None: policy's
  clip_high=None,  # ratio <= 1 + clip_high (gmpo: e^clip_high); None: policy's
  clip_high_entropy=None,  # Archer: both clips on high-entropy tokens
  dual_clip=None,  # cap on the ratio where A < 0; None: no cap
  kl_cov_coef=1.0,  # kl_cov: weight of |log ratio| per nat
  cov_share=2e-4,  # clip_cov, kl_cov: share of the batch's tokens
  cov_low=1.0,  # clip_cov: covariances drawn from are above this
  cov_high=5.0,  # ... and below this
  tau_pos=1.0,  # sapo: temperature where A > 0
  tau_neg=1.05,  # sapo: temperature elsewhere
  drift_coef=0.0,  # cpgd: weight of KL(old || pi) per nat
  divergence='tv',  # dppo: 'tv' or 'kl'
  max_divergence=0.15,  # dppo: trust region, a probability ('kl': nats)
  md_tau=0.1,  # mirror_descent: weight of the squared log ratio
  md_level='sequence',  # mirror_descent: 'sequence' or 'token'
  vespo_pos=(2.0, 3.0),  # vespo: (c1, c2) where A >= 0
  vespo_neg=(3.0, 2.0),  # vespo: (c1, c2) where A < 0
  topr_pos=(1.0, 1.0),  # topr: (low, high) of the weight where A >= 0
  topr_neg=(0.0, 1.0),  # topr: (low, high) of the weight where A < 0
  tbrm_beta=0.002,  # tbrm: weight of the KL to the reference
  rover_rho=1.0,  # rover: Q = rho log (pi / old)
  entropy_share=None,  # train only on this share of tokens, by entropy
  entropy_quantile=0.8,  # Archer: high entropy starts here, within a row
  max_row_drift=None,  # drop negative rows past this mean drift, in nats
  # --- data from another policy
  drop_truncated=False,  # rows cut off at the limit are not trained on
  offpolicy='same',  # is_offpolicy tokens: a key of OFFPOLICY
  luffy_gamma=0.1,  # luffy: f(p) = p / (p + gamma)
  correction='none',  # 'none' or a key of CORRECTIONS: weight old / sampler
  correction_level='token',  # a key of LEVELS
  correction_low=None,  # smallest weight; None: 0
  correction_high=2.0,  # largest weight; None: unbounded
  correction_normalise=False,  # divide by the batch's mean weight
  reject_level='sequence',  # a key of LEVELS
  reject_low=None,  # reject where old / sampler is below; None: never
  reject_high=None,  # reject where old / sampler is above; None: never
  veto=None,  # reject rows with a token's old / sampler below; None: never
  sft_coef=0.0,  # weight of the likelihood of the `sft_mask` tokens
  sft_coef_end=None,  # its value after sft_steps; None: constant
  sft_steps=1,  # updates over which it changes
  sft_shape='linear',  # 'linear' or 'cosine'
  sft_loss='sft',  # 'sft' or 'dft'
  # --- loss per token -> loss
  aggregation='token_mean',  # a key of AGGREGATIONS
  fixed_length=None,  # divisor of 'fixed_length', in tokens; None: T
  count_empty=False,  # whether rows without a token count as rows
  # --- KL
  kl_coef=0.0,  # per nat; 0: no reference is ever computed
  kl='k3',  # a key of KL_ESTIMATORS
  kl_in='loss',  # 'loss' or 'reward'
  kl_to='ref',  # 'ref' or 'old'
  kl_max=None,  # clamp of the KL per token, in nats; None: no clamp
  kl_weighted=False,  # times the ratio pi / old (DeepSeek-V3.2)
  kl_high_entropy=1.0,  # Archer: factor on high-entropy tokens
  kl_target=None,  # adaptive coefficient: nats per token; None: constant
  kl_horizon=10000,  # ... and its horizon, in rows
  # --- entropy
  entropy_coef=0.0,  # per nat; the bonus is subtracted from the loss
  entropy_bonus_share=None,  # only on this share of tokens, by entropy
  entropy_target=None,  # adaptive coefficient: nats per token; None: constant
  entropy_step=1e-3,  # ... and its step per update
  entropy_coef_max=1.0,  # ... and its largest value
)

OFFPOLICY = ('same', 'luffy', 'sft', 'drop')
CHOICES = dict(
  name=RECIPES,
  advantage=ADVANTAGES,
  singleton=('zero', 'reward'),
  keep_by=('short', 'efficient'),
  pkpo_baseline=('loo_minus_one', 'loo', 'none'),
  segment_baseline=token.SEGMENT_BASELINES,
  whiten=('none', 'rows', 'tokens'),
  policy={**policy.POLICIES, **BELLMAN},
  ratio=LEVELS,
  ratio_to=('old', 'sampler', 'ref'),
  divergence=('tv', 'kl'),
  md_level=('sequence', 'token'),
  offpolicy=OFFPOLICY,
  correction=('none', *correction.CORRECTIONS),
  correction_level=LEVELS,
  reject_level=LEVELS,
  sft_shape=('linear', 'cosine'),
  sft_loss=('sft', 'dft'),
  aggregation=AGGREGATIONS,
  kl=kl.KL_ESTIMATORS,
  kl_in=('loss', 'reward'),
  kl_to=('ref', 'old'),
)
# Smallest and largest value that mean anything; None: open.
RANGES = dict(
  ddof=(0, 1),
  eps=(0, None),
  whiten_ddof=(0, 1),
  whiten_eps=(0, None),
  keep_k=(1, None),
  pass_k=(1, None),
  gamma=(0, 1),
  gae_lambda=(0, 1),
  value_lambda=(0, 1),
  clip_low=(0, 1),
  clip_high=(0, None),
  cov_share=(0, 1),
  entropy_share=(0, 1),
  entropy_bonus_share=(0, 1),
  entropy_quantile=(0, 1),
  fixed_length=(1, None),
  luffy_gamma=(0, None),
  kl_coef=(0, None),
  sft_coef=(0, None),
)
