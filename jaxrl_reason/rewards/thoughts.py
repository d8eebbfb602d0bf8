"""Where a completion stops thinking and speaks, in the formats of published
reasoning models.

  tags      <think> thought </think> answer        (DeepSeek R1, Qwen3, GLM)
  channels  <|channel|>analysis<|message|> thought <|end|><|start|>assistant
            <|channel|>final<|message|> answer     (gpt-oss; "harmony")

A channel's name may be followed by a recipient or a format (final json). A
prompt may end within a thought (R1, Qwen3-Thinking), so that a completion has
its end alone, or, cut off, no tag at all: `begun`.
"""

import re

CHANNEL = '<|channel|>'
FINAL = re.compile(
  r'<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>'
)
TAG = re.compile(r'<(/?)think(?:ing)?>', re.I)
# What ends a message of a channel, or begins the next.
ENDS = re.compile(r'<\|(?:end|return|call|start|channel)\|>')


def begun(text: str, prompt: str) -> str:
  """Returns a completion with the tag at the end of its prompt, if the thought
  that it opens has no end: all of the completion is thought.
  """
  tag = TAG.match(prompt, max(prompt.rfind('<'), 0))
  opens = tag and not tag[1] and not prompt[tag.end() :].strip()
  return tag[0] + text if opens and not TAG.search(text) else text


def spoken(text: str) -> tuple[int, int | None]:
  """Finds where the last thought that ended does, and where one that did not
  end, or another message, begins.
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
  found = [m.end() for m in FINAL.finditer(text)]
  if not found:
    return 0, 0  # nothing was said
  after = found[-1]
  end = ENDS.search(text, after)
  return after, end and end.start()


def response(text: str) -> str | None:
  """Extracts what is said after the last thought; None while it thinks."""
  after, end = spoken(text)
  if CHANNEL in text:
    return None if end == 0 else text[after:end]
  return None if end is not None else text[after:]
