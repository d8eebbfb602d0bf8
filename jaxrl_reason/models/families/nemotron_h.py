"""Nemotron-H, Nemotron Nano 2 and 3: every layer is either Mamba-2, attention
without positions, or an mlp without gates (or experts) alone.
"""

import re

from jaxrl_reason.models.config import ALONE, DELTA, Config
from jaxrl_reason.models.parts.rope import NOPE
from jaxrl_reason.models.published import keys, mamba, tensors

ARCHITECTURE = 'NemotronHForCausalLM'
DEFAULTS = keys.BASE | {
  'layer_norm_epsilon': 1e-5,
  'mlp_hidden_act': 'relu2',
  'head_dim': 128,
  'num_key_value_heads': 8,
  'intermediate_size': 21_504,
  'mamba_num_heads': 128,
  'mamba_head_dim': 64,
  'n_groups': 8,
  'ssm_state_size': 128,
  'conv_kernel': 4,
  'use_conv_bias': True,
  'use_bias': False,
  'residual_in_fp32': False,
  'mamba_hidden_act': 'silu',
  'mamba_proj_bias': False,
  'n_routed_experts': 8,
  'num_experts_per_tok': 2,
  'moe_intermediate_size': 7688,
  'moe_shared_expert_intermediate_size': 7688,
  'n_group': 1,
  'topk_group': 1,
  'norm_topk_prob': True,
  'routed_scaling_factor': 1.0,
}
UNADAPTED = mamba.UNADAPTED
MODULES = 'backbone.', 'model.'
ACTIVATIONS = {'relu2': 'relu2'}
NAMES = 'mamba_num_heads', 'n_groups', 'ssm_state_size', 'conv_kernel'
# Kinds of layers: in the published pattern, and in `layers_block_type`.
MLP, EXPERTS = 'mlp', 'moe'
KINDS = {'M': keys.LINEAR, '*': keys.FULL, '-': MLP, 'E': EXPERTS}
OF_EXPERTS = (
  *tensors.EXPERTS,
  tensors.vector('mlp.gate.e_score_correction_bias', 'mlp/choice_bias'),
  *tensors.shared('shared_experts'),
)


def _rows(*mlp: tensors.Row) -> tuple[tensors.Row, ...]:
  """Returns the rows of a model with the given mlp or experts. All kinds of
  layers are called mixers.
  """
  before = tensors.vector('norm.weight', 'attn_norm')
  alone = *mlp, tensors.vector('norm.weight', 'mlp_norm')
  layers = (
    *tensors.QKV,
    *tensors.OUT,
    before,
    *tensors.of_stack(DELTA, *mamba.rows('mixer'), before),
    *tensors.of_stack(ALONE, *alone),
  )

  def there(row: tensors.Row) -> tensors.Row:
    name = row.name.replace('model.layers', 'backbone.layers')
    return row._replace(name=re.sub(r'\.(self_attn|mlp)\.', '.mixer.', name))

  return (
    tensors.Row('backbone.embeddings.weight', ('embed',), 'table'),
    tensors.Row('backbone.norm_f.weight', ('final_norm',), 'vector'),
    tensors.Row(tensors.HEAD, ('head',), 'linear'),
    *map(there, layers),
  )


TENSORS, WITH_EXPERTS = _rows(*tensors.MLP), _rows(*OF_EXPERTS)


def rows_of(h: dict) -> tuple[tensors.Row, ...]:
  return WITH_EXPERTS if EXPERTS in kinds_of(h) else TENSORS


def beside(h: dict) -> str:
  """Returns a regex over the names of tensors for multi-token prediction."""
  del h
  return r'mtp\..*'


def kinds_of(h: dict) -> list[str]:
  """Returns the kinds of the layers, from either form of the file.

  Raises:
    ValueError: a kind is unknown, or some layers have an mlp and others
      experts.
  """
  pattern = h.get('hybrid_override_pattern')
  letters = pattern if isinstance(pattern, str) else ''
  kinds = h.get('layers_block_type') or [KINDS.get(x, x) for x in letters]
  if not isinstance(kinds, list) or any(not isinstance(x, str) for x in kinds):
    raise ValueError(
      f'config.json: layers_block_type={kinds!r} must be a list of kinds'
    )
  kinds = [keys.RENAMED.get(kind, kind) for kind in kinds]
  wrong = [kind for kind in kinds if kind not in KINDS.values()]
  if wrong or not kinds or {MLP, EXPERTS} <= {*kinds}:
    raise ValueError(
      f'config.json: layers_block_type={wrong or sorted({*kinds})} is not '
      f'supported: choose {", ".join(KINDS.values())} for each layer (in a '
      f'hybrid_override_pattern {", ".join(KINDS)}), and not both {MLP} and '
      f'{EXPERTS}'
    )
  return kinds


def implied(h: dict) -> dict:
  return {'num_hidden_layers': len(kinds_of(h))}


def read(h: dict) -> dict:
  kinds = kinds_of(h)
  mamba.check(
    h,
    {
      'use_conv_bias': (True,),
      'use_bias': (False, None),
      'mamba_proj_bias': (False, None),
      'mamba_hidden_act': ('silu',),
      'residual_in_fp32': (False, None),
      'attention_bias': (False, None),
      'tie_word_embeddings': (False,),
      'sliding_window': (None,),
      'moe_latent_size': (None,),
      'attention_head_dim': (None, h['head_dim']),
      'time_step_limit': mamba.LIMITS,
    },
  )

  def layers(*of: str) -> tuple[int, ...]:
    return tuple(i for i, kind in enumerate(kinds) if kind in of)

  width = h['mamba_num_heads'] * h['mamba_head_dim']
  out = mamba.read(h, layers(keys.LINEAR), width, NAMES) | {
    'norm_eps': h['layer_norm_epsilon'],
    'rope_of_layer': (NOPE,) * len(kinds),
    'mlp_layers': layers(MLP, EXPERTS),
  }
  if EXPERTS not in kinds:
    return out | {'mlp_bias': bool(h.get('mlp_bias'))}
  shared = {'shared_mlp': h['moe_shared_expert_intermediate_size']}
  # Keys of families with dense layers, and with shared experts of one width.
  absent = {'first_k_dense_replace': 0, 'n_shared_experts': 1}
  return out | keys.deep_experts(h | absent) | shared


def write(c: Config) -> dict:
  letters = {kind: letter for letter, kind in KINDS.items()}
  of_mlp = EXPERTS if c.experts else MLP
  kinds = [
    of_mlp if i in c.mlp_layers else kind
    for i, kind in enumerate(keys.types_of(c))
  ]
  pattern = ''.join(letters.get(kind, '?') for kind in kinds)
  out = keys.write_deep_experts(c) if c.experts else {'mlp_bias': c.mlp_bias}
  return (
    out
    | mamba.write(c, NAMES)
    | {
      'hybrid_override_pattern': pattern,
      'layer_norm_epsilon': c.norm_eps,
      # `transformers` raises the time steps of whole rows to at least this,
      # but not those of decoding.
      'time_step_min': 1e-9,
      'mlp_hidden_act': 'relu2',
      'moe_shared_expert_intermediate_size': c.shared_mlp or c.mlp,
      'n_shared_experts': 1,
    }
    | ({'mamba_head_dim': c.delta_value_dim} if c.delta_heads else {})
  )
