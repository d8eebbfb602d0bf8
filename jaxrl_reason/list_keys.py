"""Prints the keys of a recipe: default, range and meaning.

  jaxrl keys rl.optimizer              the keys of a section, or one key
  jaxrl keys --search=temperature      keys whose path or meaning has the word

A key is changed in a recipe, c.rl.optimizer.lr = 1e-4, or on the command line,
--config.rl.optimizer.lr=1e-4.
"""

import textwrap
from collections.abc import Sequence

from jaxrl_reason import command

WIDTH = 80


def parser() -> command.Parser:
  """Returns the parser of the flags."""
  p = command.Parser('keys', __doc__)
  p.add_argument('path', nargs='?', default='', help='a section, or a key')
  p.text('--search', '', 'a word of the path or of the meaning')
  return p


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command."""
  a = parser().parse(argv)
  from jaxrl_reason.config import key_list

  with command.one_line():
    for key in key_list.chosen(a.path, a.search):
      print(f'{key.path} = {key.default}  ({key.allowed})')
      print(textwrap.indent(textwrap.fill(key.meaning, WIDTH - 4), '    '))


if __name__ == '__main__':
  main()
