"""Converts docstrings to Markdown, as an extension of griffe (mkdocs.yml).

Docstrings of the package are plain text with equations, shapes and commands.
Indented blocks become code. Characters that are emphasis, links or HTML in
Markdown are escaped.
"""

import re

import griffe

SECTION = re.compile(r'(Args|Attributes|Raises|Returns|Yields):(.*)')
MARKS = re.compile(r'(`[^`\n]*`)|([*<\[\]])')


def escaped(line: str) -> str:
  """Escapes all Markdown characters of a line except backticks."""
  return MARKS.sub(lambda m: m[1] or f'&#{ord(m[2])};', line)


def markdown(text: str) -> str:
  """Converts a docstring to Markdown. Sections such as Args are unchanged."""
  # code: kind of the current block, 'fenced' by the docstring or 'indented'.
  out, inside, code = [], False, ''
  for line in text.split('\n'):
    if line.startswith('```'):
      out += ['```', '', line] if code == 'indented' else [line]
      code = '' if code == 'fenced' else 'fenced'
      continue
    if code == 'fenced':
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
  """Converts the docstrings of the reference pages."""

  def on_object(self, *, obj: griffe.Object, **_) -> None:
    if obj.docstring is not None:
      obj.docstring.value = markdown(obj.docstring.value)
