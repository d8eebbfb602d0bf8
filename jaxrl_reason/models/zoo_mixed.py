"""Published sizes of mixtures of experts and of hybrids, by name. They are part
of `zoo.ZOO`.
"""

from collections.abc import Iterable

from jaxrl_reason.models import families
from jaxrl_reason.models.config import Config

COLUMNS = (
  'num_hidden_layers',
  'hidden_size',
  'intermediate_size',
  'num_attention_heads',
  'num_key_value_heads',
  'head_dim',
  'vocab_size',
)


def make(model_type: str, row: Iterable[int], **keys) -> Config:
  """Builds a Config from the values of COLUMNS and further keys of config.json.

  Raises:
    ValueError: the values are not those of a model of this family.
  """
  h = {'model_type': model_type, **dict(zip(COLUMNS, row, strict=True))}
  return families.from_hf(h | {'max_position_embeddings': 131_072} | keys)


def _qwen3_moe(*row: int, width: int) -> Config:
  return make(
    'qwen3_moe',
    (*row, 128, 151_936),
    rope_theta=1e6,
    moe_intermediate_size=width,
    num_experts=128,
    num_experts_per_tok=8,
    norm_topk_prob=True,
  )


def _llama4(experts: int, **keys) -> Config:
  row = 48, 5120, 8192, 40, 8, 128, 202_048
  return make('llama4_text', row, num_local_experts=experts, **keys)


def _qwen3_5(*row: int, values: int, tied: bool = False) -> Config:
  """Args: values: heads of values of the delta rule, which has 16 of keys."""
  return make(
    'qwen3_5_text',
    (*row, 256, 248_320),
    rope_theta=1e7,
    tie_word_embeddings=tied,
    linear_num_value_heads=values,
  )


def _qwen3_5_moe(
  layers: int, width: int, heads: int, mlp: int, **keys
) -> Config:
  """Args: mlp: width of an expert, and of the mlp beside the experts."""
  return make(
    'qwen3_5_moe_text',
    (layers, width, mlp, heads, 2, 256, 248_320),
    rope_theta=1e7,
    moe_intermediate_size=mlp,
    shared_expert_intermediate_size=mlp,
    **keys,
  )


def _lfm2(width: int, mlp: int, heads: int) -> Config:
  row = 16, width, mlp, heads, 8, 64, 65_536
  return make('lfm2', row, full_attn_idxs=[2, 5, 8, 10, 12, 14])


def _gpt_oss(layers: int, experts: int) -> Config:
  row = layers, 2880, 2880, 64, 8, 64, 201_088
  return make('gpt_oss', row, num_local_experts=experts)


def _glm5(theta: float, **keys) -> Config:
  # Sizes of https://arxiv.org/abs/2602.15763, and defaults of transformers.
  row = 78, 6144, 12_288, 64, 64, 64, 154_880
  return make('glm_moe_dsa', row, rope_theta=theta, **keys)


DEEPSEEK_ROPE = {
  'rope_type': 'yarn',
  'factor': 40.0,
  'mscale': 1.0,
  'mscale_all_dim': 1.0,
  'original_max_position_embeddings': 4096,
}
# layers, width, mlp, heads, kv heads[, head width[, vocabulary]]
MIXED = {
  'qwen3-30b-a3b': _qwen3_moe(48, 2048, 6144, 32, 4, width=768),
  'qwen3-235b-a22b': _qwen3_moe(94, 4096, 12_288, 64, 4, width=1536),
  'mixtral-8x7b': make('mixtral', (32, 4096, 14_336, 32, 8, 128, 32_000)),
  'gpt-oss-20b': _gpt_oss(24, 32),
  'gpt-oss-120b': _gpt_oss(36, 128),
  'qwen1.5-moe-a2.7b': make(
    'qwen2_moe', (24, 2048, 5632, 16, 16, 128, 151_936), rope_theta=1e6
  ),
  'glm-4.5-air': make(
    'glm4_moe',
    (46, 4096, 10_944, 96, 8, 128, 151_552),
    attention_bias=True,
    rope_theta=1e6,
  ),
  'qwen3-next-80b-a3b': make(
    'qwen3_next', (48, 2048, 5120, 16, 2, 256, 151_936), rope_theta=1e7
  ),
  'qwen3.5-0.8b': _qwen3_5(24, 1024, 3584, 8, 2, values=16, tied=True),
  'qwen3.5-2b': _qwen3_5(24, 2048, 6144, 8, 2, values=16, tied=True),
  'qwen3.5-4b': _qwen3_5(32, 2560, 9216, 16, 4, values=32, tied=True),
  'qwen3.5-9b': _qwen3_5(32, 4096, 12_288, 16, 4, values=32),
  'qwen3.5-27b': _qwen3_5(64, 5120, 17_408, 24, 4, values=48),
  'qwen3.5-35b-a3b': _qwen3_5_moe(40, 2048, 16, 512),
  'qwen3.5-122b-a10b': _qwen3_5_moe(
    48, 3072, 32, 1024, linear_num_value_heads=64
  ),
  'qwen3.5-397b-a17b': _qwen3_5_moe(
    60,
    4096,
    32,
    1024,
    linear_num_value_heads=64,
    num_experts=512,
    num_experts_per_tok=10,
  ),
  'deepseek-v3': make(
    'deepseek_v3',
    (61, 7168, 18_432, 128, 128, 64, 129_280),
    rope_scaling=DEEPSEEK_ROPE,
  ),
  # As V3, with an indexer.
  'deepseek-v3.2': make(
    'deepseek_v32',
    (61, 7168, 18_432, 128, 128, 64, 129_280),
    rope_scaling=DEEPSEEK_ROPE,
  ),
  'kimi-k2': make(
    'kimi_k2',
    (61, 7168, 18_432, 64, 64, 64, 163_840),
    rope_theta=50_000.0,
    rope_scaling=DEEPSEEK_ROPE | {'factor': 32.0, 'beta_fast': 1.0},
    n_routed_experts=384,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    routed_scaling_factor=2.827,
  ),
  'glm-4.7-flash': make(
    'glm4_moe_lite',
    (47, 2048, 10_240, 20, 20, 64, 154_880),
    rope_theta=1e6,
  ),
  'glm-5': _glm5(1e6),
  'glm-5.2': _glm5(8e6, index_topk_freq=4, index_skip_topk_offset=3),
  'minimax-m2': make(
    'minimax_m2', (62, 3072, 1536, 48, 8, 128, 200_064), rotary_dim=64
  ),
  'dots.llm1': make(
    'dots1',
    (62, 4096, 10_944, 32, 32, 128, 152_064),
    rms_norm_eps=1e-5,
    rope_theta=1e7,
    n_routed_experts=128,
    num_experts_per_tok=6,
    n_shared_experts=2,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
  ),
  'olmoe-1b-7b': make('olmoe', (16, 2048, 1024, 16, 16, 128, 50_304)),
  'llama-4-scout': _llama4(16),
  'llama-4-maverick': _llama4(
    128, interleave_moe_layer_step=2, use_qk_norm=False
  ),
  'lfm2-350m': _lfm2(1024, 6656, 16),
  'lfm2-700m': _lfm2(1536, 10_240, 24),
  'lfm2-1.2b': _lfm2(2048, 12_288, 32),
  'lfm2-8b-a1b': make(
    'lfm2_moe',
    (24, 2048, 7168, 32, 8, 64, 65_536),
    full_attn_idxs=[2, 6, 10, 14, 18, 21],
  ),
  'lfm2-24b-a2b': make(
    'lfm2_moe',
    (40, 2048, 11_776, 32, 8, 64, 65_536),
    full_attn_idxs=list(range(2, 40, 4)),
    num_experts=64,
    moe_intermediate_size=1536,
  ),
  'granite-4.0-h-micro': make(
    'granitemoehybrid',
    (40, 2048, 8192, 32, 8, 64, 100_352),
    layer_types=['attention' if i % 10 == 5 else 'mamba' for i in range(40)],
    num_local_experts=0,
    shared_intermediate_size=8192,
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
    mamba_n_heads=64,
    mamba_d_state=128,
  ),
  'nemotron-nano-9b-v2': make(
    'nemotron_h',
    (56, 4480, 15_680, 40, 8, 128, 131_072),
    hybrid_override_pattern='M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-'
    'M-M-M-M-M-',
    mamba_head_dim=80,
  ),
  'nemotron-3-nano-30b-a3b': make(
    'nemotron_h',
    (52, 2688, 1856, 32, 2, 128, 131_072),
    hybrid_override_pattern='MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*'
    'EMEMEMEME',
    mamba_num_heads=64,
    n_routed_experts=128,
    num_experts_per_tok=6,
    moe_intermediate_size=1856,
    moe_shared_expert_intermediate_size=3712,
    routed_scaling_factor=2.5,
  ),
  # The published factors of Falcon-H1 are left at 1.
  'falcon-h1-0.5b': make(
    'falcon_h1',
    (36, 1024, 2048, 8, 2, 64, 32_784),
    rope_theta=1e11,
    mamba_d_ssm=1536,
    mamba_n_heads=24,
    mamba_d_state=128,
  ),
}
