"""Jinja as chat templates are written in it, for templates of strangers.

They run in jinja2's immutable sandbox, with the filters and functions that
`transformers` gives them, and within bounds: every pass of a loop and every
call of a macro looks at the clock, and no value grows past a size.
"""

import datetime
import functools
import json
import re
import time
from collections.abc import Callable
from typing import Any

SECONDS = 5.0  # of one rendering; a real one takes under a millisecond
CHARACTERS = 10_000_000  # of any text in it
TICK, JOIN = '_jaxrl_reason_tick', '_jaxrl_reason_join'


def _bounded(x: Any) -> Any:
  """The value, unless it is longer than any conversation."""
  if isinstance(x, str | list | tuple) and len(x) > CHARACTERS:
    raise OverflowError(f'a value of more than {CHARACTERS:,} characters')
  return x


def _refuse_wide(*values: Any) -> None:
  """Refuses numbers to which a text could be padded."""
  for x in values:
    if type(x) is int and abs(x) > CHARACTERS:
      raise OverflowError(f'an argument of {x:,}')


def _filter(f: Callable) -> Callable:
  """A filter within bounds."""

  @functools.wraps(f)  # keeps the marks that jinja2 calls it by
  def bounded(*args, **kwargs):
    _refuse_wide(*args[1:], *kwargs.values())
    return _bounded(f(*args, **kwargs))

  return bounded


def _jinja():
  try:
    import jinja2.ext
    import jinja2.sandbox
    import jinja2.visitor
  except ImportError as e:
    raise ImportError(
      'chat templates need jinja2: pip install "jaxrl_reason[hf]"'
    ) from e
  return jinja2


@functools.cache
def _environment_class() -> type:
  """The sandbox with bounds; made late, since jinja2 is an extra."""
  jinja2 = _jinja()
  nodes = jinja2.nodes

  def call(name: str, *args) -> Any:
    return nodes.Call(nodes.Name(name, 'load'), [*args], [], None, None)

  class Bounds(jinja2.visitor.NodeTransformer):
    """Looks at the clock in loops and macros, and bounds joined texts."""

    def _ticking(self, node):
      self.generic_visit(node)
      node.body.insert(0, nodes.ExprStmt(call(TICK), lineno=node.lineno))
      return node

    visit_For = visit_Macro = visit_CallBlock = _ticking

    def visit_Concat(self, node):
      self.generic_visit(node)
      return call(JOIN, *node.nodes)

  class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox whose templates end."""

    intercepted_binops = frozenset('+ * ** %'.split())
    deadline = float('inf')

    def _parse(self, source, name, filename):
      tree = Bounds().visit(super()._parse(source, name, filename))
      return tree.set_environment(self)

    def call_binop(self, context, operator, left, right):
      texts = str | list | tuple
      if operator == '*' and isinstance(left, texts | int):
        many = [x for x in (left, right) if isinstance(x, texts)]
        times = [x for x in (left, right) if isinstance(x, int)]
        if many and times and len(many[0]) * times[0] > CHARACTERS:
          raise OverflowError(f'more than {CHARACTERS:,} characters')
      if operator == '%' and isinstance(left, str):
        _refuse_wide(*map(int, re.findall(r'\d+', left)))
      if operator == '**' and abs(right) > 64:
        raise OverflowError(f'a power of {right}')
      return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context, fn, *args, **kwargs):
      _refuse_wide(*args, *kwargs.values())
      return _bounded(super().call(context, fn, *args, **kwargs))

    def tick(self) -> str:
      if time.monotonic() > self.deadline:
        raise TimeoutError(f'still running after {SECONDS:g} seconds')
      return ''

  return Environment


def _join(*parts: Any) -> str:
  return _bounded(''.join(map(str, parts)))


def _tojson(
  x, ensure_ascii=False, indent=None, separators=None, sort_keys=False
) -> str:
  # jinja2's own escapes HTML.
  return json.dumps(
    x,
    ensure_ascii=ensure_ascii,
    indent=indent,
    separators=separators,
    sort_keys=sort_keys,
  )


def _environment(now: Callable[[], datetime.datetime]):
  """The sandbox with what chat templates expect in it."""
  jinja2 = _jinja()

  class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text; here it says nothing."""

    tags = {'generation'}

    def parse(self, parser):
      next(parser.stream)
      return parser.parse_statements(['name:endgeneration'], drop_needle=True)

  def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)

  def strftime_now(form):
    return now().strftime(form)

  env = _environment_class()(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, jinja2.ext.loopcontrols],
  )
  env.filters = {k: _filter(f) for k, f in env.filters.items()}
  env.filters['tojson'] = _tojson
  del env.globals['lipsum']  # random text, of any length
  env.globals |= {
    'raise_exception': raise_exception,
    'strftime_now': strftime_now,
    TICK: env.tick,
    JOIN: _join,
  }
  return env


@functools.lru_cache(16)  # compiling takes longer than rendering
def _compiled(text: str, day: str):
  fixed = datetime.datetime.fromisoformat(day) if day else None

  def now() -> datetime.datetime:
    return fixed or datetime.datetime.now()

  return _environment(now).from_string(text)


def render(name: str, text: str, day: str, values: dict[str, Any]) -> str:
  """Returns the text that a template makes of these values.

  Args:
    name: what an error calls the template.
    text: its Jinja.
    day: what `strftime_now` says, 'YYYY-MM-DD'; '': today.

  Raises:
    ValueError: the template refuses the values, fails on them, or does not end.
  """
  _jinja()  # an ImportError is no fault of the template
  try:
    template = _compiled(text, day)
    template.environment.deadline = time.monotonic() + SECONDS
    return _bounded(template.render(values))
  # It is a stranger's program, and raises what it likes.
  except Exception as e:
    kind = type(e).__name__
    said = f'{e}' if kind == 'TemplateError' else f'{kind}: {e}'
    raise ValueError(f'chat template {name!r}: {said}') from e
