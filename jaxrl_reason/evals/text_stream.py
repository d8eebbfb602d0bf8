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
    self._bytes, self._write = tokenizer.token_bytes(), write
    self._stops = stops
    # A character may have several tokens.
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')
    self._waits = ''  # the end of the text, which may begin a stop

  def __call__(self, t, tokens, done) -> None:
    del t
    i = int(tokens[0])
    if not done[0] and i < len(self._bytes):
      self._waits += self._decoder.decode(self._bytes[i])
      self._print(max(map(len, self._stops), default=1) - 1)

  def _print(self, held: int) -> None:
    """Prints all but the last `held` characters."""
    text = before(self._waits, self._stops)
    n = max(len(text) - held, 0)
    self._write(text[:n])
    self._waits = text[n:]

  def close(self) -> None:
    """Prints what has waited."""
    self._print(0)
