"""Tokenizers are lossless, and decoding never raises an error."""

import json
import pathlib
import pickle
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import strategies

from jaxrl_reason.data import tokenizers

GSM8K = pathlib.Path(__file__).parents[3] / 'shared' / 'data' / 'gsm8k'
# Enough for a model of 340 tokens, without any data on disk.
TEXTS = [
  f'Ann has {i} apples and {i * i} pears.\nHow many\n\n  in total?\t#### {i:,}'
  for i in range(400, 1400, 7)
]
TRICKY = [
  '', ' ', '  ', '\n', '\n\n', ' \n ', 'a\nb', 'a  b', ' a', 'a ', '\r\n', '\t',
  '\x00', '12,345', '\u2581', 'a \u2581\u2581b', '<0x41>', '<s></s><pad><unk>',
  'caf\u00e9', 'cafe\u0301', '\U0001f600', '\uff11\ufb01', '\u00a0', '\u200b',
  '####', 'a' * 5000,
]  # fmt: skip
quick = hypothesis.settings(
  max_examples=200, deadline=None, derandomize=True, database=None
)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  path = tmp_path_factory.mktemp('spm') / 'with space' / 'x.model'
  path.parent.mkdir()
  return tokenizers.train_sentencepiece(TEXTS, 340, path), path


@pytest.fixture(
  scope='module', params=['char', 'byte', 'sentencepiece', 'reloaded']
)
def tokenizer(request, trained):
  alphabet = ''.join(TRICKY) + ''.join(TEXTS)
  return {
    'char': lambda: tokenizers.CharTokenizer(alphabet),
    'byte': tokenizers.ByteTokenizer,
    'sentencepiece': lambda: trained[0],
    'reloaded': lambda: pickle.loads(
      pickle.dumps(tokenizers.SentencePieceTokenizer(trained[1]))
    ),
  }[request.param]()


@pytest.mark.parametrize('text', TRICKY)
def test_round_trip(tokenizer, text):
  ids = tokenizer.encode(text)
  assert tokenizer.decode(ids) == text
  assert not set(ids) & set(tokenizer.special_ids)


@quick
@hypothesis.given(strategies.text())
def test_round_trip_of_any_text(trained, text):
  for tokenizer in (trained[0], tokenizers.ByteTokenizer()):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@quick
@hypothesis.given(strategies.lists(strategies.integers(-5, 500)))
def test_decode_takes_any_ids(trained, ids):
  for tokenizer in (
    trained[0],
    tokenizers.ByteTokenizer(),
    tokenizers.CharTokenizer('ab\u00e9'),
  ):
    table = dict(enumerate(tokenizer.token_bytes()))
    joined = b''.join(table.get(i, b'') for i in ids)
    assert tokenizer.decode(ids) == joined.decode('utf-8', errors='replace')


def test_the_table_has_bytes_for_all_but_special_ids(tokenizer):
  table = tokenizer.token_bytes()
  assert len(table) == tokenizer.vocab_size
  empty = {i for i, data in enumerate(table) if not data}
  assert empty == set(tokenizer.special_ids)
  assert {tokenizer.pad_id, *tokenizer.eos_ids} <= empty
  assert tokenizer.pad_id == 0 and tokenizer.eos_ids == (1,)
  assert tokenizer.bos_id is None


def test_characters_keep_their_ids():
  assert tokenizers.CharTokenizer('ba+').encode('+ab') == [2, 3, 4]
  again = tokenizers.CharTokenizer('+baab')
  assert again.encode('+ab') == [2, 3, 4] and again.vocab_size == 5


def test_an_unknown_character_is_named():
  with pytest.raises(ValueError, match="'x'.*'1x2'"):
    tokenizers.CharTokenizer('0123').encode('1x2')


def test_digits_and_newlines_stand_alone(trained):
  table = trained[0].token_bytes()
  for data in table:
    assert len(data) == 1 or not any(b in b'0123456789\n' for b in data), data


def test_training_is_deterministic_and_leaves_one_file(trained, tmp_path):
  path = tmp_path / 'x.model'
  tokenizers.train_sentencepiece(iter(TEXTS), 340, path)
  assert path.read_bytes() == trained[1].read_bytes()
  assert [p.name for p in tmp_path.iterdir()] == ['x.model']
  assert trained[0].vocab_size == 340


def test_training_is_quiet(tmp_path):
  code = (
    'from jaxrl_reason.data import tokenizers as t\n'
    'texts = [f"{i} apples\\n" * 9 for i in range(99)]\n'
    f't.train_sentencepiece(texts, 278, {str(tmp_path / "m")!r})'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, check=True
  )
  assert done.stdout == done.stderr == b''


@pytest.mark.parametrize(
  ('texts', 'size', 'words'),
  [(TEXTS, 200, '200'), (['ab'], 4000, '4000'), ([], 300, '300')],
)
def test_an_impossible_vocabulary_is_refused(tmp_path, texts, size, words):
  with pytest.raises(ValueError, match=words):
    tokenizers.train_sentencepiece(texts, size, tmp_path / 'x')
  assert not list(tmp_path.iterdir())


def test_a_model_that_normalises_is_refused(tmp_path):
  import io

  import sentencepiece

  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=100,
    minloglevel=2,
  )  # fmt: skip
  (tmp_path / 'x.model').write_bytes(model.getvalue())
  with pytest.raises(ValueError, match='x.model'):
    tokenizers.SentencePieceTokenizer(tmp_path / 'x.model')


@pytest.mark.skipif(not GSM8K.exists(), reason=f'{GSM8K} is absent')
def test_gsm8k_round_trip_and_compression(tmp_path):
  texts = []
  for split in ('train', 'test'):
    for line in (GSM8K / f'{split}.jsonl').read_text('utf-8').splitlines():
      texts += json.loads(line).values()
  model = tokenizers.train_sentencepiece(texts[:6000], 1024, tmp_path / 'm')
  n_tokens = 0
  for text in texts:
    ids = model.encode(text)
    n_tokens += len(ids)
    assert model.decode(ids) == text
  assert sum(map(len, texts)) / n_tokens > 2.2  # characters a token
