"""GLM-5: DeepSeek V3.2 of other sizes, with an indexer that rotates pairs of
neighbours.
"""

from jaxrl_reason.models.config import Config
from jaxrl_reason.models.families import deepseek_v32
from jaxrl_reason.models.published import keys

ARCHITECTURE = 'GlmMoeDsaForCausalLM'
DEFAULTS = deepseek_v32.DEFAULTS | {
  'rms_norm_eps': 1e-5,
  'q_lora_rank': 2048,
  'qk_nope_head_dim': 192,
  'v_head_dim': 256,
  'n_group': 1,
  'topk_group': 1,
  'index_n_heads': 32,
  'index_topk_freq': 1,
}
TENSORS = deepseek_v32.TENSORS
UNWRITTEN = deepseek_v32.UNWRITTEN
beside = keys.later_layers
PACKED = deepseek_v32.PACKED
OWN = 'full'  # in indexer_types: the layer has an indexer


def read(h: dict) -> dict:
  _check_indexers(h)
  return deepseek_v32.read(h) | {'index_interleaved': True}


def _check_indexers(h: dict) -> None:
  """Refuses layers that attend to the keys chosen in an earlier layer."""
  kinds, pattern = h.get('indexer_types'), h.get('index_topk_pattern')
  if kinds is not None:
    key, alone = 'indexer_types', {*kinds} <= {OWN}
  elif pattern is not None:
    key, alone = 'index_topk_pattern', {*pattern} <= {'F', OWN}
  else:
    key, alone = 'index_topk_freq', h['index_topk_freq'] <= 1
  if not alone:
    raise ValueError(
      f'config.json: {key}={h.get(key)!r:.60} is not supported: every layer '
      'must have an indexer of its own'
    )


def write(c: Config) -> dict:
  return deepseek_v32.write(c) | {'indexer_types': [OWN] * c.layers}
