"""Granite 4: Mamba-2 in most layers, an mlp for all tokens, beside experts or
alone, and the multipliers of Granite 3.
"""

from jaxrl_reason.models.config import DELTA, Config
from jaxrl_reason.models.families import granite
from jaxrl_reason.models.parts.rope import NOPE
from jaxrl_reason.models.published import keys, mamba, tensors

ARCHITECTURE = 'GraniteMoeHybridForCausalLM'
DEFAULTS = granite.DEFAULTS | {
  'shared_intermediate_size': 1024,
  'num_local_experts': 8,
  'num_experts_per_tok': 2,
  'mamba_n_heads': 128,
  'mamba_n_groups': 1,
  'mamba_d_state': 256,
  'mamba_d_conv': 4,
  'mamba_expand': 2,
  'mamba_conv_bias': True,
  'mamba_proj_bias': False,
}
MIXER = mamba.rows('mamba')
_MOE = 'block_sparse_moe'
EXPERTS = (
  tensors.layer(f'{_MOE}.router.layer.weight', 'mlp/router'),
  tensors.layer(
    f'{_MOE}.input_linear.weight', 'mlp/gate', 'mlp/up', layout='experts'
  ),
  tensors.layer(f'{_MOE}.output_linear.weight', 'mlp/down', layout='experts'),
)


def _mlp(name: str) -> tuple[tensors.Row, ...]:
  """Returns the rows of the mlp for all tokens."""
  return (
    tensors.layer(
      'shared_mlp.input_linear.weight', f'{name}/gate', f'{name}/up'
    ),
    tensors.layer('shared_mlp.output_linear.weight', f'{name}/down'),
  )


def _rows(*mlp: tensors.Row) -> tuple[tensors.Row, ...]:
  """Returns the rows of a model with the given mlp in every layer."""
  both = *mlp, *tensors.PRE_NORMS
  attention = *tensors.QKV, *tensors.OUT, *both
  of_mamba = tensors.of_stack(DELTA, *MIXER, *both)
  return *tensors.ENDS, *attention, *of_mamba


TENSORS = _rows(*EXPERTS, *_mlp('shared_mlp'))
DENSE = _rows(*_mlp('mlp'))


def rows_of(h: dict) -> tuple[tensors.Row, ...]:
  return TENSORS if h['num_local_experts'] else DENSE


def read(h: dict) -> dict:
  out, n = granite.read(h), h['num_local_experts']
  shared = h['shared_intermediate_size']
  experts = {
    'experts': n,
    'experts_per_token': h['num_experts_per_tok'],
    'expert_norm': True,
    'shared_mlp': shared,
  }
  out |= (experts if n else {'mlp': shared}) | _mixers(h)
  if h.get('position_embedding_type') != 'rope':  # then there are none
    out |= {'rope_of_layer': (NOPE,) * h['num_hidden_layers']}
  return out


def _mixers(h: dict) -> dict:
  """Reads the layers with Mamba-2."""
  types = h.get('layer_types') or [keys.LINEAR] * h['num_hidden_layers']
  types = [keys.RENAMED.get(t, t) for t in types]
  which = tuple(i for i, t in enumerate(types) if t == keys.LINEAR)
  if not which:
    return {}
  width, heads = h['mamba_expand'] * h['hidden_size'], h['mamba_n_heads']
  out = mamba.read(h, which, width)
  mamba.check(
    h,
    {
      'mamba_conv_bias': (True,),
      'mamba_proj_bias': (False,),
      'mamba_d_head': ('auto', None, width // heads),
      'time_step_limit': mamba.LIMITS,
    },
  )
  return out


def write(c: Config) -> dict:
  heads = c.delta_heads * c.delta_groups
  mixers = mamba.write(c) | {
    'mamba_d_head': c.delta_value_dim,
    'mamba_expand': heads * c.delta_value_dim // c.width,
  }
  rope = {*c.layer_ropes} == {NOPE}
  return (
    granite.write(c)
    | (mixers if heads else {})
    | {
      'layer_types': keys.types_of(c),
      'position_embedding_type': None if rope else 'rope',
      'shared_intermediate_size': c.shared_mlp or c.mlp,
      'num_local_experts': c.experts,
      'num_experts_per_tok': c.experts_per_token,
    }
  )
