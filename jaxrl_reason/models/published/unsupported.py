"""Reasons for which families and keys of config.json are not supported, and the
family that is most like an unknown one.
"""

import re
from collections.abc import Mapping
from typing import Any

from jaxrl_reason.models.published import keys, values

LATENT = 'its form of latent attention is not supported, only that of V3'
RECURRENT = (
  'its recurrent layers are not supported, only the gated delta rule, and '
  'Mamba-2 as in Granite 4, Nemotron-H and Falcon-H1'
)
TOWERS = 'image and sound towers are not supported, only text'
LAYER_NORM = 'norms with a bias, and learned positions, are not supported'
ENCODER = 'encoders are not supported, only causal language models'
FAMILIES = {
  'arcee': 'an mlp without a gate is supported only for nemotron_h',
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
  'olmo': 'norms without weights are not supported',
  'opt': LAYER_NORM,
  'phi': LAYER_NORM,
  'qwen2_5_vl': TOWERS,
  'qwen2_vl': TOWERS,
  'recurrent_gemma': RECURRENT,
  'rwkv': RECURRENT,
  't5': ENCODER,
  'zamba2': RECURRENT,
}
# Keys of a config.json that stand for parts which no family has.
SIGNS = {
  'vision_config': TOWERS,
  'audio_config': TOWERS,
  'thinker_config': TOWERS,
  'projector_config': TOWERS,
  'is_encoder_decoder': ENCODER,
  'n_positions': LAYER_NORM,
  'layer_norm_eps': LAYER_NORM,
  'layer_norm_epsilon': LAYER_NORM,
  'norm_epsilon': LAYER_NORM,
  'n_layer': 'the keys of GPT-2 are not read',
  'alibi': 'positions by ALiBi are not supported',
  'mamba_d_state': RECURRENT,
  'ssm_cfg': RECURRENT,
  'linear_attn_config': RECURRENT,
  'index_topk': 'attention to chosen tokens is supported only for '
  'deepseek_v32 and glm_moe_dsa',
}
VISION = 'vl'  # word in names
# Keys of the text model in files of models with towers.
TEXT = 'text_config', 'llm_config', 'language_config', 'thinker_config'
SHARED = {*keys.BASE, *values.WHOLE, *values.TABLES, 'model_type'}
# Keys that families read without a default.
OPTIONAL = {
  'attention_bias',
  'decoder_sparse_step',
  'final_logit_softcapping',
  'mlp_layer_types',
  'mlp_only_layers',
  'norm_topk_prob',
  'num_experts',
  'num_local_experts',
  'partial_rotary_factor',
}
# Keys that no forward pass depends on.
IDLE = re.compile(
  r'.*(_token_id|_dropout|_pdrop|dropout_rate|_coef|_version|_attentions'
  r'|_hidden_states|_cache|_range|_router_logits|_implementation)'
  r'|_.*|architectures|auto_map|(torch_)?dtype|return_dict|id2label|label2id'
  r'|pretraining_tp|qk_head_dim|num_logits_to_keep|chunk_size_feed_forward|problem_type|layer_types|std'
)


def signs(h: Mapping[str, Any]) -> str:
  """Returns the parts of an unknown model that no family has, by its keys."""
  h, found = {**text_of(h), **h}, {}
  for key, why in SIGNS.items():
    if h.get(key):
      found.setdefault(why, key)
  return ''.join(f'; {key}: {why}' for why, key in found.items())


def text_of(h: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the text model of a file with towers, or the whole file."""
  inner = next((h[k] for k in TEXT if isinstance(h.get(k), dict)), None)
  return h if inner is None else text_of(inner)


def most_alike(
  h: Mapping[str, Any], families: Mapping[str, Mapping[str, Any]]
) -> str:
  """Returns a sentence about the family most like a config.json: the share of
  its own keys that both have, more if both names begin with the same word.

  Args:
    families: their defaults by name. Of equals, the first is chosen.
  """
  h = {'model_type': h.get('model_type')} | dict(text_of(h))
  name, every = str(h['model_type']), {k for d in families.values() for k in d}
  own = ({k for k, x in h.items() if x} & every) - SHARED - SIGNS.keys()

  def alike(other: str) -> float:
    keys = families[other].keys() - SHARED
    shared = len(keys & own) / len(keys | own) if keys | own else 1.0
    return shared + _same_start(name, other)

  best = max(families, key=alike)
  read = SHARED | OPTIONAL | SIGNS.keys() | families[best].keys()
  more = [k for k in sorted(h.keys() - read) if h[k] and not IDLE.fullmatch(k)]
  rest = f', which does not read {", ".join(more[:6])}' if more else ''
  return f'The most similar family is {best}{rest}'


def _same_start(name: str, other: str) -> float:
  """Returns how much of two names is the same, and more for the closer of two
  versions: 0 if the first words differ, or if one of them alone reads images.
  """
  ours, theirs = (
    re.findall(r'[a-z]+|\d+', x.removesuffix('_text')) for x in (name, other)
  )
  if ours[:1] != theirs[:1] or (VISION in ours) != (VISION in theirs):
    return 0.0
  shared = len({*ours} & {*theirs}) / len({*ours} | {*theirs})
  versions = [x[1] for x in (ours, theirs) if x[1:] and x[1].isdigit()]
  apart = abs(int(versions[0]) - int(versions[-1])) if versions else 0
  return 0.5 + 0.5 * shared - 0.001 * min(apart, 10)
