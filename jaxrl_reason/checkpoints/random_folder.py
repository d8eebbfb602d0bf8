"""Folders in Hugging Face layout with random weights of a tiny model.

  folder('qwen3-1.7b')   two narrow layers of the family of that published size

The smoke version of a recipe (`config.recipes`) starts from such a folder
instead of the published model. It reads weights, tokenizer and chat template,
and trains, as the recipe does.
"""

import functools
import json
import pathlib
import tempfile

import jax

from jaxrl_reason.checkpoints import hf
from jaxrl_reason.models import families, spec, weights, zoo

SIZES = dict(
  hidden_size=32, intermediate_size=48, num_attention_heads=4, head_dim=16,
  num_hidden_layers=2, max_window_layers=2, vocab_size=264,
)  # fmt: skip
WINDOW = 24  # shorter than the rows, so that the window matters
SPECIAL = ('<|endoftext|>', '<|im_start|>', '<|im_end|>')
# ChatML, with Qwen3's switch of its thinking mode.
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""


@functools.cache
def _temporary(size: str) -> tempfile.TemporaryDirectory:
  """Writes the folder once per process, which removes it at its end."""
  made = tempfile.TemporaryDirectory(prefix=f'random-{size}-')
  path = pathlib.Path(made.name)
  h = reduced(size)
  c = families.from_hf(h)
  make = jax.jit(functools.partial(spec.init, weights.specs(c)))
  hf.save(path, make(jax.random.key(0)), c, dtype='float32', config_json=h)
  _write_tokenizer(path)
  return made


def folder(size: str) -> pathlib.Path:
  """Returns the folder of a size in `zoo.ZOO`."""
  return pathlib.Path(_temporary(size).name)


def reduced(size: str) -> dict:
  """Returns the config.json of a published size, two narrow layers deep.

  Norms, windows, caps, rotary tables and ties of the family stay.
  """
  h = families.to_hf(zoo.ZOO[size])
  kv_heads = 4 * h['num_key_value_heads'] // h['num_attention_heads']
  changes = SIZES | {'num_key_value_heads': max(1, kv_heads)}
  if 'layer_types' in h:  # the last two: one of each kind, if there are two
    changes['layer_types'] = h['layer_types'][-2:]
  if h.get('sliding_window'):
    changes['sliding_window'] = WINDOW
  return h | changes


def _write_tokenizer(path: pathlib.Path) -> None:
  """Writes a tokenizer of bytes with a chat template.

  Raises:
    ImportError: the package tokenizers is not installed.
  """
  import tokenizers

  pre = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False, use_regex=False
  )
  vocabulary = {c: i for i, c in enumerate(sorted(pre.alphabet()))}
  model = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
  model.pre_tokenizer = pre
  model.decoder = tokenizers.decoders.ByteLevel()
  model.add_special_tokens([*SPECIAL])
  model.save(str(path / 'tokenizer.json'))
  settings = {
    'tokenizer_class': 'PreTrainedTokenizerFast',
    'eos_token': SPECIAL[2],
    'pad_token': SPECIAL[0],
    'chat_template': TEMPLATE,
  }
  (path / 'tokenizer_config.json').write_text(json.dumps(settings))
