"""Finds a secret in a text, also in another encoding.

Servers repeat a key that they refuse, in JSON, HTML, URLs or hexadecimal.
"""

import base64
import re

# Of a character: itself, %2d, \\u002d, \\x2d, &#45; and &#x2d;.
CHARACTER = (
  r'(?:{literal}|%{code:02x}|\\+u00{code:02x}|\\+x{code:02x}'
  r'|&#0*{code};|&#x0*{code:x};)'
)


def pattern(secret: str) -> re.Pattern:
  """Returns a pattern of the secret's encodings, in any case.

  These are: escapes of each character, also mixed; hexadecimal, with or without
  a separator; base64, wherever the secret begins in the encoded text; and the
  reversed secret.
  """
  forms = [_escaped(secret), _escaped(secret[::-1]), _hexadecimal(secret)]
  for encode in (base64.b64encode, base64.urlsafe_b64encode):
    forms += [re.escape(_inside(encode, secret, n)) for n in range(3)]
  return re.compile('|'.join(filter(None, forms)), re.IGNORECASE)


def _escaped(secret: str) -> str:
  return ''.join(
    CHARACTER.format(literal=re.escape(c), code=ord(c)) for c in secret
  )


def _hexadecimal(secret: str) -> str:
  return r'[\s:,-]{0,2}'.join(f'(?:0x)?{ord(c):02x}' for c in secret)


def _inside(encode, secret: str, before: int) -> str:
  """Returns the base64 characters that depend on the secret alone.

  `before`: bytes of other text in front of it, modulo 3.
  """
  text = encode(bytes(before) + secret.encode()).decode()
  end = 8 * (before + len(secret)) // 6
  return text[-(-8 * before // 6) : end]
