"""HumanEval and MBPP as cases of `verifiers.code`, correct and broken.

`cases(folder)` yields (example, completion, name of the change or None). The
changed programs are always incorrect: the function returns nothing, returns
another value than the reference (see CHANGE), or has another name.
"""

import json
import pathlib
import re

DATA = pathlib.Path(__file__).resolve().parents[3] / 'shared/data'
FILES = {'humaneval': 'HumanEval.jsonl', 'mbpp': 'mbpp.jsonl'}
MUTATIONS = ('returns nothing', 'returns something else', 'another name')
# Always unequal to the argument, by more than any tolerance of these tests.
CHANGE = """
def _changed(x):
  if x is None: return 0
  if isinstance(x, bool): return not x
  if isinstance(x, (int, float, complex)): return x + 1 if x + 1 != x else 0
  if isinstance(x, str): return x + 'x'
  if isinstance(x, (list, tuple)): return x + type(x)([0])
  if isinstance(x, (set, frozenset)): return x ^ {'__changed__'}
  if isinstance(x, dict): return {**x, '__changed__': 0}
  return None
"""


def rows(name: str) -> list[dict]:
  path = DATA / name / FILES[name]
  return [json.loads(line) for line in path.read_text().splitlines()]


def entry_of(row: dict) -> str:
  """Returns the function of MBPP's asserts, which no field names."""
  if 'entry_point' in row:
    return row['entry_point']
  defined = re.findall(r'^def\s+(\w+)', row['code'], re.M)
  return next(
    name
    for name in reversed(defined)
    if all(re.search(rf'\b{name}\s*\(', test) for test in row['test_list'])
  )


def reference(row: dict) -> str:
  """Returns the whole reference program."""
  if 'code' in row:
    return row['code']
  return row['prompt'] + row['canonical_solution']


def mutant(row: dict, mutation: str) -> str:
  source, entry = reference(row), entry_of(row)
  if mutation == 'returns nothing':
    return f'{source}\n\ndef {entry}(*args, **kwargs):\n  return None\n'
  if mutation == 'another name':
    return re.sub(rf'\b{entry}\b', f'{entry}_', source)
  # The reference has a namespace of its own, so that a recursion calls the
  # unchanged function.
  return f"""
_space = {{'__name__': 'solution'}}
exec({source!r}, _space)
globals().update(
  (k, v) for k, v in _space.items() if not k.startswith('__'))
{CHANGE}
def {entry}(*args, **kwargs):
  return _changed(_space[{entry!r}](*args, **kwargs))
"""


def fenced(program: str) -> str:
  return f'Here it is:\n```python\n{program}\n```\nThat was it.'
