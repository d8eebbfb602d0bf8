"""The kernel of attention over whole rows, for a model and a platform."""

from typing import Any

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import splash

# Fields of Config that only einsum and splash support.
SPECIAL = {
  'attention_cap': 'soft cap of scores',
  'sinks': 'attention sinks',
  'kv_rank': 'values of another width than keys',
}
FAST = {'cpu': 'blocked', 'gpu': 'cudnn', 'tpu': 'splash'}  # by platform
OF_WHOLE_ROWS = 'blocked', 'cudnn'  # kernels whose rows a mesh cannot split


def check(kind: str, c: Any) -> None:
  """Checks that a kernel (or 'auto') supports the attention of Config c.

  Raises:
    ValueError: names the keys and alternatives.
  """
  for name, what in SPECIAL.items():
    if kind in ('xla', 'cudnn') and getattr(c, name):
      raise ValueError(
        f'model.attention={kind!r} does not support {what}, which this model '
        f'has ({name}={getattr(c, name)}): choose auto, einsum or splash'
      )
  if kind == 'splash' and c.index_topk:
    raise ValueError(
      f'model.attention={kind!r} does not support keys that an indexer chooses '
      f'(index_topk={c.index_topk}): choose auto, blocked or einsum'
    )
  if kind == 'cudnn' and not _fits_cudnn(c):
    raise ValueError(
      "model.attention='cudnn' needs model.dtype='bfloat16' and a head width "
      f'that is a multiple of 8 up to 128, not {c.dtype} and '
      f'{max(c.head_dim, c.wide_head_dim)}: choose auto, einsum or xla'
    )


def _fits_cudnn(c: Any) -> bool:
  widths = c.head_dim, c.wide_head_dim
  narrow = all(n % 8 == 0 and n <= 128 for n in widths)
  plain = not any(getattr(c, name) for name in SPECIAL)
  return c.dtype == 'bfloat16' and narrow and plain


def resolve(c: Any, columns: int) -> str:
  """Returns the kernel's name for rows of the given number of columns.

  'auto' is the fast kernel of the platform compiled for. Short rows on TPU use
  einsum, because splash would pad them to a tile (37 tokens with heads 32 wide:
  14 times their bytes).

  Rows in which an indexer chooses keys use blocked on every platform, or einsum
  if a context axis of the mesh splits rows.

  Returns 'exact' if the operations are those of `exact_layers`.

  Raises:
    ValueError: cudnn or blocked is chosen and a mesh splits rows.
  """
  if c.numerics == 'exact':
    return 'exact'
  split = sharding.n_context_shards() > 1
  if c.attention in OF_WHOLE_ROWS and split:
    raise ValueError(
      f'model.attention={c.attention!r} computes whole rows, but config.mesh '
      'splits them over a context axis: choose auto, einsum or xla'
    )
  if c.attention != 'auto':
    return c.attention
  fast = FAST.get(sharding.platform(), 'einsum')
  if 0 < c.index_topk < columns:
    fast = 'blocked'
  short = fast == 'splash' and columns <= splash.LANES and not split
  unfit = fast == 'cudnn' and not _fits_cudnn(c)
  if short or unfit or fast in OF_WHOLE_ROWS and split:
    return 'einsum'
  return fast


def cudnn_reads_cache(c: Any) -> bool:
  """Returns whether cuDNN computes the attention of decoding: on one GPU, if it
  also computes attention of whole rows and the cache has the model's dtype.
  """
  by_cudnn = sharding.is_own_device() and resolve(c, 0) == 'cudnn'
  return by_cudnn and c.cache_dtype == 'model'
