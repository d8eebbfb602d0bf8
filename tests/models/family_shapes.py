"""Small shapes of families for `test_family_combinations`."""

from jaxrl_reason.models import families

V = 40  # vocabulary
SHARED = dict(
  vocab_size=V,
  hidden_size=16,
  intermediate_size=24,
  num_attention_heads=4,
  num_key_value_heads=1,
  max_position_embeddings=64,
)
DEEP = dict(
  first_k_dense_replace=2,
  n_routed_experts=8,
  num_experts_per_tok=3,
  n_group=4,
  topk_group=2,
  moe_intermediate_size=8,
)
LATENT = dict(
  num_key_value_heads=4,
  q_lora_rank=6,
  kv_lora_rank=10,
  qk_rope_head_dim=4,
  qk_nope_head_dim=6,
  v_head_dim=10,
)
FAMILIES = {
  'gpt_oss': dict(
    num_hidden_layers=5,
    head_dim=6,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=5,
    swiglu_limit=1.0,
  ),
  'qwen2_moe': dict(
    num_hidden_layers=5,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=12,
    use_sliding_window=True,
    sliding_window=5,
    max_window_layers=3,
  ),
  'glm4': dict(num_hidden_layers=5, head_dim=12),
  'glm4_moe': dict(
    num_hidden_layers=6, head_dim=12, use_qk_norm=True, attention_bias=True
  )
  | DEEP,
  'deepseek_v3': dict(num_hidden_layers=6) | LATENT | DEEP,
  'minimax_m2': dict(
    num_hidden_layers=5,
    head_dim=12,
    num_local_experts=4,
    num_experts_per_tok=2,
    rotary_dim=6,
  ),
  'hunyuan_v1_dense': dict(num_hidden_layers=5, head_dim=6),
  'ministral3': dict(
    num_hidden_layers=5,
    head_dim=6,
    rope_parameters=dict(
      rope_type='yarn',
      factor=4.0,
      rope_theta=1000.0,
      mscale=1.0,
      mscale_all_dim=1.0,
      original_max_position_embeddings=8,  # queries grow within a row
      llama_4_scaling_beta=0.4,
    ),
  ),
  'apertus': dict(num_hidden_layers=5),
  'cohere2': dict(
    num_hidden_layers=5, head_dim=6, sliding_window=5, logit_scale=0.3
  ),
}
# Of four heads, often none has a score above 0, so many scores are equal.
INDEXED = dict(index_topk=5, index_n_heads=4, index_head_dim=6)
FAMILIES['deepseek_v32'] = FAMILIES['deepseek_v3'] | INDEXED
# Layers of both stacks without an indexer, before and in a period.
FAMILIES['glm_moe_dsa'] = FAMILIES['deepseek_v32'] | dict(
  num_hidden_layers=7, index_topk_pattern='FSSFSFS'
)
FAMILIES['cohere'] = dict(
  num_hidden_layers=5, head_dim=6, use_qk_norm=True, logit_scale=0.3
)
FAMILIES['qwen3_next'] = dict(
  num_hidden_layers=5,
  head_dim=12,
  partial_rotary_factor=0.5,
  linear_num_key_heads=2,
  linear_num_value_heads=4,
  linear_key_head_dim=5,
  linear_value_head_dim=6,
  linear_conv_kernel_dim=3,
  rms_norm_eps=1e-2,  # as in hf_models
  num_experts=4,
  num_experts_per_tok=2,
  moe_intermediate_size=8,
  shared_expert_intermediate_size=12,
)
FAMILIES['qwen3_5_moe_text'] = FAMILIES['qwen3_next']
FAMILIES['qwen3_5_text'] = {
  key: value
  for key, value in FAMILIES['qwen3_next'].items()
  if 'expert' not in key
}
FAMILIES['lfm2'] = dict(
  num_hidden_layers=5,
  head_dim=6,
  full_attn_idxs=[1, 4],
  block_multiple_of=5,
)
FAMILIES['lfm2_moe'] = dict(
  num_hidden_layers=6,
  head_dim=6,
  layer_types=['conv', 'full_attention', 'conv', 'full_attention']
  + ['conv'] * 2,
  num_dense_layers=2,
  num_experts=4,
  num_experts_per_tok=2,
  moe_intermediate_size=8,
)
FAMILIES['granitemoehybrid'] = dict(
  num_hidden_layers=5,
  head_dim=6,
  layer_types=['mamba', 'attention', 'mamba', 'mamba', 'attention'],
  mamba_n_heads=4,
  mamba_n_groups=2,
  mamba_d_state=5,
  num_local_experts=4,
  shared_intermediate_size=12,
  attention_multiplier=0.2,
  residual_multiplier=0.6,
)
NEMOTRON = dict(
  head_dim=6,
  hybrid_override_pattern='M-M*-M-*-',
  mamba_num_heads=4,
  mamba_head_dim=6,
  n_groups=2,
  ssm_state_size=5,
)
FAMILIES['nemotron_h'] = NEMOTRON | dict(
  hybrid_override_pattern='MEME*EM*E',
  n_routed_experts=4,
  num_experts_per_tok=2,
  moe_intermediate_size=8,
  moe_shared_expert_intermediate_size=12,
)
FAMILIES['falcon_h1'] = dict(
  num_hidden_layers=5,
  head_dim=6,
  mamba_d_ssm=24,
  mamba_n_heads=4,
  mamba_n_groups=2,
  mamba_d_state=5,
  key_multiplier=0.6,
  ssm_multipliers=[0.9, 1.1, 0.7, 1.2, 0.8],
  mlp_multipliers=[0.7, 1.4],
)
LOCAL, GLOBAL = 'sliding_attention', 'full_attention'
GEMMA4 = dict(
  num_key_value_heads=2,
  head_dim=6,
  global_head_dim=10,
  num_global_key_value_heads=2,
  attention_k_eq_v=True,
  sliding_window=5,
  hidden_size_per_layer_input=0,
)
# Layers with keys of their own, layers that are read, and two periods of layers
# that read them.
FAMILIES['gemma4_text'] = GEMMA4 | dict(
  num_hidden_layers=8,
  layer_types=[LOCAL, GLOBAL] * 4,
  num_kv_shared_layers=4,
  attention_k_eq_v=False,
  num_global_key_value_heads=None,
  use_double_wide_mlp=True,
  hidden_size_per_layer_input=4,
  vocab_size_per_layer_input=V,
  rms_norm_eps=0.3,  # as in hf_models, for smaller widths
)
# As above; gates are sparse in some layers of two stacks, and in all layers of
# the third.
FAMILIES['gemma3n_text'] = dict(
  num_key_value_heads=2,
  head_dim=6,
  sliding_window=5,
  num_hidden_layers=8,
  layer_types=[LOCAL, GLOBAL] * 4,
  num_kv_shared_layers=4,
  hidden_size_per_layer_input=4,
  vocab_size_per_layer_input=V - 10,
  altup_num_inputs=3,
  laurel_rank=5,
  activation_sparsity_pattern=[0.6, 0.0, 0.0, 0.7] + [0.3, 0.0] * 2,
  rms_norm_eps=0.3,  # as in hf_models, for smaller widths
)
FAMILIES['gemma4_text, experts'] = GEMMA4 | dict(
  num_hidden_layers=6,
  layer_types=[LOCAL, LOCAL, GLOBAL] * 2,
  enable_moe_block=True,
  num_experts=4,
  top_k_experts=2,
  moe_intermediate_size=8,
)
FAMILIES['llama4_text'] = dict(
  num_hidden_layers=6,
  head_dim=6,
  intermediate_size=8,
  intermediate_size_mlp=24,
  interleave_moe_layer_step=2,
  no_rope_layers=[1, 0] * 3,
  num_local_experts=4,
  num_experts_per_tok=2,
  attention_chunk_size=5,
  floor_scale=7,
  attn_scale=0.5,
)
FAMILIES['ernie4_5_moe'] = dict(
  num_hidden_layers=6,
  head_dim=6,
  moe_layer_start_index=1,
  moe_layer_interval=2,
  moe_num_experts=4,
  moe_k=2,
  moe_num_shared_experts=1,
  moe_intermediate_size=8,
)
# Families whose kinds of layers those above have as well.
OTHERS = {
  'seed_oss': dict(num_hidden_layers=5, head_dim=6),
  'ernie4_5': dict(num_hidden_layers=5, head_dim=6, use_bias=True),
  'dots1': dict(
    num_hidden_layers=6,
    head_dim=12,
    sliding_window=5,
    max_window_layers=3,
    n_shared_experts=1,
  )
  | DEEP,
  'glm4_moe_lite': dict(num_hidden_layers=6)
  | LATENT
  | {k: v for k, v in DEEP.items() if 'dense' not in k},
  # As in hf_models: outputs of heads may be almost 0 before their norms.
  'nemotron_h, dense': NEMOTRON | dict(layer_norm_epsilon=0.3),
  'gemma4_text, dense': GEMMA4
  | dict(
    num_hidden_layers=5,
    layer_types=[LOCAL, LOCAL, GLOBAL, GLOBAL, GLOBAL],
    rms_norm_eps=1e-2,
  ),
  'gemma4_unified_text': {
    k: v for k, v in GEMMA4.items() if 'per_layer_input' not in k
  }
  | dict(
    num_hidden_layers=6,
    layer_types=[LOCAL, GLOBAL] * 3,
    num_kv_shared_layers=2,
  ),
  'qwen3_vl_text': dict(num_hidden_layers=5, head_dim=6),
  'qwen3_vl_moe_text': dict(
    num_hidden_layers=5,
    head_dim=6,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
  ),
}
SLOW = 'minimax_m2', 'hunyuan_v1_dense', 'apertus', *OTHERS
FAMILIES |= OTHERS
# Families without a kind of layer or a table of their own: one test is enough.
ALIKE = {
  'olmo3': dict(num_hidden_layers=5, head_dim=6, sliding_window=5),
  'olmoe': dict(
    num_hidden_layers=5, head_dim=4, num_experts=4, num_experts_per_tok=2
  ),
  'gemma3_text': dict(
    num_hidden_layers=7,
    head_dim=6,
    sliding_window=5,
    query_pre_attn_scalar=7,
    final_logit_softcapping=2.0,
  ),
  'gemma': dict(num_hidden_layers=5, head_dim=6),
  'mixtral': dict(
    num_hidden_layers=5,
    head_dim=6,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=5,
  ),
  'granite': dict(
    num_hidden_layers=5,
    head_dim=6,
    embedding_multiplier=3.0,
    attention_multiplier=0.2,
    residual_multiplier=0.6,
    logits_scaling=1.5,
    mlp_bias=True,
  ),
  'llama': dict(num_hidden_layers=5, mlp_bias=True),
  'qwen2': dict(
    num_hidden_layers=5,
    use_sliding_window=True,
    sliding_window=5,
    max_window_layers=3,
  ),
  'qwen3': dict(num_hidden_layers=5, head_dim=6),
  'qwen3_moe': dict(
    num_hidden_layers=5,
    head_dim=6,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=8,
    norm_topk_prob=True,
  ),
  'mistral': dict(num_hidden_layers=5, sliding_window=5),
  'phi3': dict(num_hidden_layers=5, sliding_window=5),
  'olmo2': dict(num_hidden_layers=5),
  'smollm3': dict(num_hidden_layers=5, no_rope_layer_interval=2),
  'gemma2': dict(
    num_hidden_layers=5,
    head_dim=6,
    sliding_window=5,
    query_pre_attn_scalar=7,
    attn_logit_softcapping=1.5,
    final_logit_softcapping=2.0,
  ),
}


def config(name: str, split: bool = False, **runtime):
  """Returns a config. With `split`, a tensor axis of 2 divides its heads."""
  shared = SHARED | ({'num_key_value_heads': 2} if split else {})
  kind = name.partition(',')[0]  # some families have two shapes
  h = shared | (FAMILIES | ALIKE)[name] | {'model_type': kind}
  return families.from_hf(h, **runtime)


EXPERTS = [name for name in FAMILIES if config(name).experts]
