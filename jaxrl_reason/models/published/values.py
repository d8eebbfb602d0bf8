"""Checks the values of a config.json; names the key in errors of reading."""

import math
from collections.abc import Callable, Mapping
from typing import Any

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
TABLES = 'rope_scaling', 'rope_parameters'


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
    if key in WHOLE:
      of_layers = isinstance(default, tuple) and isinstance(value, list | tuple)
      for number in value if of_layers else [value]:
        _check_whole(key, number, 0)
    elif isinstance(default, bool):
      _expect(key, value, isinstance(value, bool | int), 'true or false')
    elif isinstance(default, int):
      _check_whole(key, value, -1)
    elif isinstance(default, float):
      check_number(key, value)
    elif key in TABLES:
      _expect(key, value, isinstance(value, dict), 'an object')
    elif key == 'layer_types':
      _expect(key, value, isinstance(value, list), 'a list')


def _expect(key: str, value: Any, holds: bool, kind: str) -> None:
  if not holds:
    raise ValueError(f'config.json: {key}={value!r:.60} is not {kind}')


def _check_whole(key: str, value: Any, least: int) -> None:
  most = MOST_LAYERS if key == LAYERS else MOST
  is_int = isinstance(value, int) and not isinstance(value, bool)
  kind = f'a whole number of at most {most}'
  _expect(key, value, is_int and least <= value <= most, kind)


def check_number(key: str, value: Any) -> None:
  """Raises an error for a value that is no finite number."""
  finite = isinstance(value, int | float) and abs(value) < MOST_NUMBER
  _expect(key, value, finite, 'a number')


def inverted(f: Callable, near: float, want: float) -> float:
  """Returns the number next to `near` for which f is exactly `want`, or `near`
  if there is none. A quotient may differ from the exact inverse in
  its last bit.
  """
  beside = math.nextafter(near, math.inf), math.nextafter(near, -math.inf)
  return next((x for x in (near, *beside) if f(x) == want), near)


class Reading(dict):
  """The content of a file that names the key in every error while it is read.

  As a context manager it turns errors of other types, such as a TypeError of
  `family.read`, into a ValueError with the key that was read last.
  """

  def __init__(
    self, h: Mapping[str, Any], path: str = 'config.json: ', last=None
  ):
    """Args: path: of the object, for errors; last: path and value read."""
    super().__init__(h)
    self._path = path
    self._last = ['', None] if last is None else last

  def __getitem__(self, key: str) -> Any:
    if key not in self:
      raise ValueError(f'{self._path}{key} is missing')
    return self.get(key)

  def get(self, key: str, default: Any = None) -> Any:
    value, path = super().get(key, default), f'{self._path}{key}'
    self._last[:] = path, value
    if isinstance(value, dict):
      return Reading(value, f'{path}.', self._last)
    return value

  def __enter__(self) -> 'Reading':
    return self

  def __exit__(self, kind, error, trace) -> None:
    del kind, trace
    wrong = TypeError | AttributeError | ArithmeticError | LookupError
    if isinstance(error, wrong):
      key, value = self._last
      raise ValueError(
        f'{key}={value!r:.60} cannot be read ({type(error).__name__}: {error})'
      ) from error
