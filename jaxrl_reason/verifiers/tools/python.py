"""Runs Python in the sandbox of the verifiers (`verifiers.code.sandbox`).

Definitions last until the episode ends: the state is the list of its cells.
Each call runs the earlier cells again without output, and then the new cell, in
a fresh process. So no process outlives a call, and any worker may run it.
Cells, characters, seconds and memory are limited; a cell that exceeds a limit
is not kept.
"""

import ast

from jaxrl_reason.verifiers.code.sandbox import client

CELLS, CHARACTERS = 32, 1 << 16
OUTPUT = 1 << 16  # bytes that are read
# Runs cells as a console does: the output of the last cell, and the value of
# its last expression.
_CONSOLE = """
import ast, contextlib, io, sys, traceback

def _run(cell, heard):
  tree = ast.parse(cell)
  last = tree.body.pop() if tree.body and isinstance(
    tree.body[-1], ast.Expr) else None
  exec(compile(tree, 'cell', 'exec'), _space)
  if last is not None:
    value = eval(compile(ast.Expression(last.value), 'cell', 'eval'), _space)
    if heard and value is not None:
      print(repr(value))

_space = {{'__name__': '__main__'}}
for _cell in {before!r}:
  with contextlib.redirect_stdout(io.StringIO()):
    with contextlib.suppress(BaseException):
      _run(_cell, False)
try:
  _run({cell!r}, True)
except BaseException as e:
  sys.stdout.flush()
  print(''.join(traceback.format_exception_only(e)).strip())
"""


class Python:
  """Runs code, with the earlier cells of the episode."""

  keeps = True  # a call returns (text, state)

  def __init__(self, timeout_s: float = 2.0, memory_mb: int = 256):
    """Args:
    timeout_s: of a call, including its earlier cells.
    memory_mb: in addition to the interpreter's.
    """
    if timeout_s <= 0 or memory_mb <= 0:
      raise ValueError(f'{timeout_s=} and {memory_mb=} must be positive')
    self._limits = {'timeout_s': timeout_s, 'memory_mb': memory_mb}

  def __call__(self, code: str, *, state: list | None) -> tuple[str, list]:
    """Runs Python code and returns its output.

    Args:
      code: a program; names of earlier calls are still there.
    """
    cells = state or []
    if problem := _refused(code, cells):
      return problem, cells
    program = _CONSOLE.format(before=cells, cell=code)
    job = {'program': program, 'fraction': False, 'stdin': '', 'expected': ''}
    answer = client.shared().run(job | self._limits | {'shows': OUTPUT})
    text = answer['printed'].strip('\n')
    if answer['overran']:
      limit = self._limits['timeout_s']
      return f'{text}\nerror: over {limit:g} s'.lstrip('\n'), cells
    if answer['ended']:
      return f'{text}\nerror: {answer["ended"]}'.lstrip('\n'), cells
    return text or 'no output', [*cells, code]


def _refused(code: str, cells: list) -> str | None:
  """Returns the reason to refuse a cell, or ''."""
  try:
    ast.parse(code)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
    return f'error: {type(e).__name__}: {e}'
  size = len(code) + sum(map(len, cells))
  if len(cells) >= CELLS or size > CHARACTERS:
    return f'error: over {CELLS} calls or {CHARACTERS} characters of code'
  return None
