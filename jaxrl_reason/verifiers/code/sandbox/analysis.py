"""Analyses the source of tests: the names that they use, and their use.

The analysis does not depend on the program. Only the tests determine which
names are classes.
"""

import ast
import builtins
import collections
import decimal
import fractions
import importlib
import re
import sys

from jaxrl_reason.verifiers.code.sandbox import plain_types

# Library names that a program imports and tests use. A task does not define
# them.
CLASSES = {
  kind.__name__: kind
  for kind in (
    collections.Counter,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
    decimal.Decimal,
    fractions.Fraction,
  )
}

ALIASES = {'np': 'numpy'}

TYPE_CHECKS = ('isinstance', 'issubclass')

# Functions that expect an exception.
EXPECTS = ('raises', 'assertRaises', 'assertRaisesRegex', 'suppress')

CLASS_NAME = re.compile('[A-Z]')

PLAIN_ATTRIBUTES = frozenset().union(*map(dir, plain_types.PLAIN))

NUMPY = frozenset('shape dtype ndim T all any sum mean tolist astype'.split())


def used_as_objects(nodes: list[ast.AST], theirs: list[str]) -> set[str]:
  """Returns the program's names that tests use as classes or to make objects.

  These are capitalised names, names in isinstance, except or with, and names
  whose result has attributes that no plain value has.
  """
  made, found = {}, set()
  for node in nodes:
    if isinstance(node, ast.Assign) and (maker := _maker(node.value)):
      made |= {t.id: maker for t in node.targets if isinstance(t, ast.Name)}
  for node in nodes:
    if isinstance(node, ast.Call) and name_of(node.func) in TYPE_CHECKS:
      asked = node.args[name_of(node.func) == 'isinstance' :]
      found |= {n for a in asked for n in _all_names(a)}
    elif isinstance(node, ast.withitem):
      found.add(
        _maker(node.context_expr) or made.get(name_of(node.context_expr))
      )
    elif isinstance(node, ast.Attribute):
      if node.attr not in PLAIN_ATTRIBUTES | NUMPY:
        value = node.value
        found |= {_maker(value), made.get(name_of(value))}
    elif isinstance(node, ast.ExceptHandler) and node.type:
      found |= _all_names(node.type)
    elif isinstance(node, ast.Compare):
      classes = [_maker(c) for c in node.comparators if name_of(node.left)]
      found |= {c for c in classes if c and made.get(node.left.id) == c}
  return {n for n in theirs if n in found or CLASS_NAME.match(n)}


def name_of(node: ast.AST) -> str | None:
  return node.id if isinstance(node, ast.Name) else None


def _maker(node: ast.AST) -> str | None:
  """Returns the first name of a call or attribute: `C` of `C(1).x(2)`."""
  while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript, ast.Await)):
    inner = getattr(node, 'func', None) or node.value
    if isinstance(node, ast.Call) and isinstance(inner, ast.Name):
      return inner.id
    node = inner
  return None


def _all_names(node: ast.AST) -> set[str]:
  return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def caught(nodes: list[ast.AST], theirs: list[str]) -> set[str]:
  """Returns the names of the program's exception classes."""
  found = set()
  for node in nodes:
    if isinstance(node, ast.ExceptHandler) and node.type:
      found |= _all_names(node.type)
    elif expects(node):
      found |= {n for a in node.args for n in _all_names(a)}
  return found & set(theirs)


def expects(node: ast.AST) -> bool:
  """Returns whether a node is a call such as `pytest.raises(ValueError)`."""
  if not isinstance(node, ast.Call):
    return False
  return (getattr(node.func, 'attr', None) or name_of(node.func)) in EXPECTS


def catches(node: ast.AST) -> bool:
  """Returns whether a statement may catch an exception of its body."""
  if isinstance(node, (ast.With, ast.AsyncWith)):
    return any(expects(item.context_expr) for item in node.items)
  return isinstance(node, (ast.Try, ast.TryStar)) and bool(node.handlers)


def may_fail(node: ast.AST) -> bool:
  """Returns whether a node is an assert that may fail."""
  if not isinstance(node, ast.Assert):
    return False
  return not (isinstance(node.test, ast.Constant) and node.test.value)


def reuses_arguments(nodes: list[ast.AST]) -> bool:
  """Returns whether a name is an argument of a call and read elsewhere."""
  read = collections.Counter(
    node.id
    for node in nodes
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
  )
  calls = [node for node in nodes if isinstance(node, ast.Call)]
  values = [v for c in calls for v in (*c.args, *(k.value for k in c.keywords))]
  arguments = set(map(name_of, values))
  return any(read[name] > 1 for name in arguments if name)


def is_builtin(name: str) -> bool:
  return hasattr(builtins, name)


def of_program(nodes: list[ast.AST], entry: str | None = None) -> list[str]:
  """Returns the names that the program has to define, in order."""
  used, bases, bound = names(nodes)
  free = sorted(used - bound)
  own = {entry} if entry else shadowed(nodes, free)
  return [
    name
    for name in free
    if name in own or not (_in_library(name, bases) or is_builtin(name))
  ]


def library(nodes: list[ast.AST], theirs: list[str]) -> dict:
  """Returns standard modules whose attributes tests use, and a few classes."""
  used, bases, bound = names(nodes)
  return {
    name: CLASSES.get(name) or importlib.import_module(ALIASES.get(name, name))
    for name in used - bound - set(theirs)
    if _in_library(name, bases)
  }


def _in_library(name: str, bases: set[str]) -> bool:
  module = name in sys.stdlib_module_names or name in ALIASES
  return name in CLASSES or (name in bases and module)


def names(nodes: list[ast.AST]) -> tuple[set, set, set]:
  """Returns names that are read, names whose attributes are read, and names
  that are bound in any scope.
  """
  used, bases, bound = set(), set(), set()
  for node in nodes:
    if isinstance(node, ast.Name):
      (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
      bases.add(node.value.id)
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      bound.add(node.name)
    elif isinstance(node, ast.arg):
      bound.add(node.arg)
    elif isinstance(node, ast.alias):
      bound.add((node.asname or node.name).split('.')[0])
    elif isinstance(node, ast.ExceptHandler) and node.name:
      bound.add(node.name)
  return used, bases, bound


def shadowed(nodes: list[ast.AST], free: list[str]) -> set[str]:
  """Returns the function under test if it is named as a built-in function.

  In `sum(2, 3) == 5`, it is the outermost call, once in each assert, and no
  other name is possible. A name that occurs twice may compute the expected
  value, as in `set(max(x)) == set(y)`.
  """
  if any(not is_builtin(name) for name in free):
    return set()
  asserts = sum(isinstance(node, ast.Assert) for node in nodes)
  for node in nodes:  # breadth first: outer calls before inner ones
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      name = node.func.id
      uses = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
      return {name} if uses <= asserts else set()
  return set()
