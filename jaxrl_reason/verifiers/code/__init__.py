"""Verifies programs: whether the code of a completion passes the tests.

```
run_tests('def f(x): return x + 1', ['assert f(1) == 2'])    # MBPP
run_tests(program, 'def check(candidate): ...', entry_point='f')  # HumanEval
run_tests('print(int(input()) + 1)', [('1', '2')])           # stdin, stdout
```
  program, tests -> zygote --fork--> judge --fork--> program process -> verdict

Programs are hostile: they run in their own process, isolated as far as the
system allows, and the tests run in another process. Results of a program are
sent as plain data, so a test compares numbers, text and lists and never calls a
method of the program's objects. Expected values never reach the program.
`sandbox` has the parts; docs/code_sandbox.md lists the layers of each platform.

A program that is wrong, crashes, hangs or exceeds its memory scores 0 with
status 'parsed', and `detail` has the reason. The status 'error' is for failures
of the sandbox itself.
HumanEval: Chen et al. 2021, https://arxiv.org/abs/2107.03374. MBPP: Austin et
al. 2021, https://arxiv.org/abs/2108.07732.
"""

import ast
import itertools
import re
import sys
from collections.abc import Collection, Sequence

from jaxrl_reason.verifiers import fields, thoughts
from jaxrl_reason.verifiers.code.sandbox import analysis, client
from jaxrl_reason.verifiers.verdict import Verdict

__all__ = ['extract', 'reward', 'run_tests']

ALL, FRACTION = 'all', 'fraction'
TIMEOUT_S, MEMORY_MB = 3.0, 256
MAX_PROGRAM = 1 << 20  # characters

FENCE = re.compile(r'^([ \t]*)(```+|~~~+)[ \t]*([\w+-]*)[^\n]*$', re.M)
PYTHON = ('python', 'py', 'python3', 'py3')  # tags of a fenced block
DEFINED = re.compile(r'^(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)', re.M)
MARK = '\ufeff'  # the byte order mark at the start of some files
TOP_LEVEL = re.compile(r'^\S', re.M)
MAX_DROPPED = 8  # lines at the top level that may belong to a cut-off statement
# The first line after a function body that belongs to something else.
AFTER_BODY = re.compile(r'^(?!def |async def |class |import |from |@)\S', re.M)

Tests = str | Sequence[str] | Sequence[tuple[str, str]]


def run_tests(
  program: str,
  tests: Tests,
  *,
  timeout_s: float = TIMEOUT_S,
  memory_mb: int = MEMORY_MB,
  entry_point: str | None = None,
  setup: str = '',
  score: str = ALL,
  sandbox: client.Sandbox | None = None,
) -> Verdict:
  """Returns the verdict on `program`, Python source of any origin.

  Args:
    program: imported as a module for asserts, run as a script for input.
    tests: source with asserts, or a list of them; or (stdin, stdout) pairs. A
      function `check` in them is called with the entry point.
    timeout_s: wall clock for the program, or for each pair; up to four times
      that on Linux while it waits for a core.
    memory_mb: address space beyond the interpreter's own.
    entry_point: name of the function under test.
    setup: trusted source run before the asserts.
    score: 'all' for 1.0 or 0.0, 'fraction' for the share of assert statements
      or of pairs that hold.
    sandbox: a sandbox with other layers than the default.
  """
  if score not in (ALL, FRACTION):
    raise ValueError(f'score {score!r}: must be {ALL!r} or {FRACTION!r}')
  if timeout_s <= 0 or memory_mb <= 0:
    raise ValueError(f'{timeout_s=} and {memory_mb=} must be positive')
  job = {
    'program': program,
    'timeout_s': timeout_s,
    'memory_mb': memory_mb,
    'fraction': score == FRACTION,
    'stdin': None,
  }
  sources, pairs = _sorted_out(tests)
  jobs = [{**job, 'stdin': i, 'expected': o} for i, o in pairs]
  if sources:
    assert_job = {'tests': sources, 'setup': setup, 'entry_point': entry_point}
    jobs.append({**job, **assert_job})
  if len(program) > MAX_PROGRAM:
    return Verdict(0.0, detail=f'over {MAX_PROGRAM} characters')
  try:
    return _judged(program, jobs, sandbox or client.shared())
  except client.SandboxError as e:
    return Verdict(0.0, 'error', program, str(e))


def _judged(program: str, jobs: list[dict], sandbox) -> Verdict:
  """Runs one job for asserts or one per pair, until a job exceeds its limit.

  Each pair may take almost a time limit, so a program may take almost one limit
  for each pair; a limit of the caller has to allow the sum.
  """
  scores, detail = [0.0] * len(jobs), None
  for i, job in enumerate(jobs):
    answer = sandbox.run(job)
    scores[i] = answer['score']
    detail = detail or answer['detail']
    if answer['overran'] or (scores[i] < 1 and not job['fraction']):
      break
  score = sum(scores) / len(scores)
  if not jobs[0]['fraction']:
    score = float(score == 1)
  return Verdict(score, 'parsed', program, detail)


def _sorted_out(tests: Tests) -> tuple[list[str], list[tuple[str, str]]]:
  """Returns (assert sources, (stdin, stdout) pairs); one of them is empty."""
  if isinstance(tests, str):
    tests = [tests]
  if tests and all(isinstance(test, str) for test in tests):
    return list(tests), []
  if not tests or not all(map(_is_pair, tests)):
    raise ValueError(
      'tests are source with asserts, a list of such sources, or a list of '
      f'(stdin, stdout) pairs of text, not {tests!r:.200}'
    )
  return [], [tuple(test) for test in tests]


def _is_pair(test) -> bool:
  texts = not isinstance(test, str) and isinstance(test, Sequence)
  return texts and len(test) == 2 and all(isinstance(t, str) for t in test)


def reward(
  completion: str,
  example: dict,
  *,
  timeout_s: float = TIMEOUT_S,
  memory_mb: int = MEMORY_MB,
  score: str = ALL,
  sandbox: client.Sandbox | None = None,
) -> Verdict:
  """Returns the verdict on the program of a completion.

  `run_tests` describes the settings. The tests are example['tests'], the fields
  of the HumanEval and MBPP files, or example['answer']. 'entry_point',
  'test_setup_code' and 'prompt' (if it is the beginning of the program) are
  read if the example has them. A field that the example lacks is read from
  example['meta'], and the prompt of 'meta' is read first: it has no template.
  """
  own, meta = fields.field, example.get('meta') or {}
  names = ('tests', 'test', 'test_list', 'answer')
  found = (own(example, n, default=None) for n in names)
  tests = next(filter(None, found), None)
  if tests is None:
    raise ValueError(f'no tests: the example has {sorted({**meta, **example})}')
  entry = own(example, 'entry_point', default=None)
  prompts = meta.get('prompt'), example.get('prompt')
  opening = next(filter(None, (_opening(p, entry) for p in prompts)), '')
  setup = own(example, 'test_setup_code', default='')
  names = _needed([setup, *_sorted_out(tests)[0]])
  program = extract(completion, opening, entry, names)
  if program is None:
    return Verdict(0.0, 'no_answer')
  return run_tests(
    program,
    tests,
    timeout_s=timeout_s,
    memory_mb=memory_mb,
    entry_point=entry,
    # Helpers of the prompt compute expected values, not those of the program.
    setup=_head(opening, entry) + setup,
    score=score,
    sandbox=sandbox,
  )


def _needed(sources: list[str]) -> set[str]:
  """Returns the names that tests need from the program."""
  trees = filter(None, map(parsed, sources))
  nodes = [node for tree in trees for node in ast.walk(tree)]
  return set(analysis.of_program(nodes))


def _opening(prompt, entry_point: str | None) -> str:
  """Returns the code at the start of a prompt that begins a function, or ''."""
  if not isinstance(prompt, str):
    return ''  # a chat
  block = _program_block(prompt, {entry_point})
  text = prompt if block is None else block
  if parsed(_head(text, entry_point)) is None:
    return ''  # prose around a signature
  return '' if _definition(text, entry_point) is None else text


def parsed(program: str) -> ast.Module | None:
  """Returns the syntax tree of a program, or None if it is not Python."""
  try:
    return ast.parse(program)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return None


def extract(
  completion: str,
  prompt: str = '',
  entry_point: str | None = None,
  names: Collection[str] = (),
) -> str | None:
  """Extracts the program of a completion, or None.

  It is a fenced block after the last thought that is tagged as Python, else one
  without a tag, else all the text: the last block that defines `entry_point`,
  or one of `names` if there is no entry point, else the last block. An
  unfinished thought without text before it has none. If `prompt` begins the
  function `entry_point`, its imports and helpers are prepended, and a
  completion that is only a body is joined to it.
  """
  after, end = thoughts.spoken(completion)
  text = completion[after:end].removeprefix(MARK)
  if text.strip() and thoughts.CHANNEL not in completion:
    # A program may contain <think>.
    text = completion[after:].removeprefix(MARK)
  block = _program_block(text, {entry_point} if entry_point else set(names))
  code = text if block is None else block
  if not code.strip():
    return None
  start = _definition(prompt, entry_point)
  if start is None:
    return code
  if entry_point in _defined(code):
    return f'{_head(prompt, entry_point)}\n{code}'
  return _without_cut_off(prompt + _body(code), len(prompt))


def _without_cut_off(program: str, start: int) -> str:
  """Returns a program without a last statement that is cut off.

  Only lines at the top level after `start` are dropped.
  """
  if len(program) > MAX_PROGRAM:
    return program
  tops = [match.start() for match in TOP_LEVEL.finditer(program, start)]
  for end in (len(program), *tops[: -MAX_DROPPED - 1 : -1]):
    if parsed(program[:end]):
      return program[:end]
  return program


def _body(code: str) -> str:
  """Extracts an indented function body, without later code."""
  code = code.lstrip('\n')
  if not code.startswith((' ', '\t')):
    lines = code.split('\n')
    # Stripping a text removes only the indent of the first line.
    only_first_stripped = any(re.match(r'\S', line) for line in lines[1:])
    lines[0] = f'    {lines[0]}'
    lines[1:] = [
      f'    {line}' if only_first_stripped else line for line in lines[1:]
    ]
    return '\n'.join(lines)
  end = AFTER_BODY.search(code)
  return code if end is None else code[: end.start()]


def _definition(text: str, name: str | None) -> int | None:
  """Returns the first line of the last top-level definition of `name`."""
  if not name:
    return None
  pattern = rf'^(?:async[ \t]+)?def[ \t]+{re.escape(name)}[ \t]*\('
  starts = [match.start() for match in re.finditer(pattern, text, re.M)]
  return starts[-1] if starts else None


def _head(prompt: str, entry_point: str | None) -> str:
  """Returns the text before the function in a prompt that begins a program."""
  start = _definition(prompt, entry_point)
  return '' if start is None else prompt[:start]


def _defined(code: str) -> set[str]:
  """Returns the names that code defines at its top level.

  Imports count only from the standard library: an example of use may begin with
  `from solution import add`. The variables of a function's body do not count.
  """
  found = set(DEFINED.findall(code))
  tree = parsed(code) if len(code) <= MAX_PROGRAM else None
  body = tree.body if tree else []
  if any(isinstance(node, ast.Return) for node in body):
    return found
  for node in body:
    bound = getattr(node, 'targets', None) or [getattr(node, 'target', None)]
    if isinstance(node, ast.ImportFrom):
      bound = node.names if node.module in sys.stdlib_module_names else []
    inner = itertools.chain.from_iterable(map(ast.walk, filter(None, bound)))
    found |= analysis.names(list(inner))[2]
  return found


def _program_block(text: str, names: set[str]) -> str | None:
  """Returns the fenced block of Python that is the program.

  It is the last one that defines one of `names`, otherwise the last one: an
  example of use or an output may follow the program. A block without a tag
  counts only if no block with text is tagged as Python, or if none of these
  defines a name. A closed block without text counts only if there is no other.
  """
  blocks = _blocks(text)[::-1]
  found = [b for wanted in (PYTHON[0], '') for b in blocks if b[0] == wanted]
  for _, block, _ in found:
    if names & _defined(block):
      return block
  cut_off = (b for tag, b, closed in found if tag and not closed)
  with_text = (block for _, block, _ in found if block.strip())
  return next(
    itertools.chain(cut_off, with_text), found[0][1] if found else None
  )


def _blocks(text: str) -> list[tuple[str, str, bool]]:
  """Returns (tag, text, is closed) of fenced blocks; the last may be open."""
  blocks, start, indent, mark, tag = [], None, '', '', ''
  for fence in FENCE.finditer(text):
    if start is None:
      start, (indent, mark, tag) = fence.end() + 1, fence.groups()
      tag = PYTHON[0] if tag.lower() in PYTHON else tag.lower()
    elif fence[2].startswith(mark) and not fence[3]:
      block = _unindented(text[start : fence.start()], len(indent))
      start = None
      blocks.append((tag, block, True))
  if start is not None:
    blocks.append((tag, _unindented(text[start:], len(indent)), False))
  return blocks


def _unindented(block: str, width: int) -> str:
  """Returns a block without its byte order mark and the indent of its fence, as
  in a list.

  A block whose first line has less indent than its fence is not in the list.
  """
  block = block.removeprefix(MARK)
  first = len(block) - len(block.lstrip(' \t\n'))
  first -= block.rfind('\n', 0, first) + 1
  width = min(width, first)
  return (
    re.sub(rf'^[ \t]{{0,{width}}}', '', block, flags=re.M) if width else block
  )
