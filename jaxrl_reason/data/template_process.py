"""Renders chat templates, in the process of `templates`.

Templates come from strangers. They run in jinja2's immutable sandbox with the
filters and functions that `transformers` gives them, and within the limits of
`verifiers.pool.limited`, which no template can change.
"""

import datetime
import functools
import json
from collections.abc import Callable

import jinja2.ext
import jinja2.sandbox

CHARACTERS = 10_000_000  # of a rendered text


class _Generation(jinja2.ext.Extension):
  """{% generation %}: marks the assistant's text; ignored here."""

  tags = {'generation'}

  def parse(self, parser):
    next(parser.stream)
    return parser.parse_statements(['name:endgeneration'], drop_needle=True)


def _tojson(
  x, ensure_ascii=False, indent=None, separators=None, sort_keys=False
) -> str:
  # jinja2's own filter escapes HTML.
  return json.dumps(
    x,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _raise(message):
  raise jinja2.exceptions.TemplateError(message)


def _environment(now: Callable[[], datetime.datetime]):
  """Returns the sandbox with the functions that chat templates use."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[_Generation, jinja2.ext.loopcontrols],
  )
  env.filters['tojson'] = _tojson
  del env.globals['lipsum']  # random text

  def strftime_now(form: str) -> str:
    return now().strftime(form)

  env.globals |= {'raise_exception': _raise, 'strftime_now': strftime_now}
  return env


@functools.lru_cache(16)  # compiling takes longer than rendering
def _compiled(text: str, day: str) -> jinja2.Template:
  fixed = datetime.datetime.fromisoformat(day) if day else None

  def now() -> datetime.datetime:
    return fixed or datetime.datetime.now()

  return _environment(now).from_string(text)


def render(request: dict) -> str:
  """Returns the text that the template request['text'] renders."""
  template = _compiled(request['text'], request['day'])
  rendered = template.render(request['values'])
  if len(rendered) > CHARACTERS:
    raise OverflowError(f'a text of more than {CHARACTERS:,} characters')
  return rendered
