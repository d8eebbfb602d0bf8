"""Tokenizers of folders return the ids and bytes of `transformers`."""

import json
import sys

import hf_folders
import hypothesis
import pytest
from hypothesis import strategies

from jaxrl_reason.data import hf_tokenizers

transformers = pytest.importorskip('transformers')

pytestmark = pytest.mark.parity

TEXTS = [
  'Ann has 12 apples', "don't  know\n\n x", 'caf\u00e9 \u4f60\u597d \U0001f600',
  'a<|eot|>b <|im_end|> c<|start|><|stop|>\n\n7', '<think>x</think>', '',
  '1,024\t\x00', 'a' * 300, '<0x41>', '<s>x</s>', 'tail ', '\n', '\u00a0\u200b',
]  # fmt: skip
PREFIXED = ('bpe_model', 'unigram_model', 'bpe_json')
quick = hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)


@pytest.fixture(scope='module', params=hf_folders.KINDS)
def pair(request, tmp_path_factory):
  """Returns (kind, our tokenizer, their tokenizer)."""
  folder = tmp_path_factory.mktemp(request.param)
  hf_folders.KINDS[request.param](folder)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  return request.param, hf_tokenizers.load(folder), theirs


@pytest.mark.parametrize('text', TEXTS)
def test_ids_are_those_of_transformers(pair, text):
  _, ours, theirs = pair
  assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
  if text:
    assert [*ours.prefix_ids, *ours.encode(text)] == theirs.encode(text)


@quick
@hypothesis.given(text=strategies.text())
def test_ids_of_any_text_are_those_of_transformers(pair, text):
  """Except texts that begin with a space or its marker: SentencePiece prepends
  a space, and the library's conversion of such models does not.
  """
  kind, ours, theirs = pair
  if kind.endswith('_model'):
    text = 'x' + text
    text = text.replace(hf_tokenizers.SPACE, '')
  assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def joined(ours, ids) -> str:
  return b''.join(ours.token_bytes()[i] for i in ids).decode()


@quick
@hypothesis.given(text=strategies.text())
def test_bytes_are_those_that_transformers_decodes(pair, text):
  """Except the space before a whole text, which a completion must keep."""
  kind, ours, theirs = pair
  ids = ours.encode(text)
  decoded = theirs.decode(ids, skip_special_tokens=True)
  assert joined(ours, ids) == ours.decode(ids)
  if kind in PREFIXED:
    assert joined(ours, ids).removeprefix(' ') == decoded
  else:
    assert joined(ours, ids) == decoded


def test_every_token_has_its_bytes(pair):
  """A token alone is decoded as by transformers if it is valid text."""
  kind, ours, theirs = pair
  for i, data in enumerate(ours.token_bytes()):
    text = theirs.decode([i], skip_special_tokens=True)
    if not data:
      assert i in ours.special_ids and (text == '' or i in ours.eos_ids)
    elif '\ufffd' not in text:
      whole = data.decode()
      assert (whole.removeprefix(' ') if kind in PREFIXED else whole) == text


def test_bytes_of_half_characters_join(tmp_path):
  ours = hf_tokenizers.load(hf_folders.byte_level(tmp_path))
  face = '\U0001f600'
  ids = ours.encode(face)
  assert len(ids) > 1 and ours.decode(ids) == face
  assert [ours.token_bytes()[i] for i in ids] == [
    bytes([b]) for b in face.encode()
  ]


def test_special_tokens(pair):
  kind, ours, _ = pair
  if kind == 'byte_level':
    end, pad = (ours.encode(t)[0] for t in ('<|im_end|>', '<|endoftext|>'))
    assert ours.eos_ids == (end, pad) and ours.pad_id == pad
    assert ours.bos_id is None and ours.prefix_ids == ()
    assert (
      ours.decode(ours.encode('<think>')) == '<think>'
    )  # not a special token
  else:
    end = ours.encode('x<|eot|>')[-1]
    assert ours.eos_ids == (2, end) and ours.pad_id == 2
    assert ours.bos_id == 1 and ours.prefix_ids == (1,)
  assert ours.decode([*ours.special_ids, -1, 10**6]) == ''


def test_unreadable_tokenizers_are_named(tmp_path, monkeypatch):
  with pytest.raises(FileNotFoundError, match='tokenizer.json.*tokenizer.mod'):
    hf_tokenizers.load(tmp_path)
  hf_folders.byte_level(tmp_path)
  path = tmp_path / 'tokenizer.json'
  spec = json.loads(path.read_text())
  path.write_text(json.dumps(spec | {'decoder': {'type': 'WordPiece',
    'prefix': '##', 'cleanup': True}}))  # fmt: skip
  with pytest.raises(ValueError, match='WordPiece'):
    hf_tokenizers.load(tmp_path)
  path.write_text(json.dumps(spec))
  hf_folders.write(tmp_path, {}, generation_config={})
  with pytest.raises(ValueError, match='no end-of-text token'):
    hf_tokenizers.load(tmp_path)
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(ImportError, match=r'jaxrl_reason\[hf\]'):
    hf_tokenizers.load(tmp_path)
