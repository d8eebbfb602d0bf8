"""Shared code of the commands: one-line errors, and flags with or without a
--config.
"""

import argparse
import pathlib
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import ml_collections
from absl import flags
from etils import epath
from ml_collections import config_flags

# Errors that say what the user can do: shown without a traceback.
USER_ERRORS = (ValueError, OSError, FloatingPointError)
RETURN = 'return what config.default() gave'
STAGES = '--config.stages'
# A key: rl.steps, stages[0].
PATH = re.compile(r'\w+(\[[^\]]*\])*(\.\w+(\[[^\]]*\])*)*')
UNSET = re.compile(r'--?config\.([\w.]+)=None')
ended = threading.Event()  # the last line was said
WORDS = re.compile(r'[(\[]?\s*\w+(\s*,\s*\w+)*\s*,?\s*[)\]]?')


class RecipeArgumentError(ValueError):
  """An argument that a recipe does not take; the message is complete."""


class Parser(argparse.ArgumentParser):
  """Flags of a command without a recipe; a mistake is one line.

  Not absl's flags: those of the modules that a command imports would be its
  own.
  """

  def __init__(self, prog: str, doc: str | None):
    """Args: doc: the command's docstring, for --help."""
    super().__init__(
      prog=f'python -m {prog}',
      description=doc,
      allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str):
    fail(f'{message}; --help lists the options')

  def text(self, name: str, default: str | None, help: str, **more) -> None:
    """Adds --name=TEXT."""
    self.add_argument(
      name, default=default, help=_with_default(help, default), **more
    )

  def number(self, name: str, default: float, help: str) -> None:
    """Adds --name=NUMBER, whole where the default is."""
    kind = type(default)
    self.add_argument(
      name, type=kind, default=default, help=_with_default(help, default)
    )

  def hosts(self) -> None:
    """Adds what makes one process one of several (`hosts.join`)."""
    self.text('--coordinator', None, 'host:port of process 0, of several')
    for name in ('--num_processes', '--process_id'):
      self.add_argument(name, type=int, help='of several processes')

  def machine(self) -> None:
    """Adds what models answer on, and what their answers are verified by."""
    self.text(
      '--dtype', '', 'float32 or bfloat16; default: float32 on CPU only'
    )
    self.text('--mesh', '-1,1,1', 'devices along data, fsdp, tensor')
    self.number('--workers', 2, 'verifier processes')
    self.number('--timeout_s', 10.0, 'of one verification')
    self.hosts()

  def switch(self, name: str, help: str) -> None:
    """Adds --name, which is off where it is not given."""
    self.add_argument(name, action='store_true', help=help)


def _with_default(help: str, default) -> str:
  # argparse reads % in it.
  text = help if default in (None, '') else f'{help} [{default}]'
  return text.replace('%', '%%')


def listed(flag: str, text: str, kind: Callable[[str], Any]) -> tuple:
  """Splits the values of a flag at its commas.

  Raises:
    ValueError: names the flag and the value that is none.
  """
  out = []
  for part in text.split(',') if text else ():
    try:
      value = kind(part)
    except ValueError:
      value = ''
    if value == '':
      raise ValueError(f'{flag}={text}: {part!r} is no {kind.__name__}')
    out.append(value)
  return tuple(out)


def local_folder(flag: str, text: str) -> pathlib.Path:
  """Returns the folder that a flag names, on this machine.

  Raises:
    ValueError: it is empty, in an object store, or a file.
  """
  path = pathlib.Path(text)
  if not text or '://' in text or path.is_file():
    raise ValueError(f'{flag}={text}: must be a folder on this machine')
  return path


def folder(flag: str, text: str) -> epath.Path:
  """Returns the folder that a flag names, here or in an object store.

  Raises:
    ValueError: it is empty, or a file.
  """
  path = epath.Path(text)
  if not text or ('://' not in text and path.is_file()):
    raise ValueError(f'{flag}={text}: must be a folder')
  return path


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
  """Refuses a value of a flag that is not known."""
  if value not in known:
    words = ', '.join(k for k in known if k)
    raise ValueError(f'{flag}={value!r}: choose {words}')


def define_recipe():
  """Defines --config, the recipe, and --config.KEY for each of its keys."""
  return config_flags.DEFINE_config_file(
    'config',
    None,
    'Recipe, a Python file with get_config().',
    # Recipes are locked by `config.default()`, but for the sections that take
    # new keys, on the command line as well.
    lock_config=False,
    accept_new_attributes=True,
  )


def parse(argv: Sequence[str], known: Callable[[], Any]) -> list[str]:
  """Parses flags for absl; errors in a recipe are said in one line.

  Args:
    known: makes the config of all keys, with their defaults.
  """
  try:
    _check_paths(argv)
    unset = [arg for arg in argv if UNSET.fullmatch(arg)]
    rest = flags.FLAGS(_quoted([arg for arg in argv if arg not in unset]))
    if 'config' in flags.FLAGS and flags.FLAGS['config'].present:
      _check_recipe(flags.FLAGS['config'].value)
      for arg in unset:
        _unset(flags.FLAGS['config'].value, UNSET.fullmatch(arg)[1], known())
    return rest
  # Whatever a recipe raises; of ml_collections, unknown keys and wrong types.
  except Exception as e:
    recipe = _recipe(argv)
    fail(_where(e, recipe) or _lacking(recipe) or _plain(e))


def _quoted(argv: Sequence[str]) -> list[str]:
  """The arguments, with --config.stages=sft,rl as the tuple that it means."""
  out = list(argv)
  for i, arg in enumerate(out):
    name, given, value = arg.partition('=')
    if name.replace('--', '-') != STAGES.replace('--', '-'):
      continue
    at = i if given else i + 1
    value = value if given else ''.join(out[at : at + 1])
    if WORDS.fullmatch(value):
      words = str(tuple(re.findall(r'\w+', value)))
      out[at] = f'{name}={words}' if given else words
  return out


def _check_paths(argv: Sequence[str]) -> None:
  """Refuses a key that ml_collections would read as an expression."""
  for arg in argv:
    name, _, path = arg.partition('=')[0].partition('.')
    if name.replace('--', '-') == '-config' and not PATH.fullmatch(path or 'a'):
      raise ValueError(
        f'{arg}: keys are of letters, digits and _, and the index of a list in '
        'brackets'
      )


def _unset(config, path: str, given) -> None:
  """Puts a key that a recipe has set back to None, its default, in place.

  Args:
    given: the config of all defaults.
  """
  for name in path.split('.'):
    known = isinstance(given, ml_collections.ConfigDict) and name in given
    given = given[name] if known else ()
  if given is not None:
    raise ValueError(
      f'--config.{path}=None: only what is None by default can be unset'
    )
  config.update_from_flattened_dict({path: None})


def _recipe(argv: Sequence[str]) -> str:
  """The file that --config names."""
  for i, arg in enumerate(argv):
    name, given, value = arg.partition('=')
    if name in ('-config', '--config'):
      path = value if given else ''.join(argv[i + 1 : i + 2])
      return path.partition(':')[0]
  return ''


def _check_recipe(config) -> None:
  """Refuses what is no config; a file that could not be read says so here."""
  getattr(config, 'keys', None)  # raises what stopped its reading
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(f'get_config() returned {config!r:.60}; {RETURN}')


def _lacking(recipe: str) -> str:
  """Returns the message for a recipe file whose error config_flags does not
  explain.
  """
  if recipe and not pathlib.Path(recipe).is_file():
    return f'--config={recipe} does not exist'
  if not recipe or 'config_config' not in sys.modules:
    return ''
  found = getattr(sys.modules['config_config'], 'get_config', None)
  if found is None:
    return f'{recipe} has no function get_config()'
  value = flags.FLAGS['config'].value
  empty = flags.FLAGS['config'].present and value is None
  return f'{recipe}: get_config() returned None; {RETURN}' if empty else ''


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  """An error, and those that it was raised from or during."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def _where(error: BaseException, recipe: str) -> str:
  """File, line and message of what went wrong in a recipe; '' if elsewhere."""
  # config_flags raises it again, with a traceback for a message: the innermost.
  refused = [e for e in _chain(error) if isinstance(e, RecipeArgumentError)]
  if refused:
    return str(refused[-1])
  for e in _chain(error):
    if isinstance(e, SyntaxError):
      shown = f': {e.text.strip()}' if e.text else ''
      return f'{e.filename}:{e.lineno}: {type(e).__name__}: {e.msg}{shown}'
    for frame in reversed(traceback.extract_tb(e.__traceback__)):
      if recipe and frame.filename.endswith(recipe):
        return f'{recipe}:{frame.lineno}: {type(e).__name__}: {_plain(e)}'
  return ''


def _plain(error: BaseException) -> str:
  """The message in one line, without the quotes that a KeyError adds."""
  while isinstance(error.args[0] if error.args else None, Exception):
    error = error.args[0]
  # ml_collections raises its KeyErrors again as other errors.
  quoted = isinstance(error, KeyError) and len(error.args) == 1
  text = str(error.args[0]) if quoted else str(error)
  return ' '.join(text.split()) or type(error).__name__


def fail(error: BaseException | str):
  """Ends the process in one line, its last: warnings of what is left behind,
  as coroutines that a failed save made and never began, do not follow it.
  """
  print(f'error: {error}', file=sys.stderr, flush=True)
  ended.set()
  warnings.simplefilter('ignore')
  sys.exit(1)


def no_more(argv) -> None:
  """Refuses arguments that are no flags."""
  if len(argv) > 1:
    fail(f'unexpected argument {argv[1]!r}; options look like --config=X.py')
