"""Verifies programs for LiveCodeBench by the tests of its files.

https://arxiv.org/abs/2403.07974: a program is correct if it passes all public
and private tests. A test is an input and an output of the whole program
(`stdin`), or the arguments and the result of a method of `Solution`, as JSON
(`functional`). As in the published judge, common modules are imported before
the program.
"""

import ast
import base64
import io
import json
import pickle
import zlib

from jaxrl_reason.verifiers import code, fields
from jaxrl_reason.verifiers.verdict import Verdict

TIMEOUT_S = 6.0  # of the published judge, for each test
MEMORY_MB = 1024
MODULES = (
  'string re datetime collections heapq bisect copy math random statistics '
  'itertools functools operator io sys json'
).split()
# In the order of the published judge. `builtins` restores `pow` and `open`.
IMPORTS = '\n'.join(
  [f'from {name} import *' for name in (*MODULES, 'builtins', 'typing')]
  + [f'import {", ".join(MODULES)}', 'sys.setrecursionlimit(50000)', '']
)


class _TextOnly(pickle.Unpickler):
  """Reads a pickle of plain values. Raises an error if it names a class."""

  def find_class(self, module: str, name: str):
    raise pickle.UnpicklingError(f'private_test_cases name {module}.{name}')


def cases(text: str) -> list[dict]:
  """Returns the tests of a field: JSON, or base64 of zlib of pickled JSON."""
  if not text.lstrip().startswith('['):
    packed = zlib.decompress(base64.b64decode(text))
    text = _TextOnly(io.BytesIO(packed)).load()
  return json.loads(text)


def _assertion(name: str, case: dict) -> str:
  """Returns the source of a functional test. A tuple passes as a list.

  The test reads `x.__class__`: with `isinstance(x, list)`, x would be an
  argument that the test reads again, and a wrong answer could be an error.
  """
  lines = case['input'].split('\n')
  listed = ', '.join(repr(json.loads(line)) for line in lines if line)
  return (
    f'x = Solution().{name}({listed})\n'
    'assert ([*x] if x.__class__ is tuple else x) == '
    f'{json.loads(case["output"])!r}'
  )


def _with_imports(program: str) -> str:
  """Returns the program with IMPORTS after its imports from `__future__`."""
  tree = code.parsed(program)
  ends = [
    node.end_lineno
    for node in (tree.body if tree else ())
    if isinstance(node, ast.ImportFrom) and node.module == '__future__'
  ]
  lines = program.split('\n')
  lines.insert(max(ends, default=0), IMPORTS)
  return '\n'.join(lines)


def reward(
  completion: str, example: dict, *, timeout_s: float = TIMEOUT_S
) -> Verdict:
  """Returns 1 if the program of a completion passes all tests of its problem.

  Reads 'public_test_cases', 'private_test_cases' and 'metadata' as published.
  """
  names = ('public_test_cases', 'private_test_cases')
  tests = [case for n in names for case in cases(fields.field(example, n, str))]
  about = json.loads(fields.field(example, 'metadata', str, '') or '{}')
  name = about.get('func_name')
  program = code.extract(completion, names={'Solution'} if name else ())
  if program is None:
    return Verdict(0.0, 'no_answer')
  if name:
    prepared = [_assertion(name, case) for case in tests]
  else:
    prepared = [(case['input'], case['output']) for case in tests]
  return code.run_tests(
    _with_imports(program),
    prepared,
    timeout_s=timeout_s,
    memory_mb=MEMORY_MB,
  )
