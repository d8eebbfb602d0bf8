"""OLMo 3: OLMo 2 with windows in three of four layers, and a scaled rotary
table in the others.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, ropes, tensors

ARCHITECTURE = 'Olmo3ForCausalLM'
THETA = 500_000.0
DEFAULTS = keys.BASE | {
  'rms_norm_eps': 1e-5,
  'rope_theta': THETA,
  'sliding_window': 4096,
}
TENSORS = (
  *tensors.ENDS,
  *tensors.QKV,
  *tensors.OUT,
  *tensors.QK_NORMS,
  *tensors.MLP,
  *tensors.POST_NORMS,
)


def read(h: dict) -> dict:
  layers = range(h['num_hidden_layers'])
  types = [keys.SLIDING if (i + 1) % 4 else keys.FULL for i in layers]
  return (
    {'norm_place': 'post', 'qk_norm': True, 'qk_norm_over': 'projection'}
    | keys.biases(h)
    | keys.windows(h, types)
    # transformers applies an old file's rope_theta to full layers only.
    | ropes.by_type(h, types, h['rope_theta'], THETA)
  )


def write(c: Config) -> dict:
  return (
    keys.write_biases(c) | keys.write_windows(c) | ropes.write_by_type(c, THETA)
  )
