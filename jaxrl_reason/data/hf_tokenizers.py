"""Tokenizers of Hugging Face folders, with the protocol of `tokenizers`.

`load(folder)` reads tokenizer.json (with the `tokenizers` library) or, without
it, tokenizer.model (SentencePiece). The tokens that end a completion are read
from tokenizer_config.json, generation_config.json and config.json, in that
order.

Every id has bytes: a byte-level BPE token maps character by character back to
its bytes, `<0x0A>` is a byte, and a piece is its text with the marker as a
space. So `decode` joins bytes, like the kernels. It differs from `transformers`
in one thing: the space that some models put before a text is kept, because a
completion is not a whole text.

Beyond the protocol there are `prefix_ids`, the ids that the model needs before
a plain prompt (a bos token, or none), and `token_text(id)`, the text of a
special token in a template. Special tokens written in a text are encoded as
special tokens, as in `transformers`, because chat templates need it.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import sentencepiece
from etils import epath

from jaxrl_reason.data import tokenizers as base
from jaxrl_reason.hosts import reading
from jaxrl_reason.names import install

JSON, PIECES = 'tokenizer.json', 'tokenizer.model'
CONFIG, GENERATION = 'tokenizer_config.json', 'generation_config.json'
SPACE = '\u2581'
# Appended to a SentencePiece model. protobuf merges it into the message, as
# normalizer_spec {add_dummy_prefix: false}.
NO_PREFIX = b'\x1a\x02\x18\x00'
# Special tokens that remain in decoded texts, because they separate thoughts
# from answers (`verifiers.thoughts`).
CHANNELS = frozenset(('<|start|>', '<|channel|>', '<|message|>', '<|end|>'))


def read_json(path: epath.Path) -> dict:
  """Returns the object of a JSON file; {} when there is none."""
  return reading.json_object(path) if path.exists() else {}


def text_of(token: str | dict | None) -> str | None:
  """Returns a special token of tokenizer_config.json, which may be a record."""
  return token['content'] if isinstance(token, dict) else token


def load(folder) -> '_FolderTokenizer':
  """Returns the tokenizer of a Hugging Face folder.

  Raises:
    FileNotFoundError: neither of the two files exists.
    ValueError: the tokens of the tokenizer are not bytes, or a file cannot be
      read.
  """
  folder = epath.Path(folder)
  for name, kind in ((JSON, JsonTokenizer), (PIECES, PieceTokenizer)):
    if (folder / name).exists():
      return kind(folder)
  raise FileNotFoundError(
    f'{folder} has neither {JSON} nor {PIECES}: it needs one of them'
  )


class _FolderTokenizer(base._Tokenizer):
  """Settings from a folder's small files, for every kind of tokenizer."""

  def __init__(
    self, folder, ids: dict[str, int], table: dict[int, bytes], special
  ):
    """ids: of every token by its text; special: ids of special tokens."""
    folder = epath.Path(folder)
    c = read_json(folder / CONFIG)

    def named(key):
      return ids.get(text_of(c.get(key)))

    self.bos_id = named('bos_token')
    self.eos_ids = _eos_ids(folder, named('eos_token'))
    if not self.eos_ids:
      raise ValueError(
        f'{folder}: no end-of-text token: {CONFIG} has no known eos_token, and '
        f'{GENERATION} and config.json have no eos_token_id; add one'
      )
    pad = named('pad_token')
    self.pad_id = self.eos_ids[0] if pad is None else pad
    known = {self.pad_id, *self.eos_ids, *special}
    known |= set() if self.bos_id is None else {self.bos_id}
    self._texts = {i: text for text, i in ids.items()}
    size = max(max(self._texts), *known) + 1
    channels = {ids[x] for x in CHANNELS} if ids.keys() >= CHANNELS else set()
    hidden = known - (channels - {self.pad_id, *self.eos_ids})
    super().__init__(
      [b'' if i in hidden else table.get(i, b'') for i in range(size)]
    )
    self.special_ids = tuple(
      i for i, x in enumerate(self._token_bytes) if not x or i in channels
    )
    wants_bos = c.get('add_bos_token', self._adds_bos())
    bos = wants_bos and self.bos_id is not None
    self.prefix_ids = (self.bos_id,) if bos else ()

  def token_text(self, i: int) -> str:
    """Returns the text of token i, e.g. '<|im_end|>'."""
    return self._texts[i]


def _eos_ids(folder: epath.Path, first: int | None) -> tuple[int, ...]:
  """Returns the ids that end a completion, the tokenizer's own first."""
  out = [] if first is None else [first]
  for name in (GENERATION, 'config.json'):
    ids = read_json(folder / name).get('eos_token_id')
    ids = ids if isinstance(ids, list) else [ids]
    out += [i for i in ids if i is not None]
  return tuple(dict.fromkeys(out))


@functools.cache
def byte_of_character() -> dict[str, int]:
  """Returns the byte of each character of byte-level BPE: printable bytes are
  themselves, the others are the characters from 256 on (GPT-2).
  """
  printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [b for b in range(256) if b not in printable]
  table = {chr(b): b for b in printable}
  return table | {chr(256 + i): b for i, b in enumerate(others)}


@functools.cache
def _in_latin1() -> dict[int, int]:
  """Returns a translation of byte-level characters to latin-1 characters with
  their bytes. Other latin-1 characters are translated so that encoding raises
  an error.
  """
  return {i: 256 for i in range(256)} | {
    ord(c): b for c, b in byte_of_character().items()
  }


def _byte_level(token: str) -> bytes:
  try:
    return token.translate(_in_latin1()).encode('latin-1')
  except UnicodeEncodeError:  # an added token, stored as plain text
    return token.encode()


def _piece(token: str, marker: str = SPACE, bytes_too: bool = True) -> bytes:
  if bytes_too and re.fullmatch('<0x[0-9A-Fa-f]{2}>', token):
    return bytes([int(token[3:5], 16)])
  return token.replace(marker, ' ').encode()


def _to_bytes(decoder: dict | None, where) -> Callable[[str], bytes]:
  """Returns the function that converts tokens of a tokenizer.json to bytes.

  Raises:
    ValueError: its decoder does more than join bytes.
  """
  steps = (decoder or {}).get('decoders') or [decoder or {'type': None}]
  kinds = {s['type'] for s in steps}
  if kinds == {'ByteLevel'}:
    return _byte_level
  # The space marker: of a Metaspace, or of a Replace whose result is a space.
  markers = {
    s['replacement'] if s['type'] == 'Metaspace' else s['pattern']['String']
    for s in steps
    if s['type'] == 'Metaspace'
    or (s['type'] == 'Replace' and s['content'] == ' ')
  }
  known = {'Metaspace', 'Replace', 'ByteFallback', 'Fuse', 'Strip'}
  if kinds <= known and len(markers) == 1:
    marker, falls = markers.pop(), 'ByteFallback' in kinds
    return lambda token: _piece(token, marker, falls)
  raise ValueError(
    f'{where}: a decoder of {sorted(map(str, kinds))} is not supported: '
    'its tokens have no fixed bytes; use ByteLevel, Metaspace or ByteFallback'
  )


class JsonTokenizer(_FolderTokenizer):
  """A folder's tokenizer.json: byte-level BPE, byte fallback, metaspace."""

  def __init__(self, folder):
    path, library = epath.Path(folder) / JSON, _library()
    spec = reading.json_object(path)
    with reading.explained(path):
      self._model = library.Tokenizer.from_str(path.read_text())
    # A file may enable truncation or padding, which prompts must not have.
    self._model.no_truncation()
    self._model.no_padding()
    spell = _to_bytes(spec.get('decoder'), path)
    ids = self._model.get_vocab(with_added_tokens=True)
    added = self._model.get_added_tokens_decoder()
    special = {i for i, t in added.items() if t.special}
    special |= {ids[u] for u in [spec['model'].get('unk_token')] if u in ids}
    table = {i: spell(token) for token, i in ids.items()}
    super().__init__(folder, ids, table, special)

  def _adds_bos(self) -> bool:
    return self.bos_id in self._model.encode('').ids

  def encode(self, text: str) -> list[int]:
    return self._model.encode(text, add_special_tokens=False).ids

  def encode_data(self, text: str) -> list[int]:
    return self._data_model.encode(text, add_special_tokens=False).ids

  @functools.cached_property
  def _data_model(self) -> Any:
    """Returns a second tokenizer that encodes special tokens as plain text.

    The setting belongs to a tokenizer, and the data pipeline encodes prompts in
    other threads.
    """
    model = _library().Tokenizer.from_str(self._model.to_str())
    model.encode_special_tokens = True
    return model


def _library() -> Any:
  try:
    import tokenizers
  except ImportError as e:
    raise ImportError(
      f'{JSON} needs the tokenizers library: {install("hf")}'
    ) from e
  return tokenizers


def _added_tokens(folder: epath.Path) -> dict[str, tuple[int, bool]]:
  """Returns (id, special) of the tokens that a folder adds to its SentencePiece
  model.
  """
  plain = read_json(folder / 'added_tokens.json')
  out = {text: (i, False) for text, i in plain.items()}
  added = read_json(folder / CONFIG).get('added_tokens_decoder', {})
  for i, token in added.items():
    if token.get('lstrip') or token.get('rstrip'):
      raise ValueError(
        f'{folder / CONFIG}: {token["content"]!r} strips the spaces beside it, '
        f'which {PIECES} does not support: use a {JSON}'
      )
    out[token['content']] = int(i), token.get('special', False)
  return out


class PieceTokenizer(_FolderTokenizer):
  """A folder's SentencePiece tokenizer.model, and the tokens added to it.

  If the model puts a space before a text, it is put before the whole text only,
  not after every special token in it (`legacy: false`).
  """

  def __init__(self, folder):
    folder = epath.Path(folder)
    data = (folder / PIECES).read_bytes()
    with reading.explained(folder / PIECES):
      self._first, self._later = (
        sentencepiece.SentencePieceProcessor(model_proto=x)
        for x in (data, data + NO_PREFIX)
      )
    pieces = self._first
    ids, table = {}, {}
    control = {}
    for i in range(pieces.vocab_size()):
      text = pieces.id_to_piece(i)
      ids[text] = i
      if pieces.is_control(i) or pieces.is_unknown(i) or pieces.is_unused(i):
        control[text] = i, True
      else:
        table[i] = _piece(text, bytes_too=pieces.is_byte(i))
    added = control | _added_tokens(folder)
    for text, (i, _) in added.items():
      ids[text] = i
      table.setdefault(i, text.encode())
    self._added = {text: i for text, (i, _) in added.items()}
    longest = sorted(self._added, key=len, reverse=True)
    self._split = re.compile('|'.join(map(re.escape, longest)) or r'(?!)')
    special = {i for i, is_special in added.values() if is_special}
    super().__init__(folder, ids, table, special)

  def _adds_bos(self) -> bool:
    return True  # as in all families that publish a tokenizer.model

  def encode(self, text: str) -> list[int]:
    out, end = [], 0
    for match in self._split.finditer(text):
      out += self._plain(text[end : match.start()], end == 0)
      out.append(self._added[match.group()])
      end = match.end()
    return out + self._plain(text[end:], end == 0)

  def encode_data(self, text: str) -> list[int]:
    return self._plain(text, False)

  def _plain(self, text: str, first: bool) -> list[int]:
    return (self._first if first else self._later).encode(text) if text else []
