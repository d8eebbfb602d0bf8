"""Shared code of the commands: flags, and errors in one line."""

import argparse
import contextlib
import errno
import functools
import itertools
import json
import os
import pathlib
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_reason import names
from jaxrl_reason.names import program as program

if TYPE_CHECKING:
  from etils import epath

# Errors with a remedy in their message: shown without a traceback.
USER_ERRORS = (ValueError, OSError, FloatingPointError, ImportError)
FULL = (errno.ENOSPC, errno.EDQUOT)  # of the errors of a full disk
CHANGE = re.compile(r'--config\.(.*)', re.S)
HOME = re.compile(
  r'(--\w+=)(~(?:/.*)?)', re.S
)  # a shell leaves this ~ as it is
EXAMPLE = re.compile(r'\bjaxrl (?=[a-z])')  # of a command, in its docstring
# A run saves and stops at these.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Exit code of a saved run that a signal stopped: the same command resumes it
# (EX_TEMPFAIL of sysexits.h). 0 is a finished run.
SAVED = 75
ended = threading.Event()  # the last line was printed


class Parser(argparse.ArgumentParser):
  """Parses the flags of a command; an invalid flag is an error of one line."""

  def __init__(self, name: str, doc: str | None):
    """Args: name: of the command; doc: its docstring, for --help."""
    super().__init__(
      prog=f'{program()} {name}',
      description=EXAMPLE.sub(f'{program()} ', doc or ''),
      allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )

  def error(self, message: str):
    end = '' if message.endswith('?') else ';'
    fail(f'{message}{end} {self.prog} --help lists the options')

  def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses flags; `changes` are those of --config.KEY=VALUE.

    Args:
      argv: without the command's name; None: of this process.
    """
    changes, rest = _split(sys.argv[1:] if argv is None else argv)
    known = self._option_string_actions
    for word in rest:
      flag = word.partition('=')[0]
      if flag.startswith('--') and flag[2:] and flag not in known:
        like = names.closest(flag[2:], (k.lstrip('-') for k in known), 0.6)
        near = like and f" Did you mean '--{like}'?"
        self.error(f'unknown option {flag}.{self._key(flag[2:]) or near}')
    if changes and self.get_default('changes') is None:
      self.error(f'--config.{changes[0]}: this command reads no recipe')
    given = argparse.Namespace(changes=changes)
    found, others = self.parse_known_args(rest, given)
    for word in others:
      near = self._key(word.partition('=')[0])
      self.error(f'unknown argument {word}{near and f".{near}"}')
    return found

  def _key(self, word: str) -> str:
    """Returns ' Did you mean ...?' with the flag of a key, or ''."""
    if self.get_default('changes') is None:
      return ''
    if word.partition(':')[0].endswith('.py'):
      return f" Did you mean '--config={word}'?"
    if '/' in word:
      return ''
    from jaxrl_reason.config import changes

    return changes.flag_hint(word)

  def recipe(self, help: str = 'recipe, FILE.py or FILE.py:ARGUMENT') -> None:
    """Adds --config, and the keys of the recipe."""
    self.text('--config', None, help, required=True)
    self.keys()

  def keys(self) -> None:
    """Adds --config.KEY for every key of a recipe."""
    self.set_defaults(changes=())
    self.epilog = (
      '--config.KEY=VALUE changes a key of the recipe, such as '
      f'--config.rl.samples=16.\n"{program()} keys" lists the keys.'
    )

  def text(self, name: str, default: str | None, help: str, **more) -> None:
    """Adds --name=TEXT."""
    self.add_argument(
      name, default=default, help=_with_default(help, default), **more
    )

  def number(self, name: str, default: float, help: str) -> None:
    """Adds --name=NUMBER; an integer if the default is one."""
    kind = type(default)
    self.add_argument(
      name, type=kind, default=default, help=_with_default(help, default)
    )

  def hosts(self) -> None:
    """Adds the flags of runs with several processes (`hosts.join`)."""
    self.text('--coordinator', None, 'host:port of process 0 of several')
    for name in ('--num_processes', '--process_id'):
      self.add_argument(name, type=int, help='of several processes')

  def machine(self) -> None:
    """Adds the flags of devices and of verifier processes."""
    self.text(
      '--dtype', '', 'float32 or bfloat16; default: float32 on CPU only'
    )
    self.text('--mesh', '-1,1,1', 'devices along data, fsdp, tensor')
    self.number('--workers', 2, 'verifier processes')
    self.number('--timeout_s', 10.0, 'seconds for one verification')
    self.hosts()

  def sampling(self) -> None:
    """Adds the flags of sampling, of a forced token budget and a grammar."""
    self.number('--top_k', 0, '0: all tokens')
    self.number('--top_p', 1.0, 'nucleus')
    self.number('--min_p', 0.0, 'least probability, as a share of the largest')
    self.number('--repetition_penalty', 1.0, 'of tokens that a row has already')
    self.number('--presence_penalty', 0.0, 'of tokens that the completion has')
    self.number('--frequency_penalty', 0.0, 'for each time it has the token')
    self.text('--logit_bias', '', 'JSON: text of a token, or id:N -> bias')
    self.number('--least', 0, 'tokens before which --wait replaces a stop')
    self.text('--wait', '', 'words that replace the stop token')
    self.number('--most', 0, 'tokens after which --final is written')
    self.text('--final', '', 'words that request the final answer')
    self.text('--regex', '', 'regular expression of the whole completion')
    self.text(
      '--json_schema', None, 'file: completions are JSON of this schema'
    )

  def texts(self, name: str, help: str) -> None:
    """Adds the flag --name, which may be repeated; its value is a list."""
    self.add_argument(name, action='append', default=[], help=help)

  def switch(self, name: str, help: str) -> None:
    """Adds the switch --name, which is off by default."""
    self.add_argument(name, action='store_true', help=help)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
  """Returns (the texts KEY=VALUE of --config.KEY, the other arguments)."""
  changes, rest, words = [], [], iter(argv)
  for word in words:
    found = CHANGE.fullmatch(word)
    if not found:
      home = HOME.fullmatch(word)
      rest.append(home[1] + os.path.expanduser(home[2]) if home else word)
      continue
    change = found[1]
    if '=' not in change:
      following = next(words, '--')
      if following.startswith('--'):  # a switch
        words = itertools.chain([following], words)
      else:
        change = f'{change}={following}'
    changes.append(change)
  return changes, [word for word in rest if word]


def _with_default(help: str, default) -> str:
  # argparse reads % in it.
  text = help if default in (None, '') else f'{help} [{default}]'
  return text.replace('%', '%%')


def listed(flag: str, text: str, kind: Callable[[str], Any]) -> tuple:
  """Splits the values of a flag at its commas.

  Raises:
    ValueError: names the flag and the invalid value.
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


def json_object(flag: str, text: str) -> dict[str, Any]:
  """Returns the JSON object of a flag; {} if the flag is not set.

  Raises:
    ValueError: names the flag.
  """
  try:
    found = json.loads(text or '{}')
  except ValueError:
    found = None
  if not isinstance(found, dict):
    raise ValueError(f'{flag}={text}: must be a JSON object')
  return found


def local_folder(flag: str, text: str) -> pathlib.Path:
  """Returns the folder that a flag names, on this machine.

  Raises:
    ValueError: it is empty, in an object store, or a file.
  """
  path = pathlib.Path(text)
  if not text or '://' in text or path.is_file():
    raise ValueError(f'{flag}={text}: must be a folder on this machine')
  return path


def local_files(flags: Mapping[str, str | None]) -> None:
  """Refuses files in an object store, where nothing can be appended.

  Raises:
    ValueError: names the flag.
  """
  for flag, text in flags.items():
    if text and '://' in text:
      raise ValueError(f'{flag}={text}: must be a file on this machine')


def input_files(flags: Mapping[str, str | None]) -> None:
  """Checks that files to read are on this machine; None: the flag is not set.

  Raises:
    ValueError: names the flag.
  """
  local_files(flags)
  for flag, text in flags.items():
    path = pathlib.Path(text or '.')
    if text is not None and (path.is_dir() or not path.exists()):
      why = 'is a folder' if path.is_dir() else 'does not exist'
      raise ValueError(f'{flag}={text} {why}')


def folder(flag: str, text: str) -> 'epath.Path':
  """Returns the folder that a flag names, here or in an object store.

  Raises:
    ValueError: it is empty, or a file.
  """
  from etils import epath

  path = epath.Path(text)
  if not text or ('://' not in text and path.is_file()):
    raise ValueError(f'{flag}={text}: must be a folder')
  return path


def one_of(flag: str, value: str, known: Iterable[str]) -> None:
  """Refuses a value of a flag that is not known."""
  if value not in known:
    raise ValueError(names.choice(flag, value, known))


@contextlib.contextmanager
def one_line(*more: type[Exception]) -> Iterator[None]:
  """Ends the process with one line if an error has a remedy in its message.

  Args:
    more: kinds of such errors, beside those of every command.
  """
  try:
    yield
  except (*USER_ERRORS, *more) as e:
    full = isinstance(e, OSError) and e.errno in FULL
    fail(f'{e}. Make room and start the same command again' if full else e)


@contextlib.contextmanager
def on_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
  """Handles SIGNALS, except those that the process ignores: nohup ignores
  SIGHUP, so that a run outlives its terminal.
  """
  before = {}
  # Python delivers signals to the main thread only.
  if threading.current_thread() is threading.main_thread():
    for s in SIGNALS:
      if signal.getsignal(s) is not signal.SIG_IGN:
        before[s] = signal.signal(s, handler)
  try:
    yield
  finally:
    for s, handler in before.items():
      signal.signal(s, handler)


def resumable(
  fresh: bool = False, before_end: Callable[[], None] | None = None
) -> contextlib.AbstractContextManager[None]:
  """Ends the process with SAVED at a signal while nothing is unsaved: before
  the run handles signals itself, as during imports, and after it.

  Args:
    fresh: the command has --fresh, with which it would begin again.
    before_end: called first, if given.
  """
  return on_signals(functools.partial(_end_resumable, fresh, before_end))


def _end_resumable(
  fresh: bool, before_end: Callable | None, signum: int, frame: Any
):
  del frame
  if before_end:
    before_end()
  name = signal.Signals(signum).name
  how = ', without --fresh if it has begun' if fresh else ''
  line = f'{name}: nothing is unsaved; start the same command to go on{how}.\n'
  # Not print: the signal may have interrupted one. The reader may be gone.
  with contextlib.suppress(OSError):
    os.write(2, line.encode())
  os._exit(SAVED)  # an import that is under way would catch SystemExit


def fail(error: BaseException | str):
  """Ends the process and prints one line, the last. Later warnings are dropped,
  for example about coroutines that a failed save created and never started.
  """
  text = ' '.join(str(error).split())
  print(f'error: {text}', file=sys.stderr, flush=True)
  ended.set()
  warnings.simplefilter('ignore')
  sys.exit(1)
