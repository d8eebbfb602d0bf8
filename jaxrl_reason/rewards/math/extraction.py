"""Where in a completion is its answer?

  after the last </think>, the first of these that is there:
    the last balanced \\boxed{} or \\fbox{} (neighbouring boxes joined)
    <answer>...</answer>      #### ...      "the answer is ..."
  and, unless `strict`,
    the text itself when it is nothing but an answer
    the last $...$            the last **...**      the last line
    the last number

One pass each over the text: every pattern is linear, and braces are matched
once for all boxes.
"""

import re
from typing import NamedTuple

from jaxrl_reason.rewards.math.expr.nodes import MAX_CHARS

MAX_COMPLETION = 200_000  # characters that are looked at, from the end
MAX_BARE = 300  # characters of a text that may be an answer as it stands
BRACES = re.compile(r'\\.|[{}]', re.S)
BETWEEN_BOXES = re.compile(
  r'(?:[\s$,;.&]|\\[()\[\],;: ]|\\quad|\\text|[{}]|\band\b|\bor\b|或|和|且)*'
)
BOX = re.compile(r'\\(?:boxed|fbox)(?![a-z])')
BARE_BOX = re.compile(r'\\(?:boxed|fbox)\s*([^\s{}$\\]+)')
ANSWER_TAG = re.compile(r'<answer>(.*?)</answer>', re.S | re.I)
ANSWER_IS = re.compile(
  r'answers?\**\s*(?:to the (?:question|problem)\s*)?'
  r'(?:is|are|was|=|:|：)'
  r'(?:\s*(?:therefore|thus|equal to|simply|indeed|just|:|：))?'
  r'|答案(?:为|是|：|:)|故选[：:]?|(?:因此|所以)选',
  re.I,
)
# Only where no answer is announced: "Solution:" opens many a text.
RESULT_IS = re.compile(
  r'(?:results?|solutions?|totals?)\s+(?:is|are|was|equals?)(?:\s*:)?', re.I
)
SENTENCE_END = re.compile(
  r'\.(?=\s|\$?$)|\n|。|(?<=[.$])\s*I hope|,? (?:because|since|which|so that) '
  r'|(?<=[0-9}$]) of (?:a|an|the|her|his|their|its) '
)
MATH = re.compile(
  r'\$\$(.+?)\$\$|(?<!\\)\$([^$]+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]',
  re.S,
)
BOLD = re.compile(r'\*\*([^*\n]+)\*\*')
NUMBER = re.compile(
  r'(?:(?<![\w)\]}.])[-\u2212])?(?:\\?[$\u20ac\u00a3\u00a5] ?)?'
  r'(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|(?<![0-9])\.[0-9]+)'
  r'(?: ?/ ?[0-9]+)?(?:\\?%)?'
)
PROSE = re.compile(
  r'\b(?:the|is|are|was|we|so|therefore|thus|hence|have|has|get|that|which|'
  r'because|since|then|there|this|find|gives?|equals?|answer|let|value|'
  r'number|must|can|will|so|it)\b|[？?]|因此|所以|因为|由|得|则|故|是',
  re.I,
)


# Left over from decoding: <|endoftext|>, <|im_end|>, </s>.
SPECIAL_TOKENS = re.compile(r'<\|[^|<>\n]{1,40}\|>|</?s>')
# A number in front of words that no grammar knows, and no more mathematics.
COUNTED = re.compile(r'([^A-Za-z(<!?"]*[0-9]%?)\s*[A-Za-z(<!?"][^0-9=+*/^\\]*')


class Found(NamedTuple):
  text: str
  explicit: bool  # marked as the answer, not guessed at


def extract(text: str, *, strict: bool = False) -> Found | None:
  """The answer's text, or None."""
  text = SPECIAL_TOKENS.sub('', text[-MAX_COMPLETION:])
  _, tag, after = text.rpartition('</think>')
  if tag and not after.strip():
    return None if strict else guess(text)
  body = after if tag else text
  for marked in (boxed, tagged, hashed, stated):
    answer = marked(body)
    if answer is not None:
      return Found(answer, True)
  return None if strict else guess(body)


def boxed(text: str) -> str | None:
  """The last balanced box that is not empty; neighbours belong to it."""
  boxes = list(BOX.finditer(text))
  if not boxes:
    return None
  closes = matched_braces(text)
  found: list[str] = []
  limit = 0  # where the box to the right begins
  for box in reversed(boxes):
    opening = text.find('{', box.end(), box.end() + 8)
    end = closes.get(opening)
    if end is None or text[box.end() : opening].strip():
      continue
    content = text[opening + 1 : end].strip()
    if not content:
      continue
    if found and (end > limit or not _neighbours(text[end + 1 : limit])):
      break
    found.append(content)
    limit = box.start()
  if not found:
    bare = BARE_BOX.match(text, boxes[-1].start())
    return bare[1].rstrip('.,') if bare else None
  return ', '.join(reversed(found))


def _neighbours(between: str) -> bool:
  return len(between) < 40 and bool(BETWEEN_BOXES.fullmatch(between))


def matched_braces(text: str) -> dict[int, int]:
  """Position of each { to that of its }; escaped ones do not count."""
  stack, closes = [], {}
  for match in BRACES.finditer(text):
    if match[0] == '{':
      stack.append(match.start())
    elif match[0] == '}' and stack:
      closes[stack.pop()] = match.start()
  return closes


def tagged(text: str) -> str | None:
  start = text.lower().rfind('<answer>')
  match = ANSWER_TAG.match(text, start) if start >= 0 else None
  content = match[1].strip() if match else ''
  return narrowed(content) if content else None


def hashed(text: str) -> str | None:
  """What follows the last ####, as in GSM8K."""
  _, mark, rest = text.rpartition('####')
  line = rest.strip().split('\n', 1)[0].strip()
  return narrowed(line) if mark and line else None


def stated(text: str) -> str | None:
  """The sentence after the last "the answer is", or "the result is"."""
  for pattern in (ANSWER_IS, RESULT_IS):
    last = None
    for match in pattern.finditer(text):
      last = match
    if last is not None:
      rest = text[last.end() : last.end() + MAX_CHARS].lstrip(' \n:：*')
      sentence = _first_sentence(rest).strip(' *')
      found = sentence if is_bare(sentence) else best_part(sentence, 0)
      if found:
        return found
  return None


def _first_sentence(text: str) -> str:
  """Up to a full stop outside $...$."""
  delimits = text.count('$') % 2 == 0  # else one of them is a currency
  for match in SENTENCE_END.finditer(text):
    if not delimits or text.count('$', 0, match.start()) % 2 == 0:
      return text[: match.start()]
  return text


def narrowed(text: str) -> str:
  """The mathematics in a short text that also has prose."""
  return text if is_bare(text) else best_part(text, -1) or text


def best_part(text: str, which: int) -> str | None:
  """A $formula$ of a text, else something **bold**, else the last number.

  A formula with prose in it is none: "$20, so she has $5" are two prices.
  """
  text = text[-MAX_CHARS:]
  found = [next(g for g in m.groups() if g) for m in MATH.finditer(text)]
  for parts in (found, BOLD.findall(text)):
    parts = [p.strip() for p in parts if is_bare(' '.join(p.split()))]
    if parts and parts[which]:
      return parts[which]
  last = None
  for match in NUMBER.finditer(text):
    last = match
  return last[0] if last else None


def counted(text: str) -> str | None:
  """The 5 of "5 (rounded up!)", where the whole is not understood."""
  match = COUNTED.fullmatch(text[:MAX_BARE])
  number = NUMBER.fullmatch(match[1].strip()) if match else None
  return number[0] if number else None


def is_bare(text: str) -> bool:
  """No sentence: this may be an answer as it stands."""
  return len(text) <= MAX_BARE and '\n' not in text and not PROSE.search(text)


def guess(text: str) -> Found | None:
  """The answer of a completion that does not mark it."""
  body = text.strip()
  if not body:
    return None
  if is_bare(body):
    return Found(body, False)
  tail = body[-MAX_CHARS:]
  line = tail.rsplit('\n', 1)[-1].strip()
  marked = '$' in tail or '\\(' in tail or '\\[' in tail or '**' in tail
  if '\n' in tail and not marked and any(c.isdigit() for c in line):
    if is_bare(line):
      return Found(line, False)
  return Found(best_part(tail, -1) or line or tail, False)
