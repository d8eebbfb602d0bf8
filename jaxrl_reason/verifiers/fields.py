"""Reads the fields of an example, and the part of a completion to verify.

A field is a key of the example or of its 'meta'. The response of a completion
is the text after its last `</think>`. The answer is the content of the last
`<answer>...</answer>` of the response, or the response without such a tag.
"""

import math
from collections.abc import Mapping

from jaxrl_reason.verifiers import thoughts

MISSING = object()
PARTS = ('answer', 'response', 'all')
MIN_PASSAGE = 30  # characters; "5 apples" of the prompt may be the answer


class FieldError(ValueError):
  """An example in which a field is missing or has another type."""


def text_of(value) -> str | None:
  """Returns a text or a finite number as text, and None for anything else.

  Empty text is None, and so is text with a lone surrogate: no tokenizer takes
  it.
  """
  if isinstance(value, (int, float)) and not isinstance(value, bool):
    whole = isinstance(value, int)  # may be too large for a float
    return str(value) if whole or math.isfinite(value) else None
  if not isinstance(value, str) or not value.strip():
    return None
  try:
    value.encode()
  except UnicodeEncodeError:
    return None
  return value


def field(example: Mapping, name: str, kinds=None, default=MISSING):
  """Returns example[name], or example['meta'][name].

  Args:
    kinds: a type or a tuple of types; None: any.
    default: value of a missing field.

  Raises:
    FieldError: names a field that is missing or has another type.
  """
  meta = example.get('meta')
  value = example.get(name)
  if value is None and isinstance(meta, Mapping):
    value = meta.get(name)
  if value is None:
    if default is MISSING:
      raise FieldError(
        f'the example has no {name!r}; it has {sorted(map(str, example))}'
      )
    return default
  if kinds is not None and not isinstance(value, kinds):
    raise FieldError(f'{name!r} is {value!r:.80}, a {type(value).__name__}')
  return value


def golds(example: Mapping) -> list[str]:
  """Returns the reference answers: example['answer'], a text or a list of
  texts.
  """
  answer = field(example, 'answer', (str, list, tuple))
  if isinstance(answer, str):
    return [answer]
  if not answer or not all(isinstance(a, str) for a in answer):
    raise FieldError(f"'answer' is {answer!r:.80}, no texts")
  return list(answer)


def is_passage(text: str, example: Mapping) -> bool:
  """Returns whether a text is a copy of the example's prompt, or of a part."""
  text, prompt = ' '.join(text.split()), example.get('prompt')
  if len(text) < MIN_PASSAGE or not isinstance(prompt, str):
    return False
  return text in ' '.join(prompt.split())


def final(completion: str, part: str = 'answer') -> str | None:
  """Extracts the part of the completion to verify, or None.

  'all': the completion; 'response': the text after the last </think>; 'answer':
  the last <answer>...</answer> of the response, or the response without such a
  tag. A completion with an unfinished thought has no response (`thoughts`).
  """
  if part not in PARTS:
    raise ValueError(f'part {part!r}: must be one of {", ".join(PARTS)}')
  if part == 'all':
    return completion
  response = thoughts.response(completion)
  if response is None:
    return None
  if part == 'answer':
    body, closed, _ = response.rpartition('</answer>')
    _, opened, inside = body.rpartition('<answer>')
    if closed and opened:
      return inside
  return response
