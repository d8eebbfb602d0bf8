"""Tokenizers: text <-> ids, and the bytes of every id.

All tokenizers have the same interface:

  encode(text) -> list[int]      no special tokens are added
  decode(ids) -> str             never raises; special and unknown ids are ''
  token_bytes() -> list[bytes]   by id; b'' for special ids
  vocab_size, pad_id, bos_id (or None), eos_ids, special_ids

Round trips are lossless: decode(encode(text)) == text, including newlines and
runs of spaces. `decode` joins `token_bytes`, so host verifiers and device
kernels read the same bytes.

  CharTokenizer('0123456789+-=')   pad 0, eos 1, then the characters, sorted
  ByteTokenizer()                  pad 0, eos 1, then the 256 bytes
  SentencePieceTokenizer(path)     pad 0, eos 1, unk 2, newline 3, 256 bytes,
                                   then the pieces of `train_sentencepiece`
"""

import io
import os
from collections.abc import Iterable

import sentencepiece
from etils import epath

PAD_ID = 0
EOS_ID = 1


class _Tokenizer:
  """Methods that depend only on the bytes of the tokens."""

  pad_id = PAD_ID
  bos_id: int | None = None
  eos_ids: tuple[int, ...] = (EOS_ID,)
  special_ids: tuple[int, ...] = (PAD_ID, EOS_ID)

  def __init__(self, token_bytes: list[bytes]):
    self._token_bytes = token_bytes

  @property
  def vocab_size(self) -> int:
    return len(self._token_bytes)

  def token_bytes(self) -> list[bytes]:
    return list(self._token_bytes)

  def decode(self, ids: Iterable[int]) -> str:
    table = self._token_bytes
    parts = (table[i] for i in ids if 0 <= i < len(table))
    return b''.join(parts).decode('utf-8', errors='replace')

  def encode_data(self, text: str) -> list[int]:
    """Returns the ids of an untrusted text: it yields no special ids, and
    characters without a token are left out.
    """
    return self.encode(text)


class CharTokenizer(_Tokenizer):
  """One token per character of a fixed alphabet."""

  def __init__(self, alphabet: str):
    self.alphabet = ''.join(sorted(set(alphabet)))
    super().__init__([b'', b'', *(c.encode() for c in self.alphabet)])
    self._ids = {c: i for i, c in enumerate(self.alphabet, start=2)}

  def encode(self, text: str) -> list[int]:
    try:
      return [self._ids[c] for c in text]
    except KeyError as error:
      raise ValueError(
        f'character {error.args[0]!r} of {text[:80]!r} is not in the '
        f'alphabet {self.alphabet!r}'
      ) from None

  def encode_data(self, text: str) -> list[int]:
    return [self._ids[c] for c in text if c in self._ids]


class ByteTokenizer(_Tokenizer):
  """One token per UTF-8 byte: encodes every text without training, in long
  sequences.
  """

  def __init__(self):
    super().__init__([b'', b'', *(bytes([b]) for b in range(256))])

  def encode(self, text: str) -> list[int]:
    return [b + 2 for b in text.encode('utf-8')]


# SentencePiece uses this character for a space, so it would decode a real one
# as a space; we encode it in bytes.
_SPACE = '\u2581'
_PROBE = ' a  b\n\n1,024\t\u2581\u00e9 '


class SentencePieceTokenizer(_Tokenizer):
  """A SentencePiece model, from its path or its bytes.

  It is meant for models of `train_sentencepiece`. A model that normalizes text
  (NFKC, collapsed spaces, a dummy prefix) cannot round-trip and raises an
  error.
  """

  def __init__(self, model: bytes | str | os.PathLike):
    name = '(bytes)' if isinstance(model, bytes) else os.fspath(model)
    data = model if isinstance(model, bytes) else epath.Path(name).read_bytes()
    self.model_bytes = data
    self._model = sentencepiece.SentencePieceProcessor(model_proto=data)
    super().__init__(
      [self._piece_bytes(i) for i in range(self._model.vocab_size())]
    )
    self.eos_ids = (self._model.eos_id(),)
    pad_id, bos_id = self._model.pad_id(), self._model.bos_id()
    self.pad_id = pad_id if pad_id >= 0 else self.eos_ids[0]
    self.bos_id = bos_id if bos_id >= 0 else None
    self.special_ids = tuple(
      i for i, data in enumerate(self._token_bytes) if not data
    )
    self._space_ids = [
      self._model.piece_to_id(f'<0x{b:02X}>') for b in _SPACE.encode()
    ]
    if self.decode(self.encode(_PROBE)) != _PROBE:
      raise ValueError(
        f'the SentencePiece model {name} does not decode to the text that it '
        'encodes: train one with train_sentencepiece (identity normalization, '
        'byte fallback, no dummy prefix)'
      )

  def _piece_bytes(self, i: int) -> bytes:
    model = self._model
    if model.is_control(i) or model.is_unknown(i) or model.is_unused(i):
      return b''
    piece = model.id_to_piece(i)
    if model.is_byte(i):
      return bytes([int(piece[3:5], 16)])  # '<0x0A>'
    return piece.replace(_SPACE, ' ').encode()

  def encode(self, text: str) -> list[int]:
    first, *rest = text.split(_SPACE)
    ids = self._model.encode(first)
    for part in rest:
      ids += self._space_ids + self._model.encode(part)
    return ids


def train_sentencepiece(
  texts: Iterable[str], vocab_size: int, path: str | os.PathLike
) -> SentencePieceTokenizer:
  """Trains a BPE model and writes it atomically to `path`.

  The same texts produce the same bytes: one thread, no sampling. Every digit is
  a token (so that a number is encoded the same everywhere), and so is the
  newline. Characters outside the vocabulary are encoded in bytes.
  """
  model = io.BytesIO()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(texts),
      model_writer=model,
      model_type='bpe',
      vocab_size=vocab_size,
      pad_id=PAD_ID,
      eos_id=EOS_ID,
      unk_id=2,
      bos_id=-1,
      byte_fallback=True,
      split_digits=True,
      user_defined_symbols=['\n'],
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      allow_whitespace_only_pieces=True,
      add_dummy_prefix=False,
      max_sentence_length=1 << 20,  # bytes; longer texts would be skipped
      num_threads=1,
      minloglevel=2,  # errors only
    )
  except RuntimeError as error:
    raise ValueError(
      f'cannot train a SentencePiece model of {vocab_size} tokens: {error}'
    ) from error
  write(model.getvalue(), path)
  return SentencePieceTokenizer(model.getvalue())


def write(data: bytes, path: str | os.PathLike) -> None:
  """Writes a trained tokenizer atomically."""
  path = epath.Path(path)
  part = path.parent / f'{path.name}.{os.getpid()}.part'
  part.write_bytes(data)
  part.replace(path)
