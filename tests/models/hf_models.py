"""Tiny random models of every family, made by `transformers`. Tests that import
this file are skipped if it is not installed.
"""

import pytest

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

P, NEW = 20, 100  # prompt room and completion, tokens
LENGTHS = (20, 13, 6)  # of the prompts, left-padded
SHARED = dict(
  vocab_size=64,
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=256,
  bos_token_id=None,
  eos_token_id=None,
  pad_token_id=None,
)
SLIDING, FULL = 'sliding_attention', 'full_attention'
LINEAR = 'linear_attention'
LLAMA3 = dict(
  rope_type='llama3',
  rope_theta=1000.0,
  factor=4.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position_embeddings=32,
)
LONGROPE = dict(
  rope_type='longrope',
  rope_theta=100.0,
  short_factor=[1.0, 1.5],
  long_factor=[3.0, 4.0],
  original_max_position_embeddings=128,
)
DEEP_EXPERTS = dict(
  first_k_dense_replace=1,
  n_routed_experts=6,
  num_experts_per_tok=2,
  n_shared_experts=2,
  n_group=3,
  topk_group=2,
  routed_scaling_factor=1.5,
  moe_intermediate_size=24,
  num_mtp_layers=0,
)
LATENT = dict(
  num_hidden_layers=3,
  num_key_value_heads=4,
  q_lora_rank=10,
  kv_lora_rank=14,
  qk_rope_head_dim=4,
  qk_nope_head_dim=6,
  v_head_dim=10,
  vocab_size=70,
)
# So many heads that no two scores are 0: `transformers` chooses any of equals.
INDEXED = dict(index_topk=16, index_n_heads=16, index_head_dim=6)
DELTA = dict(
  num_key_value_heads=1,
  head_dim=12,
  vocab_size=70,
  linear_num_key_heads=2,
  linear_num_value_heads=6,
  linear_key_head_dim=5,
  linear_value_head_dim=7,
  linear_conv_kernel_dim=3,
  # Outputs of heads may be almost 0 before they are normalised: with 1e-6, the
  # last bit of an embedding changes the logits of transformers by 1e-3.
  rms_norm_eps=1e-2,
  rope_parameters=dict(
    rope_type='default', rope_theta=1000.0, partial_rotary_factor=0.5
  ),
)
NEMOTRON = dict(
  layer_types=[LINEAR, 'mlp', LINEAR, LINEAR, FULL, 'mlp', LINEAR, 'mlp'],
  head_dim=12,
  vocab_size=70,
  mamba_num_heads=8,
  mamba_head_dim=6,
  n_groups=2,
  ssm_state_size=5,
  conv_kernel=3,
  layer_norm_epsilon=1e-2,  # as in DELTA
  # transformers raises steps to this in whole rows, and not in decoding.
  time_step_min=1e-9,
)
GEMMA4 = dict(
  num_hidden_layers=3,
  head_dim=10,
  global_head_dim=16,
  num_global_key_value_heads=1,
  attention_k_eq_v=True,
  sliding_window=6,
  final_logit_softcapping=2.0,
  hidden_size_per_layer_input=0,
  vocab_size=70,
  vocab_size_per_layer_input=70,
  layer_types=[SLIDING, SLIDING, FULL],
  rope_parameters={
    FULL: dict(
      rope_type='proportional', partial_rotary_factor=0.4, rope_theta=500.0
    ),
    SLIDING: dict(rope_type='default', rope_theta=100.0),
  },
)
GEMMA3N = dict(
  num_hidden_layers=5,
  head_dim=10,
  layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL],
  num_kv_shared_layers=2,
  sliding_window=6,
  final_logit_softcapping=2.0,
  hidden_size_per_layer_input=6,
  vocab_size=70,
  vocab_size_per_layer_input=60,  # less than the tokens of the prompts
  altup_num_inputs=3,
  laurel_rank=5,
  activation_sparsity_pattern=[0.6, 0.0, 0.7, 0.4, 0.0],
  rms_norm_eps=1e-2,  # as in gemma4_e2b
  rope_parameters={
    FULL: dict(rope_type='linear', factor=2.0, rope_theta=500.0),
    SLIDING: dict(rope_type='default', rope_theta=100.0),
  },
)
# family -> (class, settings that differ from SHARED)
CASES = {
  'llama2': (
    'Llama',
    dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True),
  ),
  'llama3': (
    'Llama',
    dict(rope_parameters=LLAMA3, tie_word_embeddings=True, head_dim=12),
  ),
  'qwen2': (
    'Qwen2',
    dict(use_sliding_window=True, sliding_window=6, max_window_layers=1),
  ),
  'qwen3': ('Qwen3', dict(head_dim=16)),
  'qwen3_moe': (
    'Qwen3Moe',
    dict(
      head_dim=8,
      num_experts=4,
      num_experts_per_tok=2,
      moe_intermediate_size=24,
      norm_topk_prob=True,
    ),
  ),
  'mistral': ('Mistral', dict(sliding_window=6)),
  'gemma2': (
    'Gemma2',
    dict(
      head_dim=16,
      sliding_window=6,
      query_pre_attn_scalar=24,
      # Low caps, so that they change the logits of these small models.
      attn_logit_softcapping=1.5,
      final_logit_softcapping=2.0,
    ),
  ),
  'gemma3': (
    'Gemma3Text',
    dict(
      head_dim=16,
      sliding_window=6,
      query_pre_attn_scalar=24,
      layer_types=[SLIDING, FULL],
      rope_parameters={
        FULL: dict(rope_type='linear', factor=2.0, rope_theta=5000.0),
        SLIDING: dict(rope_type='default', rope_theta=100.0),
      },
    ),
  ),
  'gemma3n': ('Gemma3nText', GEMMA3N),
  'gemma4': ('Gemma4Text', GEMMA4),
  'gemma4_unified': (
    'Gemma4UnifiedText',
    {k: v for k, v in GEMMA4.items() if 'per_layer_input' not in k}
    | dict(num_hidden_layers=4, num_kv_shared_layers=1)
    | dict(layer_types=[SLIDING, FULL, SLIDING, FULL]),
  ),
  'gemma4_e2b': (
    'Gemma4Text',
    GEMMA4
    | dict(
      num_hidden_layers=5,
      layer_types=[SLIDING, SLIDING, FULL, SLIDING, FULL],
      num_kv_shared_layers=2,
      use_double_wide_mlp=True,
      hidden_size_per_layer_input=6,
      attention_k_eq_v=False,
      # The gates of a token's inputs may be almost 0 before the norm of their
      # sum: with 1e-6, two libraries differ by 4e-4 in such tokens.
      rms_norm_eps=1e-2,
    ),
  ),
  'gemma4_moe': (
    'Gemma4Text',
    GEMMA4
    | dict(
      enable_moe_block=True,
      num_experts=5,
      top_k_experts=2,
      moe_intermediate_size=24,
    ),
  ),
  'olmo2': ('Olmo2', {}),
  'olmo3': (
    'Olmo3',
    dict(
      sliding_window=6,
      layer_types=[SLIDING, FULL],
      rope_parameters={
        FULL: dict(
          rope_type='yarn',
          factor=4.0,
          rope_theta=500_000.0,
          original_max_position_embeddings=32,
        ),
        SLIDING: dict(rope_type='default', rope_theta=500_000.0),
      },
    ),
  ),
  'olmoe': ('Olmoe', dict(num_experts=4, num_experts_per_tok=2)),
  'mixtral': (
    'Mixtral',
    dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=7),
  ),
  'gemma': ('Gemma', dict(head_dim=12, num_key_value_heads=1)),
  'granite': (
    'Granite',
    dict(
      embedding_multiplier=3.0,
      attention_multiplier=0.2,
      residual_multiplier=0.6,
      logits_scaling=1.5,
      attention_bias=True,
      mlp_bias=True,
    ),
  ),
  'phi3': ('Phi3', dict(sliding_window=7)),
  'phi4': (
    'Phi3',
    dict(
      rope_parameters=LONGROPE | dict(partial_rotary_factor=0.5),
      tie_word_embeddings=True,
    ),
  ),
  'smollm3': ('SmolLM3', dict(no_rope_layer_interval=2)),
  'qwen2_moe': (
    'Qwen2Moe',
    dict(
      num_hidden_layers=3,
      num_experts=5,
      num_experts_per_tok=2,
      moe_intermediate_size=24,
      shared_expert_intermediate_size=20,
      use_sliding_window=True,
      sliding_window=6,
      max_window_layers=2,
    ),
  ),
  'glm4': (
    'Glm4',
    dict(
      head_dim=12, num_key_value_heads=1, attention_bias=True, vocab_size=70
    ),
  ),
  'glm4_moe': (
    'Glm4Moe',
    dict(
      num_hidden_layers=3,
      head_dim=12,
      num_key_value_heads=1,
      vocab_size=70,
      use_qk_norm=True,
      attention_bias=True,
      **DEEP_EXPERTS,
    ),
  ),
  'deepseek_v3': (
    'DeepseekV3',
    dict(
      **LATENT,
      rope_parameters=dict(
        rope_type='yarn',
        factor=4.0,
        rope_theta=1000.0,
        mscale=1.0,
        mscale_all_dim=0.7,
        original_max_position_embeddings=32,
      ),
      **DEEP_EXPERTS,
    ),
  ),
  'deepseek_v32': (
    'DeepseekV32',
    dict(
      **LATENT,
      **INDEXED,
      rope_parameters=dict(
        rope_type='yarn',
        factor=4.0,
        rope_theta=1000.0,
        mscale=1.0,
        mscale_all_dim=0.7,
        original_max_position_embeddings=32,
      ),
      **DEEP_EXPERTS,
    ),
  ),
  'glm_moe_dsa': (
    'GlmMoeDsa',
    LATENT
    | INDEXED
    | DEEP_EXPERTS
    | dict(
      num_hidden_layers=5,
      attention_bias=True,
      indexer_types=['full', 'shared', 'shared', 'full', 'shared'],
    ),
  ),
  'qwen3_next': (
    'Qwen3Next',
    dict(
      num_hidden_layers=5,  # the last layer is not part of a full period
      num_experts=5,
      num_experts_per_tok=2,
      moe_intermediate_size=24,
      shared_expert_intermediate_size=20,
      **DELTA,
    ),
  ),
  'qwen3_5': (
    'Qwen3_5Text',
    dict(num_hidden_layers=5, **DELTA),
  ),
  'qwen3_5_moe': (
    'Qwen3_5MoeText',
    dict(
      num_hidden_layers=5,
      num_experts=5,
      num_experts_per_tok=2,
      moe_intermediate_size=24,
      shared_expert_intermediate_size=20,
      **DELTA,
    ),
  ),
  'seed_oss': (
    'SeedOss',
    dict(head_dim=12, attention_out_bias=True, mlp_bias=True),
  ),
  'ernie4_5': ('Ernie4_5', dict(head_dim=12, use_bias=True)),
  'ernie4_5_moe': (
    'Ernie4_5_Moe',
    dict(
      num_hidden_layers=3,
      vocab_size=70,
      moe_num_experts=6,
      moe_k=2,
      moe_num_shared_experts=2,
      moe_intermediate_size=24,
    ),
  ),
  'dots1': (
    'Dots1',
    dict(
      num_hidden_layers=3,
      head_dim=12,
      num_key_value_heads=1,
      vocab_size=70,
      sliding_window=6,
      max_window_layers=2,
      attention_bias=True,
      **DEEP_EXPERTS,
    ),
  ),
  'glm4_moe_lite': (
    'Glm4MoeLite',
    dict(
      **LATENT,
      **{k: v for k, v in DEEP_EXPERTS.items() if 'dense' not in k},
    ),
  ),
  'minimax_m2': (
    'MiniMaxM2',
    dict(
      head_dim=12,
      vocab_size=70,
      num_local_experts=5,
      num_experts_per_tok=2,
      rotary_dim=6,
    ),
  ),
  'hunyuan_v1_dense': (
    'HunYuanDenseV1',
    dict(
      head_dim=12,
      rope_parameters=dict(
        rope_type='dynamic', rope_theta=1000.0, alpha=3.0, factor=1.0
      ),
    ),
  ),
  'ministral3': (
    'Ministral3',
    dict(
      head_dim=12,
      rope_parameters=dict(
        rope_type='yarn',
        factor=4.0,
        rope_theta=1000.0,
        mscale=1.0,
        mscale_all_dim=1.0,
        original_max_position_embeddings=32,
        llama_4_scaling_beta=0.4,
      ),
    ),
  ),
  'apertus': ('Apertus', dict(rope_parameters=LLAMA3)),
  'lfm2': (
    'Lfm2',
    dict(
      num_hidden_layers=5,
      head_dim=12,
      vocab_size=70,
      layer_types=['conv', 'conv', FULL, 'conv', 'conv'],
      block_multiple_of=10,
      block_ffn_dim_multiplier=1.3,
    ),
  ),
  'lfm2_moe': (
    'Lfm2Moe',
    dict(
      num_hidden_layers=6,
      head_dim=12,
      vocab_size=70,
      layer_types=['conv', FULL, 'conv', 'conv', FULL, 'conv'],
      num_dense_layers=2,
      intermediate_size=26,
      moe_intermediate_size=16,
      num_experts=5,
      num_experts_per_tok=2,
      routed_scaling_factor=1.7,
    ),
  ),
  'granite4': (
    'GraniteMoeHybrid',
    dict(
      num_hidden_layers=5,
      vocab_size=70,
      layer_types=['mamba', 'mamba', FULL, 'mamba', 'mamba'],
      num_local_experts=5,
      intermediate_size=24,
      shared_intermediate_size=20,
      mamba_n_heads=8,
      mamba_n_groups=2,
      mamba_d_state=6,
      mamba_d_conv=3,
      rms_norm_eps=1e-2,  # as in DELTA
      embedding_multiplier=3.0,
      attention_multiplier=0.2,
      residual_multiplier=0.6,
      logits_scaling=1.5,
    ),
  ),
  'nemotron_h': ('NemotronH', NEMOTRON),
  'nemotron_3': (
    'NemotronH',
    NEMOTRON
    | dict(
      layer_types=[LINEAR, 'moe', LINEAR, FULL, 'moe', LINEAR, 'moe'],
      n_routed_experts=6,
      num_experts_per_tok=2,
      n_group=3,
      topk_group=2,
      routed_scaling_factor=1.5,
      moe_intermediate_size=24,
      moe_shared_expert_intermediate_size=20,
    ),
  ),
  'falcon_h1': (
    'FalconH1',
    dict(
      num_hidden_layers=3,
      vocab_size=70,
      mamba_d_ssm=48,
      mamba_n_heads=8,
      mamba_n_groups=2,
      mamba_d_state=6,
      mamba_d_conv=3,
      embedding_multiplier=3.0,
      lm_head_multiplier=0.7,
      key_multiplier=0.6,
      attention_in_multiplier=1.2,
      attention_out_multiplier=0.8,
      ssm_in_multiplier=1.3,
      ssm_multipliers=[0.9, 1.1, 0.7, 1.2, 0.8],
      ssm_out_multiplier=0.6,
      mlp_multipliers=[0.7, 1.4],
      rope_parameters=dict(rope_type='default', rope_theta=100.0),
    ),
  ),
  'cohere': (
    'Cohere',
    dict(
      vocab_size=70,
      use_qk_norm=True,
      attention_bias=True,
      logit_scale=0.3,
      rope_parameters=dict(rope_type='default', rope_theta=100.0),
    ),
  ),
  'cohere2': (
    'Cohere2',
    dict(
      num_hidden_layers=3,
      vocab_size=70,
      layer_types=[SLIDING, FULL, SLIDING],
      sliding_window=6,
      attention_bias=True,
      logit_scale=0.3,
      rope_parameters=dict(rope_type='default', rope_theta=100.0),
    ),
  ),
  'llama4': (
    'Llama4Text',
    dict(
      num_hidden_layers=4,
      head_dim=12,
      vocab_size=70,
      num_local_experts=5,
      intermediate_size=24,
      intermediate_size_mlp=40,
      interleave_moe_layer_step=2,
      no_rope_layers=[1, 1, 0, 1],
      attention_chunk_size=6,
      floor_scale=16,
      attn_scale=0.4,
      rope_parameters=LLAMA3,
    ),
  ),
  'gpt_oss': (
    'GptOss',
    dict(
      num_hidden_layers=3,
      num_key_value_heads=1,
      head_dim=6,
      vocab_size=70,
      num_local_experts=5,
      num_experts_per_tok=2,
      sliding_window=6,
      swiglu_limit=0.5,  # low, so that it is reached
      rope_parameters=dict(
        rope_type='yarn',
        factor=4.0,
        rope_theta=1000.0,
        truncate=False,
        original_max_position_embeddings=32,
      ),
    ),
  ),
}

# Six layers, three heads with the keys of one, widths and a vocabulary that
# nothing divides; rows of 120 tokens are far longer than their windows.
ODD = dict(
  num_hidden_layers=6,
  hidden_size=36,
  intermediate_size=44,
  num_attention_heads=3,
  num_key_value_heads=1,
  vocab_size=71,
  layer_types=None,  # the default of the family
)
WITH_WIDTH_OF_HEADS = (
  'llama2 llama3 qwen3 qwen3_moe mistral gemma2 gemma3 mixtral gemma glm4 '
  'glm4_moe qwen3_next gpt_oss seed_oss ernie4_5 dots1 '
  'minimax_m2 hunyuan_v1_dense ministral3'
).split()
ODD_CASES = {name: {} for name in CASES} | {
  name: dict(head_dim=10) for name in WITH_WIDTH_OF_HEADS
}
ODD_CASES['phi4'] = dict(
  rope_parameters=LONGROPE
  | dict(
    partial_rotary_factor=0.5,
    short_factor=[1.0, 1.5, 2.0],
    long_factor=[3.0, 4.0, 5.0],
  )
)
ODD_CASES['glm4'] |= dict(head_dim=12)  # half of the features are rotated
ODD_CASES['glm4_moe'] |= dict(head_dim=12, first_k_dense_replace=2)
for name in ('qwen3_next', 'qwen3_5', 'qwen3_5_moe'):
  ODD_CASES[name] |= dict(head_dim=12)
ODD_CASES['deepseek_v3'] = dict(
  num_key_value_heads=3, first_k_dense_replace=2, q_lora_rank=None
)
ODD_CASES['deepseek_v32'] = dict(
  num_key_value_heads=3, first_k_dense_replace=2, index_topk=7
)
ODD_CASES['glm_moe_dsa'] = dict(
  num_key_value_heads=3,
  index_head_dim=9,
  first_k_dense_replace=2,
  indexer_types=['full', 'shared'] * 3,
)
ODD_CASES['ernie4_5_moe'] = dict(
  head_dim=10,
  moe_layer_start_index=2,
  moe_layer_end_index=4,
  moe_layer_interval=2,
  moe_num_shared_experts=0,
)
ODD_CASES['glm4_moe_lite'] = dict(num_key_value_heads=3, q_lora_rank=None)
ODD_CASES['minimax_m2'] = dict(rotary_dim=8)
ODD_CASES['lfm2'] = dict(
  full_attn_idxs=[1, 4], conv_L_cache=5, tie_word_embeddings=False
)
ODD_CASES['lfm2_moe'] = dict(
  layer_types=['conv', 'conv', FULL, 'conv', FULL, 'conv'],
  num_dense_layers=0,
  use_expert_bias=False,
  norm_topk_prob=False,
)
ODD_CASES['granite4'] = dict(
  num_local_experts=0,
  layer_types=['mamba', FULL, 'mamba', 'mamba', 'mamba', FULL],
  mamba_n_heads=12,
  mamba_n_groups=1,
  mamba_expand=3,
  position_embedding_type='rope',
)
ODD_CASES['nemotron_h'] = dict(
  layer_types=['mlp', FULL, LINEAR, 'mlp', LINEAR, FULL, 'mlp', 'mlp'],
  head_dim=10,
  mamba_num_heads=9,
  n_groups=1,
  mlp_bias=True,
)
ODD_CASES['nemotron_3'] = dict(
  layer_types=[LINEAR, FULL, FULL, 'moe', LINEAR, LINEAR, 'moe', LINEAR],
  n_group=1,
  topk_group=1,
  norm_topk_prob=False,
  mamba_num_heads=9,
  n_groups=3,
)
ODD_CASES['falcon_h1'] = dict(
  mamba_d_ssm=None,
  mamba_n_heads=9,
  mamba_n_groups=3,
  mamba_rms_norm=True,
  mamba_norm_before_gate=False,
  attention_bias=True,
  attention_in_multiplier=1.0,
  ssm_in_multiplier=1.0,
  mlp_bias=True,
  tie_word_embeddings=True,
  rms_norm_eps=1e-2,  # as in DELTA
)
ODD_CASES['gemma3n'] = dict(
  num_kv_shared_layers=0,
  attention_bias=True,
  tie_word_embeddings=False,
  altup_num_inputs=4,
  vocab_size_per_layer_input=71,
  activation_sparsity_pattern=[0.95] * 6,
)
ODD_CASES['gemma4_unified'] = dict(num_kv_shared_layers=0)
ODD_CASES['gemma4'] = dict(
  attention_bias=True, attention_k_eq_v=False, tie_word_embeddings=False
)
ODD_CASES['gemma4_e2b'] = dict(
  layer_types=[FULL, SLIDING, FULL, SLIDING, SLIDING, FULL],
  num_kv_shared_layers=4,
  attention_k_eq_v=True,
  vocab_size_per_layer_input=71,
)
ODD_CASES['gemma4_moe'] = dict(
  layer_types=[FULL, FULL, SLIDING, FULL, FULL, FULL],
  num_kv_shared_layers=2,
  use_double_wide_mlp=True,
  hidden_size_per_layer_input=5,
  vocab_size_per_layer_input=71,
  rms_norm_eps=1e-2,
)
ODD_CASES['llama4'] = dict(
  head_dim=10,
  num_experts_per_tok=2,
  moe_layers=[1, 2, 5],
  no_rope_layers=None,
  attention_chunk_size=7,
  use_qk_norm=False,
  attn_temperature_tuning=False,
  attention_bias=True,
  tie_word_embeddings=True,
)
ODD_CASES['cohere'] = dict(attention_bias=False, tie_word_embeddings=False)
ODD_CASES['smollm3'] = dict(no_rope_layer_interval=4)


def make_odd(name: str):
  """Makes a model as `make`, with an odd shape."""
  known = getattr(transformers, f'{CASES[name][0]}Config')()
  odd = {k: v for k, v in ODD.items() if hasattr(known, k)}
  if name == 'falcon_h1':  # all of its layers are of one kind
    del odd['layer_types']
  return make(name, **odd | ODD_CASES[name])


def make(name: str, **others):
  """Makes a model with random bf16 values for all weights, norms and biases, so
  that its bf16 version has the same weights.
  """
  kind, changes = CASES[name]
  config = getattr(transformers, f'{kind}Config')(**(SHARED | changes | others))
  config._attn_implementation = 'eager'
  torch.manual_seed(0)
  kind = kind.removesuffix('Text')
  return randomized(getattr(transformers, f'{kind}ForCausalLM')(config).eval())


def make_with_images(odd: bool = False, moe: bool = False):
  """Makes a Qwen3-VL as `make`, with a tower for images."""
  text = SHARED | CASES['qwen3_moe' if moe else 'qwen3'][1]
  text |= ODD | dict(head_dim=12) if odd else {}
  text.pop('layer_types', None)
  positions = dict(mrope_section=[2, 2, 2] if odd else [3, 3, 2])
  rope = dict(rope_type='default', rope_theta=1000.0, **positions)
  tower = dict(
    depth=1,
    hidden_size=16,
    intermediate_size=16,
    num_heads=2,
    patch_size=4,
    out_hidden_size=text['hidden_size'],
    num_position_embeddings=16,
    deepstack_visual_indexes=[0],
  )
  name = 'Qwen3VLMoe' if moe else 'Qwen3VL'
  config = getattr(transformers, f'{name}Config')(
    text_config=text | dict(rope_parameters=rope), vision_config=tower
  )
  config._attn_implementation = 'eager'
  torch.manual_seed(0)
  kind = getattr(transformers, f'{name}ForConditionalGeneration')
  return randomized(kind(config).eval())


def randomized(model):
  """Adds random bf16 values to all weights and to routing corrections."""
  with torch.no_grad():
    for p in model.parameters():
      p.copy_((p + 0.15 * torch.randn_like(p)).bfloat16())
    for name, b in model.named_buffers():
      if name.endswith('layer_scalar'):
        b.copy_((b + 0.3 * torch.randn_like(b)).bfloat16())
      if name.endswith('e_score_correction_bias'):
        b.copy_((0.3 * torch.randn_like(b)).bfloat16())
  return model


def prompts():
  """Returns tokens [3,P] and valid bool [3,P]."""
  generator = torch.Generator().manual_seed(1)
  tokens = torch.randint(0, 64, (len(LENGTHS), P), generator=generator)
  valid = torch.arange(P) >= P - torch.tensor(LENGTHS)[:, None]
  return tokens * valid, valid


# In these models, positions include the padding of a row in some places.
ALONE = ('llama4_text',)


def each_alone(model, f, tokens, valid):
  """Concatenates f(tokens [1,t], valid) [1,t,...] of rows without their padding
  on the left, which is 0 in the result.
  """
  out = []
  for row, real in zip(tokens, valid):
    first = int(real.long().argmax())
    y = f(model, row[None, first:], real[None, first:])
    zeros = torch.zeros((1, first, *y.shape[2:]), dtype=y.dtype)
    out.append(torch.cat([zeros, y], 1))
  return torch.cat(out)


def greedy(model, new: int = NEW, rows=None):
  """Returns greedy tokens [3,new]."""
  tokens, valid = rows or prompts()
  if model.config.model_type in ALONE and len(tokens) > 1:
    pairs = [(t[None, v], v[None, v]) for t, v in zip(tokens, valid)]
    return torch.cat([greedy(model, new, pair) for pair in pairs])
  out = model.generate(
    tokens,
    attention_mask=valid.long(),
    do_sample=False,
    max_new_tokens=new,
    pad_token_id=0,
  )
  return out[:, tokens.shape[1] :]


def logits(model, tokens, valid):
  """Returns [N,T,V]. Positions count the valid tokens, as in `generate`."""
  if model.config.model_type in ALONE and len(tokens) > 1:
    return each_alone(model, logits, tokens, valid)
  positions = (valid.long().cumsum(1) - 1).clamp(min=0)
  return model(
    tokens,
    attention_mask=valid.long(),
    position_ids=positions,
    use_cache=False,
  ).logits
