"""Prints the keys of a recipe: default, range and meaning.

  jaxrl keys rl.optimizer              the keys of a section, or one key
  jaxrl keys --search=temperature      keys whose path or meaning has the word

A key is changed in a recipe, c.rl.optimizer.lr = 1e-4, or on the command line,
--config.rl.optimizer.lr=1e-4.
"""

import importlib
import re
import textwrap
from collections.abc import Sequence

from jaxrl_reason import command

WIDTH = 80
TABLE = re.compile(r'\bnames? in ([\w.]+)\.(\w+)')  # in a meaning


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('keys', __doc__)
  p.add_argument('path', nargs='?', default='', help='a section, or a key')
  p.text('--search', '', 'a word of the path or of the meaning')
  return p


def choices(meaning: str) -> list[str]:
  """Returns a line with the names in each table that the description of a key
  mentions.
  """
  lines = []
  for module, table in TABLE.findall(meaning):
    known = getattr(importlib.import_module(f'jaxrl_reason.{module}'), table)
    lines.append(f'{table}: {", ".join(filter(None, known))}')
  return lines


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  from jaxrl_reason.config import key_list
  from jaxrl_reason.run.process import reader_gone

  # `jaxrl keys | head` reads only the first lines.
  with reader_gone.tolerated(), command.one_line():
    for key in key_list.chosen(a.path, a.search):
      print(f'{key.path} = {key.default}  ({key.allowed})')
      for text in (key.meaning, *choices(key.meaning)):
        print(textwrap.indent(textwrap.fill(text, WIDTH - 4), '    '))


if __name__ == '__main__':
  main()
