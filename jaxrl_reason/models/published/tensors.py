"""Rows that map tensors of published models to our weights; families build
their tables from them.

A row is (name on disk, our weights, layout). The first '{}' is the layer, a
second one the expert. Several weights are concatenated along the tensor's rows,
in that order. A row is skipped if the model has no such weight.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Row(NamedTuple):
  """One kind of tensor; layout is a name in `checkpoints.streams.LAYOUTS`."""

  name: str
  leaves: tuple[str, ...]
  layout: str


EMBED, HEAD = 'model.embed_tokens.weight', 'lm_head.weight'
# Endings of names on disk, and of paths of weights, that are float32 beside
# narrower ones: rounded, these biases would choose other experts.
FLOAT32 = 'e_score_correction_bias', 'feed_forward.expert_bias', 'choice_bias'


def dtype_at(name: str, dtype: str) -> str:
  """Returns the dtype of a tensor, or of the weight at a path, among others of
  `dtype`."""
  return 'float32' if name.endswith(FLOAT32) else dtype


def is_buffer(name: str) -> bool:
  """Returns whether a tensor of an old file is a buffer, not a weight."""
  return re.fullmatch(r'.*\.rotary_emb\.inv_freq', name) is not None


def layer(name: str, *leaves: str, layout: str = 'linear') -> Row:
  """Returns the row of a weight that every layer has."""
  return Row(
    f'model.layers.{{}}.{name}', tuple(f'layers/{x}' for x in leaves), layout
  )


def depthwise(name: str, leaf: str) -> Row:
  """Returns the row of every layer's depthwise convolution."""
  return layer(name, leaf, layout='depthwise')


def vector(name: str, leaf: str) -> Row:
  """Returns the row of every layer's norm or bias."""
  return layer(name, leaf, layout='vector')


ENDS = (
  Row(EMBED, ('embed',), 'table'),
  Row('model.norm.weight', ('final_norm',), 'vector'),
  Row(HEAD, ('head',), 'linear'),
)
OUT = (
  layer('self_attn.o_proj.weight', 'attn/o', layout='output'),
  vector('self_attn.o_proj.bias', 'attn/o_bias'),
)
QKV = (
  layer('self_attn.q_proj.weight', 'attn/q'),
  layer('self_attn.k_proj.weight', 'attn/k'),
  layer('self_attn.v_proj.weight', 'attn/v'),
  vector('self_attn.q_proj.bias', 'attn/q_bias'),
  vector('self_attn.k_proj.bias', 'attn/k_bias'),
  vector('self_attn.v_proj.bias', 'attn/v_bias'),
)
QK_NORMS = (
  vector('self_attn.q_norm.weight', 'attn/q_norm'),
  vector('self_attn.k_norm.weight', 'attn/k_norm'),
)
DOWN = layer('mlp.down_proj.weight', 'mlp/down')
MLP = (
  layer('mlp.gate_proj.weight', 'mlp/gate'),
  layer('mlp.up_proj.weight', 'mlp/up'),
  DOWN,
  vector('mlp.gate_proj.bias', 'mlp/gate_bias'),
  vector('mlp.up_proj.bias', 'mlp/up_bias'),
  vector('mlp.down_proj.bias', 'mlp/down_bias'),
)
PRE_NORMS = (
  vector('input_layernorm.weight', 'attn_norm'),
  vector('post_attention_layernorm.weight', 'mlp_norm'),
)
# This name is the norm before the mlp above, and the norm after attention here.
POST_NORMS = (
  vector('post_attention_layernorm.weight', 'attn_post_norm'),
  vector('post_feedforward_layernorm.weight', 'mlp_post_norm'),
)
SANDWICH = (
  vector('input_layernorm.weight', 'attn_norm'),
  vector('pre_feedforward_layernorm.weight', 'mlp_norm'),
  *POST_NORMS,
)
EXPERTS = (
  layer('mlp.gate.weight', 'mlp/router'),
  layer('mlp.experts.{}.gate_proj.weight', 'mlp/gate'),
  layer('mlp.experts.{}.up_proj.weight', 'mlp/up'),
  layer('mlp.experts.{}.down_proj.weight', 'mlp/down'),
)
# `peft` takes a target of these names for the experts of most mixtures, and
# ignores adapters of their dense layers and of their mlp for all tokens.
EXPERT_TARGETS = tuple(f'.{x}_proj.weight' for x in ('gate', 'up', 'down'))
GATE_UP = layer('mlp.gate_up_proj.weight', 'mlp/gate', 'mlp/up')
FUSED = (
  layer('self_attn.qkv_proj.weight', 'attn/q', 'attn/k', 'attn/v'),
  GATE_UP,
  DOWN,
)


WHOLE_EXPERTS = '.experts.gate_up_proj'
OUT_FIRST = 'experts'  # layout of all experts, each [out, in]


def with_whole_experts(
  rows: tuple[Row, ...], slices: Mapping[str, Any], width: int
) -> tuple[Row, ...]:
  """Returns the rows of a folder whose tensors hold all experts of a layer.

  Args:
    slices: of the tensors in the folder, by name; width: of the model.
  """
  if _outputs_first(slices, width):
    rows = tuple(
      row._replace(layout=OUT_FIRST)
      if row.layout in ('adjoined', 'stacked') and '.experts.' in row.name
      else row
      for row in rows
    )
  out = []
  for row in rows:
    stem, _, kind = row.name.partition('.experts.{}.')
    if kind == 'gate_proj.weight':
      leaves = tuple(row.leaves[0].replace('gate', x) for x in ('gate', 'up'))
      out.append(Row(stem + WHOLE_EXPERTS, leaves, OUT_FIRST))
    elif kind == 'down_proj.weight':
      out.append(Row(f'{stem}.experts.down_proj', row.leaves, OUT_FIRST))
    elif kind != 'up_proj.weight':
      out.append(row)
  return tuple(out)


def _outputs_first(slices: Mapping[str, Any], width: int) -> bool:
  """Returns whether experts of a folder are [out, in], by the shapes of both
  tensors of a layer. One of them may be square.
  """
  name = next(name for name in slices if name.endswith(WHOLE_EXPERTS))
  other = name.replace('gate_up_proj', 'down_proj')
  into, out = (
    tuple(slices[x].get_shape()) if x in slices else () for x in (name, other)
  )
  return into[2:] == (width,) and out[1:2] == (width,)


def shared(name: str) -> tuple[Row, ...]:
  """Returns the rows of the mlp for all tokens beside experts."""
  kinds = 'gate', 'up', 'down'
  return tuple(
    layer(f'mlp.{name}.{kind}_proj.weight', f'shared_mlp/{kind}')
    for kind in kinds
  )


def of_stack(name: str, *rows: Row) -> tuple[Row, ...]:
  """Returns the given rows for the layers of another stack."""

  def there(leaf: str) -> str:
    return leaf.replace('layers', name, 1)

  return tuple(r._replace(leaves=tuple(map(there, r.leaves))) for r in rows)


def of_layers(rows: Iterable[Row]) -> tuple[Row, ...]:
  """Returns the rows of weights that are stacked by layer."""
  return tuple(row for row in rows if '{}' in row.name)


def dense_too(*rows: Row) -> tuple[Row, ...]:
  """Returns the given rows, and the same rows for the stack of dense layers."""
  return *rows, *of_stack('dense_layers', *rows)


# Dense layers first, then experts with a corrected choice.
DEEP = (
  *dense_too(*MLP)[len(MLP) :],
  *EXPERTS,
  vector('mlp.gate.e_score_correction_bias', 'mlp/choice_bias'),
  *shared('shared_experts'),
  *dense_too(*PRE_NORMS),
)
LLAMA = (*ENDS, *QKV, *OUT, *MLP, *PRE_NORMS)
