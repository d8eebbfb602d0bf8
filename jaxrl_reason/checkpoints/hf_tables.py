"""Which tensor of a published model is which weight of ours, by family.

A row: (name on disk, weights of ours, layout). '{}' is the layer, a second one
the expert; several weights are joined along the tensor's rows, in that order.
A row is skipped where the model has no such weight.
"""

import re
from typing import NamedTuple


class Row(NamedTuple):
  """One kind of tensor; layout is a name in `streams.LAYOUTS`."""

  name: str
  leaves: tuple[str, ...]
  layout: str


EMBED, HEAD = 'model.embed_tokens.weight', 'lm_head.weight'


def is_buffer(name: str) -> bool:
  """A tensor that old files have and that is no weight."""
  return re.fullmatch(r'.*\.rotary_emb\.inv_freq', name) is not None


def _layer(name: str, *leaves: str, layout: str = 'linear') -> Row:
  return Row(
    f'model.layers.{{}}.{name}', tuple(f'layers/{x}' for x in leaves), layout
  )


def _vector(name: str, leaf: str) -> Row:
  return _layer(name, leaf, layout='vector')


ENDS = (
  Row(EMBED, ('embed',), 'table'),
  Row('model.norm.weight', ('final_norm',), 'vector'),
  Row(HEAD, ('head',), 'linear'),
)
OUT = (
  _layer('self_attn.o_proj.weight', 'attn/o', layout='output'),
  _vector('self_attn.o_proj.bias', 'attn/o_bias'),
)
QKV = (
  _layer('self_attn.q_proj.weight', 'attn/q'),
  _layer('self_attn.k_proj.weight', 'attn/k'),
  _layer('self_attn.v_proj.weight', 'attn/v'),
  _vector('self_attn.q_proj.bias', 'attn/q_bias'),
  _vector('self_attn.k_proj.bias', 'attn/k_bias'),
  _vector('self_attn.v_proj.bias', 'attn/v_bias'),
)
QK_NORMS = (
  _vector('self_attn.q_norm.weight', 'attn/q_norm'),
  _vector('self_attn.k_norm.weight', 'attn/k_norm'),
)
DOWN = _layer('mlp.down_proj.weight', 'mlp/down')
MLP = (
  _layer('mlp.gate_proj.weight', 'mlp/gate'),
  _layer('mlp.up_proj.weight', 'mlp/up'),
  DOWN,
  _vector('mlp.gate_proj.bias', 'mlp/gate_bias'),
  _vector('mlp.up_proj.bias', 'mlp/up_bias'),
  _vector('mlp.down_proj.bias', 'mlp/down_bias'),
)
PRE_NORMS = (
  _vector('input_layernorm.weight', 'attn_norm'),
  _vector('post_attention_layernorm.weight', 'mlp_norm'),
)
# The same name is a norm before the mlp above, and after attention here.
POST_NORMS = (
  _vector('post_attention_layernorm.weight', 'attn_post_norm'),
  _vector('post_feedforward_layernorm.weight', 'mlp_post_norm'),
)
SANDWICH = (
  _vector('input_layernorm.weight', 'attn_norm'),
  _vector('pre_feedforward_layernorm.weight', 'mlp_norm'),
  *POST_NORMS,
)
EXPERTS = (
  _layer('mlp.gate.weight', 'mlp/router'),
  _layer('mlp.experts.{}.gate_proj.weight', 'mlp/gate'),
  _layer('mlp.experts.{}.up_proj.weight', 'mlp/up'),
  _layer('mlp.experts.{}.down_proj.weight', 'mlp/down'),
)
FUSED = (
  _layer('self_attn.qkv_proj.weight', 'attn/q', 'attn/k', 'attn/v'),
  _layer('mlp.gate_up_proj.weight', 'mlp/gate', 'mlp/up'),
  DOWN,
)

LLAMA = (*ENDS, *QKV, *OUT, *MLP, *PRE_NORMS)
TABLES = {
  'llama': LLAMA,
  'mistral': LLAMA,
  'smollm3': LLAMA,
  'qwen2': LLAMA,
  'qwen3': (*LLAMA, *QK_NORMS),
  'qwen3_moe': (*ENDS, *QKV, *OUT, *QK_NORMS, *EXPERTS, *PRE_NORMS),
  'phi3': (*ENDS, *FUSED, *OUT, *PRE_NORMS),
  'olmo2': (*ENDS, *QKV, *OUT, *QK_NORMS, *MLP, *POST_NORMS),
  'gemma2': (*ENDS, *QKV, *OUT, *MLP, *SANDWICH),
  'gemma3_text': (*ENDS, *QKV, *OUT, *QK_NORMS, *MLP, *SANDWICH),
}
