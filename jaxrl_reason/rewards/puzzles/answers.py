"""Answers to puzzles, read from hostile text by bounded parsers.

  completion -> `located`: where the answer stands -> one parser per form
    `integers`     3 1 2   [3, 1, 2]   (3, 1), (2, 2)
    `words`        pear fig   ["pear", "fig"]
    `grid`         rows of symbols, whatever separates them
    `assignment`   A=knight, B: knave   {"A": "knight"}   B is a knave
    `moves`        URDL   up, right   arrows

A parser returns None for text that is not of its form. Each is one linear pass
over at most `MAX_CHARS` characters, and none evaluates anything.
"""

import functools
import re
from collections.abc import Sequence

from jaxrl_reason.rewards import fields
from jaxrl_reason.rewards.math import extraction
from jaxrl_reason.rewards.text import structure

MAX_CHARS = 50_000  # of an answer; a longer one is not read
MAX_DIGITS = 40  # of a number in an answer
STATED = re.compile(
  r'\b(?:answer|solution|result)s?\b\**[ \t]*(?:is\b|are\b|[:=])[\s:*]*', re.I
)
LIST_MARKS = str.maketrans(dict.fromkeys('[](){},;|"\'`', ' '))
INTEGER = re.compile(r'[+-]?[0-9]+')
WORD_MARKS = str.maketrans(dict.fromkeys('[](){},;"\'`', ' '))
GRID_MARKS = str.maketrans(dict.fromkeys(' \t[](){},;|"\'`│║┃&', ''))
RULE = re.compile(r'[-+=_─━═┼╋╬├┤┬┴┌┐└┘╔╗╚╝╠╣╦╩╪╫╟╢]*')
NAME_MARKS = str.maketrans(dict.fromkeys('[](){}"\'`*', ' '))
LINK = r'\s*(?:=>?|:|->|→|\bis\b(?:\s+an?\b|\s+the\b)?|\bat\b|\s)\s*'


def located(completion: str, part: str) -> str | None:
  """Finds the text of the answer; None without one.

  Of the `part` (see `fields.final`), the first of: the last box; what follows
  the last ####; what follows the last "answer is", "solution:"; the last
  fenced block of it if there is one.
  """
  text = fields.final(completion, part)
  if text is None:
    return None
  text = text[-extraction.MAX_COMPLETION :]
  box = extraction.boxed(text)
  if box is not None:
    return box
  before, mark, after = text.rpartition('####')
  if not mark:
    after = text
    for match in STATED.finditer(text):
      after = text[match.end() :]
  after = after if after.strip() else before
  blocks = structure.FENCE.findall(after)
  return (blocks[-1] if blocks else after).strip() or None


def _tokens(text: str, marks: dict, limit: int) -> list[str] | None:
  if len(text) > MAX_CHARS:
    return None
  found = text.translate(marks).split(None, limit)
  return found if len(found) <= limit else None


def integers(text: str, limit: int) -> list[int] | None:
  """Reads at most `limit` integers and nothing else but brackets and commas."""
  found = _tokens(text, LIST_MARKS, limit)
  if not found:
    return None
  for token in found:
    if len(token) > MAX_DIGITS or not INTEGER.fullmatch(token):
      return None
  return [int(token) for token in found]


def words(text: str, limit: int) -> list[str] | None:
  """Reads at most `limit` words: what white space, commas or quotes
  separate.
  """
  return _tokens(text, WORD_MARKS, limit) or None


def grid(text: str, size: int, symbols: str) -> list[str] | None:
  """Reads `size` rows of `size` symbols: the last block of such lines.

  Separators inside a row, blank lines and drawn lines between rows do not
  count; one line may hold the whole grid.
  """
  if len(text) > MAX_CHARS:
    return None
  allowed, block, last = set(symbols), [], None
  for line in text.splitlines():
    row = line.translate(GRID_MARKS)
    if RULE.fullmatch(row) and not (row and set(row) <= allowed):
      continue
    if len(row) not in (size, size * size) or not set(row) <= allowed:
      block = []
      continue
    block += [row[i : i + size] for i in range(0, len(row), size)]
    if len(block) >= size:
      last = block[-size:]
  return last


@functools.lru_cache(maxsize=256)
def _pair_pattern(names: tuple, values: tuple) -> re.Pattern:
  def longest(xs):
    return '|'.join(re.escape(x) for x in sorted(xs, key=len, reverse=True))

  value = f'(?:{longest(values)})' if values else '[0-9]{1,12}'
  edge = r'(?<![\w-])', r'(?![\w-]|\.[0-9])'
  return re.compile(
    f'{edge[0]}({longest(names)}){edge[1]}{LINK}({value}){edge[1]}', re.I
  )


def assignment(
  text: str, names: Sequence[str], values: Sequence[str] = ()
) -> dict[str, str] | None:
  """Reads name -> value, in lower case, for every name that the text gives one.

  Without `values`, a value is a natural number. None if it gives a name two
  different ones, or none at all.
  """
  if len(text) > MAX_CHARS:
    return None
  text = ' '.join(text.translate(NAME_MARKS).split())
  proper = {name.lower(): name for name in names}
  found: dict[str, str] = {}
  for match in _pair_pattern(tuple(names), tuple(values)).finditer(text):
    name, value = proper.get(match[1].lower()), match[2].lower()
    if name is None or found.setdefault(name, value) != value:
      return None
  return found or None


MOVES = {
  'u': (-1, 0), 'up': (-1, 0), '↑': (-1, 0), '^': (-1, 0),
  'd': (1, 0), 'down': (1, 0), '↓': (1, 0), 'v': (1, 0),
  'l': (0, -1), 'left': (0, -1), '←': (0, -1), '<': (0, -1),
  'r': (0, 1), 'right': (0, 1), '→': (0, 1), '>': (0, 1),
}  # fmt: skip
MOVE = re.compile('up|down|left|right|[udlr↑↓←→^v<>]')
MOVE_MARKS = str.maketrans(dict.fromkeys('[](){},;"\'`- \t\n\r', ' '))


def moves(text: str, limit: int) -> list[tuple[int, int]] | None:
  """Reads (rows, columns) of at most `limit` steps, and nothing else in the
  text.
  """
  if len(text) > MAX_CHARS:
    return None
  found = []
  for word in text.lower().translate(MOVE_MARKS).split():
    steps = MOVE.findall(word) if word not in MOVES else [word]
    if sum(map(len, steps)) != len(word) or len(found) + len(steps) > limit:
      return None
    found += [MOVES[step] for step in steps]
  return found or None
