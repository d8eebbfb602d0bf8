"""Verifies programs for LiveCodeBench by the tests of its files.

https://arxiv.org/abs/2403.07974: a program is correct if it passes all public
and private tests. A test is an input and an output of the whole program
(`stdin`), or the arguments and the result of a method of `Solution`, as JSON
(`functional`). As in the published judge, common modules are imported before
the program.
"""

import base64
import io
import json
import pickle
import zlib

from jaxrl_reason.verifiers import code, fields
from jaxrl_reason.verifiers.verdict import Verdict

TIMEOUT_S = 6.0  # of the published judge, for each test
MEMORY_MB = 1024
IMPORTS = """\
import bisect, collections, functools, heapq, itertools, math, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
"""


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
  """Returns the assert statement of a functional test."""
  arguments = [json.loads(line) for line in case['input'].splitlines() if line]
  listed = ', '.join(map(repr, arguments))
  return f'assert Solution().{name}({listed}) == {json.loads(case["output"])!r}'


def reward(
  completion: str, example: dict, *, timeout_s: float = TIMEOUT_S
) -> Verdict:
  """Returns 1 if the program of a completion passes all tests of its problem.

  Reads 'public_test_cases', 'private_test_cases' and 'metadata' as published.
  """
  names = ('public_test_cases', 'private_test_cases')
  tests = [case for n in names for case in cases(fields.field(example, n, str))]
  about = json.loads(fields.field(example, 'metadata', str, '') or '{}')
  program = code.extract(completion)
  if program is None:
    return Verdict(0.0, 'no_answer')
  if name := about.get('func_name'):
    prepared = [_assertion(name, case) for case in tests]
  else:
    prepared = [(case['input'], case['output']) for case in tests]
  return code.run_tests(
    IMPORTS + program, prepared, timeout_s=timeout_s, memory_mb=MEMORY_MB
  )
