"""Which language is a text in? Offline, deterministic, 62 languages.

  letters -> script -> (a script of one language) that language
                    -> (a shared script) frequent words, endings and letters

For each language of a shared script every word adds log(1 + L / n) where L
languages share the script and n of them have the word in their list; an ending
a third of that; a letter that a language does not have takes `FOREIGN` from
it. The highest sum wins, English on a tie. There is no random number and no
model: the same text has the same language everywhere and always.

Short texts, and languages outside the lists, get the nearest guess.
"""

import bisect
import collections
import functools
import math
import re
import string
import unicodedata
from typing import NamedTuple

from jaxrl_reason.rewards.text import language_words as lists

MAX_CHARS = 20_000  # characters that are looked at
FOREIGN = 1.5  # what a word with a letter of another language costs
HAN_WEIGHT = 2.0  # letters of an alphabet that one character stands for
KANA = 0.05  # share of kana from which Han characters are Japanese
LONGEST_KANJI = 8  # characters that Japanese goes without kana
ENDING = 1 / 3
LETTER = 0.4  # weight of a word of one letter: it may be a variable
LONGEST_ENDING = 6

# First code point of a run of letters, script; what follows a gap is ''.
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
# Not \w: a vowel sign of an Indic script is part of its word.
SEPARATORS = re.compile(
  r'[\s\d'
  + re.escape(string.punctuation)
  + r'\u0964\u0965\u060c\u061b\u061f\u06d4\u2010-\u2027\u2030-\u205e\u00ab'
  r'\u00bb\u00b7\u00bf\u00a1\u3000-\u303f\uff00-\uff0f\uff1a-\uff20]+'
)


# Thai, Lao, Burmese, Khmer, kana, Han.
UNSPACED = (
  '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff'
  '\uf900-\ufaff\U00020000-\U00031fff'
)
UNIT = re.compile(f'[{UNSPACED}]|[^{UNSPACED}]+')


class Table(NamedTuple):
  """What is known of the languages of one script."""

  codes: tuple[str, ...]
  words: dict[str, tuple[tuple[str, float], ...]]  # word: (language, weight)
  endings: dict[str, tuple[tuple[str, float], ...]]
  letters: dict[str, frozenset[str]]  # letter: languages that have it


def _weighted(lists_: dict[str, str], scale: float):
  """word -> ((language, weight), ...), rarer words weighing more."""
  owners = collections.defaultdict(dict)
  for code, text in lists_.items():
    for word in text.split():
      owners[word][code] = None  # a dict: each once, in order
  return {
    word: tuple(
      (
        code,
        scale
        * (LETTER if len(word) == 1 else 1.0)
        * math.log1p(len(lists_) / len(codes)),
      )
      for code in codes
    )
    for word, codes in owners.items()
  }


def _table(words, letters, endings) -> Table:
  owners = collections.defaultdict(set)
  for code, text in letters.items():
    for letter in text:
      owners[letter].add(code)
  return Table(
    tuple(words),
    _weighted(words, 1.0),
    _weighted(endings, ENDING),
    {letter: frozenset(codes) for letter, codes in owners.items()},
  )


@functools.cache
def _tables() -> dict[str, Table]:
  names = ('LATIN', 'CYRILLIC', 'ARABIC', 'DEVANAGARI')
  return {
    name.title(): _table(
      getattr(lists, f'{name}_WORDS'),
      getattr(lists, f'{name}_LETTERS'),
      getattr(lists, f'{name}_ENDINGS'),
    )
    for name in names
  }


@functools.cache
def codes() -> frozenset[str]:
  """The ISO 639-1 codes that `detect` can return."""
  shared = {code for table in _tables().values() for code in table.codes}
  single = {script for _, script in RANGES if len(script) == 2}
  return frozenset(shared | single | {'zh', 'ja'})


@functools.lru_cache(4096)
def script_of(char: str) -> str:
  """A script's name, the code of its only language, or ''."""
  script = RANGES[bisect.bisect_right(STARTS, ord(char)) - 1][1]
  return script if char.isalpha() or script not in ('Latin', 'el') else ''


def scripts(text: str) -> dict[str, float]:
  """Letters of each script; one Han or kana character counts as two."""
  counts = collections.defaultdict(float)
  for char, n in collections.Counter(text).items():
    script = script_of(char)
    if script:
      counts[script] += n * (HAN_WEIGHT if script in ('Han', 'Kana') else 1.0)
  return dict(counts)


def words(text: str) -> list[str]:
  """Lower-case words in the sense of the lists."""
  composed = unicodedata.normalize('NFC', text.lower())
  return [word for word in SEPARATORS.split(composed) if word]


def units(text: str) -> list[str]:
  """Words; single characters where a script puts no spaces between them."""
  return [unit for word in words(text) for unit in UNIT.findall(word)]


def alphabet(code: str) -> frozenset[str]:
  """The scripts, as `script_of` names them, that a language is written in."""
  if code in ('ja', 'zh'):
    return frozenset(('Han', 'Kana') if code == 'ja' else ('Han',))
  shared = {name for name, t in _tables().items() if code in t.codes}
  return frozenset(shared or {code})


def detect(text: str) -> str | None:
  """The ISO 639-1 code of the text's language; None without any letter."""
  text = text[:MAX_CHARS]
  counts = scripts(text)
  if not counts:
    return None
  kana, han = counts.pop('Kana', 0.0), counts.pop('Han', 0.0)
  if kana + han:
    counts['ja' if kana >= KANA * (kana + han) else 'zh'] = kana + han
  script = max(sorted(counts), key=counts.get)
  table = _tables().get(script)
  if table is None:
    return script
  totals = scores(words(text), table)
  return max(table.codes, key=totals.get)


def lead(found: list[str], code: str) -> float:
  """How far `code` is behind the likeliest language of these units.

  The units are of `code`'s own alphabet; 0 if it is the likeliest itself, or
  has its alphabet for itself.
  """
  for table in _tables().values():
    if code in table.codes:
      totals = scores(found, table)
      return max(totals.values()) - totals[code]
  kana = any(script_of(unit[0]) == 'Kana' for unit in found)
  if code == 'ja' and not kana and len(found) > LONGEST_KANJI:
    return math.inf  # Chinese
  return 0.0


def scores(found: list[str], table: Table) -> dict[str, float]:
  """How much each language of the table is spoken for by these words."""
  totals = dict.fromkeys(table.codes, 0.0)
  for word, n in collections.Counter(found).items():
    for code, weight in table.words.get(word, ()):
      totals[code] += n * weight
    for code, weight in _ending(word, table):
      totals[code] += n * weight
    for letter in set(word) & table.letters.keys():
      owners = table.letters[letter]
      for code in table.codes:
        if code not in owners:
          totals[code] -= n * FOREIGN
  return totals


def _ending(word: str, table: Table):
  """The longest known ending of a word, with room for a stem."""
  for size in range(min(LONGEST_ENDING, len(word) - 2), 1, -1):
    found = table.endings.get(word[-size:])
    if found is not None:
      return found
  return ()
