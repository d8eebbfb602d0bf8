"""Checks of a model's shape and numerics, `config.Config`."""

from typing import Any

from jaxrl_reason import names
from jaxrl_reason.models.parts import (
  attention,
  delta,
  exact_layers,
  indexer,
  kernel_choice,
  layers,
)
from jaxrl_reason.models.parts.rope import NOPE, rotary_width

# The operations of a forward pass, by `numerics`.
NUMERICS = {'fast': layers, 'exact': exact_layers}
CHOICES = {
  'dtype': ('float32', 'bfloat16'),
  'cache_dtype': ('model', 'bfloat16', 'int8'),
  'remat': ('none', *layers.REMAT),
  'train_layers': ('auto', 'scan', 'unroll'),
  'decode_layers': ('auto', 'scan', 'unroll'),
  'attention': ('auto', *attention.KERNELS),
  'activation': tuple(layers.ACTIVATIONS),
  'numerics': tuple(NUMERICS),
  'norm_place': ('pre', 'post', 'sandwich', 'parallel'),
  'qk_norm_over': ('head', 'own head', 'projection', 'rotated'),
  'router': ('softmax', 'sigmoid'),
  'delta_rule': ('delta', delta.MAMBA),
}
# Fields without effect while another field, the key, is off.
UNREAD = {
  'experts': 'expert_bias mlp_limit choice_bias shared_mlp expert_norms '
  'expert_inputs dense_layers',
  'kv_rank': 'q_rank rope_dim value_dim index_topk',
  'index_topk': 'index_heads index_dim index_interleaved indexless_layers',
  'delta_layers': 'delta_heads delta_groups delta_key_dim delta_value_dim '
  'delta_taps delta_split delta_rule delta_beside delta_scales delta_norm',
  'delta_beside': 'attention_scale',
  'wide_layers': 'wide_head_dim wide_kv_heads keys_as_values',
  'reading_layers': 'reading_mlp',
  'layer_inputs': 'layer_inputs_vocab',
}
SIZES = 'vocab layers width mlp heads kv_heads head_dim'.split()
PREFILL = 'buckets', 'chunks'  # kinds of `prefill` besides whole


def check(c: Any) -> None:
  """Refuses a Config that no model can have.

  Raises:
    ValueError: names the field and what is allowed.
  """
  small = [name for name in SIZES if getattr(c, name) < 1]
  if small:
    raise ValueError(f'model.{small[0]} must be at least 1')
  if c.heads % c.kv_heads:
    raise ValueError(
      f'model.heads={c.heads} must be a multiple of model.kv_heads={c.kv_heads}'
    )
  if not c.score_scale > 0:
    raise ValueError(f'model.query_scale={c.query_scale} must be more than 0')
  for name, choices in CHOICES.items():
    value = getattr(c, name)
    if value not in choices:
      raise ValueError(names.choice(f'model.{name}', value, choices))
  kernel_choice.check(c.attention, c)
  if c.numerics == 'exact':
    exact_layers.check(c)
  names.sized_choice('model.prefill', c.prefill, PREFILL)
  _check_unread(c)
  _check_layers(c)
  if c.activation in layers.LEARNED and c.experts:
    raise ValueError(
      f'model.activation={c.activation!r} is learned, which experts do not '
      f'support (model.experts={c.experts})'
    )
  if c.mlp_bias and c.experts:
    raise ValueError('model.mlp_bias must be False if model.experts is set')
  sizes = {'delta_scales': len(delta.SCALED), 'mlp_scales': 2}
  for name, n in sizes.items():
    if len(getattr(c, name)) not in (0, n):
      raise ValueError(f'model.{name} must have {n} factors, or none')
  if c.mlp_scales and (c.experts or not c.gated):
    raise ValueError(
      'model.mlp_scales cannot be combined with experts or an mlp without gates'
    )
  least = min(c.experts, 1)
  if not least <= c.experts_per_token <= c.experts:
    raise ValueError(
      f'model.experts_per_token={c.experts_per_token} must be between '
      f'{least} and model.experts={c.experts}'
    )
  if c.experts:
    _check_experts(c)


def _check_unread(c: Any) -> None:
  for key, fields in UNREAD.items():
    changed = (
      f for f in fields.split() if getattr(c, f) != getattr(type(c), f)
    )
    if not getattr(c, key) and (name := next(changed, '')):
      raise ValueError(
        f'model.{name} has no effect: model.{key}={getattr(c, key)!r}'
      )


def _check_experts(c: Any) -> None:
  if c.expert_norms and (not c.shared_mlp or c.norm_place != 'sandwich'):
    raise ValueError(
      'model.expert_norms needs a model.shared_mlp and model.norm_place='
      "'sandwich'"
    )
  if c.expert_inputs and (c.router != 'sigmoid' or c.expert_norm):
    raise ValueError(
      "model.expert_inputs needs model.router='sigmoid' and "
      f'model.expert_norm=False, now {c.router!r} and {c.expert_norm}'
    )
  n, used = c.expert_groups, c.groups_per_token
  if n < 1 or c.experts % n or not 1 <= used <= n:
    raise ValueError(
      f'model.expert_groups={n} must divide model.experts={c.experts}, '
      f'and model.groups_per_token={used} must be between 1 and that'
    )
  if c.experts_per_token > used * (c.experts // n):
    raise ValueError(
      f'model.experts_per_token={c.experts_per_token} must be at most '
      f'{used * (c.experts // n)}, the number of experts in '
      f'model.groups_per_token={used} groups'
    )
  if n > 1 and c.experts // n < 2:
    raise ValueError(
      f'model.expert_groups={n}: every group needs two experts or more, '
      'because groups are ranked by the sum of their best two'
    )
  dense, all_ = c.dense_layers, {*range(c.layers)}
  rising = list(dense) == sorted({*dense} & all_) and len(dense) < c.layers
  if not rising or bool(dense) != bool(c.dense_mlp):
    raise ValueError(
      f'model.dense_layers={dense} must be rising indices of some of '
      f'model.layers={c.layers}, and need a model.dense_mlp (now '
      f'{c.dense_mlp})'
    )


def _check_layers(c: Any) -> None:
  for name in ('rope_of_layer', 'windows', 'mlp_sparsity'):
    n = len(getattr(c, name))
    if n not in (0, c.layers):
      raise ValueError(f'model.{name} has {n} entries, model.layers={c.layers}')
  for name in ('mlp_layers', 'wide_layers', 'delta_layers'):
    which = getattr(c, name)
    if list(which) != sorted({*which} & {*range(c.layers)}):
      raise ValueError(
        f'model.{name}={which} must be rising indices below model.layers='
        f'{c.layers}'
      )
  used = {i for i in c.layer_ropes if i != NOPE}
  if not used <= set(range(len(c.rope_tables))):
    raise ValueError(
      f'model.rope_of_layer={c.rope_of_layer} must be indices of the '
      f'{len(c.rope_tables)} tables of model.ropes, or {NOPE}'
    )
  if c.kv_rank:
    _check_latent(c)
  if c.index_topk:
    indexer.check(c)
  if c.mlp_layers:
    _check_alone(c)
  if c.delta_layers:
    _check_delta(c)
  if c.wide_layers:
    _check_wide(c)
  if c.wide_layers or c.reading_layers:
    _check_reading(c)
  if c.streams or c.low_rank or c.mlp_sparsity:
    _check_residuals(c)
  _check_ropes(c)


def _check_ropes(c: Any) -> None:
  found = [rotary_width(r, n) for r, n in zip(c.rope_tables, c.rope_widths)]
  of_wide = {c.layer_ropes[i] for i in c.wide_layers}
  for which in of_wide, {*range(len(found))} - of_wide:
    # One even width, because layers select their table inside a scan.
    widths = {found[i] for i in which}
    if len(widths) > 1 or any(n % 2 for n in widths):
      raise ValueError(
        f'model.ropes rotate {sorted(widths)} of model.head_dim={c.head_dim} '
        'features: all tables must rotate the same even number'
      )
  for r, width in zip(c.rope_tables, found):
    n = width // 2
    if r.kind == 'longrope' and (len(r.short), len(r.long)) != (n, n):
      raise ValueError(
        f'model.ropes: longrope has {len(r.short)} short_factor and '
        f'{len(r.long)} long_factor values; heads need {n} of each'
      )


def _check_latent(c: Any) -> None:
  if not 0 < c.rope_dim < c.head_dim or c.value_dim < 1:
    raise ValueError(
      f'model.rope_dim={c.rope_dim} must be between 1 and '
      f'{c.head_dim - 1} (model.head_dim - 1), and model.value_dim='
      f'{c.value_dim} at least 1'
    )
  grown = [r.growth for r in c.rope_tables]
  if c.kv_heads != c.heads or any((*c.windows, *grown, c.sinks)):
    raise ValueError(
      'model.kv_rank: latent attention does not support kv_heads other than '
      'heads, windows, sinks or growing queries'
    )


def _check_alone(c: Any) -> None:
  which = c.mlp_layers
  if {*which} & {*c.delta_layers} or {*range(c.layers)} <= {*which}:
    raise ValueError(
      f'model.mlp_layers={which} must differ from model.delta_layers='
      f'{c.delta_layers}, and leave a layer with attention'
    )
  if c.dense_layers or c.norm_place != 'pre' or c.windows:
    raise ValueError(
      'model.mlp_layers cannot be combined with dense_layers, windows or a '
      "norm_place other than 'pre'"
    )


def _check_wide(c: Any) -> None:
  which = c.wide_layers
  if c.wide_head_dim < 1 or c.wide_kv_heads < 1 or c.heads % c.wide_kv_heads:
    raise ValueError(
      f'model.wide_head_dim={c.wide_head_dim} must be at least 1, and '
      f'model.wide_kv_heads={c.wide_kv_heads} a divisor of model.heads='
      f'{c.heads}'
    )
  ropes = {c.layer_ropes[i] for i in which}
  others = {rope for i, rope in enumerate(c.layer_ropes) if i not in which}
  if ropes & others or NOPE in ropes | others:
    raise ValueError(
      'model.wide_layers need rotary tables (rope_of_layer) that no other '
      'layer has'
    )


def _check_reading(c: Any) -> None:
  n = c.reading_layers
  special = (
    'delta_layers',
    'mlp_layers',
    'dense_layers',
    'kv_rank',
    'out_gate',
  )
  own = [name for name in special if getattr(c, name)]
  if own:
    raise ValueError(
      'model.wide_layers and reading_layers cannot be combined with '
      f'{own[0]}={getattr(c, own[0])}'
    )
  if not 0 <= n < c.layers:
    raise ValueError(
      f'model.reading_layers={n} must be less than model.layers={c.layers}'
    )

  def kind(i: int) -> tuple:
    return i in c.wide_layers, c.layer_windows[i]

  first = c.layers - n
  read = {wide: (wide, w) for wide, w in map(kind, range(first))}
  for i in range(first, c.layers):
    if read.get(kind(i)[0]) != kind(i):
      raise ValueError(
        f'model.reading_layers={n}: layer {i} needs an earlier layer with keys '
        f'of its own, with the same heads and model.windows={kind(i)[1]}'
      )


def _check_residuals(c: Any) -> None:
  new = [n for n in ('streams', 'low_rank', 'mlp_sparsity') if getattr(c, n)]
  others = 'experts', 'delta_layers', 'mlp_layers', 'layer_factor', 'mlp_limit'
  own = [name for name in others if getattr(c, name)]
  if own or not c.gated or c.norm_place == 'parallel':
    own = own or ['norm_place' if c.gated else 'activation']
    raise ValueError(
      f'model.{new[0]} cannot be combined with {own[0]}={getattr(c, own[0])!r}'
    )
  if c.streams and (c.streams < 2 or not c.layer_inputs):
    raise ValueError(
      f'model.streams={c.streams} must be 0 or at least 2, and needs '
      f'model.layer_inputs (now {c.layer_inputs})'
    )
  if not all(0 <= share < 1 for share in c.mlp_sparsity):
    raise ValueError(
      f'model.mlp_sparsity={c.mlp_sparsity} must be from 0 to less than 1'
    )


def _check_delta(c: Any) -> None:
  sizes = {
    name: getattr(c, f'delta_{name}')
    for name in ('heads', 'groups', 'key_dim', 'value_dim', 'taps')
  }
  least = dict.fromkeys(sizes, 1) | {'taps': 2, 'key_dim': 0}
  wrong = next((k for k, n in sizes.items() if n < least[k]), None)
  if wrong:
    raise ValueError(
      f'model.delta_{wrong}={sizes[wrong]} must be at least {least[wrong]}'
    )
  if not c.delta_key_dim and (c.delta_groups > 1 or c.delta_split):
    raise ValueError(
      'model.delta_groups and delta_split have no effect: '
      'model.delta_key_dim=0, a convolution alone'
    )
  mamba = c.delta_rule == delta.MAMBA
  if mamba and (c.delta_split or not c.delta_key_dim):
    raise ValueError(
      "model.delta_rule='mamba2' needs a model.delta_key_dim, and "
      'delta_split has no effect'
    )
  if not mamba and (c.delta_beside or c.delta_scales or not c.delta_norm):
    raise ValueError(
      "model.delta_beside, delta_scales and delta_norm need model.delta_rule='"
      f"{delta.MAMBA}'"
    )
  which = c.delta_layers
  if c.delta_beside:
    _check_beside(c)
    return
  if {*range(c.layers)} <= {*c.dense_layers, *which, *c.mlp_layers}:
    raise ValueError(
      'model.delta_layers must leave a layer with attention that is not in '
      'model.dense_layers'
    )
  if c.kv_rank or {*c.layer_ropes} not in ({0}, {NOPE}):
    raise ValueError(
      'model.delta_layers cannot be combined with latent '
      f'attention (kv_rank) or a rope_of_layer other than {NOPE} alone'
    )
  if any(c.layer_windows):
    raise ValueError('model.delta_layers cannot be combined with windows')


def _check_beside(c: Any) -> None:
  if c.delta_layers != tuple(range(c.layers)):
    raise ValueError(
      f'model.delta_beside needs all layers in model.delta_layers, now '
      f'{c.delta_layers}'
    )
  if c.experts or c.kv_rank or c.windows or c.norm_place != 'pre':
    raise ValueError(
      'model.delta_beside cannot be combined with experts, latent attention '
      "(kv_rank), windows or a norm_place other than 'pre'"
    )
