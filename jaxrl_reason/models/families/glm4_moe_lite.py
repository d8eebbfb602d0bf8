"""GLM-4.7-Flash: the latent attention of DeepSeek V3 with the experts of
GLM-4.5. Layers for multi-token prediction are not read.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import deepseek_v3
from jaxrl_reason.models.published import keys

ARCHITECTURE = 'Glm4MoeLiteForCausalLM'
DEFAULTS = deepseek_v3.DEFAULTS | {
  'rms_norm_eps': 1e-5,
  'q_lora_rank': 768,
  'qk_nope_head_dim': 192,
  'v_head_dim': 256,
  'moe_intermediate_size': 1536,
  'num_experts_per_tok': 4,
  'n_routed_experts': 64,
  'routed_scaling_factor': 1.8,
  'n_group': 1,
  'topk_group': 1,
  'first_k_dense_replace': 1,
}
TENSORS = deepseek_v3.TENSORS
beside = keys.later_layers
UNADAPTED = deepseek_v3.UNADAPTED
DENSE, SPARSE = 'dense', 'sparse'  # kinds in mlp_layer_types


def read(h: dict) -> dict:
  fields, kinds = deepseek_v3.read(h), h.get('mlp_layer_types')
  if kinds is None:
    return fields
  first = kinds.count(DENSE)
  if kinds != [DENSE] * first + [SPARSE] * (len(kinds) - first):
    raise ValueError(
      'config.json: mlp_layer_types must be dense layers, then sparse ones'
    )
  width = h['intermediate_size'] if first else 0
  return fields | {'dense_layers': tuple(range(first)), 'dense_mlp': width}


def write(c: Config) -> dict:
  kinds = [SPARSE if i in c.routed_layers else DENSE for i in range(c.layers)]
  return deepseek_v3.write(c) | {'mlp_layer_types': kinds}
