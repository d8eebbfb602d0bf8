"""Reads a recipe: a Python file with a function that returns a config."""

import os
import pathlib
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import ml_collections

from jaxrl_reason.config import changes as changes_lib
from jaxrl_reason.names import closest, program

# Folders of recipes in a clone.
FOLDERS = ('configs', 'configs/studies')
# Function of a file -> the command that calls it.
READERS = {'get_config': 'run', 'get_study': 'study'}
RETURN = 'return what config.default() returned'


class RecipeArgumentError(ValueError):
  """An argument that the recipe does not accept. The message is complete."""


def load(recipe: str, changes: Iterable[str] = ()) -> ml_collections.ConfigDict:
  """Returns the config of a recipe.

  Args:
    recipe: FILE.py or FILE.py:ARGUMENT. The argument is passed to its
      `get_config`.
    changes: texts such as 'rl.samples=16' (`changes.apply`).

  Raises:
    ValueError: names the file, its line and the error, or the changed key.
  """
  path, colon, argument = recipe.partition(':')
  config = call(path, 'get_config', *([argument] if colon else []))
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(f'{path}: get_config() returned {config!r:.60}; {RETURN}')
  changes_lib.apply(config, changes)
  return config


def call(path: str, name: str, *args: Any) -> Any:
  """Calls a function of a Python file and returns its value.

  Raises:
    ValueError: names the file, and the line at which it raised an error.
  """
  if not pathlib.Path(path).is_file():
    raise ValueError(f'--config={path} does not exist{_similar(path)}')
  try:
    found = runpy.run_path(path)
    function: Callable | None = found.get(name)
    if function is not None:
      return function(*args)
  except RecipeArgumentError:
    raise
  except Exception as e:  # a recipe may raise any exception
    raise ValueError(_place(e, path)) from e
  others = [other for other in READERS if other in found]
  why = ''.join(
    f', but {other}(): {program()} {READERS[other]} --config={path} reads it'
    for other in others
  )
  raise ValueError(f'{path} has no function {name}(){why}')


def _similar(path: str) -> str:
  """Returns '. Did you mean ...?' with a recipe of a similar name, or ''."""
  folders = [*FOLDERS, pathlib.Path(path).parent]  # the last is preferred
  files = [f for folder in folders for f in pathlib.Path(folder).glob('*.py')]
  by_name = {file.stem: file for file in files}
  name = closest(pathlib.Path(path).stem, by_name, 0.7)
  return f'. Did you mean {str(by_name[name])!r}?' if name else ''


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  """Yields an error, then its causes and contexts."""
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def _place(error: BaseException, path: str) -> str:
  """Returns file, line and message of an error in a recipe."""
  for e in _chain(error):
    if isinstance(e, SyntaxError):
      shown = f': {e.text.strip()}' if e.text else ''
      return f'{e.filename}:{e.lineno}: {type(e).__name__}: {e.msg}{shown}'
    for frame in reversed(traceback.extract_tb(e.__traceback__)):
      if os.path.abspath(frame.filename) == os.path.abspath(path):
        return f'{path}:{frame.lineno}: {type(e).__name__}: {_line(e)}'
  return f'{path}: {type(error).__name__}: {_line(error)}'


def _line(error: BaseException) -> str:
  """Returns a message as one line, without the quotes of a KeyError."""
  while isinstance(error.args[0] if error.args else None, Exception):
    error = error.args[0]
  quoted = isinstance(error, KeyError) and len(error.args) == 1
  text = str(error.args[0]) if quoted else str(error)
  return ' '.join(text.split()) or type(error).__name__
