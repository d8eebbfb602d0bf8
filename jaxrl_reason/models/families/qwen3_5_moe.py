"""Qwen3.5 and 3.6, mixture: Qwen3.5 with the experts of Qwen3-Next."""

from jaxrl_reason.models.config import DELTA, Config
from jaxrl_reason.models.families import qwen3_5, qwen3_next
from jaxrl_reason.models.published import tensors

ARCHITECTURE = 'Qwen3_5MoeForCausalLM'
DEFAULTS = qwen3_next.DEFAULTS | {
  'intermediate_size': 512,  # of no layer
  'num_experts': 256,
  'num_experts_per_tok': 8,
}
ACTIVATIONS = qwen3_next.ACTIVATIONS
PACKED = qwen3_next.PACKED
beside = qwen3_next.beside
TENSORS = (
  *tensors.ENDS,
  *qwen3_5.ATTENTION,
  *qwen3_next.BOTH,
  *tensors.of_stack(DELTA, *qwen3_5.IN, *qwen3_next.OF_DELTA, *qwen3_next.BOTH),
)


def read(h: dict) -> dict:
  return qwen3_5.read(h) | qwen3_next.read_experts(h) | {'expert_norm': True}


def write(c: Config) -> dict:
  return qwen3_next.write(c)
