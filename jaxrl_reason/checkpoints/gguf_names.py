"""Names of the tensors of GGUF files, from those of Hugging Face folders."""

import collections
from collections.abc import Iterable
from typing import NamedTuple

from jaxrl_reason.models.families import gemma4_text
from jaxrl_reason.models.published import tensors

ENDS = {
  tensors.EMBED: 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  tensors.HEAD: 'output.weight',
  'model.embed_tokens_per_layer.weight': 'per_layer_token_embd.weight',
  'model.per_layer_model_projection.weight': 'per_layer_model_proj.weight',
  'model.per_layer_projection_norm.weight': 'per_layer_proj_norm.weight',
}
EMBED, HEAD = ENDS[tensors.EMBED], ENDS[tensors.HEAD]
OF_TOKENS = 'per_layer_token_embd.weight'  # inputs of each layer
LOW_RANK = 'blk.0.laurel_l.weight'
# One tensor holds the matrices of all residual streams but the first.
STACKS = {
  'model.altup_projections.': 'altup_proj.weight',
  'model.altup_unembed_projections.': 'altup_unembd_proj.weight',
}
OF_LAYER = {
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.qkv_proj': 'attn_qkv',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.gate_up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'input_layernorm': 'attn_norm',
  'post_attention_layernorm': 'ffn_norm',
  'per_layer_input_gate': 'inp_gate',
  'per_layer_projection': 'proj',
  'post_per_layer_input_norm': 'post_norm',
  'altup.correction_coefs': 'altup_correct_coef',
  'altup.correct_output_scale': 'altup_correct_scale',
  'altup.prediction_coefs': 'altup_predict_coef',
  'altup.modality_router': 'altup_router',
  'altup.router_norm': 'altup_router_norm',
  'laurel.linear_left': 'laurel_l',
  'laurel.linear_right': 'laurel_r',
  'laurel.post_laurel_norm': 'laurel_post_norm',
}
OF_GEMMA = OF_LAYER | {
  'post_attention_layernorm': 'post_attention_norm',
  'pre_feedforward_layernorm': 'ffn_norm',
  'post_feedforward_layernorm': 'post_ffw_norm',
}
GEMMAS = ('gemma2', 'gemma3', 'gemma3n')
# Factors of rotary frequencies; those of longrope go into config.json.
FACTORS = ('rope_factors_short.weight', 'rope_factors_long.weight')
# Divisors of rotary frequencies, of Llama 3.1 and later.
FREQUENCIES = 'rope_freqs.weight'


class Place(NamedTuple):
  """The tensor of a GGUF file, and an index along its first axis if it holds
  more than one tensor of a folder.
  """

  name: str
  at: int | None = None


def place(name: str, arch: str) -> Place:
  """Returns the place in a GGUF file of a tensor of a Hugging Face folder."""
  if name in ENDS:
    return Place(ENDS[name])
  for start, stack in STACKS.items():
    if name.startswith(start):
      return Place(stack, int(name.removeprefix(start).partition('.')[0]))
  number, _, rest = name.removeprefix('model.layers.').partition('.')
  if rest.endswith('_scale'):  # a vector without an ending
    rest += '.weight'
  part, _, kind = rest.rpartition('.')
  table = OF_GEMMA if arch in GEMMAS else OF_LAYER
  return Place(f'blk.{number}.{table[part]}.{kind}')


def shapes(wanted: dict[str, tuple], arch: str) -> dict[str, tuple]:
  """Returns the shapes of a file's tensors, from those of a folder's."""
  places = {name: place(name, arch) for name in wanted}
  n = collections.Counter(x.name for x in places.values())
  return {
    x.name: (wanted[name] if x.at is None else (n[x.name], *wanted[name]))
    for name, x in places.items()
  }


def unread(layers: int, reading: int) -> Iterable[str]:
  """Yields the names of keys and values of layers that read those of others,
  which are in the files.
  """
  for layer in range(layers - reading, layers):
    for part in gemma4_text.SHARED:
      if f'self_attn.{part}' in OF_LAYER:
        yield f'blk.{layer}.{OF_LAYER[f"self_attn.{part}"]}.weight'
