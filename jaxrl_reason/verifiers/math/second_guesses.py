r"""Finds a second value that a completion offers besides its answer.

`\boxed{12}. It could also be 35.` offers two values, so neither is the answer.
Between and after two such values there are only function words, and one of them
is a hedge ("or", "maybe", "possible"). No noun follows the second value: "60 or
1 hour" is one value.
"""

import re

MAX_APART = 80  # characters from one value to the next
HEDGES = (
  r'or|and/or|either|maybe|perhaps|possibly|possible|possibility|potentially|probably'
  r'|likely|alternatively|alternately|alternative|alternate|otherwise|else|could'
  r'|might|may|xor|oder|ou'
  r'|another|unless|if not|vs|versus|guess|backup|acceptable|depending|not sure'
  r'|(?:some|others) (?:would |might )?say|one of (?:these|them|the two)'
  r'|not (?:rule out|exclude)'
  r'|second (?:choice|option)'
  r"|if (?:that|this|it|i)(?:(?: is|'s| am|'m) wrong| erred)"
)
FUNCTION_WORDS = (
  r"and|but|also|then|though|although|it's|it|this|that|can|is|be|the|other|answer"
  r'|choice|value|equivalently|result|solution|an?|as|well|even|which|one|of|these|both|so'
  r'|my|with|second|instead|too|in|case|hmm|most|on|interpretation|i|am|we|you|get'
  r'|just|simply|number|less|would|count|counted|differently|rounding'
  r'|rather|better|more|exactly|precisely|actually|should|say|was|were'
)
APPROXIMATE = r'about|approximately|approx|roughly|around|nearly'
HEDGE = (
  rf'\b(?:{HEDGES})\b|或者?|可能|\|\|?|//|∨|\\(?:mid|vert|lor|vee)\b'
  r'|(?:(?<=[*$])|(?<=[*$] ))/(?=\s*(?:[*$]|\Z))'
)
LINKS = (
  rf'[\s$,;:.…*()\[\]?!|–—，。]|-(?=[\s-])|\\[()\[\]]|</?answer>|{HEDGE}'
  rf'|\b(?:{FUNCTION_WORDS}|{APPROXIMATE})\b|也|是'
)
BETWEEN = rf'(?:{LINKS})*'
VALUE = (
  r'((?>-?\\?\$?[0-9](?:[0-9.,/]*[0-9])?(?:\\?%)?)'
  r'|(?<!\\)\$[^$\n]{1,60}\$|\\\([^\n]{1,60}?\\\)|\*\*[^*\n]{1,60}\*\*)'
)
TAIL = rf'[^\S\n]|[$*,]|\\[)\]]|\b(?:{HEDGES}|{FUNCTION_WORDS})\b'
# Not a value: the 2 of "2 * 5 = 10", and of a numbered list.
GOES_ON = r'(?!\s*(?:[=<>+/^×÷-]|\*(?!\*)\s*[0-9(])|(?<=\n[0-9])[.)]\s)'
# Only behind an answer: a correction, or a further value.
CORRECTIONS = (
  r'no(?:pe)?|wait|actually|correction|sorry|mean|meant|oops|scratch|strike|edit'
  r'|revised|make|wrong|incorrect|made|mistake|instead(?! of)|rather|better|hmm'
  r'|er|uh|um|thought|let me|correct|right|not quite|my bad|must|has to'
)
ADDITIONS = (
  r'and|also|plus|resp|respectively|alias|a\.?k\.?a|equally|both|whichever|prefer'
  r'|take your pick|read as|not necessarily|if you|one of this|up to|to'
)
SUITS = r'also|too|works?|fine|are|accepted|ok(?:ay)?|correct|right|valid'
SIGNS = r'→|&|\\(?:to|rightarrow)\b|[/+](?= ?or\b)'
MORE = rf'\b(?:{CORRECTIONS}|{ADDITIONS})\b|{SIGNS}'
SAME = r'\bi\.e|\bthat is\b|\bnamely\b|≈|~|\\(?:approx|sim)\b'
BEHIND = re.compile(
  rf'((?>{MORE}|{SAME}|{LINKS})*){VALUE}{GOES_ON}'
  rf'((?>{TAIL}|\b(?:{SUITS})\b)*)(?![0-9]|\s*[A-Za-z\\](?!\)))',
  re.I,
)
DENIALS = ('not ', 'rather than ', 'instead of ')
_DENIAL = rf'\b(?:(?:and|but) )?(?:{"|".join(DENIALS)})'
_VALUES = (  # with the noun of a value
  rf'(?:(?<!\\)\$[^$\n]{{1,60}}\$|{VALUE})'
  rf'(?: (?!(?:{HEDGES}|{SUITS})\b)[a-z]{{1,20}})?'
)
# Values that the end of a sentence denies: "5 apples, not 6 or 7." The words
# before are not those of a hedge: "5 if not 6". Nor is "5, not 6, or 7" denied.
DENIED = re.compile(
  rf'(?<=[0-9}})$*%>])((?: (?!(?:{HEDGES}|and|but|if|why)\b)[a-z]{{1,20}})?)'
  rf'[,;]?\s?(\()?{_DENIAL}{_VALUES}'
  rf'(?:(?:,? {_DENIAL}|,? nor | or ){_VALUES}){{0,4}}'
  r'(?(2)\))(?=[$*]*\s*(?:[.!\n<]|\Z))'
)
# Nothing but a comma, or a slash, before a last value.
LISTED = re.compile(
  rf'([\s$*)]{{0,4}}[,;/][\s$*(]{{0,4}}){VALUE}[$*).!?]*[^\S\n]*(?=\n|\Z)'
)
BEFORE = re.compile(  # in "$30 + $160 or $190" the value is the sum
  r'(?<![-+/×÷0-9.,$])(?<!(?<!\*)\*)(?<!(?<!\*)\* )(?<![-+/×÷] )'
  rf'(?<![-+*/×÷] \$){VALUE}({BETWEEN})$',
  re.I,
)
LINK = re.compile(BETWEEN, re.I)
HEDGED = re.compile(HEDGE, re.I)
# "Between 17 and 18" has its hedge before the first value.
HEDGED_BEFORE = re.compile(r'\b(?:between|one of|either)[\s$*(\\]*$', re.I)
# At the end of a line: the second value is on the next line.
OPEN_HEDGE = re.compile(
  r'(?:\b(?:x?or|and/or|maybe|perhaps|possibly|alternatively|versus|vs|resp)\.?|或者?)'
  r'[\s,:]*$',
  re.I,
)
ROUNDED = re.compile(rf'\b(?:{APPROXIMATE})\b|{SAME}', re.I)
BETWEEN_BOXES = re.compile(
  rf'(?>\b(?:{ADDITIONS}|{SUITS})\b|{SIGNS}|{SAME}|{LINKS})*', re.I
)
ADDITION = re.compile(rf'\b(?:{ADDITIONS}|also)\b|{SIGNS}|{SAME}', re.I)
ADDED = re.compile(rf'{HEDGE}|{MORE}|{SAME}', re.I)
AFTER = re.compile(rf'(?>{TAIL}|\b(?:{SUITS})\b)*(?=[.!?)\n]|\Z)', re.I)
SUITED = re.compile(rf'{HEDGE}|\b(?:{SUITS})\b', re.I)


def joined(text: str, start: int, end: int, after: int) -> bool:
  """Returns whether a hedge joins the values around text[start:end].

  Args:
    after: the end of the second value. The hedge may follow it.
  """
  if end - start >= MAX_APART or not LINK.fullmatch(text, start, end):
    return False
  return bool(HEDGED.search(text, start, end) or _hedged_behind(text, after))


def added(text: str, start: int, end: int, after: int) -> bool:
  r"""Returns whether the boxes around text[start:end] are two answers.

  A corrected box is not: `\\boxed{3}. No, \\boxed{4}`.
  """
  if end - start >= MAX_APART or not BETWEEN_BOXES.fullmatch(text, start, end):
    return False
  return bool(ADDITION.search(text, start, end) or _hedged_behind(text, after))


def _hedged_behind(text: str, end: int) -> bool:
  """Returns whether a sentence ends as in "35 is also possible."."""
  rest = AFTER.match(text, end, end + MAX_APART)
  return bool(rest and SUITED.search(rest[0]))


def with_others(text: str, start: int, end: int, answer: str) -> str:
  """Returns the answer at text[start:end] and values that hedges join to it.

  "Or about" joins a rounding, all other hedges an alternative.
  """
  before = BEFORE.search(text[max(0, start - MAX_APART) : start])
  if before and (
    HEDGED.search(before.string, before.start(2))
    or HEDGED_BEFORE.search(before.string[: before.start(1)])
    or _hedged_behind(text, end)
  ):
    answer = _bare(before[1]) + _joint(before[2]) + answer
  behind = _further(text, end)
  if behind:
    answer += _joint(behind[1]) + _bare(behind[2])
  return answer


def without_denied(text: str) -> str:
  """Removes denied values at the end of sentences: the 6 of "5, not 6."."""
  # Few texts have such a word, and the pattern is slow.
  denies = any(word in text for word in DENIALS)
  return DENIED.sub(r'\1', text) if denies else text


def _further(text: str, end: int) -> re.Match | None:
  """Finds a value behind an answer that corrects it or is added to it."""
  denied = DENIED.match(text, end)
  end = denied.end() if denied else end
  behind = BEHIND.match(text, end, end + MAX_APART)
  if behind and (ADDED.search(behind[1]) or SUITED.search(behind[3])):
    return behind
  return LISTED.match(text, end)


def _joint(between: str) -> str:
  return ' \\approx ' if ROUNDED.search(between) else ' or '


def _bare(value: str) -> str:
  return value.strip('*').rstrip('.,')
