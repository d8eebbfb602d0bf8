"""Runs test code in the judge, where the program cannot reach its values.

  source --ast--> every assert reports to a `Tally` --exec--> (passed, total)

Names that a test uses and does not define belong to the program and become
`Remote`s. Python's own names are excluded, because the program must not compute
expected values: in `tuple(f(x)) == tuple(g(x))` or `sys.getsizeof(x)`, a
program that redefines `tuple` or `sys` has no effect.
"""

import ast
import builtins
import collections
import contextlib
import dataclasses
import functools
import random
import sys
import zlib

from jaxrl_reason.verifiers.code.sandbox import (
  analysis,
  array_bytes,
  claims,
  errors,
  kinds,
  nan,
  objects,
  peer,
)

BEGIN, REPORT, FAIL, ENTRY = '__begin__', '__report__', '__fail__', '__entry__'
TYPE, ORDERABLE = '__type__', '__orderable__'
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
# The judge's own. Tests may replace sys.stdin and sys.stdout.
STDIN, STDOUT = sys.stdin, sys.stdout
PATCHED = {'input': input, 'print': print}
# Replacements of built-in functions for objects of the program.
BY_OBJECT = {
  'isinstance': kinds.is_instance,
  'issubclass': kinds.is_subclass,
  'type': kinds.type_of,
}


class Tally:
  """Records the assert statements that ran, and whether each always held."""

  def __init__(self):
    self.held: dict[int, bool] = {}  # number of a statement -> always held
    self.statements = 0
    self.finished = False  # the tests ran to their end
    self.problem = None  # the first problem, for the verdict's detail
    self.undecided = None  # reason why the tests cannot be judged
    self.inside: set[int] = set()  # numbers of the asserts in `with` blocks
    self.excused: set[int] = set()  # numbers of those that may raise exceptions
    self.running = collections.Counter()  # number -> evaluations that go on

  def begin(self, number: int) -> int:
    self.running[number] += 1
    return number

  def report(self, number: int, value):
    self.running[number] -= 1
    if not value:
      self.held[number] = False  # whatever catches the exception
      raise AssertionError(f'assert {number + 1} does not hold')
    self.held.setdefault(number, True)

  def fail(self, number: int):
    self.held[number] = False
    self.note(sys.exc_info()[1])

  def note(self, error: BaseException):
    if self.problem is None:
      self.problem = f'{type(error).__name__}: {error}'[:300]

  def interrupted(self) -> list[int]:
    """Returns the asserts without a value, because of an exception."""
    return [
      number
      for number, count in self.running.items()
      if count and number not in self.excused and self.held.get(number, True)
    ]

  def score(self, *, fraction: bool) -> float:
    """Computes the score. Tests without checks score 0."""
    passed = sum(self.held.values())
    total = len(self.held) if self.finished else self.statements
    if fraction:
      return passed / max(total, 1)
    return float(self.finished and passed == total > 0)


class _Reporting(ast.NodeTransformer):
  """Rewrites assert test  ->  report(begin(number), test).

  If `go_on`, its exceptions are caught.
  """

  def __init__(self, tally: Tally, go_on: bool):
    self.tally, self.go_on = tally, go_on

  def visit_With(self, node: ast.With):
    first = self.tally.statements
    node = self._catching(node)
    self.tally.inside |= set(range(first, self.tally.statements))
    return node

  visit_AsyncWith = visit_With

  def visit_Try(self, node: ast.Try | ast.TryStar):
    return self._catching(node)

  visit_TryStar = visit_Try

  def _catching(self, node):
    """Visits a statement. Asserts of a body whose exceptions it catches are
    excused.
    """
    if analysis.catches(node):
      body = [n for statement in node.body for n in ast.walk(statement)]
      first, count = self.tally.statements, sum(map(analysis.may_fail, body))
      self.tally.excused |= set(range(first, first + count))
    return self.generic_visit(node)

  def visit_Attribute(self, node: ast.Attribute):
    """Rewrites x.__class__ -> type(x), since x may be an object of the
    program.
    """
    node = self.generic_visit(node)
    if node.attr != '__class__' or not isinstance(node.ctx, ast.Load):
      return node
    call = ast.Call(ast.Name(TYPE, ast.Load()), [node.value], [])
    return ast.fix_missing_locations(ast.copy_location(call, node))

  def visit_Compare(self, node: ast.Compare):
    """Rewrites x < y -> orderable(x) < orderable(y)."""
    node = self.generic_visit(node)
    values = [node.left, *node.comparators]
    for i, operation in enumerate(node.ops):
      if isinstance(operation, ORDERS):
        for k in (i, i + 1):
          call = ast.Call(ast.Name(ORDERABLE, ast.Load()), [values[k]], [])
          values[k] = ast.copy_location(call, node)
    node.left, *node.comparators = values
    return ast.fix_missing_locations(node)

  def visit_Assert(self, node: ast.Assert):
    node = self.generic_visit(node)
    if not analysis.may_fail(node):
      return node
    number = ast.Constant(self.tally.statements)
    self.tally.statements += 1

    def name(text):
      return ast.Name(text, ast.Load())

    begin = ast.Call(name(BEGIN), [number], [])
    report = ast.Expr(ast.Call(name(REPORT), [begin, node.test], []))
    new = report
    if self.go_on:
      kinds = ast.Tuple([name('Exception'), name('SystemExit')], ast.Load())
      failed = ast.Expr(ast.Call(name(FAIL), [number], []))
      caught = ast.ExceptHandler(kinds, None, [failed])
      new = ast.Try([report], [caught], [], [])
    return ast.fix_missing_locations(ast.copy_location(new, node))


@dataclasses.dataclass(frozen=True)
class Plan:
  """Parsed tests. Parsing does not need the program."""

  trees: list[ast.Module]  # the setup, then the tests
  theirs: list[str]  # names that the program has to define
  ours: dict  # names that tests use and that must not come from the program
  calls_check: bool  # call `check` with the entry point
  objects: set[str]  # names of `theirs` that tests use as classes
  caught: set[str]  # names of `theirs` that are exception classes
  reuses: bool  # an argument of a call is read again elsewhere
  catches: bool  # the tests catch exceptions


def parse(job: dict) -> Plan:
  """Parses job['setup'] and job['tests'].

  The setup is trusted source that runs first. Its helpers override names of the
  program.

  Raises:
    ValueError, SyntaxError: the tests are not Python, or check nothing.
  """
  entry = job['entry_point']
  trees = [ast.parse(source) for source in (job['setup'], *job['tests'])]
  nodes = [node for tree in trees for node in ast.walk(tree)]
  if not any(map(analysis.may_fail, nodes)):
    raise ValueError(
      'they assert nothing: tests are `assert` statements, and no other check '
      'is counted'
    )
  theirs = analysis.of_program(nodes, entry)
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
  caught = analysis.caught(nodes, theirs)
  classes = analysis.used_as_objects(nodes, theirs) | caught
  for node in nodes:
    if isinstance(node, ast.ClassDef) and classes & set(
      map(analysis.name_of, node.bases)
    ):
      raise ValueError(f'{node.name} is a subclass of a class of the program')
  calls_check = entry is not None and checks
  return Plan(
    trees,
    theirs,
    analysis.library(nodes, theirs),
    calls_check,
    classes,
    caught,
    analysis.reuses_arguments(nodes),
    any(analysis.catches(n) or analysis.expects(n) for n in nodes),
  )


def run(link: peer.Peer, job: dict, tally: Tally):
  """Runs the tests of `job` and records the results in `tally`.

  Args:
    job: 'plan' (see `parse`), 'tests', 'entry_point' (name or None), 'fraction'
      (continue after a failed assert).
  """
  plan, go_on = job['plan'], job['fraction']
  # Random test inputs are the same for every program, and unknown to it.
  random.seed(zlib.crc32('\0'.join(job['tests']).encode()))
  space = {'__name__': 'tests', '__builtins__': builtins, **plan.ours}
  space |= {BEGIN: tally.begin, REPORT: tally.report, FAIL: tally.fail}
  space |= {TYPE: kinds.type_of, ORDERABLE: nan.orderable, **nan.FUNCTIONS}
  if plan.objects:
    space = {**BY_OBJECT, **space}
  link.rich, link.context = objects.Object, functools.partial(_watched, link)
  link.watches = plan.reuses
  # Only the tests decide whether they expect it.
  link.stops = any('StopIteration' in test for test in job['tests'])
  if any('numpy' in test or 'np.' in test for test in job['tests']):
    array_bytes.guard()
  nan.guard()
  _fetch(link, plan, space)
  reporting = _Reporting(tally, go_on)
  steps = [compile(reporting.visit(t), 'tests', 'exec') for t in plan.trees]
  if plan.calls_check:
    entry = job['entry_point']
    space[ENTRY] = link.ask('get!' if entry in plan.objects else 'get', entry)
    steps.append(compile(f'check({ENTRY})', 'tests', 'exec'))
  tally.finished = all([_step(s, space, tally, go_on, link) for s in steps])
  if link.suppressed and not tally.inside <= tally.held.keys():
    tally.note(AssertionError('the program stopped an exception before it'))
    tally.finished = False
  _close(tally, plan)
  passed = tally.finished and all(tally.held.values())
  if passed or go_on:
    _settle(tally, link)
  if link.changed and not passed:
    tally.undecided = tally.undecided or (
      'the tests cannot be judged: a function returned a value and changed an '
      'argument that they read again'
    )
  if tally.finished and not tally.held and not link.used:
    tally.undecided = 'the tests reach no assert and do not use the program'


def _close(tally: Tally, plan: Plan):
  """Fails asserts that ended by an exception which something else caught.

  If the tests catch exceptions themselves, they may expect this one.
  """
  numbers = tally.interrupted() if tally.finished else []
  if not numbers:
    return
  reason = f'assert {numbers[0] + 1} ended by an exception'
  if plan.catches:
    tally.undecided = f'the tests cannot be judged: {reason}, which they caught'
    return
  tally.held |= dict.fromkeys(numbers, False)
  tally.note(AssertionError(reason))


def _settle(tally: Tally, link):
  """Settles the program's claims. Until then, no assert counts as held: the
  program may end, or exceed its time, to prevent it.
  """
  held, tally.held = tally.held, {}
  try:
    claims.settle(link)
    tally.held = held
  except errors.Undecided as e:
    tally.undecided = tally.undecided or f'the tests cannot be judged: {e}'


def _fetch(link: peer.Peer, plan: Plan, space: dict):
  """Fetches the program's names. Tests that use a missing name fail later."""
  caught = []
  for name in plan.theirs:
    with contextlib.suppress(NameError):
      found = link.ask('get!' if name in plan.objects else 'get', name)
      if name in plan.caught and isinstance(found, objects.Object):
        found = kinds.raised(name, found)
        caught.append(found)
      space[name] = found
  if caught:
    link.caught = functools.partial(kinds.exception, kinds=caught)


@contextlib.contextmanager
def _watched(link: peer.Peer):
  """Applies the tests' replacement of input, output and functions to a request.

  Only text and functions of the tests are sent to the program.
  """
  given = sys.stdin if sys.stdin is not STDIN else None
  output = sys.stdout if sys.stdout is not STDOUT else None
  patched = {n: f for n, f in PATCHED.items() if getattr(builtins, n) is not f}
  if given is None and output is None and not patched:
    yield
    return
  start = given.tell() if given else 0
  text = given.read() if given else None
  functions = {name: getattr(builtins, name) for name in patched}
  link.ask('watch', text, output is not None, functions)
  try:
    yield
  finally:
    printed, read = link.ask('seen')
    if given:
      given.seek(start)
      given.read(read)
    if output is not None:
      output.write(printed)


def _step(code, space: dict, tally: Tally, go_on: bool, link) -> bool:
  """Runs one source, unless an earlier one failed and `go_on` is false.

  Returns whether it ran without an exception.
  """
  if tally.problem is not None and not go_on:
    return False
  try:
    exec(code, space)
  except (errors.Undecided, peer.NotPlain) as e:
    tally.undecided = f'the tests cannot be judged: {e}'
    return False
  # The program and its values may raise any exception: the test fails.
  except (Exception, SystemExit) as e:
    tally.note(e)
    if isinstance(e, SystemExit) and not any(e is x for x in link.exits):
      tally.undecided = 'the tests end the process'
    return False
  return True
