"""Published model sizes by name, for tests of shapes, memory and compilation
without weights. To run a model's weights, read its own config.json: versions of
one size differ in norm_eps, context and rotary scaling.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import ministral3
from jaxrl_reason.models.zoo_mixed import MIXED, make


def _qwen2(*row: int, tied: bool = False, theta: float = 1e6) -> Config:
  # As in the base models, whose epsilon differs from 14B on.
  eps = 1e-5 if row[1] >= 5120 else 1e-6
  return make(
    'qwen2', row, tie_word_embeddings=tied, rope_theta=theta, rms_norm_eps=eps
  )


def _qwen3(*row: int, tied: bool = False) -> Config:
  row = *row, 128, 151_936
  return make('qwen3', row, tie_word_embeddings=tied, rope_theta=1e6)


def _qwen3_vl(*row: int, tied: bool = False) -> Config:
  row = *row, 128, 151_936
  return make('qwen3_vl_text', row, tie_word_embeddings=tied, rope_theta=5e6)


def _llama3(*row: int, factor: float = 8.0, tied: bool = False) -> Config:
  scaling = {
    'rope_type': 'llama3',
    'factor': factor,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 8192,
  }
  return make(
    'llama',
    (*row, 128_256),
    tie_word_embeddings=tied,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    rope_scaling=scaling if factor else None,
  )


def _smollm2(*row: int, theta: float = 1e5) -> Config:
  return make(
    'llama',
    (*row, 64, 49_152),
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
    rope_theta=theta,
  )


def _gemma2(*row: int, scalar: int = 256) -> Config:
  return make('gemma2', (*row, 256_000), query_pre_attn_scalar=scalar)


def _olmo2(*row: int) -> Config:
  row = *row, 128, 100_352
  return make('olmo2', row, rms_norm_eps=1e-6, rope_theta=500_000.0)


def _gemma1(*row: int) -> Config:
  return make('gemma', (*row, 256, 256_000))


def _gemma3(*row: int, scalar: int = 256) -> Config:
  return make(
    'gemma3_text',
    (*row, 262_208),
    sliding_window=1024,
    query_pre_attn_scalar=scalar,
    rope_scaling={'rope_type': 'linear', 'factor': 8.0},
  )


def _gemma3n(layers: int, mlp: int, reading: int) -> Config:
  row = layers, 2048, mlp, 8, 2, 256, 262_400
  return make('gemma3n_text', row, num_kv_shared_layers=reading)


def _gemma4(
  *row: int, every: int = 6, few: int = 0, own: int = 0, **keys
) -> Config:
  """Args: every: distance of global layers; few: their heads of keys, which are
  values too; own: width of the inputs of each layer.
  """
  types = [
    'sliding_attention' if (i + 1) % every else 'full_attention'
    for i in range(row[0])
  ]
  return make(
    'gemma4_text',
    (*row, 256, 262_144),
    layer_types=types,
    attention_k_eq_v=bool(few),
    num_global_key_value_heads=few or None,
    hidden_size_per_layer_input=own,
    final_logit_softcapping=30.0,
    sliding_window=512 if own else 1024,
    **keys,
  )


def _hunyuan(*row: int) -> Config:
  scaling = {'type': 'dynamic', 'alpha': 1000.0, 'factor': 1.0}
  return make(
    'hunyuan_v1_dense', row, tie_word_embeddings=True, rope_scaling=scaling
  )


# layers, width, mlp, heads, kv heads[, head width[, vocabulary]]
ZOO = {
  'qwen2.5-0.5b': _qwen2(24, 896, 4864, 14, 2, 64, 151_936, tied=True),
  'qwen2.5-1.5b': _qwen2(28, 1536, 8960, 12, 2, 128, 151_936, tied=True),
  'qwen2.5-3b': _qwen2(36, 2048, 11_008, 16, 2, 128, 151_936, tied=True),
  'qwen2.5-7b': _qwen2(28, 3584, 18_944, 28, 4, 128, 152_064),
  'qwen2.5-14b': _qwen2(48, 5120, 13_824, 40, 8, 128, 152_064),
  'qwen2.5-32b': _qwen2(64, 5120, 27_648, 40, 8, 128, 152_064),
  'qwen2.5-72b': _qwen2(80, 8192, 29_568, 64, 8, 128, 152_064),
  'qwen3-0.6b': _qwen3(28, 1024, 3072, 16, 8, tied=True),
  'qwen3-1.7b': _qwen3(28, 2048, 6144, 16, 8, tied=True),
  'qwen3-4b': _qwen3(36, 2560, 9728, 32, 8, tied=True),
  'qwen3-8b': _qwen3(36, 4096, 12_288, 32, 8),
  'qwen3-14b': _qwen3(40, 5120, 17_408, 40, 8),
  'qwen3-32b': _qwen3(64, 5120, 25_600, 64, 8),
  'qwen3-vl-2b': _qwen3_vl(28, 2048, 6144, 16, 8, tied=True),
  'qwen3-vl-4b': _qwen3_vl(36, 2560, 9728, 32, 8, tied=True),
  'qwen3-vl-8b': _qwen3_vl(36, 4096, 12_288, 32, 8),
  'qwen3-vl-32b': _qwen3_vl(64, 5120, 25_600, 64, 8),
  'llama-2-7b': make(
    'llama', (32, 4096, 11_008, 32, 32, 128, 32_000), rms_norm_eps=1e-5
  ),
  'llama-2-70b': make(
    'llama', (80, 8192, 28_672, 64, 8, 128, 32_000), rms_norm_eps=1e-5
  ),
  'llama-3-8b': _llama3(32, 4096, 14_336, 32, 8, 128, factor=0),
  'llama-3.1-8b': _llama3(32, 4096, 14_336, 32, 8, 128),
  'llama-3.1-70b': _llama3(80, 8192, 28_672, 64, 8, 128),
  'llama-3.2-1b': _llama3(16, 2048, 8192, 32, 8, 64, factor=32, tied=True),
  'llama-3.2-3b': _llama3(28, 3072, 8192, 24, 8, 128, factor=32, tied=True),
  'mistral-7b-v0.1': make(
    'mistral',
    (32, 4096, 14_336, 32, 8, 128, 32_000),
    rms_norm_eps=1e-5,
    sliding_window=4096,
  ),
  'mistral-7b-v0.3': make(
    'mistral',
    (32, 4096, 14_336, 32, 8, 128, 32_768),
    rms_norm_eps=1e-5,
    rope_theta=1e6,
    sliding_window=None,
  ),
  # Their rotary tables are those of `transformers` for an absent key.
  'ministral-3-3b': make(
    'ministral3',
    (26, 3072, 9216, 32, 8, 128, 131_072),
    tie_word_embeddings=True,
  ),
  'ministral-3-8b': make('ministral3', (34, 4096, 14_336, 32, 8, 128, 131_072)),
  'ministral-3-14b': make(
    'ministral3',
    (40, 5120, 16_384, 32, 8, 128, 131_072),
    rope_parameters=ministral3.ABSENT | {'rope_theta': 1e9},
  ),
  'gemma-2b': _gemma1(18, 2048, 16_384, 8, 1),
  'gemma-7b': _gemma1(28, 3072, 24_576, 16, 16),
  'gemma-2-2b': _gemma2(26, 2304, 9216, 8, 4, 256),
  'gemma-2-9b': _gemma2(42, 3584, 14_336, 16, 8, 256),
  'gemma-2-27b': _gemma2(46, 4608, 36_864, 32, 16, 128, scalar=144),
  'gemma-3-270m': make(
    'gemma3_text',
    (18, 640, 2048, 4, 1, 256, 262_144),
    sliding_window=512,
  ),
  'gemma-3-1b': make(
    'gemma3_text',
    (26, 1152, 6912, 4, 1, 256, 262_144),
    sliding_window=512,
  ),
  'gemma-3-4b': _gemma3(34, 2560, 10_240, 8, 4, 256),
  'gemma-3-12b': _gemma3(48, 3840, 15_360, 16, 8, 256),
  'gemma-3-27b': _gemma3(62, 5376, 21_504, 32, 16, 128, scalar=168),
  'gemma-3n-e2b': _gemma3n(30, 8192, 10),
  'gemma-3n-e4b': _gemma3n(35, 16_384, 15),
  'gemma-4-e2b': _gemma4(
    35,
    1536,
    6144,
    8,
    1,
    every=5,
    own=256,
    num_kv_shared_layers=20,
    use_double_wide_mlp=True,
  ),
  'gemma-4-e4b': _gemma4(
    42, 2560, 10_240, 8, 2, own=256, num_kv_shared_layers=18
  ),
  'gemma-4-26b-a4b': _gemma4(
    30,
    2816,
    2112,
    16,
    8,
    few=2,
    enable_moe_block=True,
    num_experts=128,
    top_k_experts=8,
    moe_intermediate_size=704,
  ),
  'gemma-4-12b': make(
    'gemma4_unified_text',
    (48, 3840, 15_360, 16, 8, 256, 262_144),
    attention_k_eq_v=True,
    num_global_key_value_heads=1,
    final_logit_softcapping=30.0,
  ),
  'gemma-4-31b': _gemma4(60, 5376, 21_504, 32, 16, few=4),
  'glm-4-9b-0414': make(
    'glm4', (40, 4096, 13_696, 32, 2, 128, 151_552), rms_norm_eps=1e-5
  ),
  'olmo-2-1b': _olmo2(16, 2048, 8192, 16, 16),
  'olmo-2-7b': _olmo2(32, 4096, 11_008, 32, 32),
  'olmo-2-13b': _olmo2(40, 5120, 13_824, 40, 40),
  'phi-3-mini-4k': make(
    'phi3', (32, 3072, 8192, 32, 32, 96, 32_064), sliding_window=2047
  ),
  'phi-4-mini': make(
    'phi3',
    (32, 3072, 8192, 24, 8, 128, 200_064),
    tie_word_embeddings=True,
    partial_rotary_factor=0.75,  # without its 48 longrope divisors
  ),
  'smollm2-135m': _smollm2(30, 576, 1536, 9, 3),
  'smollm2-360m': _smollm2(32, 960, 2560, 15, 5),
  'smollm2-1.7b': _smollm2(24, 2048, 8192, 32, 32, theta=130_000.0),
  'smollm3-3b': make(
    'smollm3', (36, 2048, 11_008, 16, 4, 128, 128_256), rope_theta=5e6
  ),
  'seed-oss-36b': make(
    'seed_oss', (64, 5120, 27_648, 80, 8, 128, 155_136), rope_theta=1e7
  ),
  'ernie-4.5-0.3b': make('ernie4_5', (18, 1024, 3072, 16, 2, 128, 103_424)),
  'hunyuan-0.5b': _hunyuan(24, 1024, 3584, 16, 8, 128, 120_818),
  'hunyuan-1.8b': _hunyuan(32, 2048, 6144, 16, 4, 128, 120_818),
  'hunyuan-4b': _hunyuan(36, 3072, 8192, 32, 8, 128, 120_818),
  'hunyuan-7b': _hunyuan(32, 4096, 14_336, 32, 8, 128, 128_167),
  # As transformers, llama3 rotary scaling if a file has none.
  'apertus-8b': make('apertus', (32, 4096, 21_504, 32, 8, 128, 131_072)),
  'apertus-70b': make('apertus', (80, 8192, 43_008, 64, 8, 128, 131_072)),
  'command-r7b': make(
    'cohere2',
    (32, 4096, 14_336, 32, 8, 128, 256_000),
    rope_theta=50_000.0,
    logit_scale=0.25,
  ),
}
ZOO |= MIXED
ZOO |= {
  'deepseek-r1': ZOO['deepseek-v3'],
  'deepseek-r1-distill-qwen-1.5b': _qwen2(
    28, 1536, 8960, 12, 2, 128, 151_936, theta=10_000.0
  ),
  'deepseek-r1-distill-qwen-7b': _qwen2(
    28, 3584, 18_944, 28, 4, 128, 152_064, theta=10_000.0
  ),
  'deepseek-r1-distill-llama-8b': ZOO['llama-3.1-8b'],
  'deepseek-r1-distill-qwen-14b': ZOO['qwen2.5-14b'],
  'deepseek-r1-distill-qwen-32b': ZOO['qwen2.5-32b'],
  'deepseek-r1-distill-llama-70b': ZOO['llama-3.1-70b'],
}
