"""Converts the tokenizer and chat template of a GGUF file to files of a folder.

A byte-level BPE ('gpt2') becomes tokenizer.json. The file has only the name of
its split into words; `SPLITS` has the rules from the models' own
tokenizer.json. A SentencePiece model ('llama') becomes tokenizer.model.
"""

import json
from typing import Any

UNKNOWN, CONTROL, USER = 2, 3, 4  # tokenizer.ggml.token_type
GPT4 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)


UPPER = r'[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]'
LOWER = r'[\p{Ll}\p{Lm}\p{Lo}\p{M}]'
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


def _cases(ending: str, digits: str) -> str:
  """Returns a regex that also splits words before a capital after a small
  letter.

  Args:
    ending: a regex that may end a word; digits: repetitions in a number.
  """
  start = r'[^\r\n\p{L}\p{N}]?'
  words = f'{UPPER}*{LOWER}+{ending}', f'{UPPER}+{LOWER}*{ending}'
  rest = r' ?[^\s\p{L}\p{N}]+[\r\n/]*', r'\s*[\r\n]+', r'\s+(?!\S)', r'\s+'
  first = [start + word for word in words]
  return '|'.join([*first, rf'\p{{N}}{digits}', *rest])


def _byte_level(use_regex: bool) -> dict[str, Any]:
  return {
    'type': 'ByteLevel',
    'add_prefix_space': False,
    'trim_offsets': True,
    'use_regex': use_regex,
  }


def _split(regex: str) -> list[dict[str, Any]]:
  pattern = {'type': 'Split', 'pattern': {'Regex': regex}}
  pattern |= {'behavior': 'Isolated', 'invert': False}
  return [pattern, _byte_level(False)]


DIGITS = {'type': 'Digits', 'individual_digits': True}
BYTES = [_byte_level(True)]
BY_DIGIT = [DIGITS, _byte_level(True)]
GPT4_1, GPT4_3 = (_split(GPT4.replace('@', n)) for n in ('', '{1,3}'))
# tokenizer.ggml.pre -> steps before the merges.
SPLITS = {
  **dict.fromkeys(('default', 'gpt-2', 'phi-2', 'olmo', 'mpt', 'jais'), BYTES),
  **dict.fromkeys(
    ('smollm', 'starcoder', 'refact', 'command-r', 'codeshell', 'exaone'),
    BY_DIGIT,
  ),
  **dict.fromkeys(('qwen2', 'deepseek-r1-qwen'), GPT4_1),
  **dict.fromkeys(
    ('llama-bpe', 'llama3', 'llama-v3', 'dbrx', 'smaug-bpe', 'glm4'), GPT4_3
  ),
  'tekken': _split(_cases('', '')),
  'gpt-4o': _split(_cases(CONTRACTIONS, '{1,3}')),
}
NORMALISED = ('qwen2', 'deepseek-r1-qwen')  # to NFC
# A text that is a token is not merged. Texts begin with bos, unless the file
# says otherwise.
WHOLE = ('llama-bpe', 'llama3', 'llama-v3', 'tekken')


def _added(tokens: list[str], kinds: list[int]) -> list[dict[str, Any]]:
  """Lists the tokens that are matched literally in a text."""
  plain = dict.fromkeys(('single_word', 'lstrip', 'rstrip'), False)
  return [
    {'id': i, 'content': text, **plain, 'normalized': False}
    | {'special': kind == CONTROL}
    for i, (text, kind) in enumerate(zip(tokens, kinds))
    if kind in (CONTROL, USER)
  ]


def _tokenizer_json(fields: dict[str, Any]) -> bytes:
  """Builds tokenizer.json of a byte-level BPE."""
  tokens = fields['tokenizer.ggml.tokens']
  pre = fields.get('tokenizer.ggml.pre', 'default')
  if pre not in SPLITS:
    raise ValueError(
      f'texts are split as in {pre!r} (tokenizer.ggml.pre): '
      f'{", ".join(SPLITS)} are known'
    )
  model = {
    'type': 'BPE',
    'vocab': {text: i for i, text in enumerate(tokens)},
    'merges': [m.split(' ', 1) for m in fields['tokenizer.ggml.merges']],
    'ignore_merges': pre in WHOLE,
  }
  spec = {
    'version': '1.0',
    'truncation': None,
    'padding': None,
    'added_tokens': _added(tokens, fields['tokenizer.ggml.token_type']),
    'normalizer': {'type': 'NFC'} if pre in NORMALISED else None,
    'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': SPLITS[pre]},
    'post_processor': None,
    'decoder': _byte_level(True),
    'model': model,
  }
  return json.dumps(spec, ensure_ascii=False).encode()


def _pieces(fields: dict[str, Any]) -> bytes:
  """Builds tokenizer.model of a SentencePiece BPE."""
  from sentencepiece import sentencepiece_model_pb2

  model = sentencepiece_model_pb2.ModelProto()
  rows = zip(
    fields['tokenizer.ggml.tokens'],
    fields['tokenizer.ggml.scores'],
    fields['tokenizer.ggml.token_type'],
  )
  for text, score, kind in rows:
    model.pieces.add(piece=text, score=score, type=kind)
  kinds = fields['tokenizer.ggml.token_type']
  model.trainer_spec.model_type = model.trainer_spec.BPE
  model.trainer_spec.vocab_size = len(kinds)
  model.trainer_spec.byte_fallback = True
  model.trainer_spec.unk_id = kinds.index(UNKNOWN)
  model.normalizer_spec.name = 'identity'
  model.normalizer_spec.remove_extra_whitespaces = False
  prefix = fields.get('tokenizer.ggml.add_space_prefix', True)
  model.normalizer_spec.add_dummy_prefix = prefix
  return model.SerializeToString()


def files(fields: dict[str, Any]) -> dict[str, bytes]:
  """Returns the files of a tokenizer, contents by name.

  Args:
    fields: metadata of a GGUF file.

  Raises:
    ValueError: the kind of tokenizer is unknown.
  """
  kind = fields.get('tokenizer.ggml.model')
  tokens = fields.get('tokenizer.ggml.tokens', [])
  if kind == 'gpt2':
    out = {'tokenizer.json': _tokenizer_json(fields)}
  elif kind == 'llama':
    out = {'tokenizer.model': _pieces(fields)}
  else:
    raise ValueError(f'tokenizer {kind!r}: gpt2 and llama are known')
  names = ('bos', 'eos', 'unknown', 'padding')
  ids = {n: fields.get(f'tokenizer.ggml.{n}_token_id') for n in names}
  short = {'unknown': 'unk', 'padding': 'pad'}
  config = {
    f'{short.get(name, name)}_token': tokens[i]
    for name, i in ids.items()
    if i is not None
  }
  fast = 'PreTrainedTokenizerFast' if kind == 'gpt2' else 'LlamaTokenizer'
  adds_bos = kind == 'llama' or fields.get('tokenizer.ggml.pre') in WHOLE
  config |= {
    'tokenizer_class': fast,
    'add_bos_token': fields.get('tokenizer.ggml.add_bos_token', adds_bos),
    'clean_up_tokenization_spaces': False,
  }
  if kind == 'llama':
    config['legacy'] = False
  template = fields.get('tokenizer.chat_template')
  if template:
    config['chat_template'] = template
  ends = [ids['eos'], fields.get('tokenizer.ggml.eot_token_id')]
  generation = {
    'eos_token_id': [i for i in dict.fromkeys(ends) if i is not None]
  }
  out['tokenizer_config.json'] = json.dumps(config, indent=1).encode()
  out['generation_config.json'] = json.dumps(generation).encode()
  return out
