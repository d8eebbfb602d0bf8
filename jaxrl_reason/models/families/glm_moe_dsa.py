"""GLM-5: DeepSeek V3.2 of other sizes, with an indexer that rotates pairs of
neighbours. Layers of GLM-5.2 may lack an indexer.
"""

from jaxrl_reason.models.config import INDEXLESS, Config
from jaxrl_reason.models.families import deepseek_v32
from jaxrl_reason.models.published import keys, tensors

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
  'index_skip_topk_offset': 2,
}
TENSORS = (
  *deepseek_v32.TENSORS,
  *tensors.of_stack(INDEXLESS, *tensors.of_layers(deepseek_v32.TENSORS)),
)
UNWRITTEN = deepseek_v32.UNWRITTEN
beside = keys.later_layers
UNADAPTED = deepseek_v32.UNADAPTED
PACKED = deepseek_v32.PACKED
# Kinds in indexer_types: the layer has an indexer, or attends to the keys that
# an earlier one chose. Letters are those of index_topk_pattern.
OWN, EARLIER = 'full', 'shared'
LETTERS = {'F': OWN, 'S': EARLIER}


def read(h: dict) -> dict:
  kinds = _kinds(h)
  which = tuple(i for i, kind in enumerate(kinds) if kind == EARLIER)
  own = {'index_interleaved': True, 'indexless_layers': which}
  return deepseek_v32.read(h) | own


def _kinds(h: dict) -> list[str]:
  """Returns the kind of each layer: OWN or EARLIER.

  Raises:
    ValueError: a kind is unknown, or their number is not that of the layers.
  """
  key, n = 'indexer_types', h['num_hidden_layers']
  kinds, pattern = h.get(key), h.get('index_topk_pattern')
  if kinds is None and pattern is not None:
    key, kinds = 'index_topk_pattern', [LETTERS.get(x, x) for x in pattern]
  if kinds is None:
    every, first = max(h['index_topk_freq'], 1), h['index_skip_topk_offset']
    late = (max(i - first + 1, 0) % every for i in range(n))
    key, kinds = 'index_topk_freq', [EARLIER if x else OWN for x in late]
  if len(kinds) != n or {*kinds} - {OWN, EARLIER} or kinds[0] != OWN:
    raise ValueError(
      f'config.json: {key}={h.get(key)!r:.60} must have {OWN!r} or {EARLIER!r} '
      f'for each of num_hidden_layers={n}, and {OWN!r} first'
    )
  return kinds


def write(c: Config) -> dict:
  earlier = {*c.indexless_layers}
  kinds = [EARLIER if i in earlier else OWN for i in range(c.layers)]
  return deepseek_v32.write(c) | {'indexer_types': kinds}
