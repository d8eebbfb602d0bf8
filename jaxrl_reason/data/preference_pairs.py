"""Pairs of a chosen and a rejected answer.

  {"prompt": "2 + 3 =", "chosen": "5", "rejected": "6"}

They are read from a file of JSON lines or Parquet with the fields of TRL's
preference data sets: a field is a text, or a list with one message {"role",
"content"}. Or they are made of the rollouts of another run, or of an earlier
stage: of every problem of every file, the completions with the highest and the
lowest reward.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from etils import epath

from jaxrl_reason import trees
from jaxrl_reason.config import Data
from jaxrl_reason.config.training import (
  OF_STAGE,
  Preference,
  RewardModel,
  Supervised,
)
from jaxrl_reason.data import lengths, pipeline
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.row_fields import text_of
from jaxrl_reason.data.row_index import BadRow, Index, key_of, opened, rows
from jaxrl_reason.verifiers.verdict import FAILED

FIELDS = 'prompt', 'chosen', 'rejected'
KINDS = 'preference', 'reward_model'  # of the stages that learn from pairs
Name = tuple[str, str, int]  # of rows: path, separator, completion_len


class Pairs(Sequence):
  """The pairs of a file, each read from the disk when it is used."""

  def __init__(
    self,
    rows: Index | Sequence[dict],
    place: Callable[[int], str],
    render: Callable[[str], str] | None,
  ):
    """Args:
    place: names the file and row of a pair.
    render: writes a prompt in the run's template; None: unchanged.
    """
    self._rows, self._place, self._render = rows, place, render

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, i: int) -> dict:
    pair = self._rows[i] | {'place': self._place(i)}
    if self._render is not None:
      pair['rendered'] = self._render(pair['prompt'])
    return pair


class _Answers(Sequence):
  """Every answer of the pairs as an example with it as the solution."""

  def __init__(self, pairs: Sequence):
    self._pairs = pairs

  def __len__(self) -> int:
    return 2 * len(self._pairs)

  def __getitem__(self, i: int) -> dict:
    return _example(self._pairs[i // 2], FIELDS[1 + i % 2])


def load(
  path: str,
  d: Data,
  tokenizer,
  render: Callable[[str], str] | None,
  key: str = 'preference.pairs',
  stage: str = '',
) -> Sequence:
  """Returns the pairs of a file or of a run's rollouts; each fits its row.

  Args:
    path: a file, or the workdir of a run.
    key: of the config, that names it.
    stage: of the run, whose rollouts are read; '': of every stage.

  Raises:
    ValueError: names file, row and field, or the answer that is too long.
    FileNotFoundError: names the key; there is no such file.
  """
  if not epath.Path(path).exists():
    raise FileNotFoundError(
      f'{key}={path!r} does not exist: name a file of rows with prompt, chosen '
      'and rejected, the workdir of a run with rollouts, or an rl stage before '
      'this one'
    )
  if epath.Path(path).is_dir():
    found = _of_rollouts(epath.Path(path), key, stage)
    pairs = Pairs(found, lambda i: found[i]['place'], render)
  else:
    index = opened(path, _keyed, {'fields': ','.join(FIELDS)})
    pairs = Pairs(index, index.place, render)
  if d.too_long == 'drop':
    fits = lengths.fits(d, tokenizer, d.completion_len)

    def both_fit(pair: dict) -> bool:
      return all(fits(_example(pair, name)) for name in FIELDS[1:])

    return lengths.without_long(pairs, both_fit, d, path)
  of_answers = Problems(_Answers(pairs), (), None, None, '', None)
  lengths.check(of_answers, d, tokenizer, d.completion_len)
  return pairs


def split(pairs: Sequence, n: int) -> tuple[Sequence, Sequence]:
  """Returns the pairs to train on, and n pairs of other problems, which a hash
  of the problem chooses.

  Raises:
    ValueError: there are too few pairs.
  """
  keys = [key_of(pair['prompt']) for pair in pairs]
  order = sorted(range(len(keys)), key=lambda i: (keys[i], i))
  last = keys[order[n - 1]] if n < len(order) else keys[order[-1]]
  train = [i for i in range(len(keys)) if keys[i] > last]
  if not train:
    raise ValueError(
      f'heldout={n}: of {len(keys)} pairs, none is left to train on; choose '
      'fewer, or name more pairs'
    )
  return pipeline.Subset(pairs, train), pipeline.Subset(pairs, order[:n])


def encoder(
  c: Preference | RewardModel, d: Data, pairs: Sequence, tokenizer
) -> Callable[[int, dict], dict]:
  """Returns a function from (index in pairs, pair) to rows [blocks,T], in the
  order of the blocks of `losses.PREFERENCES`.

  Args:
    pairs: those to train on, or the held-out ones; the mismatched answer of KTO
      is that of the next pair of another prompt.
  """

  def mismatched(i: int, prompt: str) -> str:
    later = (pairs[(i + j) % len(pairs)] for j in range(1, len(pairs)))
    for other in later:
      if other['prompt'] != prompt:
        return other['chosen']
    raise ValueError(
      "preference.loss='kto' compares answers of two prompts, and "
      f'{len(pairs)} pairs to train on, or held out, have one; name more pairs'
    )

  def encode(i: int, pair: dict) -> dict:
    examples = [_example(pair, name) for name in FIELDS[1:]]
    if c.loss == 'kto':
      other = mismatched(i, pair['prompt'])
      examples.append(examples[0] | {'solution': other})
    lens = d.prompt_len, d.completion_len
    return trees.stacked(
      [pipeline.solution_row(i, e, tokenizer, *lens) for e in examples]
    )

  return encode


def _of_rollouts(workdir: epath.Path, key: str, stage: str) -> list[dict]:
  """Returns pairs of completions of the same prompt and step.

  Completions that are empty or cut off, or whose verifier failed, are not
  used.

  Raises:
    ValueError: the run has no rollouts with different rewards, or a completion
      lacks tokens between those that were sampled.
  """
  groups = {}
  for file in sorted((workdir / 'rollouts').glob('*.jsonl')):
    for number, row in rows(file):
      failed = row['truncated'] or row['verdict']['status'] in FAILED
      other = stage and row['stage'] != stage
      if failed or other or text_of(row['completion']) is None:
        continue
      place = f'{file}, row {number}'
      if row.get('conversation'):
        raise ValueError(
          f'{key}={workdir}: {place} has a conversation, and its completion is '
          'only the tokens that the policy sampled: rollouts with turns or '
          'with hints that are learnt make no pairs'
        )
      # With rl.propose a problem has several prompts.
      name = row['step'], row['problem'], row['prompt']
      group = groups.setdefault(name, [])
      group.append(row | {'place': place})
  found = []
  for group in groups.values():
    best, worst = (f(group, key=_reward) for f in (max, min))
    answers = best['completion'], worst['completion']
    if best['reward'] > worst['reward'] and answers[0] != answers[1]:
      pair = _pair(dict(zip(FIELDS, (best['prompt'], *answers))))
      found.append(pair | {'place': best['place']})
  if not found:
    raise ValueError(
      f'{key}={workdir}: its rollouts/ has no problem with '
      'completions of different rewards'
    )
  return found


def _reward(row: dict) -> float:
  return row['reward']


def _keyed(row) -> tuple[dict[str, str], int]:
  """Returns the texts of a row and their key.

  Raises:
    BadRow: the row is invalid.
  """
  pair = _pair(row)
  return pair, key_of('\0'.join(pair.values()))


def _pair(row) -> dict[str, str]:
  """Returns the texts of a row.

  Raises:
    BadRow: names the field.
  """
  if not isinstance(row, Mapping):
    raise BadRow('it is not a JSON object')
  found = {name: _text(row.get(name), name) for name in FIELDS}
  if found['chosen'] == found['rejected']:
    raise BadRow('its chosen and rejected answers are equal; remove the row')
  return found


def _text(value, name: str) -> str:
  if isinstance(value, list):
    if len(value) != 1 or not isinstance(value[0], Mapping):
      raise BadRow(
        f'its {name!r} must be a text or a list with one message, and has '
        f'{len(value)}'
      )
    value = value[0].get('content')
  text = text_of(value)
  if text is None:
    raise BadRow(
      f'its {name!r} is {value!r:.80}: a row needs texts {", ".join(FIELDS)}; '
      'mend or remove it'
    )
  return text


def _example(pair: dict, name: str) -> dict:
  """Returns a pair as an example whose solution is one of its answers."""
  return pair | {'solution': pair[name], 'task': 'pairs'}


def name_of(c: Preference | RewardModel | Supervised, d: Data) -> Name:
  """Returns the name of a stage's rows in `Problems.pairs`: their path, and the
  settings of a stage by which rows are kept.
  """
  if isinstance(c, Supervised):
    return c.teacher, '', d.completion_len
  if c.labels:
    return c.labels, c.separator, d.completion_len
  return c.pairs, '', d.completion_len


def with_pairs(
  problems: Problems, configs, tokenizer, render, workdir: epath.Path
) -> Problems:
  """Returns the problems with the pairs of the stages that learn from pairs.

  The pairs of an earlier stage of the run do not exist yet: a function without
  arguments loads them (`of_earlier_stage`).

  Args:
    configs: of the stages that learn from pairs, or from labels of steps, which
      `step_labels` loads.
    workdir: of the run.
  """
  found = {}
  for c in configs:
    (kind,) = c.stages
    path, rest = c[kind].pairs, (c.data, tokenizer, render, f'{kind}.pairs')
    if c[kind].labels:
      continue
    if path.startswith(OF_STAGE):
      stage = path.removeprefix(OF_STAGE)
      rows_ = functools.partial(load, str(workdir), *rest, stage)
    else:
      rows_ = load(path, *rest)
    found[name_of(c[kind], c.data)] = rows_
  return dataclasses.replace(problems, pairs=found)


def of_earlier_stage(problems: Problems, name: Name) -> Problems:
  """Returns the problems after loading the pairs `name`, if they are those of
  an earlier stage.
  """
  pairs = problems.pairs[name]
  if not callable(pairs):
    return problems
  return dataclasses.replace(problems, pairs=problems.pairs | {name: pairs()})
