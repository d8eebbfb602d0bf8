"""Test code, run where its values are out of the program's reach.

  source --ast--> every assert reports to a `Tally` --exec--> (passed, total)

The names a test uses and does not define are the program's and become
`Remote`s, but for Python's own: what computes an expected value must not come
from the program. Data sets write `tuple(f(x)) == tuple(g(x))` or
`sys.getsizeof(x)`; a program that redefines `tuple` or `sys` changes nothing.
"""

import ast
import builtins
import collections
import contextlib
import dataclasses
import decimal
import fractions
import importlib
import random
import sys
import zlib

from jaxrl_reason.rewards.code.sandbox import peer

REPORT, FAIL, ENTRY = '__report__', '__fail__', '__entry__'
# Names programs import and tests then use, too particular to be a task's own.
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


class Tally:
  """Which assert statements ran, and whether each always held."""

  def __init__(self):
    self.held: dict[int, bool] = {}  # number of a statement -> always so far
    self.statements = 0
    self.finished = False  # the tests ran to their end
    self.problem = None  # the first, for the verdict's detail

  def report(self, number: int, value):
    if not value:
      raise AssertionError(f'assert {number + 1} does not hold')
    self.held.setdefault(number, True)

  def fail(self, number: int):
    self.held[number] = False
    self.note(sys.exc_info()[1])

  def note(self, error: BaseException):
    if self.problem is None:
      self.problem = f'{type(error).__name__}: {error}'[:300]

  def score(self, *, fraction: bool) -> float:
    """Tests that check nothing are not passed."""
    passed = sum(self.held.values())
    total = len(self.held) if self.finished else self.statements
    if fraction:
      return passed / max(total, 1)
    return float(self.finished and passed == total > 0)


class _Reporting(ast.NodeTransformer):
  """assert test  ->  report(number, test), caught if `go_on`."""

  def __init__(self, tally: Tally, go_on: bool):
    self.tally, self.go_on = tally, go_on

  def visit_Assert(self, node: ast.Assert):
    if isinstance(node.test, ast.Constant) and node.test.value:
      return node  # `assert True` tests nothing
    number = ast.Constant(self.tally.statements)
    self.tally.statements += 1
    name = lambda text: ast.Name(text, ast.Load())
    report = ast.Expr(ast.Call(name(REPORT), [number, node.test], []))
    new = report
    if self.go_on:
      caught = ast.ExceptHandler(
        name('Exception'), None, [ast.Expr(ast.Call(name(FAIL), [number], []))]
      )
      new = ast.Try([report], [caught], [], [])
    return ast.fix_missing_locations(ast.copy_location(new, node))


@dataclasses.dataclass(frozen=True)
class Plan:
  """Tests, read but not run: nothing of the program was needed for it."""

  trees: list[ast.Module]  # the setup, then the tests
  theirs: list[str]  # names that the program has to define
  ours: dict  # names that the tests use and do not define, and must not ask for
  calls_check: bool  # with the entry point


def parse(job: dict) -> Plan:
  """The plan of job['setup'], source of the data set that runs first and whose
  helpers win over the program's of the same name, and job['tests'].

  ValueError or SyntaxError for tests that are no Python or test nothing.
  """
  entry = job['entry_point']
  trees = [ast.parse(source) for source in (job['setup'], *job['tests'])]
  nodes = [node for tree in trees for node in ast.walk(tree)]
  used, bases, bound = _names(nodes)
  free = sorted(used - bound)
  own = {entry} if entry else _shadowed(nodes, free)
  ours = _library({name for name in free if name not in own}, bases)
  theirs = [n for n in free if n in own or not (n in ours or _builtin(n))]
  if not theirs and not entry:
    raise ValueError(
      'the tests use nothing of the program, or a function of it that has the '
      'name of a built-in one: then entry_point has to say so'
    )
  checks = any(
    isinstance(node, ast.FunctionDef) and node.name == 'check'
    for tree in trees
    for node in tree.body
  )
  return Plan(trees, theirs, ours, entry is not None and checks)


def run(link: peer.Peer, job: dict, tally: Tally):
  """Runs the tests of `job`; the outcome is in `tally`.

  job: 'plan' (see `parse`), 'tests', 'entry_point' (name or None), 'fraction'
  (go on after a failed assert).
  """
  plan, go_on = job['plan'], job['fraction']
  # Test inputs may be random: the same for every program, unknown to it.
  random.seed(zlib.crc32('\0'.join(job['tests']).encode()))
  space = {'__name__': 'tests', '__builtins__': builtins, **plan.ours}
  space |= {REPORT: tally.report, FAIL: tally.fail}
  for name in plan.theirs:
    with contextlib.suppress(NameError):  # the test says so when it gets there
      space[name] = link.ask('get', name)
  reporting = _Reporting(tally, go_on)
  steps = [compile(reporting.visit(t), 'tests', 'exec') for t in plan.trees]
  if plan.calls_check:
    space[ENTRY] = link.ask('get', job['entry_point'])
    steps.append(compile(f'check({ENTRY})', 'tests', 'exec'))
  tally.finished = all([_step(s, space, tally, go_on) for s in steps])


def _step(code, space: dict, tally: Tally, go_on: bool) -> bool:
  """One source; without `go_on` none after one that failed."""
  if tally.problem is not None and not go_on:
    return False
  try:
    exec(code, space)
  # A test fails with whatever the program or what it returned leads to.
  except Exception as e:
    tally.note(e)
    return False
  return True


def _builtin(name: str) -> bool:
  return hasattr(builtins, name)


def _library(names: set[str], bases: set[str]) -> dict:
  """Standard modules whose attributes the tests use, and a few classes."""
  found = {name: CLASSES[name] for name in names & CLASSES.keys()}
  for name in names & bases:
    module = ALIASES.get(name, name)
    if module in sys.stdlib_module_names or name in ALIASES:
      found[name] = importlib.import_module(module)
  return found


def _names(nodes: list[ast.AST]) -> tuple[set, set, set]:
  """Names read; those whose attributes are; names bound, whatever the scope."""
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


def _shadowed(nodes: list[ast.AST], free: list[str]) -> set[str]:
  """The function under test where it has a built-in's name: `sum(2, 3) == 5`.

  Only if no other name could be it: the outermost call, once in each assert.
  Used twice it might compute the expected value: `set(max(x)) == set(y)`.
  """
  if any(not _builtin(name) for name in free):
    return set()
  asserts = sum(isinstance(node, ast.Assert) for node in nodes)
  for node in nodes:  # breadth first: outer calls before inner ones
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
      name = node.func.id
      uses = sum(isinstance(n, ast.Name) and n.id == name for n in nodes)
      return {name} if uses <= asserts else set()
  return set()
