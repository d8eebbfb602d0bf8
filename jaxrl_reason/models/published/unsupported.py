"""Reasons for which families and keys of config.json are not supported."""

LATENT = 'its form of latent attention is not supported, only that of V3'
RECURRENT = (
  'its recurrent layers are not supported, only the gated delta rule, and '
  'Mamba-2 as in Granite 4, Nemotron-H and Falcon-H1'
)
TOWERS = 'image and sound towers are not supported, only text'
LAYER_NORM = 'norms with a mean and learned positions are not supported'
ENCODER = 'encoders are not supported, only causal language models'
FAMILIES = {
  'bert': ENCODER,
  'deepseek_v2': LATENT,
  'falcon_mamba': RECURRENT,
  'gpt2': LAYER_NORM,
  'gpt_neox': LAYER_NORM,
  'kimi_k25': LATENT,
  'mamba': RECURRENT,
  'mamba2': RECURRENT,
  'minicpm3': LATENT,
  'minimax': RECURRENT,
  'mllama': TOWERS,
  'opt': LAYER_NORM,
  'phi': LAYER_NORM,
  'qwen2_5_vl': TOWERS,
  'qwen2_vl': TOWERS,
  'qwen3_vl_moe': TOWERS,
  'recurrent_gemma': RECURRENT,
  't5': ENCODER,
  'zamba2': RECURRENT,
}
# Keys of a config.json that stand for parts which no family has.
SIGNS = {
  'vision_config': TOWERS,
  'audio_config': TOWERS,
  'is_encoder_decoder': ENCODER,
  'n_positions': LAYER_NORM,
  'layer_norm_eps': LAYER_NORM,
  'mamba_d_state': RECURRENT,
  'ssm_cfg': RECURRENT,
  'index_topk': 'attention to chosen tokens is supported only for '
  'deepseek_v32 and glm_moe_dsa',
}


def signs(h: dict) -> str:
  """Returns the parts of an unknown model that no family has, by its keys."""
  found = [f'; {key}: {why}' for key, why in SIGNS.items() if h.get(key)]
  return ''.join(found)
