"""Splits a completion into thought and response, for published formats.

  tags      <think> thought </think> answer        (DeepSeek R1, Qwen3, GLM)
            [THINK], <seed:think>, <reasoning>     (Magistral, Seed-OSS, others)
            ("a <think> tag" and "<think>" in quotes open no thought)
  channels  <|channel|>analysis<|message|> thought <|end|><|start|>assistant
            <|channel|>final<|message|> answer     (gpt-oss; "harmony")

A channel's name may be followed by a recipient or a format (final json). If the
prompt begins a thought (R1, Qwen3-Thinking), the completion has no opening tag,
and no tag at all if it is cut off: `begun`.
"""

import re
from collections.abc import Mapping

CHANNEL = '<|channel|>'
MAX_OPENING = 200  # characters at the end of a prompt
FINAL = re.compile(
  r'<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>'
)
_NAMES = '(?:seed:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?)'
# Behind the first sign. Of words in square brackets only [THINK] is a tag:
# "[reason]" is a blank in a letter.
_REST = rf'(?:(?<!\[)(?i:\s?%s\s?{_NAMES}\s?[>▷])|(?<=\[)%sTHINK\])'
_OPENS, _CLOSES = _REST % ('', ''), _REST % ('/', '/')
# An opening tag is only named in quotes, before its noun ("a <think> tag"), and
# as a type ("List<Thought>"). No other text makes an unfinished thought a
# response.
_OPEN = (
  rf'(?:(?<![`"\'].)|(?!{_OPENS}[`"\']))(?!(?<=\w.)Thoughts?>)'
  rf'{_OPENS}(?! (?:tag|block|section|token|element|marker)s?\b)'
)
TAG = re.compile(rf'[<◁\[](?:{_OPEN}|{_CLOSES})')
# At the end of a prompt.
OPENING = re.compile(
  rf'(?:[<◁\[]{_OPENS}|(?i:<\|channel\|>analysis<\|message\|>))\s*\Z'
)
# Marks of the end of a channel's message, or of the next message.
ENDS = re.compile(r'<\|(?:end|return|call|start|channel)\|>')


def begun(text: str, prompt: str) -> str:
  """Prepends the opening tag at the end of a prompt to a completion.

  The tag is prepended only if the completion does not open a thought before it
  closes one.
  """
  opening = OPENING.search(prompt, max(len(prompt) - MAX_OPENING, 0))
  first = TAG.search(text)
  ends = CHANNEL in text or (first and '/' in first[0])
  repeats = first and not text[: first.start()].strip()
  return text if not opening or ends or repeats else opening[0] + text


def in_context(completion: str, example: Mapping) -> str:
  """Applies `begun` with the example's rendered prompt, or with its prompt."""
  prompt = example.get('rendered') or example.get('prompt')
  return begun(completion, prompt) if isinstance(prompt, str) else completion


def spoken(text: str) -> tuple[int, int | None]:
  """Returns the start and the end of the response.

  The start is the end of the last finished thought. The end is the start of a
  thought that is not finished, or of another message; None without one.
  """
  if CHANNEL in text:
    return _of_channels(text)
  after, opened = 0, None
  for tag in TAG.finditer(text):
    if '/' in tag[0]:
      after, opened = tag.end(), None
    elif opened is None:
      opened = tag.start()
  return after, opened


def _of_channels(text: str) -> tuple[int, int | None]:
  starts = [m.end() for m in FINAL.finditer(text)]
  if not starts:
    return 0, 0  # no response
  after = starts[-1]
  end = ENDS.search(text, after)
  return after, end and end.start()


def response(text: str) -> str | None:
  """Extracts the response; None if the last thought is not finished."""
  after, end = spoken(text)
  if CHANNEL in text:
    return None if end == 0 else text[after:end]
  return None if end is not None else text[after:]
