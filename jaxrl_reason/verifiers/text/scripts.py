"""Splits a text into words and determines its scripts, by Unicode ranges.

  letters -> script -> languages of the script (`LANGUAGES`)

`units` are the words of word counts; in a script without spaces, each character
is a unit. `language` has the statistical model.
"""

import bisect
import collections
import functools
import re
import string
import unicodedata

HAN_WEIGHT = 2.0  # letters that one Han or kana character counts as

# (first code point of a range, script); '' is a range without a script.
RANGES = (
  (0x00, ''),
  (0x41, 'Latin'),
  (0x250, ''),
  (0x370, 'el'),
  (0x400, 'Cyrillic'),
  (0x530, 'hy'),
  (0x590, 'he'),
  (0x600, 'Arabic'),
  (0x700, ''),
  (0x750, 'Arabic'),
  (0x780, ''),
  (0x8A0, 'Arabic'),
  (0x900, 'Devanagari'),
  (0x980, 'bn'),
  (0xA00, 'pa'),
  (0xA80, 'gu'),
  (0xB00, 'or'),
  (0xB80, 'ta'),
  (0xC00, 'te'),
  (0xC80, 'kn'),
  (0xD00, 'ml'),
  (0xD80, 'si'),
  (0xE00, 'th'),
  (0xE80, 'lo'),
  (0xF00, 'bo'),
  (0x1000, 'my'),
  (0x10A0, 'ka'),
  (0x1100, 'ko'),
  (0x1200, 'am'),
  (0x13A0, ''),
  (0x1780, 'km'),
  (0x1800, ''),
  (0x1C90, 'ka'),
  (0x1CC0, ''),
  (0x1E00, 'Latin'),
  (0x1F00, 'el'),
  (0x2000, ''),
  (0x3040, 'Kana'),
  (0x3100, ''),
  (0x3130, 'ko'),
  (0x3190, ''),
  (0x3400, 'Han'),
  (0xA000, ''),
  (0xAC00, 'ko'),
  (0xD7B0, ''),
  (0xF900, 'Han'),
  (0xFB00, 'Latin'),
  (0xFB13, 'hy'),
  (0xFB1D, 'he'),
  (0xFB50, 'Arabic'),
  (0xFE00, ''),
  (0xFE70, 'Arabic'),
  (0xFF00, ''),
  (0xFF21, 'Latin'),
  (0xFF5B, ''),
  (0xFF66, 'Kana'),
  (0xFFA0, ''),
  (0x20000, 'Han'),
  (0x32000, ''),
)
STARTS = [start for start, _ in RANGES]
# White space and punctuation. \W would also match the vowel signs of Indic
# scripts, which are parts of words.
SIGNS = (
  r'\s'
  + re.escape(string.punctuation)
  + r'\u0964\u0965\u060c\u061b\u061f\u06d4\u2010-\u2027\u2030-\u205e\u00ab'
  r'\u00bb\u00b7\u00bf\u00a1\u3000-\u303f\uff00-\uff0f\uff1a-\uff20'
)
SEPARATORS = re.compile(f'[{SIGNS}]+')
NO_LETTERS = re.compile(rf'[{SIGNS}\d]+')


# Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
  '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff'
  '\uf900-\ufaff\U00020000-\U00031fff'
)
UNIT = re.compile(f'[{UNSPACED}]|[^{UNSPACED}]+')


# Script -> its languages (ISO 639-1). A script that is missing here has one
# language, whose code is the script's name.
LANGUAGES = {
  'Latin': (
    'en es pt fr de it nl sv da no fi pl cs sk sl hr ro hu tr et lv lt vi id '
    'tl sw ca sr'
  ).split(),
  'Cyrillic': 'ru uk bg sr mk be kk'.split(),
  'Arabic': 'ar fa ur'.split(),
  'Devanagari': 'hi mr ne'.split(),
  'Han': ['zh', 'ja'],
  'Kana': ['ja'],
}


@functools.lru_cache(4096)
def script_of(char: str) -> str:
  """Returns the script of a character: a name, the code of its only language,
  or '' for other characters.
  """
  script = RANGES[bisect.bisect_right(STARTS, ord(char)) - 1][1]
  return script if char.isalpha() or script not in ('Latin', 'el') else ''


def scripts(text: str) -> dict[str, float]:
  """Counts the letters of each script; one Han or kana character counts as
  two.
  """
  counts = collections.defaultdict(float)
  for char, n in collections.Counter(text).items():
    script = script_of(char)
    if script:
      counts[script] += n * (HAN_WEIGHT if script in ('Han', 'Kana') else 1.0)
  return dict(counts)


def words(text: str) -> list[str]:
  """Splits a text into lower-case words, without numbers and signs."""
  return [word for word in NO_LETTERS.split(_lower(text)) if word]


def units(text: str) -> list[str]:
  """Splits as `words`, and scripts without spaces into characters."""
  return [unit for word in words(text) for unit in UNIT.findall(word)]


def tokens(text: str) -> list[str]:
  """Splits as `units`, but keeps the numbers."""
  parts = SEPARATORS.split(_lower(text))
  return [unit for word in parts for unit in UNIT.findall(word)]


def _lower(text: str) -> str:
  return unicodedata.normalize('NFC', text.lower())


@functools.cache
def codes() -> frozenset[str]:
  """Returns the ISO 639-1 codes of all languages."""
  single = {script for _, script in RANGES if len(script) == 2}
  return frozenset(single.union(*LANGUAGES.values()))


def alphabet(code: str) -> frozenset[str]:
  """Returns the scripts of a language."""
  shared = {script for script, codes in LANGUAGES.items() if code in codes}
  return frozenset(shared or {code})


def languages(code: str) -> frozenset[str]:
  """Returns the languages that share a script with a language, and itself."""
  shared = [LANGUAGES.get(script, [code]) for script in alphabet(code)]
  return frozenset().union(*shared)
