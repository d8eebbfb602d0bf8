"""Writes GGUF files of small models, as llama.cpp converts them."""

import json
import re

import numpy as np
import pytest
from data import hf_folders
from models.hf_models import torch

gguf = pytest.importorskip('gguf')


def interleaved(x: np.ndarray, heads: int) -> np.ndarray:
  """Permutes the rows of q and k as llama.cpp's convert_hf_to_gguf.py."""
  halves = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
  return halves.swapaxes(1, 2).reshape(x.shape)


def add_config(writer, c, arch: str) -> None:
  """Writes the metadata that llama.cpp writes for a config.json."""
  writer.add_block_count(c.num_hidden_layers)
  writer.add_context_length(c.max_position_embeddings)
  writer.add_embedding_length(c.hidden_size)
  if arch != 'gemma3n':
    writer.add_feed_forward_length(c.intermediate_size)
  writer.add_head_count(c.num_attention_heads)
  writer.add_head_count_kv(c.num_key_value_heads)
  writer.add_layer_norm_rms_eps(c.rms_norm_eps)
  width = getattr(c, 'head_dim', None)
  width = width or c.hidden_size // c.num_attention_heads
  writer.add_key_length(width)
  writer.add_value_length(width)
  writer.add_rope_dimension_count(width)
  rope = c.rope_parameters
  writer.add_rope_freq_base(rope.get('full_attention', rope)['rope_theta'])
  writer.add_vocab_size(c.vocab_size)
  if arch.startswith('gemma') or arch == 'phi3':
    writer.add_sliding_window(c.sliding_window)
  if arch == 'gemma3n':
    add_gemma3n(writer, c)
  if arch == 'gemma2':
    writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
    writer.add_final_logit_softcapping(c.final_logit_softcapping)


def add_gemma3n(writer, c) -> None:
  """Writes the metadata that Gemma 3n has alone."""
  writer.add_feed_forward_length([*c.intermediate_size])
  writer.add_altup_active_idx(c.altup_active_idx)
  writer.add_altup_num_inputs(c.altup_num_inputs)
  writer.add_embedding_length_per_layer_input(c.hidden_size_per_layer_input)
  writer.add_shared_kv_layers(c.num_kv_shared_layers)
  normal = torch.distributions.normal.Normal(0, 1)
  shares = torch.tensor(c.activation_sparsity_pattern, dtype=torch.float32)
  writer.add_activation_sparsity_scale(normal.icdf(shares).tolist())
  local = [kind == 'sliding_attention' for kind in c.layer_types]
  writer.add_sliding_window_pattern(local)
  writer.add_final_logit_softcapping(c.final_logit_softcapping)


def of_gemma3n(state: dict, c) -> dict:
  """Returns the tensors that llama.cpp writes: streams' matrices as one stack,
  inputs of every token, and keys of layers that read those of others.
  """
  out, stacks = {}, {}
  for name, x in state.items():
    stem = re.sub(r'^(model.altup.*_projections)[.][0-9]+', r'\1', name)
    if stem != name:
      stacks.setdefault(stem, []).append(x)
    elif name.endswith('_scale'):
      out[f'{name}.weight'] = x
    else:
      out[name] = x
  table = 'model.embed_tokens_per_layer.weight'
  more = torch.zeros(c.vocab_size - len(out[table]), out[table].shape[1])
  out[table] = torch.cat([out[table], more])
  last = f'model.layers.{c.num_hidden_layers - 1}.self_attn'
  for part in 'k_proj', 'v_proj', 'k_norm':
    out[f'{last}.{part}.weight'] = torch.ones(3)
  return out | {name: torch.stack(x) for name, x in stacks.items()}


def add_tokenizer(writer, folder, vocab: int) -> None:
  """Writes a byte-level BPE with as many tokens as the embedding has rows."""
  spec = json.loads((folder / 'tokenizer.json').read_text())
  ids = dict(spec['model']['vocab'])
  ids |= {t['content']: t['id'] for t in spec['added_tokens']}
  special = {t['id']: 3 if t['special'] else 4 for t in spec['added_tokens']}
  texts = sorted(ids, key=ids.get)
  texts += [f'[PAD{i}]' for i in range(len(texts), vocab)]
  writer.add_tokenizer_model('gpt2')
  writer.add_tokenizer_pre('qwen2')
  writer.add_token_list(texts)
  writer.add_token_types([special.get(i, 1) for i in range(len(texts))])
  writer.add_token_merges([' '.join(m) for m in spec['model']['merges']])
  writer.add_eos_token_id(ids['<|im_end|>'])
  writer.add_add_bos_token(False)
  writer.add_chat_template(hf_folders.QWEN)


def write(path, model, arch: str, folder, kind: str = 'F32'):
  """Writes a GGUF file of a transformers model, with the gguf package's
  names.
  """
  writer = gguf.GGUFWriter(path, arch)
  c = model.config
  add_config(writer, c, arch)
  add_tokenizer(writer, folder, c.vocab_size)
  which = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch]
  names = gguf.get_tensor_name_map(which, c.num_hidden_layers)
  to = gguf.GGMLQuantizationType[kind]
  state = model.state_dict()
  state = of_gemma3n(state, c) if arch == 'gemma3n' else state
  for name, value in state.items():
    x = value.float().numpy()
    if name == 'lm_head.weight' and c.tie_word_embeddings:
      continue
    if arch == 'llama' and ('q_proj' in name or 'k_proj' in name):
      q = 'q_proj' in name
      x = interleaved(x, c.num_attention_heads if q else c.num_key_value_heads)
    if arch in ('gemma2', 'gemma3') and name.endswith('norm.weight'):
      x = x + 1
    stem, dot, kind_of = name.rpartition('.')
    row = x.ndim > 1 and x.shape[-1] % gguf.GGML_QUANT_SIZES[to][0] == 0
    data = gguf.quantize(x, to) if row else x
    as_type = to if row else gguf.GGMLQuantizationType.F32
    writer.add_tensor(
      names.get_name(stem) + dot + kind_of, data, raw_dtype=as_type
    )
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path
