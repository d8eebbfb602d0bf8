"""Suggestions for unknown names and for missing packages."""

import difflib
import os
import pathlib
import re
from collections.abc import Iterable, Sequence

HUB = 'hf:'
HUB_NAME = re.compile(r'([\w.-]+)/[\w.-]+')  # owner/name
# First folders and last letters of paths of this machine; not ".5-7B".
LOCAL = (
  '.', '..', 'runs', 'evals', 'studies', 'configs', 'out', 'output', 'outputs',
  'model', 'models', 'checkpoints', 'ckpts', 'data', 'exp', 'experiments',
  'results', 'logs', 'tmp',
)  # fmt: skip
FILE = re.compile(r'\.[a-z]\w*$')

# Keys of this library by former names, and by the names of other libraries.
ALIASES = {
  'batch_size': 'prompts',
  'beta': 'kl_coef',
  'gradient_accumulation_steps': 'micro_batches',
  'group_size': 'samples',
  'heat': 'temperature_control',
  'learning_rate': 'lr',
  'max_completion_length': 'completion_len',
  'max_grad_norm': 'clip_norm',
  'max_prompt_length': 'prompt_len',
  'max_steps': 'steps',
  'num_generations': 'samples',
  'preset': 'algorithm',
}
# Unknown path -> the path that is suggested in its place.
PATHS = dict.fromkeys(('reward', 'rl.reward'), 'rl.rewards.answer.reward')
PATHS |= dict.fromkeys(('loss', 'rl.loss'), 'rl.algorithm')


def program() -> str:
  """Returns the program that the user started: tools/run, or jaxrl."""
  return os.environ.get('JAXRL_PROGRAM', 'jaxrl')


def hub_hint(text: str) -> str:
  """Returns ' Did you mean ...?' for the form owner/name of the Hub, or ''.

  A text whose first folder exists is a path.
  """
  found = HUB_NAME.fullmatch(text)
  if not found or found[1] in LOCAL or FILE.search(text):
    return ''
  is_path = pathlib.Path(found[1]).is_dir()
  return '' if is_path else f' Did you mean {HUB + text!r}?'


def closest(word: object, known: Iterable[str], least: float = 0.5) -> str:
  """Returns the known name most like a word, or ''.

  Upper and lower case count as the same.

  Args:
    least: similarity of a name, 0 to 1, as `difflib` computes it.
  """
  names = {name.lower(): name for name in known if name}
  word = str(word).lower()
  close = difflib.get_close_matches(ALIASES.get(word, word), names, 1, least)
  return names[close[0]] if close else ''


def nearest(word: object, known: Iterable[str]) -> str:
  """Returns ' Did you mean ...?' with the name of `closest`, or ''."""
  name = closest(word, known)
  return f' Did you mean {name!r}?' if name else ''


def choice(key: str, value: object, known: Iterable[str]) -> str:
  """Returns the error message for a value that is not a known name."""
  known = [name for name in known if name]
  words = ' or '.join(known)
  if len(known) > 2:
    words = f'one of {", ".join(known)}'
  return f'{key}={value!r}: choose {words}.{nearest(value, known)}'


def sized_choice(key: str, value: str, kinds: Sequence[str]) -> tuple[str, int]:
  """Parses 'whole', or one of the kinds with its size, 'kind:size'.

  Args:
    key: the configuration key, for the error message.

  Returns:
    (kind, size); ('whole', 1).

  Raises:
    ValueError: names the key and its allowed values.
  """
  kind, _, size = value.partition(':')
  if value == 'whole':
    return value, 1
  if kind not in kinds or not size.isdecimal() or not int(size):
    choices = ' or '.join(f'{kind}:N' for kind in kinds)
    raise ValueError(
      f'{key}={value!r}: choose whole, {choices}; N is at least 1.'
      f'{nearest(kind, ("whole", *kinds))}'
    )
  return kind, int(size)


def closest_path(path: str, known: Iterable[str]) -> str:
  """Returns the dotted path most like a path, or ''.

  Paths with the same or nearly the same last name come first: rl.lr and rl.lrr
  are rl.optimizer.lr.
  """
  if path in PATHS:
    return PATHS[path]
  outer, dot, last = path.lower().rpartition('.')
  last = ALIASES.get(last, last)
  known = [*known]
  wanted = f'{outer}{dot}{last}'
  ends = [k.lower().rpartition('.')[2] for k in known]
  end = difflib.get_close_matches(last, ends, 1, 0.75)
  same = [k for k, x in zip(known, ends) if x in end]
  close = difflib.get_close_matches(wanted, same, 1, 0.0)
  return close[0] if close else closest(wanted, known)


def nearest_path(path: str, known: Iterable[str]) -> str:
  """Returns ' Did you mean ...?' with the path of `closest_path`, or ''."""
  found = closest_path(path, known)
  return f' Did you mean {found!r}?' if found else ''


def install(extra: str) -> str:
  """Returns the command that installs an extra: in a clone, if tools/run
  started this process, or else by pip.
  """
  if program := os.environ.get('JAXRL_PROGRAM'):
    return f'JAXRL_EXTRAS={extra} {program} ...'
  return f'pip install "jaxrl_reason[{extra}]"'
