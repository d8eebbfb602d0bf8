"""Compares answers that are text, choices, dates or times of day.

Text is compared as normalized words, with some synonyms of common answers (no
solution, all real numbers, infinitely many). Choices are letters A to J, alone,
in brackets, or before the text of the choice.
"""

import re
from fractions import Fraction

from jaxrl_reason.verifiers.math.expr import vocabulary
from jaxrl_reason.verifiers.math.expr.nodes import (
  EMPTY,
  INF,
  REALS,
  Node,
  number,
)
from jaxrl_reason.verifiers.math.expr.units import UNITS

NUMBERS = {
  word: value
  for value, word in enumerate(
    'zero one two three four five six seven eight nine ten eleven twelve '
    'thirteen fourteen fifteen sixteen seventeen eighteen nineteen'.split()
  )
} | {
  word: 10 * value
  for value, word in enumerate(
    'twenty thirty forty fifty sixty seventy eighty ninety hundred'.split(), 2
  )
}
MONTHS = {
  name[:3]: i
  for i, name in enumerate(
    'january february march april may june july august september october '
    'november december'.split(),
    1,
  )
}
ORDINALS = {
  word: day
  for day, word in enumerate(
    'first second third fourth fifth sixth seventh eighth ninth tenth eleventh '
    'twelfth thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth '
    'nineteenth twentieth'.split(),
    1,
  )
} | {'thirtieth': 30}
DAYS = ORDINALS | {
  f'{tens}{mark}{word}': first + ORDINALS[word]
  for tens, first in (('twenty', 20), ('thirty', 30))
  for word in list(ORDINALS)[:9]
  for mark in ' -'
}
# Denominators: one half, two thirds.
PARTS = {
  f'{word}{end}': n
  for word, n in (
    *(('half', 2), ('quarter', 4)),
    *((word, n) for word, n in ORDINALS.items() if 3 <= n <= 10),
  )
  for end in ('', 's')
}
AND_A = re.compile('-and-an?-')  # of three-and-a-half
LAST_HYPHEN = re.compile('(?<=[a-z])-(?=[a-z]+$)')  # of two-thirds
EMPTY_WORDS = frozenset(
  (
    'no solution',
    'no solutions',
    'no real solution',
    'no real solutions',
    'none',
    'empty set',
    'there are no solutions',
    '无解',
    '空集',
  )
)
REAL_WORDS = frozenset(
  (
    'all real numbers',
    'all reals',
    'any real number',
    'real numbers',
    'the real numbers',
    'all real number',
    '全体实数',
    '任意实数',
  )
)
INTEGER_WORDS = frozenset(('integers', 'all integers', 'any integer'))
SYNONYMS = {
  'dne': 'does not exist',
  'undefined': 'does not exist',
  'not defined': 'does not exist',
  'diverge': 'diverges',
  'divergent': 'diverges',
  'converge': 'converges',
  'convergent': 'converges',
  'infinitely many solutions': 'infinitely many',
  'infinite number of solutions': 'infinitely many',
  'infinite solutions': 'infinitely many',
  'infinitely many': 'infinitely many',
  'correct': 'true',
  'incorrect': 'false',
  '正确': 'true',
  '错误': 'false',
  '对': 'true',
  '错': 'false',
  '是': 'yes',
  '否': 'no',
}
# Words that join several answers.
HEDGES = frozenset(
  'or either maybe perhaps possibly alternatively otherwise 或 或者'.split()
)
SMALL_WORDS = frozenset(('the', 'a', 'an', 'and'))
DRESS = re.compile(
  r'\\(?:text(?:bf|it|rm|sf|tt|normal)?|mathrm|mathbf|mbox|hbox|operatorname|'
  r'emph|left|right|displaystyle|quad|qquad|[,;:! ])(?![a-zA-Z])'
)
CIRCLED = '\u2460-\u2473'  # (1) to (20) in circles, for statements
WORDS = re.compile(rf'[a-z\u00c0-\u024f]+|[0-9]+|[\u4e00-\u9fff]+|[{CIRCLED}]')
ONLY_WORDS = re.compile(
  rf'[A-Za-z\u00c0-\u024f\u4e00-\u9fff{CIRCLED}]'
  rf"[A-Za-z\u00c0-\u024f\u4e00-\u9fff{CIRCLED}'’,.\- ]*"
  r'[!?]?'
)
CHOICE = re.compile(
  r'[(\[{ ]{0,4}(?:(?:choice|option|answer|选项?) ?)?[(\[]?([A-J])'
  r'(?: ?[)\]}.:]{1,3})?',
  re.I,
)
LABELLED = re.compile(r'(?:\(([A-J])\)|\b([A-J])[).:])(?: +|(?=[\\$(]))(\S.*)')
LETTERS = re.compile(r'[({]? ?([A-J](?:(?: ?[,;] ?| and |)[A-J])+) ?[)}]?')
# In the text of a choice: another one.
OTHER_LABEL = re.compile(
  r'(?<![A-Za-z])\([A-J]\)|(?<![A-Za-z(])[A-J][).:]|^[A-J]$'
  r'|\b(?:or|maybe|perhaps|possibly)\b.{0,20}\b[A-J]\b\)?$|^(?:and|or)\b'
)
POINTS = re.compile('[A-Z]{2,6}')
BRACKETED = re.compile(r'\(([A-J])\)')
CLOCK = re.compile(
  r'(?:at )?([0-9]{1,2}):([0-9]{2})(?::[0-9]{2})? ?(?:\\?,? ?)([ap]\.? ?m\.?)?',
  re.I,
)
HOUR = re.compile(
  r"(?:at )?([0-9]{1,2}|[a-z]{3,6})(?: ?o['’]?clock)? ?([ap])\.? ?m\.?", re.I
)
_ORDINAL = (
  rf'([0-9]{{1,2}}(?: ?\^? ?(?:st|nd|rd|th))?|{"|".join(sorted(DAYS)[::-1])})'
)
DATE = (
  rf'(?:{_ORDINAL} (?:day )?(?:of )?)?'
  r'(Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?'
  r'|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?'
  rf'(?: (?:the )?{_ORDINAL})?(?:,? (?:of )?([0-9]{{4}}))?'
)
DATE_WORD = re.compile(
  r'(?:on )?(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? )?(?:the )?'
  rf'{DATE}',
  re.I,
)


def undressed(text: str) -> str:
  """Removes \text with its braces and dollars."""
  text = DRESS.sub(' ', text)
  for mark in '{}$*':
    text = text.replace(mark, ' ')
  return ' '.join(text.split()).strip(' .,;:!')


def words(text: str) -> tuple[str, ...]:
  all_words = WORDS.findall(undressed(text).lower())
  return tuple(w for w in all_words if w not in SMALL_WORDS) or tuple(all_words)


def as_phrase(text: str) -> str:
  phrase_words = words(text)
  if all(re.fullmatch(f'[{CIRCLED}]', word) for word in phrase_words):
    phrase_words = sorted(phrase_words)
  phrase = ' '.join(phrase_words)
  if phrase.endswith('does not exist') and not HEDGES & set(phrase_words):
    return 'does not exist'  # the limit ...
  return SYNONYMS.get(phrase, phrase)


def is_wordy(text: str) -> bool:
  """Returns whether a text has only letters, spaces and punctuation."""
  return bool(ONLY_WORDS.fullmatch(undressed(text)))


def is_text(text: str) -> bool:
  """Returns whether a text is only words, not all of them mathematics."""
  return is_wordy(text) and any(_is_plain_word(word) for word in words(text))


def _is_plain_word(word: str) -> bool:
  if not word.isascii():
    return word not in vocabulary.WORD_OPERATORS and word not in UNITS
  if word in PLAIN_SHORT:
    return True
  return (
    len(word) >= 4
    and word not in vocabulary.FUNCTIONS
    and word not in vocabulary.CONSTANTS
    and word not in vocabulary.GREEK_NAMES
    and word not in ('and', 'sqrt', 'union')
    and vocabulary.segments(word) is None
  )


PLAIN_SHORT = frozenset(
  'yes no odd dne red tie win sun mon tue wed thu fri sat one two six ten'
  ''.split()
)


def as_node(text: str) -> Node | None:
  """Converts words with a mathematical meaning: number words, sets."""
  phrase_words = words(text)
  phrase = ' '.join(phrase_words)
  if HEDGES & set(phrase_words):
    return None
  if phrase in EMPTY_WORDS or phrase.endswith(
    (' no solution', ' no solutions')
  ):
    return EMPTY
  if phrase == 'infinite':
    return INF
  if phrase in REAL_WORDS:
    return REALS
  if phrase in INTEGER_WORDS:
    return Node('const', (), 'set:Z')
  value = number_word(phrase)
  if value is None:
    value = fraction_word(undressed(text).lower())
  return None if value is None else number(value)


def number_word(phrase: str) -> int | None:
  parts = phrase.split()
  if not 1 <= len(parts) <= 2 or any(p not in NUMBERS for p in parts):
    return None
  values = [NUMBERS[p] for p in parts]
  if len(values) == 1:
    return values[0]
  tens, ones = values
  valid = tens % 10 == 0 and 20 <= tens < 100 and 1 <= ones <= 9
  return tens + ones if valid else None


def fraction_word(phrase: str) -> Fraction | int | None:
  """Reads a half, two-thirds, three and a half, and minus five."""
  sign, _, rest = phrase.partition(' ')
  if sign in ('minus', 'negative'):
    value = number_word(rest)
    value = fraction_word(rest) if value is None else value
    return None if value is None else -value
  phrase = AND_A.sub(' and a ', phrase)
  whole, joint, part = phrase.rpartition(' and ')
  count, _, name = LAST_HYPHEN.sub(' ', part).rpartition(' ')
  top = 1 if count in ('a', 'an') or phrase == 'half' else number_word(count)
  bottom = PARTS.get(name)
  if top is None or bottom is None or not 0 < top < bottom:
    return None
  added = number_word(whole) if joint else 0
  return None if added is None else added + Fraction(top, bottom)


def same_text(a: str, b: str) -> bool:
  """Returns whether words are equal, with case and order of single letters."""
  phrase_a, phrase_b = as_phrase(a), as_phrase(b)
  if 'yes' in (phrase_a, phrase_b) or 'no' in (phrase_a, phrase_b):
    phrase_a, phrase_b = _yes_or_no(a), _yes_or_no(b)
  return len(phrase_a) > 1 and phrase_a == phrase_b


def _yes_or_no(text: str) -> str:
  """Returns Yes of "Yes, it is.", and all of "Yes, or no"."""
  phrase_words = set(words(text))
  if HEDGES & phrase_words or {'yes', 'no'} <= phrase_words:
    return undressed(text).lower()
  return undressed(text).lower().split(',')[0]


# --- choices ---------------------------------------------------------------


def choice(text: str) -> str | None:
  """Returns the letter of an answer that is only a choice."""
  match = CHOICE.fullmatch(undressed(text))
  return match[1].upper() if match else None


def labelled_choice(text: str) -> tuple[str, str] | None:
  """Returns (letter, rest) of "(B) 12" and "B. 12"."""
  match = LABELLED.fullmatch(undressed(text))
  if match is None or OTHER_LABEL.search(match[3]):
    return None  # (A) 5 (B) 6
  return match[1] or match[2], match[3]


def choices(text: str) -> frozenset[str] | None:
  """Returns the letters of ABD and of A, B, D."""
  bare = BRACKETED.sub(r'\1', undressed(text))  # (A) and (C), (A)(C)
  if len(bare) > 40:
    return None
  match = LETTERS.fullmatch(bare)
  if match is None:
    return None
  letters = [c for c in match[1] if c.isupper()]
  return frozenset(letters) if len(set(letters)) == len(letters) else None


def misspells(text: str, gold: str) -> bool:
  """Returns whether case or order of letters contradict the gold answer.

  The gold answer a is a variable, not the choice A. ACB is an angle or an
  order. ABC may be three choices in any order, or the points A, B and C.
  """
  text, gold = undressed(text), undressed(gold)
  if len(gold) == 1:
    return gold.islower() and text == gold.upper()
  if not (POINTS.fullmatch(text) and POINTS.fullmatch(gold)) or text == gold:
    return False
  return list(gold) != sorted(gold) or choices(gold) is None


# --- dates and times -------------------------------------------------------


def clock(text: str) -> tuple[int, int, str] | None:
  """Reads (hour, minute, 'a', 'p' or '') of a time of day."""
  match = CLOCK.fullmatch(undressed(text))
  if match is None:
    return hour(text)
  half = (match[3] or '')[:1].lower()
  return int(match[1]), int(match[2]), half


def hour(text: str) -> tuple[int, int, str] | None:
  """Reads a full hour, 6 p.m., in the same form."""
  match = HOUR.fullmatch(undressed(text))
  if match is None:
    return None
  number = NUMBERS.get(match[1].lower(), 0)
  value = int(match[1]) if match[1].isdigit() else number
  return (value, 0, match[2].lower()) if 0 < value <= 12 else None


def same_clock(a: tuple, b: tuple) -> bool:
  """Returns whether times are equal. One side may have no a.m. or p.m."""
  if a[1] != b[1]:
    return False
  if a[2] == b[2] or '' in (a[2], b[2]):
    return a[0] == b[0] or _hours(a) == _hours(b)
  return False


def _hours(time: tuple) -> int:
  hour, _, half = time
  return hour + 12 if half == 'p' and hour < 12 else hour


def date(text: str) -> tuple | None:
  """Reads (day, month, year or None) of a date with its month in words."""
  match = DATE_WORD.fullmatch(undressed(text))
  if match is None or bool(match[1]) == bool(match[3]):
    return None
  month = MONTHS[match[2][:3].lower()]
  year = int(match[4]) if match[4] else None
  return _day(match[1] or match[3]), month, year


def _day(text: str) -> int:
  """Reads the day of 5, 5th and fifth."""
  return DAYS.get(text.lower()) or int(re.match('[0-9]+', text)[0])


def day(text: str) -> tuple | None:
  """Reads (day,) of "5th of June", which may be the answer 5."""
  match = DATE_WORD.fullmatch(undressed(text))
  return (_day(match[1]),) if match and match[1] and not match[3] else None


def same_date(a: tuple, b: tuple) -> bool:
  return a[:2] == b[:2] and (a[2] == b[2] or None in (a[2], b[2]))
