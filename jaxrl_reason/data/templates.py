"""Renders the chat templates of models: programs of strangers, in Jinja.

A template that runs too long or builds values that are too large is an error:
`template_process` renders it in a process with limits.
"""

from typing import Any

from jaxrl_reason.names import install
from jaxrl_reason.verifiers.pool import limited

SECONDS = 5.0  # of CPU time of one rendering; a real one takes a millisecond
MEMORY_MB = 256  # of the process, beyond its imports
RENDER = limited.Function(
  'jaxrl_reason.data.template_process', 'render', MEMORY_MB
)


def render(name: str, text: str, day: str, values: dict[str, Any]) -> str:
  """Returns the text that a template renders.

  Args:
    name: of the template, for errors.
    text: its Jinja.
    day: the result of `strftime_now`, 'YYYY-MM-DD'; '': today.
    values: variables of the template, as JSON values.

  Raises:
    ValueError: the template refuses the values, fails, or exceeds a limit.
  """
  limited.require('jinja2', f'chat templates need jinja2: {install("hf")}')
  try:
    return RENDER({'text': text, 'day': day, 'values': values}, SECONDS)
  except limited.Failed as e:
    kind = '' if e.kind in ('', 'TemplateError') else f'{e.kind}: '
    raise ValueError(f'chat template {name!r}: {kind}{e}') from e
  except TypeError as e:
    raise ValueError(f'chat template {name!r}: its variables: {e}') from e
