"""DeepSeek V3.2: the layers of DeepSeek V3, with an indexer that chooses the
keys of each query. Layers for multi-token prediction are not read.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import deepseek_v3, glm4_moe_lite
from jaxrl_reason.models.published import keys, tensors

ARCHITECTURE = 'DeepseekV32ForCausalLM'
DEFAULTS = deepseek_v3.DEFAULTS | {
  'index_topk': 2048,
  'index_n_heads': 64,
  'index_head_dim': 128,
}
TENSORS = (
  *deepseek_v3.TENSORS,
  *tensors.dense_too(
    tensors.layer('self_attn.indexer.wq_b.weight', 'attn/index/q'),
    tensors.layer('self_attn.indexer.wk.weight', 'attn/index/k'),
    tensors.vector('self_attn.indexer.k_norm.weight', 'attn/index/k_norm'),
    tensors.vector('self_attn.indexer.k_norm.bias', 'attn/index/k_norm_bias'),
    tensors.layer(
      'self_attn.indexer.weights_proj.weight', 'attn/index/head_weights'
    ),
  ),
)
UNWRITTEN = ('rope_interleave',)  # always true
beside = keys.later_layers
PACKED = deepseek_v3.PACKED
UNADAPTED = deepseek_v3.UNADAPTED


def read(h: dict) -> dict:
  if not h['q_lora_rank']:
    raise ValueError(
      'config.json: q_lora_rank is null, but an indexer needs a value'
    )
  return glm4_moe_lite.read(h) | {
    'rope_interleaved': True,
    'index_topk': h['index_topk'],
    'index_heads': h['index_n_heads'],
    'index_dim': h['index_head_dim'],
  }


def write(c: Config) -> dict:
  return glm4_moe_lite.write(c) | {
    'index_topk': c.index_topk,
    'index_n_heads': c.index_heads,
    'index_head_dim': c.index_dim,
    'layer_types': [keys.INDEXED] * c.layers,
  }
