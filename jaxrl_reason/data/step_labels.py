"""Solutions in steps, with a label for each step.

  {"prompt": "3-1+2=", "completions": ["2", "#4"], "labels": [true, true]}

They are read from a file of JSON lines or Parquet with the fields of TRL's
data sets for stepwise supervision, the format of PRM800K
(https://arxiv.org/abs/2305.20050) and Math-Shepherd
(https://arxiv.org/abs/2312.08935) there. In a row of tokens, the separator
follows each step but the last, which the stop token ends. The label of a step
belongs to the token after its text.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from etils import epath

from jaxrl_reason.config import Data
from jaxrl_reason.config.training import RewardModel
from jaxrl_reason.data import lengths, pipeline, token_bias
from jaxrl_reason.data.preference_pairs import Pairs, name_of
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.row_fields import text_of
from jaxrl_reason.data.row_index import BadRow, key_of, opened

KEY = 'reward_model.labels'
# A row for shapes alone.
BLANK = {'prompt': '', 'completions': [''], 'labels': [True]}


def load(
  c: RewardModel, d: Data, tokenizer, render: Callable[[str], str] | None
) -> Sequence:
  """Returns the rows of the file `c.labels`; each fits its row of tokens.

  Raises:
    ValueError: names file, row and field, or the solution that is too long.
    FileNotFoundError: names the key; there is no such file.
  """
  if not epath.Path(c.labels).exists():
    raise FileNotFoundError(
      f'{KEY}={c.labels!r} does not exist: name a file of rows with prompt, '
      'completions (a list of steps) and labels (a list of true and false)'
    )
  index = opened(c.labels, _keyed, {'fields': ','.join(BLANK)})
  found = Pairs(index, index.place, render)
  encode = encoder(c, d, tokenizer)
  if d.too_long == 'drop':
    fits = lengths.fits(d, tokenizer, d.completion_len)
    found = lengths.without_long(
      found, lambda row: fits(_example(row, c.separator)), d, c.labels
    )
  examples = _Examples(found, c.separator)
  problems = Problems(examples, (), None, None, '', None)
  lengths.check(problems, d, tokenizer, d.completion_len)
  lengths.check_encoded(problems, d, encode)
  return found


def with_labels(problems: Problems, configs, tokenizer, render) -> Problems:
  """Returns the problems with the rows of the stages that learn from labels.

  Args:
    configs: of the stages that learn from pairs, or from labels of steps.
  """
  found = {}
  for c in configs:
    own = c[c.stages[0]]
    if own.labels:
      found[name_of(own, c.data)] = load(own, c.data, tokenizer, render)
  return dataclasses.replace(problems, pairs=problems.pairs | found)


class _Examples(Sequence):
  """The rows as examples with their joined steps as the solution."""

  def __init__(self, rows: Sequence, separator: str):
    self._rows, self._separator = rows, separator

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, i: int) -> dict:
    return _example(self._rows[i], self._separator)


def _example(row: dict, separator: str) -> dict:
  solution = separator.join(row['completions'])
  return row | {'solution': solution, 'task': 'step labels'}


def separator_ids(text: str, tokenizer, key: str) -> list[int]:
  """Returns the tokens whose text is a separator.

  Raises:
    ValueError: names the key; the separator is not one token.
  """
  return token_bias.ids_of(text, tokenizer, key)


def step_ends(text: str, tokenizer, key: str) -> tuple[int, ...]:
  """Returns the tokens that end a step; () for the text ''.

  Raises:
    ValueError: names the key; the text is not one token.
  """
  return tuple(separator_ids(text, tokenizer, key)) if text else ()


def encoder(c: RewardModel, d: Data, tokenizer) -> Callable[[int, dict], dict]:
  """Returns a function from (index, row) to its tokens [1,T]: the mask is true
  at the last token of each step, where `step_label` has its label.
  """
  between = separator_ids(c.separator, tokenizer, 'reward_model.separator')

  def encode(i: int, row: dict) -> dict:
    example = _example(row, c.separator)
    lens = d.prompt_len, d.completion_len
    out = pipeline.solution_row(i, example, tokenizer, *lens)
    columns = np.arange(len(out['valid']))
    own = out['valid'] & (columns >= d.prompt_len)
    ends = own & np.isin(out['tokens'], between)
    ends[columns[own][-1]] = True
    labels = row['labels']
    if ends.sum() != len(labels):
      raise ValueError(
        f'the separator {c.separator!r} divides the tokens into {ends.sum()} '
        f'steps, and there are {len(labels)} labels: no step may contain it, '
        'and it must remain a token of its own between two steps'
      )
    label = np.zeros(len(columns), np.float32)
    label[ends] = labels
    out |= {'mask': ends, 'step_label': label}
    return {k: x[None] for k, x in out.items()}

  return encode


def _keyed(row) -> tuple[dict, int]:
  """Returns the fields of a row and their key.

  Raises:
    BadRow: names the field.
  """
  if not isinstance(row, Mapping):
    raise BadRow('it is not a JSON object')
  prompt = text_of(row.get('prompt'))
  if prompt is None:
    raise BadRow(f"its 'prompt' is {row.get('prompt')!r:.80}: a text is needed")
  steps = [*_list(row, 'completions')]
  if not steps or any(text_of(x) is None for x in steps):
    raise BadRow("its 'completions' must be a list of texts, a step each")
  labels = [*_list(row, 'labels')]
  if any(x not in (0, 1) for x in labels):
    raise BadRow("its 'labels' must be a list of true and false")
  if len(labels) != len(steps):
    raise BadRow(
      f'it has {len(steps)} steps in completions and {len(labels)} labels: a '
      'label is needed for each step'
    )
  found = {
    'prompt': prompt,
    'completions': [text_of(x) for x in steps],
    'labels': [bool(x) for x in labels],
  }
  return found, key_of('\0'.join([prompt, *found['completions']]))


def _list(row: Mapping, name: str) -> Sequence:
  value = row.get(name)
  if not isinstance(value, list):
    raise BadRow(f'its {name!r} is {value!r:.80}: a list is needed')
  return value
