"""Export of a run's own tokenizer in the form of a Hugging Face folder.

Characters and bytes become a byte-level BPE without merges, in which each token
keeps its id. A SentencePiece model is copied to the folder's tokenizer.model.
"""

import json
from typing import Any

from etils import epath

from jaxrl_reason.data import hf_tokenizers, tokenizers

PAD, EOS = '<pad>', '<eos>'


def _tokenizer_json(tokenizer: tokenizers.CharTokenizer) -> dict[str, Any]:
  """Builds a tokenizer.json in which every token is one byte.

  Raises:
    ValueError: a token has several bytes.
  """
  spelt = {b: c for c, b in hf_tokenizers.byte_of_character().items()}
  vocab = {PAD: tokenizers.PAD_ID, EOS: tokenizers.EOS_ID}
  for i, data in enumerate(tokenizer.token_bytes()):
    if len(data) > 1:
      raise ValueError(
        f'token {i}, {data.decode()!r}, has {len(data)} bytes, so this '
        'tokenizer cannot be exported: use data.tokenizer=byte or sentencepiece'
      )
    if data:
      vocab[spelt[data[0]]] = i
  byte_level = {'type': 'ByteLevel', 'add_prefix_space': False}
  byte_level |= {'trim_offsets': True, 'use_regex': False}
  plain = dict.fromkeys(
    ('single_word', 'lstrip', 'rstrip', 'normalized'), False
  )
  return {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': [
      {'id': vocab[x], 'content': x, **plain, 'special': True}
      for x in (PAD, EOS)
    ],
    'normalizer': None,
    'pre_tokenizer': byte_level,
    'post_processor': None,
    'decoder': byte_level,
    'model': {'type': 'BPE', 'vocab': vocab, 'merges': []},
  }


def write(tokenizer, folder) -> None:
  """Writes a tokenizer of `tokenizers` into a Hugging Face folder.

  Raises:
    ValueError: it has no such form.
  """
  folder = epath.Path(folder)
  config = {'pad_token': PAD, 'eos_token': EOS, 'add_bos_token': False}
  if isinstance(tokenizer, tokenizers.SentencePieceTokenizer):
    (folder / hf_tokenizers.PIECES).write_bytes(tokenizer.model_bytes)
    config |= {'eos_token': '</s>', 'legacy': False}
    config['tokenizer_class'] = 'LlamaTokenizer'
  else:
    spec = _tokenizer_json(tokenizer)
    (folder / hf_tokenizers.JSON).write_text(json.dumps(spec, indent=1))
    config['tokenizer_class'] = 'PreTrainedTokenizerFast'
  (folder / hf_tokenizers.CONFIG).write_text(json.dumps(config, indent=1))
  ids = {'eos_token_id': list(tokenizer.eos_ids)}
  ids['pad_token_id'] = tokenizer.pad_id
  (folder / hf_tokenizers.GENERATION).write_text(json.dumps(ids, indent=1))
