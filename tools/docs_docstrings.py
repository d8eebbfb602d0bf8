"""Docstrings as Markdown, as an extension of griffe (mkdocs.yml).

Docstrings of the package are plain text: equations, shapes and commands stand
there as they are meant. Indented blocks become code, and what Markdown would
take for emphasis, links or HTML is escaped.
"""

import re

import griffe

SECTION = re.compile(r'(Args|Attributes|Raises|Returns|Yields):(.*)')
MARKS = re.compile(r'(`[^`\n]*`)|([*<\[\]])')


def escaped(line: str) -> str:
  """Returns a line in which only backticks mean something."""
  return MARKS.sub(lambda m: m[1] or f'&#{ord(m[2])};', line)


def markdown(text: str) -> str:
  """Returns a docstring as Markdown: sections as they are, the rest plain."""
  out, inside, code = [], False, ''  # code: who began the block we are in
  for line in text.split('\n'):
    if line.startswith('```'):
      out += ['```', '', line] if code == 'indented' else [line]
      code = '' if code == 'own' else 'own'
      continue
    if code == 'own':
      out.append(line)
      continue
    if line and not line.startswith(' '):
      inside = bool(SECTION.fullmatch(line))
    block = 'indented' if line.startswith('  ') and not inside else ''
    if line and block != code:
      out += ['', '```text'] if block else ['```', '']
      code = block
    out.append(line if code else escaped(line))
  return '\n'.join([*out, '```'] if code else out)


class Plain(griffe.Extension):
  """Rewrites every docstring that is shown."""

  def on_object(self, *, obj: griffe.Object, **_) -> None:
    if obj.docstring is not None:
      obj.docstring.value = markdown(obj.docstring.value)
