"""Rotary tables that `model.rope_scale` extends over more tokens."""

import dataclasses

import pytest

from jaxrl_reason.models import families
from jaxrl_reason.models.parts.rope import NOPE
from jaxrl_reason.models.published import ropes

SIZES = {
  'vocab_size': 32, 'hidden_size': 16, 'intermediate_size': 32,
  'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
  'num_local_experts': 4, 'max_position_embeddings': 256,
}  # fmt: skip
LLAMA = SIZES | {'model_type': 'llama'}
ORIGINAL = 'original_max_position_embeddings'


def stretched(h: dict, scale: float):
  """Returns the table of a config.json after its extension."""
  found = ropes.stretched(h, families.from_hf(h), scale)
  assert found['max_position_embeddings'] == 256 * scale
  return families.from_hf(found).rope_tables[0]


@pytest.mark.parametrize(
  'raw, factor, original',
  [
    (None, 1, 256),
    ({'rope_type': 'yarn', 'factor': 4.0, ORIGINAL: 64}, 4, 64),
    ({'rope_type': 'yarn', 'factor': 4.0}, 4, 256),
    ({'rope_type': 'yarn', ORIGINAL: 64}, 4, 64),
    ({'type': 'linear', 'factor': 4.0}, 4, 0),
  ],
)
def test_only_the_factor_of_a_table_changes(raw, factor, original):
  """A value that config.json leaves out is that of the model as published, not
  one of the longer context.
  """
  h = LLAMA | {'rope_scaling': raw}
  table = stretched(h, 2.0)
  assert (table.factor, table.original) == (2 * factor, original)
  assert table.kind == ('linear' if raw and 'type' in raw else 'yarn')
  same = stretched(h | {'rope_scaling': raw or {'rope_type': 'default'}}, 2.0)
  assert same == table


@pytest.mark.parametrize(
  'name, kind',
  [('gpt_oss', 'yarn'), ('apertus', 'llama3'), ('ministral3', 'yarn')],
)
def test_a_table_that_config_json_leaves_out_is_refused(name, kind):
  """The extended table would replace it by another one."""
  h = SIZES | {'model_type': name}
  words = f"{name} has a rotary table of type '{kind}' if it names none: write"
  with pytest.raises(ValueError, match=words):
    ropes.stretched(h, families.from_hf(h), 2.0)


def test_a_scale_that_no_layer_reads_is_refused():
  c = dataclasses.replace(families.from_hf(LLAMA), rope_of_layer=(NOPE, NOPE))
  with pytest.raises(ValueError, match='no layer of this llama has rotary'):
    ropes.stretched(LLAMA, c, 2.0)
