"""Texts that end completions, and text printed while it is generated."""

import codecs
from collections.abc import Callable, Sequence
from typing import Any


def before(text: str, stops: Sequence[str]) -> str:
  """Returns the text before the first of the stops in it."""
  return text[: min((text.find(s) for s in stops if s in text), default=None)]


class TextStream:
  """Prints the text of the first row while it is generated, up to a stop."""

  def __init__(
    self, tokenizer, write: Callable[[str], Any], stops: Sequence[str] = ()
  ):
    self._bytes, self._write, self._stops = (
      tokenizer.token_bytes(),
      write,
      stops,
    )
    # A character may have several tokens.
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')
    self._text, self._shown = '', 0

  def __call__(self, t, tokens, done) -> None:
    del t
    i = int(tokens[0])
    if not done[0] and i < len(self._bytes):
      self._text += self._decoder.decode(self._bytes[i])
      # What may be the beginning of a stop waits.
      self._print(max(map(len, self._stops), default=1) - 1)

  def _print(self, held: int) -> None:
    text = before(self._text, self._stops)
    last = max(len(text) - held, self._shown)
    self._write(text[self._shown : last])
    self._shown = last

  def close(self) -> None:
    """Prints what has waited."""
    self._print(0)
