"""Computes digests of the code that a name in a setting refers to.

  of_named_code(['mine.py:reward'])     {'mine.py': '0c5f...'}

Rewards, tools, environments and judges are named 'path/to/file.py:function' or
'package.module:function' (`verifiers.resolve`). The package itself is digested
as a whole (`run.process.identity.of_code`).
"""

import ast
import hashlib
import importlib.util
import json
import pathlib
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jaxrl_reason

# The name of a module in a package.
MODULE = re.compile(r'[A-Za-z_]\w*(\.[A-Za-z_]\w*)+')


def digest(value: Any) -> str:
  """Digests a value to sixteen hexadecimal digits."""
  text = json.dumps(value, sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_named_code(values: Mapping | Sequence) -> dict[str, str]:
  """Returns digests of the code and the schemas that settings name, by path or
  module. Each digest covers the files beside it that the code imports, too.

  Args:
    values: such as those of a config (`Record.json_values`).
  """
  out = {}
  for value in _texts(values):
    module, colon, _ = value.rpartition(':')
    name = module if colon else value
    path = _file_of(name, bool(colon))
    if path is not None:
      out[name] = digest([p.read_text() for p in _with_imports(path)])
    elif value.endswith('.json') and pathlib.Path(value).is_file():
      out[value] = digest(pathlib.Path(value).read_text())  # a JSON schema
  return dict(sorted(out.items()))


def _with_imports(path: pathlib.Path) -> list[pathlib.Path]:
  """Returns a file and all that it imports from its folder or package."""
  root = path.parent
  while (root / '__init__.py').exists():
    root = root.parent
  # The library folders of Python are not code of the recipe.
  package = path.relative_to(root).parts[0]
  library = str(root) in sysconfig.get_paths().values()
  found, left = [], [path]
  while left:
    path = left.pop()
    if path not in found:
      found.append(path)
      left += [p for p in _imported(path, root) if not library
               or p.relative_to(root).parts[0] == package]  # fmt: skip
  return sorted(found)


def _imported(path: pathlib.Path, root: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields the files below `root` that a file imports."""
  try:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
  except SyntaxError:
    return  # whoever imports the file reports it
  for node in nodes:
    if not isinstance(node, ast.Import | ast.ImportFrom):
      continue
    names, level = [alias.name for alias in node.names], 0
    if isinstance(node, ast.ImportFrom):
      module, level = node.module or '', node.level
      names = [module, *(f'{module}.{name}'.strip('.') for name in names)]
    at = path.parents[level - 1] if level else root
    for name in filter(None, names):
      module = at.joinpath(*name.split('.'))
      for p in (module.with_suffix('.py'), module / '__init__.py'):
        if p.is_file():
          yield p


def _texts(value) -> Iterator[str]:
  """Yields the texts in nested dictionaries and lists."""
  if isinstance(value, dict):
    value = list(value.values())
  if isinstance(value, list):
    for item in value:
      yield from _texts(item)
  elif isinstance(value, str):
    yield value


def _file_of(name: str, is_function: bool) -> pathlib.Path | None:
  """Returns the file of 'path.py' or of an importable module.

  Args:
    is_function: the name of a function followed; without it, only the name of a
      module in a package is taken for a module.
  """
  if name.endswith('.py'):
    path = pathlib.Path(name)
    return path.absolute() if path.is_file() else None
  known = MODULE.fullmatch(name) or (is_function and name.isidentifier())
  if not known or name.partition('.')[0] == jaxrl_reason.__name__:
    return None
  try:
    spec = importlib.util.find_spec(name)
  except (ImportError, ValueError):
    return None
  origin = spec and spec.origin
  return pathlib.Path(origin) if origin and origin.endswith('.py') else None
