"""Splits a text into sentences and words by rules, without a model.

  text -> candidate ends (. ! ? and those of other scripts) -> sentences

A candidate before white space ends a sentence, unless it is the full stop of an
abbreviation or an initial, or of an ellipsis or number before a lower-case
letter. IFEval uses NLTK's trained English Punkt
(https://doi.org/10.1162/coli.2006.32.4.485). The rules approximate it, also for
numbered lists ("1." is a sentence). These are the differences:
  - abbreviations are a fixed list; "i.e." and "e.g." never end a sentence;
  - full stops of Chinese, Japanese, Hindi, Urdu, Armenian and others end one;
  - an ellipsis before a capital letter ends one;
  - quoted ends inside a sentence (`the word "stop!", he said`) do not end one;
  - a text without letters and digits is not a sentence.
Every pattern is linear in the text.
"""

import re
from collections.abc import Iterator

WORD = re.compile(r'\w+')
SPACE = re.compile(r'\s*')
CLOSING = '"\'\u201d\u2019)\\]}*_\u00bb'
# An ASCII end needs white space after it, because of "3.14" and "a.b". Ends of
# other scripts do not. With the look-behind and the possessive ++, the time for
# a hundred thousand dots is linear.
END = re.compile(
  rf'(?<![.!?\u2026])(?P<ascii>[.!?\u2026]++)[{CLOSING}]*+(?=\s)'
  r'|[\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4\u0589\u1362]+'
  r'[\u300d\u300f\uff09\u201d\u2019"\')]*'
)
OPENING = '"\'(\u201c\u2018[{*_\u00ab'
# No sentence ends after these, whatever follows.
TITLES = frozenset(
  'mr mrs ms dr prof st rev hon gen col maj capt sgt lt gov sen rep pres mt ft '
  'messrs vs fig figs eq eqs sec vol pp approx ca cf viz e.g i.e al'.split()
)
# A sentence may end after these. The next word decides.
ABBREVIATIONS = frozenset(
  'inc ltd co corp jr sr bros llc etc dept est ave blvd rd univ assn jan feb '
  'apr jun jul aug sep sept oct nov dec tue thu fri a.m p.m '
  'u.s u.k u.n u.s.a d.c ph.d b.c a.d m.d n.y l.a e.u'.split()
)
STARTERS = frozenset(
  'the a an this that these those he she it we you they i there here in on at '
  'but and so if when while however then his her its our my their what why how '
  'who where for as after before although since with one some many most all no '
  'yes not please let meanwhile moreover therefore thus also finally can could '
  'do does did is are was were will would should'.split()
)
INITIALS = re.compile(r'(?!I$)(?:[^\W\d_]\.)*[^\W\d_]')  # J, u.s, a.m
BEFORE = 40  # largest length of the word before a full stop
JOINED = re.compile(
  r'(?i:(can)(not)|(gim)(me)|(gon)(na)|(got)(ta)|(lem)(me)|(wan)(na))|(.+?)'
  r"(n't|N'T|'(?i:s|m|d|ll|re|ve))",
  re.S,
)
APART = re.compile(
  r'[;@#$%&?!()\[\]{}<>"*\u2013\u2014\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb]'
  r'|--+|\.\.+|`+|[:,](?!\d)'
)


def sentences(text: str) -> list[str]:
  """Splits a text into stripped sentences, each with a letter or digit."""
  spans, start = [], 0
  for end in ends(text):
    spans.append(text[start:end].strip())
    start = end
  spans.append(text[start:].strip())
  return [sentence for sentence in spans if WORD.search(sentence)]


def ends(text: str) -> Iterator[int]:
  """Yields the positions after the sentences, in order."""
  for match in END.finditer(text):
    if match['ascii'] is None or _ends(text, match):
      yield match.end()


def _ends(text: str, match: re.Match) -> bool:
  """Returns whether a run of . ! ? ends a sentence."""
  run = match['ascii']
  if '!' in run or '?' in run:
    return True
  next_word = _word_at(text, match.end())
  if len(run) > 1 or run == '\u2026':
    return next_word[:1].isupper()
  word = _word_before(text, match.start())
  bare = word.lower()
  if bare in TITLES:
    return False
  if bare in ABBREVIATIONS or INITIALS.fullmatch(word):
    return next_word[:1].isupper() and next_word.lower() in STARTERS
  if word.replace(',', '').isdigit():
    return not next_word[:1].islower()
  return True


def _word_before(text: str, end: int) -> str:
  pieces = text[max(0, end - BEFORE) : end].rsplit(None, 1)
  return pieces[-1].lstrip(OPENING) if pieces else ''


def _word_at(text: str, start: int) -> str:
  """Returns the letters of the first word after `start`, or '' at the end."""
  start = SPACE.match(text, start).end()
  behind = text[start : start + BEFORE].lstrip(OPENING)
  word = WORD.match(behind)
  return word[0] if word else behind[:1]


def words(text: str) -> list[str]:
  r"""Returns the runs of \w, the words of IFEval: "don't" has two."""
  return WORD.findall(text)


def tokens(text: str) -> Iterator[str]:
  """Yields the words of the Penn Treebank, without punctuation.

  A hyphenated word is one token, "I'M" is I and 'M, "CANNOT" is CAN and NOT.
  """
  for chunk in APART.sub(' ', text).split():
    match = JOINED.fullmatch(chunk.rstrip('.'))
    if match is None:
      yield chunk
    else:
      yield from (part for part in match.groups() if part)
