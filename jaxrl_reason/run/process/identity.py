"""Computes digests of data and code, to compare two runs or two processes.

of_run(...)      data, tokenizer, stages, code: part of every checkpoint
of_start(...)    config, code, jax: compared by processes that start together
"""

import ast
import functools
import hashlib
import importlib.util
import json
import pathlib
import re
import sysconfig
from collections.abc import Iterator, Mapping
from typing import Any

import jax

import jaxrl_reason
from jaxrl_reason import trees
from jaxrl_reason.config import changes
from jaxrl_reason.data import pipeline

# Of an endless source the first SAMPLED examples are hashed, of a source with
# more than MOST every n-th, so that a start takes no more than seconds.
SAMPLED, MOST = 16, 20_000
# The name of a module in a package.
MODULE = re.compile(r'[A-Za-z_]\w*(\.[A-Za-z_]\w*)+')
# A text whose encoding identifies a tokenizer.
PROBE = 'The answer is \\boxed{-12.5}. Añb 数学 <|im_end|>\n  x\t~!@#$%^&*()'


def digest(value: Any) -> str:
  """Digests a value to sixteen hexadecimal digits."""
  text = json.dumps(value, sort_keys=True, default=str)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_source(source) -> str:
  """Computes the digest of a split's examples."""
  if source is None:
    return 'none'
  n = len(source)
  if n >= pipeline.ENDLESS:
    rows = range(SAMPLED)
  else:
    rows = range(0, n, -(-n // MOST) or 1)
  examples = [dict(source[i]) for i in rows]
  for example in examples:
    example.pop('place', None)  # a file may be moved
  return digest([n, *examples])


def of_tokenizer(tokenizer, source) -> str:
  """Computes the digest of the tokens of the first problems and of PROBE."""
  texts = [source[i]['prompt'] for i in range(min(SAMPLED, len(source)))]
  ids = [list(map(int, tokenizer.encode(text))) for text in texts]
  try:
    ids.append(list(map(int, tokenizer.encode(PROBE))))
  except (KeyError, ValueError):
    ids.append([])  # it lacks some of the characters
  return digest([tokenizer.vocab_size, list(tokenizer.eos_ids), *ids])


@functools.cache
def of_code() -> str:
  """Returns the version, and the digest of the package's files."""
  folder = pathlib.Path(jaxrl_reason.__file__).parent
  paths = sorted(folder.rglob('*.py'), key=str)
  texts = {str(p.relative_to(folder)): p.read_text() for p in paths}
  return f'{jaxrl_reason.__version__}+{digest(texts)}'


def of_named_code(values: Mapping) -> dict[str, str]:
  """Returns digests of the code and the schemas that a recipe names, by path or
  module.

  Rewards, tools, environments and judges are named 'path/to/file.py:function'
  or 'package.module:function' (`verifiers.resolve`). The package itself is
  digested as a whole (`of_code`).

  Each digest covers the files beside it that the code imports, too.

  Args:
    values: of the config (`Record.json_values`).
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


def of_run(problems, tokenizer, stages) -> dict[str, Any]:
  """Returns the origin of a run, which its checkpoints contain."""
  splits = ('train', 'heldout', 'harder')
  data = {split: of_source(getattr(problems, split)) for split in splits}
  if problems.pairs:
    # Those of an earlier stage do not exist at the start.
    known = [x for x in problems.pairs.values() if not callable(x)]
    data['pairs'] = [of_source(pairs) for pairs in known]
  return {
    'data': data,
    'tokenizer': of_tokenizer(tokenizer, problems.train),
    'stages': list(stages),
    'code': of_code(),
  }


def of_start(values: Mapping, workdir) -> dict[str, Any]:
  """Returns the facts that all processes of a run must agree on.

  Args:
    values: of the config (`Record.json_values`).
  """
  flat = trees.flatten(values) | changes.orders(values)
  keys = {f'config.{k.replace("/", ".")}': v for k, v in flat.items()}
  code = {f'the code of {k}': v for k, v in of_named_code(values).items()}
  return (
    keys
    | code
    | {
      '--workdir': str(workdir),
      'the code of jaxrl_reason': of_code(),
      'jax': jax.__version__,
    }
  )
