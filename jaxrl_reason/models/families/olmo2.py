"""OLMo 2: norms after attention and mlp, norms on whole q and k."""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Olmo2ForCausalLM'
DEFAULTS = keys.BASE | {'rms_norm_eps': 1e-5}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.MLP,
  *tensors.POST_NORMS,
)


def read(h: dict) -> dict:
  return (
    {'norm_place': 'post', 'qk_norm': True, 'qk_norm_over': 'projection'}
    | keys.biases(h)
    | ropes.fields(h)
  )


def write(c: Config) -> dict:
  return keys.write_biases(c)
