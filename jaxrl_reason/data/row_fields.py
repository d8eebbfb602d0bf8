"""Fields of rows: what a dotted name refers to, and names guessed from rows."""

from collections.abc import Iterable, Mapping

from absl import logging
from etils import epath

from jaxrl_reason.data.row_index import rows
from jaxrl_reason.verifiers.fields import text_of as text_of

# An answer of several lines must mark the part that is the answer.
MARKS = ('\\boxed', '####')
# Names that fields have in published data sets, in the order of preference.
USUAL = {
  'question': (
    'question', 'problem', 'prompt', 'query', 'instruction', 'input',
    'prompt.{user}.content', 'messages.{user}.content',
  ),
  'answer': (
    'answer', 'final_answer', 'ground_truth', 'reward_model.ground_truth',
    'expected_answer', 'gold', 'target', 'label', 'output', 'solution',
    'response',
  ),
}  # fmt: skip


def inside(row, path: str):
  """Returns row[a][b] of 'a.b', or None; numbers are positions in lists."""
  for key in path.split('.'):
    if isinstance(row, Mapping):
      row = row.get(key)
    elif isinstance(row, list) and key.isdigit() and int(key) < len(row):
      row = row[int(key)]
    else:
      return None
  return row


def guessed(
  paths: Iterable[epath.Path], fields: Mapping[str, str]
) -> dict[str, str]:
  """Returns the names of fields; question and answer are guessed from the first
  row if they are empty.
  """
  first = next((row for path in paths for _, row in rows(path)), None)
  row = first if isinstance(first, Mapping) else {}
  guess = {key: usual_name(row, key) for key in USUAL if not fields[key]}
  if any(key != name for key, name in guess.items()):
    logging.warning(
      '%s: guessed %s from its first row.',
      ', '.join(map(str, paths)),
      ', '.join(f'data.files.{k}={v!r}' for k, v in guess.items()),
    )
  return {**fields, **guess}


def usual_name(row: Mapping, key: str) -> str:
  """Returns the name of the field of a row that is its question or answer; the
  key itself, if no field has a usual name.

  Upper and lower case count as the same.
  """
  own = {str(name).lower(): str(name) for name in row}
  for usual in USUAL[key]:
    first, dot, rest = usual.partition('.')
    first = own.get(first, first)
    rest = rest.format(user=_first_of_user(row.get(first)))
    name = f'{first}{dot}{rest}'
    text = text_of(inside(row, name))
    several_lines = key == 'answer' and '\n' in (text or '').strip()
    if text and not (several_lines and not any(m in text for m in MARKS)):
      return name
  return key


def _first_of_user(messages) -> int:
  """Returns the position of the user's first message; 0: there is none."""
  messages = messages if isinstance(messages, list) else []
  roles = [inside(message, 'role') for message in messages]
  return roles.index('user') if 'user' in roles else 0
