"""Gemma 4 of folders whose images have no tower (text): the layers of
gemma4_text, without inputs of each layer and without experts.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import gemma4_text

ARCHITECTURE = 'Gemma4UnifiedForCausalLM'
# The values of keys that `transformers` does not read for this family.
ABSENT = {'hidden_size_per_layer_input': 0, 'enable_moe_block': False}
UNREAD = 'vocab_size_per_layer_input', *ABSENT
DEFAULTS = {k: v for k, v in gemma4_text.DEFAULTS.items() if k not in UNREAD}
DEFAULTS['sliding_window'] = 1024
TENSORS, UNWRITTEN = gemma4_text.TENSORS, gemma4_text.UNWRITTEN
beside, implied = gemma4_text.beside, gemma4_text.implied


def read(h: dict) -> dict:
  return gemma4_text.read(dict(h) | ABSENT)


def write(c: Config) -> dict:
  own = gemma4_text.write(c)
  experts = 'num_experts', 'top_k_experts', 'moe_intermediate_size'
  return {k: v for k, v in own.items() if k not in (*UNREAD, *experts)}
