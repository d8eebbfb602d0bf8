"""Splits a completion into thought and response, for published formats.

  tags      <think> thought </think> answer        (DeepSeek R1, Qwen3, GLM)
  channels  <|channel|>analysis<|message|> thought <|end|><|start|>assistant
            <|channel|>final<|message|> answer     (gpt-oss; "harmony")

A channel's name may be followed by a recipient or a format (final json). A
prompt may end within a thought (R1, Qwen3-Thinking), so that a completion has
its end alone, or, cut off, no tag at all: `begun`.
"""

import re
from collections.abc import Mapping

CHANNEL = '<|channel|>'
FINAL = re.compile(
  r'<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>'
)
TAG = re.compile(r'<(/?)think(?:ing)?>', re.I)
# What ends a message of a channel, or begins the next.
ENDS = re.compile(r'<\|(?:end|return|call|start|channel)\|>')


def begun(text: str, prompt: str) -> str:
  """Prepends the opening tag at the end of a prompt to a completion.

  Only if the completion has no tag: then all of it is thought.
  """
  tag = TAG.match(prompt, max(prompt.rfind('<'), 0))
  opens = tag and not tag[1] and not prompt[tag.end() :].strip()
  return tag[0] + text if opens and not TAG.search(text) else text


def in_context(completion: str, example: Mapping) -> str:
  """Applies `begun` with the example's prompt as it was rendered, or as is."""
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
  if 'think' not in text.lower():
    return after, opened
  for tag in TAG.finditer(text):
    if tag[1]:
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
