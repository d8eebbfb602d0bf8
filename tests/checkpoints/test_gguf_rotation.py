"""The share of a head that is rotated, in the metadata of GGUF files."""

import types

import numpy as np
import pytest

from jaxrl_reason.checkpoints import gguf_files
from jaxrl_reason.models import families

TENSORS = {'token_embd.weight': types.SimpleNamespace(shape=np.array([64, 32]))}


def config(arch: str, rotated: int | None) -> dict:
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
  fields = {f'{arch}.{k}': x for k, x in numbers.items()}
  return gguf_files._config(arch, fields, TENSORS)


@pytest.mark.parametrize('rotated, share', [(12, 0.75), (16, 1.0), (None, 1.0)])
def test_heads_of_phi3_may_be_rotated_in_part(rotated, share):
  c = families.from_hf(config('phi3', rotated))
  assert c.rope_tables[0].fraction == share


def test_other_heads_are_rotated_as_a_whole():
  assert families.from_hf(config('llama', 16)).rope_tables[0].fraction == 1
  with pytest.raises(ValueError, match='llama.rope.dimension_count=12 is not'):
    config('llama', 12)
