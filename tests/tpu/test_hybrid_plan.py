"""The TPU compiler compiles a hybrid of states and attention."""

import importlib.util
import json

import pytest
from described_tpu import GSM8K, planned

pytestmark = [
  pytest.mark.tpu_compile,
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None,
    reason="needs libtpu: pip install 'jaxrl_reason[tpu]'",
  ),
]
STATE = 2 * 2**20  # bytes of a row and layer
SHARED = dict(
  hidden_size=512,
  num_attention_heads=8,
  num_key_value_heads=4,
  intermediate_size=1024,
  vocab_size=512,
  tie_word_embeddings=True,
)
# Granite 4 with a short convolution and states in most layers.
MAMBA = SHARED | dict(
  model_type='granitemoehybrid',
  num_hidden_layers=6,
  layer_types=['mamba', 'mamba', 'attention'] * 2,
  num_local_experts=0,
  shared_intermediate_size=1024,
  mamba_n_heads=64,
  mamba_expand=8,
  mamba_d_state=128,
)
# Qwen3.5, whose states are those of the gated delta rule.
DELTA = SHARED | dict(
  model_type='qwen3_5_text',
  num_hidden_layers=8,
  head_dim=64,
  layer_types=[*['linear_attention'] * 3, 'full_attention'] * 2,
)


@pytest.mark.parametrize('shape', [MAMBA, DELTA], ids=['mamba', 'delta'])
def test_a_hybrid_reads_its_states_in_place(tmp_path, shape):
  """A token reads a layer's states twice and writes them once, and copies no
  states of other layers. The states of prompts are read once for a completion.
  """
  (tmp_path / 'config.json').write_text(json.dumps(shape))
  facts = planned(
    tmp_path,
    GSM8K,
    'v5p:2x2x1',
    f'--config.model_dir={tmp_path}',
    '--config.data.prompt_len=64',
    '--config.data.completion_len=64',
    '--config.rl.parts=1',
    '--only=generate',
    '--config.mesh=(1,4,1)',
  )
  (generate,) = facts['phases']
  rows = 32 * 8 // 4
  states = {'mamba', 'linear_attention'}
  layers = sum(kind in states for kind in shape['layer_types'])
  of_states = 3 * rows * STATE * layers
  assert 0.9 * of_states < generate['token_loop']['bytes'] < 1.4 * of_states
  assert generate['fits'] and 0.85 < generate['flops_over_model'] < 1.3
