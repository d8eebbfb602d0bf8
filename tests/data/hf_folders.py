"""Small tokenizers in Hugging Face folders, in the style of published ones.
Tests that import this file are skipped if `tokenizers` is not installed.
"""

import io
import json

import pytest
import sentencepiece

tokenizers = pytest.importorskip('tokenizers')

TEXTS = [
  f'Ann has {i} apples and {i * i} pears.\nHow many\n\n  in total?\t#### {i:,}'
  f" caf\u00e9 na\u00efve \u4f60\u597d don't <think> we'll"
  for i in range(400, 1000, 7)
]
QWEN_SPLIT = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
  r' ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
)
# In the style of Qwen3: a default system prompt, tools, thinking switches.
QWEN = """{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and not loop.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
# In the style of Llama 3: bos, a date, stripped contents.
LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- else %}
        {%- set date_string = "2024" %}
    {%- endif %}
{%- endif %}
{{- "<|start|>system<|stop|>\\n\\nToday: " + date_string + "<|eot|>" }}
{%- for message in messages %}
    {%- generation %}
    {{- '<|start|>' + message['role'] + '<|stop|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot|>' }}
    {%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|stop|>\\n\\n' }}
{%- endif %}
"""
# In the style of Gemma: refuses system messages and turns out of order.
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate') }}{% endif %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}
{% else %}{% set role = message['role'] %}{% endif %}
{{ '<|start|>' + role + '\\n' + message['content'] | trim + '<|eot|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>model\\n' }}{% endif %}
"""


def write(folder, tokenizer_config: dict, **others: dict) -> None:
  """Writes tokenizer_config.json, and other JSON files by name."""
  files = {'tokenizer_config': tokenizer_config, **others}
  for name, content in files.items():
    (folder / f'{name}.json').write_text(json.dumps(content))


def byte_level(folder, template: str | list = QWEN):
  """Writes a byte-level BPE in the style of Qwen."""
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  pre = tokenizers.pre_tokenizers
  model.normalizer = tokenizers.normalizers.NFC()
  split = pre.Split(tokenizers.Regex(QWEN_SPLIT), 'isolated')
  bytes_ = pre.ByteLevel(add_prefix_space=False, use_regex=False)
  model.pre_tokenizer = pre.Sequence([split, bytes_])
  model.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=pre.ByteLevel.alphabet(),
    show_progress=False,
  )  # fmt: skip
  model.train_from_iterator(TEXTS, trainer)
  special = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
  model.add_special_tokens(special)
  token = tokenizers.AddedToken
  model.add_tokens([token('<think>', normalized=False), '</think>'])
  model.save(str(folder / 'tokenizer.json'))
  write(
    folder,
    dict(
      tokenizer_class='PreTrainedTokenizerFast',
      eos_token='<|im_end|>',
      pad_token={'content': '<|endoftext|>', '__type': 'AddedToken'},
      clean_up_tokenization_spaces=False,
      chat_template=template,
    ),
    generation_config={
      'eos_token_id': [model.token_to_id(special[i]) for i in (2, 0)]
    },
  )
  return folder


def pieces(folder, kind: str, prefix: bool, template: str = LLAMA):
  """Writes a SentencePiece model with byte fallback as tokenizer.model."""
  out = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXTS), model_writer=out, model_type=kind,
    vocab_size=420, byte_fallback=True, add_dummy_prefix=prefix,
    normalization_rule_name='identity', remove_extra_whitespaces=False,
    unk_id=0, bos_id=1, eos_id=2, minloglevel=2, num_threads=1,
    user_defined_symbols=['<|start|>', '<|stop|>', '<|eot|>'],
  )  # fmt: skip
  (folder / 'tokenizer.model').write_bytes(out.getvalue())
  model = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
  names = ['<unk>', '<s>', '</s>', '<|start|>', '<|stop|>', '<|eot|>']
  added = {
    str(model.piece_to_id(text)): dict(
      content=text, special=True, normalized=False, lstrip=False,
      rstrip=False, single_word=False,
    )
    for text in names
  }  # fmt: skip
  write(
    folder,
    dict(
      tokenizer_class='LlamaTokenizer',
      bos_token='<s>',
      eos_token='</s>',
      unk_token='<unk>',
      add_bos_token=True,
      legacy=False,
      added_tokens_decoder=added,
      chat_template=template,
    ),
    config={'eos_token_id': [2, model.piece_to_id('<|eot|>')]},
  )
  return folder


def fallback_json(folder, kind: str, prefix: bool):
  """Writes the same kind of model as tokenizer.json."""
  pieces(folder, kind, prefix)
  path = folder / 'tokenizer.model'
  model = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
  path.unlink()
  vocab = [
    (model.id_to_piece(i), model.get_score(i))
    for i in range(model.vocab_size())
  ]
  if kind == 'unigram':
    body = tokenizers.models.Unigram(vocab, unk_id=0, byte_fallback=True)
  else:
    ids = {text: i for i, (text, _) in enumerate(vocab)}
    rank = {
      (text[:i], text[i:]): -score
      for text, score in vocab
      for i in range(1, len(text))
      if text[:i] in ids and text[i:] in ids and not text.startswith('<')
    }
    merges = sorted(rank, key=rank.get)
    body = tokenizers.models.BPE(
      ids, merges, unk_token='<unk>', fuse_unk=True, byte_fallback=True
    )
  out = tokenizers.Tokenizer(body)
  scheme = 'first' if prefix else 'never'
  out.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
    prepend_scheme=scheme, split=False
  )
  d = tokenizers.decoders
  strip = [d.Strip(' ', 1, 0)] if prefix else []
  out.decoder = d.Sequence(
    [d.Replace('\u2581', ' '), d.ByteFallback(), d.Fuse(), *strip]
  )
  special = ['<unk>', '<s>', '</s>', '<|start|>', '<|stop|>', '<|eot|>']
  out.add_special_tokens(
    [tokenizers.AddedToken(t, normalized=False, special=True) for t in special]
  )
  out.post_processor = tokenizers.processors.TemplateProcessing(
    single='<s> $A', special_tokens=[('<s>', 1)]
  )
  out.save(str(folder / 'tokenizer.json'))
  c = json.loads((folder / 'tokenizer_config.json').read_text())
  c['tokenizer_class'] = 'PreTrainedTokenizerFast'
  del c['add_bos_token'], c['added_tokens_decoder']
  write(folder, c)
  return folder


KINDS = {
  'byte_level': byte_level,
  'bpe_model': lambda f: pieces(f, 'bpe', True),
  'unigram_model': lambda f: pieces(f, 'unigram', True),
  'bpe_json': lambda f: fallback_json(f, 'bpe', True),
  'bare_bpe_json': lambda f: fallback_json(f, 'bpe', False),
  'unigram_json': lambda f: fallback_json(f, 'unigram', False),
}
