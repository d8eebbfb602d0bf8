"""Biases of tokens (`logit_bias`), as an array over the vocabulary."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl_reason.config.rules import is_number

ID = re.compile(r'id:(\d+)')


def make(
  biases: Mapping[str, float], tokenizer: Any, key: str
) -> np.ndarray | None:
  """Returns what is added to the logit of each token, f32 [V]; None: nothing.

  Args:
    biases: by token: its text, which all tokens of that text share, or id:N.
    key: that errors name.

  Raises:
    ValueError: a text is not that of one token, or a bias is not finite.
  """
  if not biases:
    return None
  bias = np.zeros(tokenizer.vocab_size, np.float32)
  for text, value in biases.items():
    if not is_number(value) or not math.isfinite(value):
      raise ValueError(f'{key}: {text!r}: {value!r}: must be a finite number')
    bias[ids_of(text, tokenizer, key)] = value
  return bias


def encoded(text: str, tokenizer: Any, key: str) -> list[int]:
  """Encodes the text of a setting.

  Raises:
    ValueError: names the key; the tokenizer cannot encode the text.
  """
  try:
    return tokenizer.encode(text)
  except ValueError as e:  # a character that the alphabet lacks
    raise ValueError(f'{key}: {e}') from e


def ids_of(text: str, tokenizer: Any, key: str) -> list[int]:
  """Returns the tokens of a text, which must be that of one token, or id:N.

  Raises:
    ValueError: names the key; there is no such token.
  """
  found = ID.fullmatch(text)
  if found is None:
    spelled = text.encode()
    ids = [i for i, x in enumerate(tokenizer.token_bytes()) if x == spelled]
    if text and ids:
      return ids
    ids = encoded(text, tokenizer, key)  # a special token has no bytes
    if len(ids) != 1:
      raise ValueError(
        f'{key}: {text!r} is the text of {len(ids)} tokens: name one token, or '
        'id:NUMBER'
      )
    return ids
  if int(found[1]) >= tokenizer.vocab_size:
    raise ValueError(
      f'{key}: {text}: the tokenizer has {tokenizer.vocab_size} tokens'
    )
  return [int(found[1])]
