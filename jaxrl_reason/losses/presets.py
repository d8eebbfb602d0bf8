"""Published algorithms as settings: name -> differences from `DEFAULTS`.

`cite` and `paper` are for docs/algorithms.md, which is generated from this
table. A preset has the settings of the paper's objective. Learning rates, batch
and group sizes, and filters of the data are settings of the run.
"""


def _from(base, source, **changes):
  """Returns a preset with changes; source: 'authors year, arXiv or address'."""
  cite, paper = source.split(', ')
  url = paper if '/' in paper else f'https://arxiv.org/abs/{paper}'
  return {**base, **changes, 'cite': cite, 'paper': url}


# The common basis of most papers: PPO's loss, GRPO's advantages, no KL.
_CLIPPED = dict(
  advantage='group_zscore',
  policy='ppo_clip',
  clip_low=0.2,
  clip_high=0.2,
  aggregation='seq_mean_token_mean',
)
_PER_TOKEN = {**_CLIPPED, 'aggregation': 'token_mean'}
_PLAIN = dict(
  advantage='reinforce',
  policy='log_likelihood',
  aggregation='seq_mean_token_sum',
)
_RLOO = _from(
  _PLAIN,
  'Ahmadian et al. 2024, 2402.14740',
  advantage='leave_one_out',
  kl_in='reward',
  kl='k1',
  kl_coef=0.05,
)
_PPO = _from(
  _PER_TOKEN,
  'Schulman et al. 2017, 1707.06347',
  advantage='gae',
  value_lambda=0.95,
)
_GRPO = _from(_CLIPPED, 'Shao et al. 2024, 2402.03300', kl='k3', kl_coef=0.04)
_DAPO = _from(_PER_TOKEN, 'Yu et al. 2025, 2503.14476', clip_high=0.28)
_GSPO = _from(
  _CLIPPED,
  'Zheng et al. 2025, 2507.18071',
  ratio='sequence_mean',
  clip_low=3e-4,
  clip_high=4e-4,
)
_NSR = _from(_PER_TOKEN, 'Zhu et al. 2025, 2506.01347', advantage='signs')
_IPO = _from(
  dict(advantage='group_mean', aggregation='token_mean'),
  'Prime Intellect 2025, https://github.com/PrimeIntellect-ai/prime-rl',
  policy='dppo',
  ratio_to='sampler',
  mask_sides='both',
  max_divergence=0.1,
  kl='k2',
  kl_to='sampler',
  kl_coef=0.002,
)
_OPD = _from(
  dict(advantage='none', policy='importance_sampling', distill_coef=1.0),
  'Thinking Machines Lab 2025, '
  'https://thinkingmachines.ai/blog/on-policy-distillation',
)
_GKD = _from(
  dict(advantage='none', policy='log_likelihood', distill_coef=1.0),
  'Agarwal et al. 2023, 2306.13649',
  distill='jsd',
)
_UNCLIPPED = dict(advantage='group_zscore', aggregation='seq_mean_token_mean')
# The authors' script has neither a clip nor a KL; nor has that of RL-PLUS.
_LUFFY = _from(
  _UNCLIPPED,
  'Yan et al. 2025, 2504.14945',
  advantage='group_mean',
  policy='importance_sampling',
  aggregation='fixed_length',
  offpolicy='luffy',
  entropy_coef=0.001,
)

PRESETS = {
  # --- REINFORCE and PPO
  'reinforce': _from(
    _PLAIN,
    'Williams 1992, https://link.springer.com/article/10.1007/BF00992696',
  ),
  'remax': _from(
    _RLOO, 'Li et al. 2023, 2310.10505', advantage='greedy_baseline'
  ),
  'rloo': _RLOO,
  'reinforce_pp': _from(
    _PER_TOKEN,
    'Hu 2025, 2501.03262',
    advantage='returns',
    whiten='tokens',
    kl_in='reward',
    kl='k1',
    kl_coef=0.01,
  ),
  'reinforce_pp_baseline': _from(
    _PER_TOKEN,
    'Hu 2025, 2501.03262',
    advantage='group_mean',
    whiten='rows',
    kl='k2',
    kl_coef=0.01,
  ),
  'ppo': _PPO,
  'vc_ppo': _from(_PPO, 'Yuan et al. 2025, 2503.01491', value_lambda=1.0),
  'pf_ppo': _from(_PPO, 'Zhang et al. 2024, 2409.06957', resample='power'),
  'vapo': _from(
    _PPO,
    'Yue et al. 2025, 2504.05118',
    lambda_alpha=0.05,
    value_lambda=1.0,
    clip_high=0.28,
    sft_coef=0.1,
  ),
  # --- GRPO, and what changes its advantage
  'grpo': _GRPO,
  'dr_grpo': _from(
    _CLIPPED,
    'Liu et al. 2025, 2503.20783',
    advantage='group_mean',
    aggregation='fixed_length',
    count_empty=True,
  ),
  'lite_ppo': _from(
    _PER_TOKEN, 'Liu et al. 2025, 2508.08221', advantage='group_mean_batch_std'
  ),
  'opo': _from(
    _PLAIN, 'Hao et al. 2025, 2505.23585', advantage='length_weighted'
  ),
  'gpg': _from(
    _PLAIN,
    'Chu et al. 2025, 2504.02546',
    advantage='gpg',
    aggregation='token_mean',
  ),
  'gfpo': _from(
    _PER_TOKEN,
    'Shrivastava et al. 2025, 2508.09726',
    advantage='gfpo',
    kl_coef=0.001,
    entropy_coef=0.001,
  ),
  'gdpo': _from(
    _DAPO, 'Liu et al. 2026, 2601.05242', advantage='gdpo', whiten='rows'
  ),
  'bnpo': _from(_PER_TOKEN, 'Xiao et al. 2025, 2506.02864', advantage='bnpo'),
  'rank': _from(_CLIPPED, 'Wierstra et al. 2011, 1106.4487', advantage='rank'),
  'passk': _from(_DAPO, 'Chen et al. 2025, 2508.10751', advantage='passk'),
  'pkpo': _from(
    _PLAIN, 'Walder & Karkhanis 2025, 2505.15201', advantage='pkpo'
  ),
  'grpo_passk': _from(
    _CLIPPED,
    'Tang et al. 2025, 2503.19595',
    advantage='best_of_group',
    divide_by_std=True,
  ),
  'otb': _from(
    _PER_TOKEN, 'Li et al. 2026, 2602.07078', advantage='optimal_token'
  ),
  'otb_turns': _from(
    _PER_TOKEN,
    'Li et al. 2026, 2602.07078',
    advantage='optimal_token',
    otb_places='token',
  ),
  'maxrl': _from(_PLAIN, 'Tajwar et al. 2026, 2602.02710', advantage='maxrl'),
  'prime': _from(_PER_TOKEN, 'Cui et al. 2025, 2502.01456', advantage='prime'),
  'tree_rl': _from(
    _PLAIN,
    'Hou et al. 2025, 2506.11902',
    advantage='tree',
    aggregation='token_mean',
  ),
  'mt_grpo': _from(
    _GRPO,
    'Zeng et al. 2025, 2505.11821',
    advantage='segments',
    segment_baseline='group_zscore',
  ),
  'entropy_advantage': _from(
    _DAPO, 'Cheng et al. 2025, 2506.14758', entropy_alpha=0.4
  ),
  # --- what changes the likelihood term
  'dapo': _DAPO,
  'clip_cov': _from(
    _PER_TOKEN, 'Cui et al. 2025, 2505.22617', policy='clip_cov'
  ),
  'kl_cov': _from(
    _UNCLIPPED,
    'Cui et al. 2025, 2505.22617',
    policy='kl_cov',
    aggregation='token_mean',
  ),
  'top_entropy': _from(
    _DAPO, 'Wang et al. 2025, 2506.01939', entropy_share=0.2
  ),
  'archer': _from(
    _PER_TOKEN,
    'Wang et al. 2025, 2507.15778',
    clip_high_entropy=0.5,
    kl_coef=0.001,
    kl_high_entropy=0.0,
  ),
  'cispo': _from(
    _PER_TOKEN,
    'MiniMax 2025, 2506.13585',
    policy='cispo',
    clip_low=1.0,
    clip_high=4.0,
  ),
  'gspo': _GSPO,
  'gspo_token': {**_GSPO, 'ratio': 'sequence_mean_token'},
  'luspo': _from(
    _GSPO,
    'Liu et al. 2026, 2602.05261',
    clip_low=2e-3,
    clip_high=2.5e-3,
    aggregation='seq_mean_token_sum',
  ),
  'gmpo': _from(
    _CLIPPED,
    'Zhao et al. 2025, 2507.20673',
    policy='gmpo',
    clip_low=0.4,
    clip_high=0.4,
  ),
  'sapo': _from(_UNCLIPPED, 'Gao et al. 2025, 2511.20347', policy='sapo'),
  'cpgd': _from(
    _CLIPPED, 'Liu et al. 2025, 2505.12504', policy='cpgd', drift_coef=0.01
  ),
  'dppo': _from(_UNCLIPPED, 'Qi et al. 2026, 2602.04879', policy='dppo'),
  'dppo_top_k': _from(
    _UNCLIPPED, 'Qi et al. 2026, 2602.04879', policy='dppo_top_k'
  ),
  'vespo': _from(
    _UNCLIPPED,
    'Shen et al. 2026, 2602.10693',
    policy='vespo',
    aggregation='token_mean',
  ),
  'topr': _from(
    _PLAIN, 'Le Roux et al. 2025, 2503.14286', advantage='signs', policy='topr'
  ),
  'opmd': _from(
    _PLAIN,
    'Kimi Team 2025, 2501.12599',
    advantage='group_mean',
    policy='mirror_descent',
  ),
  'dro': _from(
    _PLAIN,
    'Richemond et al. 2024, 2405.19107',
    advantage='group_mean',
    policy='mirror_descent',
    ratio_to='ref',
    md_tau=1.0,
  ),
  'a_star_po': _from(
    _PLAIN,
    'Brantley et al. 2025, 2505.20686',
    advantage='optimal_value',
    policy='mirror_descent',
    ratio_to='ref',
    md_tau=1e-3,
  ),
  'luspo_token': _from(
    _CLIPPED,
    'Liu et al. 2026, 2602.05261',
    aggregation='seq_mean_token_sum',
    count_empty=True,
  ),
  'lambda_grpo': _from(
    _PER_TOKEN, 'Wang et al. 2025, 2510.06870', length_lambda=1.0
  ),
  'ipo_mask': _IPO,
  'echo': {**_IPO, 'sft_coef': 0.1, 'sft_on': 'observations'},
  'm2po': _from(
    _UNCLIPPED,
    'Zheng et al. 2025, 2510.01161',
    policy='importance_sampling',
    ratio_to='sampler',
    aggregation='token_mean',
    max_second_moment=0.04,
  ),
  'tvpo': _from(
    _UNCLIPPED,
    'Ai2 2026, https://github.com/allenai/open-instruct',
    policy='cispo',
    ratio_to='sampler',
    clip_low=1.0,
    clip_high=19.0,
    aggregation='token_mean',
    max_prompt_tv=0.02,
  ),
  # --- successes, failures
  'raft': _from(
    _PLAIN,
    'Dong et al. 2023, 2304.06767',
    advantage='positives',
    aggregation='token_mean',
  ),
  'raft_pp': _from(
    _PER_TOKEN, 'Xiong et al. 2025, 2504.11343', advantage='positives'
  ),
  'reinforce_rej': _from(
    _PER_TOKEN, 'Xiong et al. 2025, 2504.11343', advantage='reinforce_rej'
  ),
  'nsr': {**_NSR, 'pos_weight': 0.0},
  'psr': {**_NSR, 'neg_weight': 0.0},
  'w_reinforce': {**_NSR, 'pos_weight': 0.1},
  # --- data from another policy
  'flash_rl': _from(
    _DAPO,
    'Yao et al. 2025, https://fengyao.notion.site/off-policy-rl',
    correction='truncate',
  ),
  'icepop': _from(
    _CLIPPED,
    'Ling Team 2025, 2510.18855',
    correction='mask',
    correction_low=0.5,
    correction_high=5.0,
  ),
  'decoupled_ppo': _from(
    _PPO,
    'Hilton et al. 2021, 2110.00641',
    correction='truncate',
    correction_high=None,
  ),
  'deepseek_v32': _from(
    _GRPO,
    'DeepSeek-AI 2025, 2512.02556',
    advantage='group_mean',
    kl_weighted=True,
    max_row_drift=0.1,
  ),
  'luffy': _LUFFY,
  'rl_plus': _from(_LUFFY, 'Dong et al. 2025, 2508.00222', offpolicy='rl_plus'),
  # --- a teacher
  'opd': _OPD,
  'iw_opd': _from(_OPD, 'Xie et al. 2026, 2606.22600', distill_gamma=0.5),
  'ref_kl': {
    **_IPO,
    'advantage': 'none',
    'distill_coef': 1.0,
    'mask_sides': 'low',
    'max_divergence': 0.2,
  },
  'gkd': _GKD,
  'sdpo': _from(
    _GKD,
    'Huebotter et al. 2026, 2601.20802',
    distill_top_k=100,
    distill_top_of='policy',
  ),
  'kdrl': _from(
    _PER_TOKEN, 'Xu et al. 2025, 2506.02208', distill='k2', distill_coef=0.002
  ),
  # --- the policy's logits as action values (`bellman_loss`)
  'tbrm': _from(
    dict(advantage='reinforce'), 'Yuan et al. 2025, 2505.15311', policy='tbrm'
  ),
  'rover': _from(
    _PLAIN,
    'He et al. 2025, 2509.24981',
    advantage='group_mean',
    policy='rover',
    aggregation='token_mean',
  ),
}
