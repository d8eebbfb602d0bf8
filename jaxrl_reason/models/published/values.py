"""Checks the values of a config.json; names the key in errors of reading."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jaxrl_reason.models.published import keys

MOST = 2**31 - 1  # of a whole number; more is a damaged file
MOST_LAYERS = 10_000
MOST_NUMBER = 1e30
LAYERS = 'num_hidden_layers'
# Whole numbers of every family, with or without a default.
WHOLE = (
  'vocab_size',
  LAYERS,
  'hidden_size',
  'intermediate_size',
  'num_attention_heads',
  'num_key_value_heads',
  'head_dim',
  'max_position_embeddings',
)
# Whole numbers of some families, with or without a default.
WHOLE_OF_SOME = (
  'num_experts',
  'num_local_experts',
  'n_routed_experts',
  'n_shared_experts',
  'num_experts_per_tok',
  'moe_intermediate_size',
  'sliding_window',
)
LISTS = {'indexer_types': str, 'no_rope_layers': int}  # types of items
NUMBERS = (
  'partial_rotary_factor',
  'final_logit_softcapping',
  'rope_local_base_freq',
)
# Numbers in a rotary table.
SCALES = (*NUMBERS, 'rope_theta', 'factor', 'mscale', 'mscale_all_dim')
TABLES = 'rope_scaling', 'rope_parameters'
# Kinds of layers in any family's layer_types.
KINDS = (
  keys.FULL,
  keys.SLIDING,
  keys.CHUNKED,
  keys.INDEXED,
  keys.LINEAR,
  keys.CONV,
  *keys.RENAMED,
)
# Keys of the fields of Config that have another name.
KEYS = {
  'layers': (LAYERS,),
  'width': ('hidden_size',),
  'mlp': (
    'moe_intermediate_size',
    'shared_intermediate_size',
    'intermediate_size',
  ),
  'heads': ('num_attention_heads',),
  'kv_heads': ('num_key_value_heads',),
  'experts': (
    'num_experts',
    'num_local_experts',
    'n_routed_experts',
    'moe_num_experts',
  ),
  'experts_per_token': ('num_experts_per_tok', 'moe_k'),
  'expert_groups': ('n_group',),
  'groups_per_token': ('topk_group',),
  'dense_layers': ('first_k_dense_replace', 'num_dense_layers'),
  'shared_mlp': ('moe_num_shared_experts',),
  'logit_cap': ('final_logit_softcapping',),
  'norm_eps': ('layer_norm_eps', 'layer_norm_epsilon', 'norm_eps'),
  'kv_rank': ('kv_lora_rank',),
  'q_rank': ('q_lora_rank',),
  'rope_dim': ('qk_rope_head_dim', 'qk_nope_head_dim'),
  'value_dim': ('v_head_dim',),
  'query_scale': (
    'query_pre_attn_scalar',
    'attention_multiplier',
    'key_multiplier',
    'rope_scaling',
    'rope_parameters',
  ),
  'ropes': ('head_dim', 'rope_scaling', 'rope_parameters'),
  'rope_of_layer': ('layer_types', 'no_rope_layers'),
  'delta_layers': ('layer_types',),
  'delta_heads': ('linear_num_key_heads', 'mamba_n_heads', 'mamba_num_heads'),
  'delta_groups': ('linear_num_value_heads', 'mamba_n_groups', 'n_groups'),
  'delta_key_dim': ('linear_key_head_dim', 'mamba_d_state', 'ssm_state_size'),
  'delta_value_dim': (
    'linear_value_head_dim',
    'mamba_d_head',
    'mamba_head_dim',
  ),
  'delta_taps': (
    'linear_conv_kernel_dim',
    'conv_L_cache',
    'conv_kernel',
    'mamba_d_conv',
  ),
  'index_heads': ('index_n_heads',),
  'index_dim': ('index_head_dim',),
  'wide_layers': ('layer_types',),
  'wide_head_dim': ('global_head_dim', 'head_dim'),
  'wide_kv_heads': ('num_global_key_value_heads', 'num_key_value_heads'),
  'reading_layers': ('num_kv_shared_layers', 'layer_types'),
  'mlp_sparsity': ('activation_sparsity_pattern',),
}


def check(h: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
  """Raises an error for a value that is not of its key's type.

  Args:
    defaults: the family's values of absent keys, which have these types. A
      tuple stands for one number, or a list with one of each layer.
  """
  for key, value in h.items():
    if value is None:
      continue
    default = defaults.get(key)
    if key in WHOLE or key in WHOLE_OF_SOME:
      of_layers = isinstance(default, tuple) and isinstance(value, list | tuple)
      for number in value if of_layers else [value]:
        _check_whole(key, number, 0)
    elif isinstance(default, bool):
      expect(key, value, isinstance(value, bool | int), 'true or false')
    elif isinstance(default, int):
      _check_whole(key, value, -1)
    elif isinstance(default, float) or key in NUMBERS:
      check_number(key, value)
    elif key in TABLES:
      expect(key, value, isinstance(value, dict), 'an object')
      _check_table(key, value)
    elif key in LISTS:
      holds = isinstance(value, list)
      holds = holds and all(isinstance(x, LISTS[key]) for x in value)
      expect(key, value, holds, f'a list of {LISTS[key].__name__}')
    elif key == 'layer_types':
      expect(key, value, isinstance(value, list), 'a list')
      for i, kind in enumerate(value):
        known = f'supported: choose {" or ".join(KINDS)}'
        expect(f'{key}[{i}]', kind, kind in [*KINDS], known)


def expect(key: str, value: Any, holds: bool, kind: str) -> None:
  """Raises an error that names the key and the kind of value, unless it
  holds."""
  if not holds:
    raise ValueError(f'config.json: {key}={value!r:.60} is not {kind}')


def _check_table(path: str, table: Mapping[str, Any]) -> None:
  """Checks a rotary table, or one per kind of layer: its kind and numbers."""
  for key, value in table.items():
    if key in ('rope_type', 'type') and value is not None:
      expect(f'{path}.{key}', value, isinstance(value, str), 'a name')
    elif key in SCALES and value is not None:
      check_number(f'{path}.{key}', value)
    elif isinstance(value, dict):
      _check_table(f'{path}.{key}', value)


def _check_whole(key: str, value: Any, least: int) -> None:
  most = MOST_LAYERS if key == LAYERS else MOST
  is_int = isinstance(value, int) and not isinstance(value, bool)
  kind = f'a whole number of at most {most}'
  expect(key, value, is_int and least <= value <= most, kind)


def check_number(key: str, value: Any) -> None:
  """Raises an error for a value that is no finite number."""
  finite = isinstance(value, int | float) and abs(value) < MOST_NUMBER
  expect(key, value, finite, 'a number')


def inverted(f: Callable, near: float, want: float) -> float:
  """Returns the number next to `near` for which f is exactly `want`, or `near`
  if there is none. A quotient may differ from the exact inverse in
  its last bit.
  """
  beside = math.nextafter(near, math.inf), math.nextafter(near, -math.inf)
  return next((x for x in (near, *beside) if f(x) == want), near)


def check_fields(
  fields: Mapping[str, Any], types: Mapping[str, type], h: Mapping[str, Any]
) -> None:
  """Raises an error for a field of Config that is no number but needs to be.

  Args:
    types: of fields.
    h: content of the file; the error names its keys.
  """
  kinds = {int: (int, 'a whole number'), float: (int | float, 'a number')}
  for name, value in fields.items():
    number, kind = kinds.get(types[name], (object, ''))
    if not isinstance(value, number):
      raise ValueError(
        f'config.json: {keys_of([name], h)} makes {name}={value!r:.60}, which '
        f'is not {kind}'
      )


def keys_of(fields: Iterable[str], h: Mapping[str, Any]) -> str:
  """Returns the keys of a file that fields of Config are read from."""
  found = [k for f in fields for k in KEYS.get(f, (f,)) if k in h]
  return ', '.join(dict.fromkeys(found)) or ', '.join(fields)


@contextlib.contextmanager
def checking(h: Mapping[str, Any]) -> Iterator[None]:
  """Adds the file and the keys to errors that name fields of Config."""
  try:
    yield
  except ValueError as error:
    fields = re.findall(r'model\.(\w+)', str(error))
    keys = f' (from {keys_of(fields, h)})' if fields else ''
    raise ValueError(f'config.json: {error}{keys}') from error


class Reading(dict):
  """The content of a file that names the key in every error while it is read.

  As a context manager it turns errors of other types, such as a TypeError of
  `family.read`, into a ValueError with the key that was read last, or with the
  last key that was null if the error is about None.
  """

  def __init__(
    self, h: Mapping[str, Any], path: str = 'config.json: ', last=None
  ):
    """Args: path: of the object, for errors; last: path and value that were
    read last, and the last path that was null."""
    super().__init__(h)
    self._path = path
    self._last = ['', None, ''] if last is None else last

  def __getitem__(self, key: str) -> Any:
    if key not in self:
      raise ValueError(f'{self._path}{key} is missing')
    return self.get(key)

  def get(self, key: str, default: Any = None) -> Any:
    value, path = super().get(key, default), f'{self._path}{key}'
    self._last[:2] = path, value
    if value is None and key in self:
      self._last[2] = path
    if isinstance(value, dict):
      return Reading(value, f'{path}.', self._last)
    return value

  def __enter__(self) -> 'Reading':
    return self

  def __exit__(self, kind, error, trace) -> None:
    del kind, trace
    wrong = TypeError | AttributeError | ArithmeticError | LookupError
    foreign = isinstance(error, ValueError) and 'config.json' not in str(error)
    if isinstance(error, wrong) or foreign:
      key, value, null = self._last
      if null and 'NoneType' in str(error):
        key, value = null, None
      raise ValueError(
        f'{key}={value!r:.60} cannot be read ({type(error).__name__}: {error})'
      ) from error
