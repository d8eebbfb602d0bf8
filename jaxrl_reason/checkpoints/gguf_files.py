"""Converts GGUF files of llama.cpp to Hugging Face folders.

The metadata become config.json. The `gguf` package dequantizes the tensors
(F32, F16, BF16, Q8_0, Q4_0, Q4_1, K-quants), and they are renamed.
`gguf_tokenizer` converts the tokenizer. Three changes of llama.cpp are
reversed: it interleaves the rows of q and k of Llamas, adds 1 to the norms of
Gemma 2 and 3, and stores the sparsity of Gemma 3n as quantiles. The rows of
zeros that it adds to the layers' inputs of Gemma 3n, for tokens of images and
sound, are kept.
"""

import pathlib
import statistics
from typing import Any

import numpy as np

from jaxrl_reason.checkpoints import gguf_names, gguf_tokenizer, hf
from jaxrl_reason.hosts import reading
from jaxrl_reason.models import families, weights
from jaxrl_reason.models.config import Config
from jaxrl_reason.models.published import keys, values
from jaxrl_reason.names import install

# general.architecture -> model_type.
FAMILIES = {
  'llama': 'llama',
  'mistral': 'mistral',
  'qwen2': 'qwen2',
  'qwen3': 'qwen3',
  'phi3': 'phi3',
  'gemma2': 'gemma2',
  'gemma3': 'gemma3_text',
  'gemma3n': 'gemma3n_text',
}
INTERLEAVED = ('llama', 'mistral')  # rows of q and k
# Key behind the architecture's name -> config.json.
KEYS = {
  'block_count': 'num_hidden_layers',
  'context_length': 'max_position_embeddings',
  'embedding_length': 'hidden_size',
  'feed_forward_length': 'intermediate_size',
  'attention.head_count': 'num_attention_heads',
  'attention.head_count_kv': 'num_key_value_heads',
  'attention.layer_norm_rms_epsilon': 'rms_norm_eps',
  'attention.shared_kv_layers': 'num_kv_shared_layers',
  'attention.sliding_window': 'sliding_window',
  'altup.active_idx': 'altup_active_idx',
  'altup.num_inputs': 'altup_num_inputs',
  'embedding_length_per_layer_input': 'hidden_size_per_layer_input',
  'rope.freq_base': 'rope_theta',
  'rope.freq_base_swa': 'rope_local_base_freq',
  'attn_logit_softcapping': 'attn_logit_softcapping',
  'final_logit_softcapping': 'final_logit_softcapping',
}
REQUIRED = ('num_hidden_layers', 'hidden_size', 'num_attention_heads')
# Layers of the largest of the Gemmas with 1 + w norms, whose scores are scaled
# by width / heads.
WIDE_SCALE = {'gemma2': 46, 'gemma3': 62}
LOW, HIGH = 1.0, 4.0


def library() -> Any:
  """Imports the package; the error names the extra to install."""
  try:
    import gguf
  except ImportError as e:
    raise ImportError(f'*.gguf need the gguf library: {install("gguf")}') from e
  return gguf


def _reader(path) -> Any:
  """Opens a GGUF file; a size that exceeds the file is an error."""
  gguf = library()

  class Reader(gguf.GGUFReader):
    def _get(self, offset, dtype, count=1, *rest, **options):
      # The library reads beyond the end as nothing, as often as a damaged
      # count says.
      end = offset + np.dtype(dtype).itemsize * int(count)
      if end > len(self.data):
        raise ValueError(f'{count} x {dtype.__name__} at {offset} pass its end')
      return super()._get(offset, dtype, count, *rest, **options)

  return Reader(path)


def _config(arch: str, fields: dict, tensors: dict) -> dict[str, Any]:
  """Builds the config.json of a file's metadata."""
  of = {
    k.removeprefix(f'{arch}.'): v
    for k, v in fields.items()
    if k.startswith(f'{arch}.')
  }
  h = {theirs: of[key] for key, theirs in KEYS.items() if key in of}
  missing = [k for k in REQUIRED if k not in h]
  if missing:
    raise ValueError(f'its metadata lack {", ".join(missing)}')
  if h.get('sliding_window') == 0:  # no window, as in Phi-4
    h['sliding_window'] = None
  for key, value in h.items():
    if isinstance(value, list):
      if len({*value}) != 1:
        raise ValueError(f'{key} differs between layers')
      h[key] = value[0]
  width, heads = h['hidden_size'], h['num_attention_heads']
  h['head_dim'] = of.get('attention.key_length') or width // heads
  h['vocab_size'] = int(tensors[gguf_names.EMBED].shape[1])
  h['tie_word_embeddings'] = gguf_names.HEAD not in tensors
  if 'blk.0.attn_q.bias' in tensors and arch != 'qwen2':
    h['attention_bias'] = True
  if arch in WIDE_SCALE:
    wide = h['num_hidden_layers'] == WIDE_SCALE[arch]
    h['query_pre_attn_scalar'] = width // heads if wide else h['head_dim']
  if arch == 'gemma3n':
    h |= _of_gemma3n(of, tensors)
  # Also None: the defaults of transformers may be past a small vocabulary.
  for key, theirs in {'bos': 'bos', 'eos': 'eos', 'padding': 'pad'}.items():
    found = fields.get(f'tokenizer.ggml.{key}_token_id')
    h[f'{theirs}_token_id'] = found
  name = FAMILIES[arch]
  architecture = families.FAMILIES[name].ARCHITECTURE
  h |= {'model_type': name, 'architectures': [architecture]}
  return h | _rotated(arch, of, h['head_dim']) | _rope(of, h, tensors)


def _of_gemma3n(of: dict, tensors: dict) -> dict[str, Any]:
  """Returns the keys of config.json that Gemma 3n has alone."""
  rank, rows = (
    int(tensors[name].shape[1])
    for name in (gguf_names.LOW_RANK, gguf_names.OF_TOKENS)
  )
  h = {'laurel_rank': rank, 'vocab_size_per_layer_input': rows}
  local = of.get('attention.sliding_window_pattern')
  if local is not None:
    h['layer_types'] = [keys.SLIDING if x else keys.FULL for x in local]
  quantiles = of.get('activation_sparsity_scale')
  if quantiles is not None:  # in float32
    shares = map(statistics.NormalDist().cdf, quantiles)
    h['activation_sparsity_pattern'] = [round(x, 6) for x in shares]
  return h


def _rotated(arch: str, of: dict, head_dim: int) -> dict[str, float]:
  """Returns the key of config.json for heads that are rotated in part.

  Raises:
    ValueError: the heads of this architecture are rotated as a whole.
  """
  n = of.get('rope.dimension_count', head_dim)
  if n == head_dim:
    return {}
  if arch != 'phi3':
    raise ValueError(
      f'{arch}.rope.dimension_count={n} is not the width of a head, '
      f'{head_dim}: only heads of phi3 are rotated in part'
    )
  return {'partial_rotary_factor': n / head_dim}


def _rope(of: dict, h: dict, tensors: dict) -> dict[str, Any]:
  """Returns the keys of config.json for scaled positions."""
  if gguf_names.FREQUENCIES in tensors:
    divisors = _values(tensors[gguf_names.FREQUENCIES])
    return {'rope_scaling': _llama3(divisors, h)}
  original = of.get('rope.scaling.original_context_length')
  kind = of.get('rope.scaling.type', 'none')
  if all(name in tensors for name in gguf_names.FACTORS):
    short, long = (
      _values(tensors[name]).tolist() for name in gguf_names.FACTORS
    )
    rope = {'rope_type': 'longrope', 'short_factor': short, 'long_factor': long}
    return {
      'rope_scaling': rope,
      'original_max_position_embeddings': original
      or h['max_position_embeddings'],
    }
  if kind == 'none':
    return {}
  if kind not in ('linear', 'yarn'):
    raise ValueError(f'rope.scaling.type {kind!r}: linear and yarn are known')
  rope = {'rope_type': kind, 'factor': of['rope.scaling.factor']}
  if kind == 'yarn':
    rope['original_max_position_embeddings'] = original
  return {'rope_scaling': rope}


def _llama3(divisors: np.ndarray, h: dict) -> dict[str, Any]:
  """Returns the rope_scaling of Llama 3.1 that divides frequencies as a tensor
  does.

  The tensor does not have the three numbers that it was computed from. Low and
  high are 1 and 4, as in all published models; the others follow from it.

  Raises:
    ValueError: there are no such numbers.
  """
  theta, factor = h.get('rope_theta', 10_000.0), float(divisors.max())
  freq = theta ** (-np.arange(len(divisors)) / len(divisors))
  middle = (divisors > 1) & (divisors < factor)
  original = 8192
  if middle.any():
    smooth = (1 / divisors[middle] - 1 / factor) / (1 - 1 / factor)
    turns = LOW + (HIGH - LOW) * smooth
    original = int(np.round(np.median(2 * np.pi * turns / freq[middle])))
  turns = original * freq / (2 * np.pi)
  smooth = np.clip((turns - LOW) / (HIGH - LOW), 0, 1)
  if not np.allclose(divisors, 1 / (smooth + (1 - smooth) / factor), rtol=1e-3):
    raise ValueError(
      f'{gguf_names.FREQUENCIES} does not scale rotary frequencies as '
      'Llama 3.1 does; use the safetensors of the model'
    )
  return {
    'rope_type': 'llama3',
    'factor': factor,
    'low_freq_factor': LOW,
    'high_freq_factor': HIGH,
    'original_max_position_embeddings': original,
  }


def _values(tensor) -> np.ndarray:
  """Reads a tensor in float32, with its rows in the order of Hugging Face."""
  gguf = library()
  return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)


def _uninterleaved(x: np.ndarray, heads: int) -> np.ndarray:
  """Reorders rows of q or k from rotated pairs to rotated halves."""
  pairs = x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:])
  return pairs.swapaxes(1, 2).reshape(x.shape)


def _theirs(tensors: dict, name: str, arch: str, h: dict) -> np.ndarray:
  """Converts a tensor to the form of a Hugging Face folder."""
  place = gguf_names.place(name, arch)
  x = _values(tensors[place.name])
  x = x if place.at is None else x[place.at]
  if arch in INTERLEAVED and ('.q_proj.' in name or '.k_proj.' in name):
    kind = 'attention' if '.q_proj.' in name else 'key_value'
    x = _uninterleaved(x, h.get(f'num_{kind}_heads', h['num_attention_heads']))
  if arch in WIDE_SCALE and name.endswith('norm.weight'):
    x = x - 1
  return x


def _dtype(tensors: dict) -> str:
  """Returns the narrowest dtype that represents every weight exactly."""
  kinds = {t.tensor_type.name for t in tensors.values() if len(t.shape) > 1}
  known = {'F16': 'float16', 'BF16': 'bfloat16'}
  return known.get(kinds.pop(), 'float32') if len(kinds) == 1 else 'float32'


def convert(path, target, dtype: str | None = None) -> str:
  """Writes a Hugging Face folder; returns a line that describes it.

  Args:
    dtype: of the weights on disk; None: the file's, or float32 if it is
      quantized, since no narrower type represents the dequantized weights.

  Raises:
    ValueError: names the file and its unknown part.
  """
  path, target = pathlib.Path(path), pathlib.Path(target)
  with reading.explained(path):
    reader = _reader(path)
    fields = {k: f.contents() for k, f in reader.fields.items()}
    tensors = {t.name: t for t in reader.tensors}
    arch = fields['general.architecture']
  try:
    if not isinstance(arch, str) or arch not in FAMILIES:
      raise ValueError(
        f'architecture {arch!r}: {", ".join(FAMILIES)} are known'
      )
    with values.Reading(fields, 'metadata: ') as fields:
      h = _config(arch, fields, tensors)
      table = families.tensors_of(h)
      c = families.from_hf(h)
      wanted = hf.plan(weights.specs(c), table, c.stacks)
      _check(wanted, arch, tensors, c)
      files = gguf_tokenizer.files(fields)
  except ValueError as e:
    raise ValueError(f'{path}: {e}') from e

  def tensor(name: str) -> np.ndarray:
    return _theirs(tensors, name, arch, h)

  dtype = dtype or _dtype(tensors)
  shapes = {name: shape for name, (shape, _) in wanted.items()}
  hf.write(target, shapes, tensor, dtype=dtype, config_json=h)
  for name, data in files.items():
    (target / name).write_bytes(data)
  n = sum(int(np.prod(shape)) for shape in shapes.values())
  return f'{h["model_type"]}, {n:,} parameters, {dtype}: {target}'


def _check(wanted: hf.Plan, arch: str, tensors: dict, c: Config) -> None:
  """Refuses a file whose tensors are not exactly those of its model."""
  shapes = {name: shape for name, (shape, _) in wanted.items()}
  named = gguf_names.shapes(shapes, arch)
  beside = {*gguf_names.FACTORS, gguf_names.FREQUENCIES}
  beside |= {*gguf_names.unread(c.layers, c.reading_layers)}
  missing = sorted(named.keys() - tensors.keys())
  extra = sorted(tensors.keys() - named.keys() - beside)
  if missing or extra:
    raise ValueError(
      f'{arch} lacks {missing[:3]} and has {extra[:3]} that are not known'
    )
  for name, shape in named.items():
    found = tuple(map(int, tensors[name].shape[::-1]))
    if found != shape:
      raise ValueError(f'{name} is {found}, not {shape}')
