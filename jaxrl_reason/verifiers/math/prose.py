r"""Separates answers from the words of sentences around them.

`\boxed{The value of $f(3)$ is 9}` and `12, n = 3` contain an answer and more
text.
"""

import re

from jaxrl_reason.verifiers.math import second_guesses
from jaxrl_reason.verifiers.math.expr.vocabulary import HEDGES

MAX_BARE = 300  # largest length of a text that is only an answer
DIGIT = re.compile('[0-9]')
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
# Two words at the beginning, or three in a row: prose with numbers.
SENTENCE = re.compile(
  r"(?=.*[0-9])(?:[A-Z][\w'’]*,? [a-zA-Z][\w'’]+ [^:]*[0-9]"
  r"|.*?(?<![\\\w])(?:[A-Za-z'’]{2,},? +){2}[A-Za-z]{2})"
)
DOUBT = re.compile(
  r'\b(?:or|either|maybe|perhaps|possibly|alternatively|otherwise)\b|或', re.I
)
CORRECTION = re.compile(
  r'\b(?:no|not|wait|actually|sorry|instead|rather|correct\w*|wrong|but|'
  r'mistakes?|should|check\w*)\b',
  re.I,
)
NEGATED = re.compile(r"(?:n['’]t|\s+(?:not|never|neither))\b", re.I)
VERB = r'\b(?:is|are|was|were|equals?|gives?|gets?|have|has|be)\b'
BREAK = re.compile(r'[\s-]+')
# A number before unknown words, without further mathematics.
COUNTED = re.compile(r'([^A-Za-z(<!?"]*[0-9]%?)\s*[A-Za-z(<!?"][^0-9=+*/^\\]*')
TEXT = re.compile(r'\\(?:text[a-z]*|mathrm|mbox)\s*\{([^{}]*)\}')
# Words, and numbers only inside of $f(3)$, f(3) and ordinals.
LABEL = (
  r'(?:[^\W\d_]\([^()=]{1,20}\)|\$[^$]{1,40}\$|[0-9]+(?:st|nd|rd|th)\b'
  r"|[^\W\d_]|[ ,:'’_-])*?"
)
NAMED_VALUE = re.compile(
  rf'{LABEL}{VERB}(?:\s+equal to)?[\s:]*([-$\\0-9.(\[].*)', re.I
)
NO_VALUE = re.compile(r"n['’]t\b|\b(?:none|nothing|neither|nor|never)\b", re.I)
_IS = r'=\s*-?[0-9][0-9./]*'
# Letters of integers are a case without a word: 12, n = 3 (see `quotients`).
# Other letters need a word: 12 when x = 3.
CASE = re.compile(
  r'([^=<>;]*?[^=<>;,\s(])(?:[\s,(]|\\[,;: ]|\\q?quad)+'
  rf'(?:[nmk]\s*{_IS}|(?:(?:(?:with )?equality )?(?:\w+ed )?'
  r'(?:at|when|where|with|for|if|since)\b[\s$]*)'
  rf'(?:[A-Za-z]\s*=\s*)*[A-Za-z]\s*{_IS}(?:,\s*[A-Za-z]\s*{_IS})*)[\s$)]*',
  re.I,
)


# n = 3, 12: the case stands before the value.
CASE_FIRST = re.compile(r'[\s$]*[nmk]\s*=\s*[0-9]+\s*[,;:]\s*(-?[^=<>,;]+)')

MARK = '####'
MAX_HEADINGS = 20  # lines behind an answer
# The text after the mark, or the next line.
_LINE = re.compile(rf'{MARK}(?:[^\S\n]*|\s*(?!{MARK}))(\S.*)')
# Text that is a value, or begins with one. "2. Money" is not.
_VALUE = re.compile(
  r'(?:[*_]{0,3}(?:the )?(?:final )?answer\b(?: is)?)?[^\w\n\\$]{0,6}'
  r'(?:[\\$]|(?![0-9]{1,2}(?:[.):] +\S|(?:st|nd|rd|th)\b))[0-9]'
  r'|(?:yes|no|true|false|none|infinit\w*|undefined|all real)\b'
  r'|[a-z][)\]]?\.?\s*[-+*/^=,\n])',
  re.I,
)
# A hedge or a correction: the line is no heading.
_SECOND = re.compile(
  rf'(?:{second_guesses.MORE})|.*?{second_guesses.HEDGE}', re.I
)
_LETTERS = r"(?:[^\W\d_]|[ ,&'’-])"
# Headings of text that explains an answer. They contain none.
_ABOUT = (
  r'\b(?:explanations?|reasoning|verif\w+|check(?:ing)?|proof|analysis'
  r'|calculations?|justification|details|notes?|steps?)\b'
)
_REMARK = re.compile(rf'{_LETTERS}{{0,20}}{_ABOUT}{_LETTERS}{{0,20}}:?', re.I)
_HEADING = re.compile(
  r'(?:part|case|stage|phase|problem|question|section)\s+[0-9]'
  r'|[0-9]{1,2}(?:[.):] |(?:st|nd|rd|th)\b)'
  rf'|.*(?::|\b(?:answers?|solutions?|results?))\Z|.*{_ABOUT}',
  re.I,
)
# Words, the first one with a capital letter, or of a script without them.
_TITLE = re.compile(
  r'(?:[A-Z](?:[a-z]{2}|[a-z]?(?= [A-Za-z]{3}))'
  rf'|(?:(?![\x00-\u03ff])[^\W\d_]){{2}}){_LETTERS}*'
)


def hashed(text: str) -> re.Match | None:
  """Finds the text after the last ####, as in GSM8K, with the answer in
  group 1.

  Headings of Markdown are no answers, unless they are the last line. Only an
  "Explanation", and similar headings, may stand behind the line of an answer.
  """
  end = len(text.rstrip('# \t\r\n'))
  start = text.rfind(MARK, 0, end)
  for _ in range(MAX_HEADINGS):
    line = _LINE.match(text, start) if start >= 0 else None
    if line is None or line.end() >= end or _begins_answer(text, line):
      return line
    content = line[1].strip('*_ \r')
    if not _REMARK.fullmatch(content):
      return None if _is_heading(content, text, line.end()) else line
    start = text.rfind(MARK, 0, text.rfind('\n', 0, start) + 1)
  return None


def _begins_answer(text: str, line: re.Match) -> bool:
  return any(x.match(text, line.start(1)) for x in (_VALUE, _SECOND))


def _is_heading(content: str, text: str, end: int) -> bool:
  """Returns whether a line is a heading, or a sentence.

  A title is a heading if a number follows it.
  """
  return bool(
    _HEADING.match(content)
    or not is_bare(content)
    or is_sentence(content)
    or (_TITLE.fullmatch(content) and DIGIT.search(text, end))
  )


def is_bare(text: str) -> bool:
  """Returns whether a text is not a sentence, so that it may be an answer."""
  return len(text) <= MAX_BARE and '\n' not in text and not PROSE.search(text)


def is_sentence(text: str) -> bool:
  """Returns whether a text is a sentence with numbers. "5, or maybe six" is
  not: it is a doubtful answer.
  """
  return bool(SENTENCE.match(text)) and not DOUBT.search(text)


def counted(text: str) -> str | None:
  """Returns the 5 of "5 (rounded up!)", if the whole cannot be parsed."""
  if DOUBT.search(text) or HEDGES & set(BREAK.split(text.lower())):
    return None  # 5 (or six), 5 squared
  match = COUNTED.fullmatch(text[:MAX_BARE])
  number = NUMBER.fullmatch(match[1].strip()) if match else None
  return number[0] if number else None


def named_value(text: str) -> str:
  """Returns the 9 of "the value of $f(3)$ is 9"; other texts unchanged."""
  plain = TEXT.sub(r'\1', text)
  match = NAMED_VALUE.fullmatch(plain) if len(plain) <= MAX_BARE else None
  if match is None or _is_in_doubt(plain) or not is_bare(match[1]):
    return text
  return match[1]


def without_case(text: str) -> str | None:
  """Returns the 12 of "12, n = 3", of "n = 3, 12" and of "12 at x = 3", or
  None."""
  plain = TEXT.sub(r'\1', text)
  match = None
  if len(plain) <= MAX_BARE:
    match = CASE.fullmatch(plain) or CASE_FIRST.fullmatch(plain)
  return None if match is None or _is_in_doubt(plain) else match[1].strip()


def _is_in_doubt(text: str) -> bool:
  doubts = (DOUBT, CORRECTION, NO_VALUE, second_guesses.HEDGED)
  return any(doubt.search(text) for doubt in doubts)
