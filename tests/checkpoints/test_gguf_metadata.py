"""Metadata of GGUF files that leave a value out, or name it in another way."""

import json
import types

import numpy as np
import pytest

from jaxrl_reason.checkpoints import gguf_files, gguf_tokenizer
from jaxrl_reason.models import families

TENSORS = {'token_embd.weight': types.SimpleNamespace(shape=np.array([64, 32]))}


def config(arch: str, rotated: int | None = None, **others) -> dict:
  """Returns the config.json of a file whose heads have 16 features."""
  numbers = {
    'block_count': 2,
    'context_length': 64,
    'embedding_length': 64,
    'feed_forward_length': 96,
    'attention.head_count': 4,
    'attention.head_count_kv': 2,
    'attention.layer_norm_rms_epsilon': 1e-5,
    'rope.freq_base': 10_000.0,
  }
  if rotated is not None:
    numbers['rope.dimension_count'] = rotated
  fields = {f'{arch}.{k}': x for k, x in (numbers | others).items()}
  return gguf_files._config(arch, fields, TENSORS)


@pytest.mark.parametrize('rotated, share', [(12, 0.75), (16, 1.0), (None, 1.0)])
def test_heads_of_phi3_may_be_rotated_in_part(rotated, share):
  c = families.from_hf(config('phi3', rotated))
  assert c.rope_tables[0].fraction == share


def test_other_heads_are_rotated_as_a_whole():
  assert families.from_hf(config('llama', 16)).rope_tables[0].fraction == 1
  with pytest.raises(ValueError, match='llama.rope.dimension_count=12 is not'):
    config('llama', 12)


def test_a_window_of_no_tokens_is_none():
  """Files of Phi-4 have it."""
  key = 'attention.sliding_window'
  for size, windows in ((0, ()), (32, (32, 32))):
    assert families.from_hf(config('phi3', **{key: size})).windows == windows


@pytest.mark.parametrize(
  'pre, default',
  [('llama-bpe', True), ('tekken', True), ('qwen2', False), ('dbrx', False)],
)
def test_texts_begin_with_bos_as_in_llama_cpp(pre, default):
  """A file may leave out add_bos_token; llama.cpp then goes by `pre`."""
  fields = {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': ['a', '<s>'],
    'tokenizer.ggml.merges': [],
    'tokenizer.ggml.token_type': [1, 3],
    'tokenizer.ggml.bos_token_id': 1,
  }
  key = 'add_bos_token'
  for added, want in (
    ({}, default),
    ({f'tokenizer.ggml.{key}': not default}, not default),
  ):
    files = gguf_tokenizer.files(fields | added)
    assert json.loads(files['tokenizer_config.json'])[key] is want
