"""Errors of unknown families have a reason and the most similar family. Keys
are those of the configs of `transformers`.
"""

import pytest

from jaxrl_reason.models import families

BASE = dict(
  vocab_size=64,
  hidden_size=8,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=16,
  rms_norm_eps=1e-6,
  rope_parameters={'rope_theta': 1e4},
  initializer_range=0.02,
  eos_token_id=2,
  use_cache=True,
)
LATENT = dict(kv_lora_rank=4, q_lora_rank=4, qk_rope_head_dim=2)
LATENT |= dict(qk_nope_head_dim=2, v_head_dim=2)
WIDE = dict(moe_intermediate_size=8, num_experts_per_tok=2)
MIXED = dict(num_local_experts=4, num_experts_per_tok=2)
GPT2 = dict(n_layer=2, n_head=2, layer_norm_epsilon=1e-5)
BIASED, TOWERS = 'norms with a bias', 'image and sound towers'
NONE = 'no file of models/families reads its config.json and tensors. The'
TEXT = dict(model_type='qwen2', sliding_window=4, max_window_layers=1)
CASES = [  # name, keys, similar family, words
  ('qwen4', dict(sliding_window=4, max_window_layers=1), 'qwen3;', NONE),
  ('qwen4_moe', WIDE, 'qwen3_moe;', NONE),
  ('olmo', dict(clip_qkv=None), 'olmo2;', 'norms without weights'),
  ('arcee', dict(mlp_bias=False), 'llama;', 'an mlp without a gate'),
  ('glm', dict(attention_bias=True), 'glm4;', NONE),
  (
    'exaone4',
    dict(sliding_window=4, sliding_window_pattern=4),
    'mistral, which does not read sliding_window_pattern;',
    NONE,
  ),
  ('granitemoe', dict(embedding_multiplier=2.0), 'granite', NONE),
  (
    'hunyuan_v1_moe',
    dict(moe_topk=1, num_experts=2),
    'hunyuan_v1_dense, which does not read moe_topk;',
    NONE,
  ),
  ('falcon', dict(layer_norm_epsilon=1e-5, multi_query=True), 'llama', BIASED),
  ('starcoder2', dict(norm_epsilon=1e-5, use_bias=True), 'ernie4_5', BIASED),
  ('bloom', GPT2, 'llama', 'n_layer: the keys of GPT-2 are not read'),
  ('gptj', GPT2 | dict(n_positions=64), 'llama', BIASED),
  ('mpt', dict(alibi=True), 'llama', 'ALiBi'),
  ('rwkv', dict(attention_hidden_size=8), 'llama', 'recurrent layers'),
  ('kimi_linear', LATENT | dict(linear_attn_config={'a': 1}), 'd', 'recurrent'),
  ('deepseek_v2', LATENT | WIDE, 'deepseek_v3;', 'latent attention'),
  ('youtu', LATENT, 'deepseek_v3;', NONE),
  ('longcat_flash', LATENT | dict(zero_expert_num=1), 'deepseek_v3,', NONE),
  ('minimax', MIXED, 'minimax_m2;', 'recurrent layers'),
  ('solar', {}, 'llama;', NONE),
  ('llava', dict(vision_config={'a': 1}, text_config=TEXT), 'qwen2;', TOWERS),
  ('qwen2_5_omni', dict(thinker_config={'text_config': TEXT}), 'qwen2', TOWERS),
]


@pytest.mark.parametrize('name, own, similar, words', CASES)
def test_the_error_has_a_reason_and_a_similar_family(name, own, similar, words):
  with pytest.raises(ValueError) as error:
    families.from_hf({**BASE, 'model_type': name, **own})
  found = str(error.value)
  assert found.startswith(f'model_type {name!r} is not supported: ')
  assert words in found
  assert f'. The most similar family is {similar}' in found
  assert '; supported are llama, ' in found
