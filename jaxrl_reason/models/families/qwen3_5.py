"""Qwen3.5 and 3.6, dense: Qwen3-Next with an mlp in place of experts, and a
projection for each of the inputs of the delta rule. Of folders with a tower for
images, the text model is read.
"""

from jaxrl_reason.models.config import DELTA, Config
from jaxrl_reason.models.families import qwen3_next
from jaxrl_reason.models.published import tensors

ARCHITECTURE = 'Qwen3_5ForCausalLM'
DEFAULTS = qwen3_next.DELTA_DEFAULTS | {'num_key_value_heads': 4}
ACTIVATIONS = qwen3_next.ACTIVATIONS
PACKED = qwen3_next.PACKED
beside = qwen3_next.beside
IN = (
  tensors.layer('linear_attn.in_proj_qkv.weight', 'attn/q', 'attn/k', 'attn/v'),
  tensors.layer('linear_attn.in_proj_z.weight', 'attn/z'),
  tensors.layer('linear_attn.in_proj_b.weight', 'attn/share'),
  tensors.layer('linear_attn.in_proj_a.weight', 'attn/step'),
)
ATTENTION = (*tensors.QKV, *tensors.OUT, *tensors.QK_NORMS)
_BOTH = (*tensors.MLP, *tensors.PRE_NORMS)
TENSORS = (
  *tensors.ENDS,
  *ATTENTION,
  *_BOTH,
  *tensors.of_stack(DELTA, *IN, *qwen3_next.OF_DELTA, *_BOTH),
)


def read(h: dict) -> dict:
  layers = qwen3_next.read_layers(h)
  return layers | {'delta_split': bool(layers['delta_layers'])}


def write(c: Config) -> dict:
  return qwen3_next.write_layers(c)
