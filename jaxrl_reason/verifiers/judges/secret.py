"""Removes a secret from a text, also parts of it and in another encoding.

Servers repeat a key that they refuse, in JSON, HTML, URLs, base64 or numbers,
and some shorten it. Only letters and digits are compared, so separators, line
breaks and escaped punctuation do not matter.
"""

import base64
import codecs
import itertools
import re
from collections.abc import Callable, Iterator

PART = 8  # characters of the secret that are removed wherever they stand
# One character of a text: an escape of it (hexadecimal, then decimal), the name
# of an escaped one without a letter, or itself.
CHARACTER = re.compile(
  r'(?:%(?:25)*|=|\\+u00|\\+x|0x|&#x0*)([0-9a-f]{2});?|&#0*([0-9]{2,3});'
  r'|\\+[nrt]|&[a-z]+;|.',
  re.IGNORECASE | re.DOTALL,
)
LITERAL = re.compile('()()(?s:.)')
# Encoders, the bytes of one group, and the characters of it.
ENCODERS = (
  (base64.b64encode, 3, 4),
  (base64.b32encode, 5, 8),
  (base64.b85encode, 4, 5),
  (base64.a85encode, 4, 5),
)
WHOLE_GROUPS = frozenset((base64.b85encode, base64.a85encode))
CHARSETS = ('utf-8', 'utf-16-le', 'utf-16-be')
MIN_ENCODED = 4  # letters and digits; fewer stand in other texts too
# Numbers of a character in hexadecimal (also of UTF-16), decimal, octal and
# binary.
NUMBERS = ('02x', '04x', 'd', '03o', '08b')


def remover(secret: str) -> Callable[[str], str]:
  """Returns a function that replaces the secret in a text by `***`.

  It finds any 8 characters of the secret, of its rot13, or of its base64,
  base32 or base85 wherever the secret begins in the encoded text, and the
  numbers of 8 characters; each of these in any case, or reversed.
  """
  pieces = frozenset(_pieces(secret))
  sizes = sorted({len(piece) for piece in pieces})

  def remove(text: str) -> str:
    text = text.replace(secret, '***')
    hidden = set()  # places
    for reading in (LITERAL, CHARACTER):
      letters = list(_letters(text, reading))
      joined = ''.join(letter for letter, _, _ in letters)
      for n in sizes:
        for i in range(len(joined) - n + 1):
          if joined[i : i + n] in pieces:
            hidden |= set(range(letters[i][1], letters[i + n - 1][2]))
    runs = itertools.groupby(range(len(text)), hidden.__contains__)
    return ''.join(
      '***' if hides else ''.join(text[i] for i in run) for hides, run in runs
    )

  return remove


def _letters(text: str, reading: re.Pattern) -> Iterator[tuple[str, int, int]]:
  """Yields the letters and digits of a text, and where each one stands."""
  for match in reading.finditer(text):
    code = int(match[1], 16) if match[1] else int(match[2] or 0)
    letter = chr(code) if code else match[0]
    if len(letter) == 1 and letter.isalnum():
      yield letter.lower(), match.start(), match.end()


def _pieces(secret: str) -> Iterator[str]:
  """Yields the parts of a secret that are removed, as letters and digits."""
  for text in (secret, secret[::-1]):
    forms = [(text, PART), (codecs.encode(text, 'rot13'), PART)]
    forms += [
      (''.join(f'{ord(c):{number}}' for c in text), PART * len(f'{1:{number}}'))
      for number in NUMBERS
    ]
    forms += [(encoded, PART) for encoded in _encoded(text)]
    for form, n in forms:
      letters = ''.join(c for c in form.lower() if c.isalnum())
      n = min(n, len(letters))
      for i in range(len(letters) - n + 1 if n else 0):
        yield letters[i : i + n]
        yield letters[i : i + n][::-1]


def _encoded(text: str) -> Iterator[str]:
  """Yields the encoded characters that depend on the text alone.

  Other text may stand in front of it: one to four bytes, modulo the group.
  """
  for (encode, size, chars), charset in itertools.product(ENCODERS, CHARSETS):
    data = text.encode(charset)
    for before in range(size):
      found = encode(b'\1' * before + data).decode()
      if encode in WHOLE_GROUPS:
        start = chars * -(-before // size)
        end = chars * ((before + len(data)) // size)
      else:
        start = -(-before * chars // size)
        end = (before + len(data)) * chars // size
      if sum(c.isalnum() for c in found[start:end]) >= MIN_ENCODED:
        yield found[start:end]
