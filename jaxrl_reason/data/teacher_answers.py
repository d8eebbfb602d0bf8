"""Answers of a teacher, with its likeliest tokens at every token of them.

  {"prompt": "2+3=", "completion": "5", ...,
   "top": {"tokenizer": "0a3f...", "tokens": [7, 1], "k": 2,
           "ids": "BwAAAAEAAAA...", "logp": "AACAvw..."}}

`jaxrl evaluate --top_logprobs=K` writes these records, and `sft.teacher` names
their file. Of a completion of n tokens, `ids` is an array int32 [n,k] and
`logp` an array float32 [n,k+1] (`losses.likeliest`), both little-endian and in
base64.
"""

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from jaxrl_reason.config import Data
from jaxrl_reason.data import lengths, pipeline
from jaxrl_reason.data.preference_pairs import Pairs, name_of
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.data.row_fields import text_of
from jaxrl_reason.data.row_index import BadRow, key_of, opened, rows

KEY = 'sft.teacher'
FLAG = 'jaxrl evaluate --top_logprobs=K'
FIELDS = {'tokenizer': str, 'tokens': list, 'k': int, 'ids': str, 'logp': str}


def digest(tokenizer: Any) -> str:
  """Computes the digest of a tokenizer's tokens, sixteen hexadecimal digits."""
  out = hashlib.sha256()
  for token in tokenizer.token_bytes():
    out.update(repr(token).encode())
  return out.hexdigest()[:16]


def field(
  tokens: Sequence[int], ids: np.ndarray, logp: np.ndarray, tokenizer: str
) -> dict[str, Any]:
  """Returns the field `top` of a record.

  Args:
    tokens: of the completion, n.
    ids: i32 [n,k]; logp: f32 [n,k+1]; see `losses.likeliest`.
    tokenizer: its `digest`.
  """
  return {
    'tokenizer': tokenizer,
    'tokens': list(map(int, tokens)),
    'k': ids.shape[1],
    'ids': _text(ids, '<i4'),
    'logp': _text(logp, '<f4'),
  }


def _text(x: np.ndarray, dtype: str) -> str:
  return base64.b64encode(np.ascontiguousarray(x, dtype).tobytes()).decode()


def _array(text: str, dtype: str, n: int, width: int, name: str) -> np.ndarray:
  """Returns the array [n,width] of a text.

  Raises:
    BadRow: the text is no such array.
  """
  try:
    flat = np.frombuffer(base64.b64decode(text, validate=True), dtype)
  except (ValueError, binascii.Error) as e:
    raise BadRow(f"its 'top' has a damaged {name!r} ({e!s:.60})") from e
  if flat.size != n * width or not np.isfinite(flat).all():
    raise BadRow(
      f"its 'top' has {flat.size} numbers in {name!r}, and {n} tokens need "
      f'{width} finite numbers each'
    )
  return flat.reshape(n, width)


def arrays(top: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
  """Returns (ids i32 [n,k], logp f32 [n,k+1]) of the field `top`.

  Raises:
    BadRow: the field is damaged.
  """
  n, k = len(top['tokens']), top['k']
  ids = _array(top['ids'], '<i4', n, k, 'ids')
  return ids, _array(top['logp'], '<f4', n, k + 1, 'logp')


def load(
  path: str, d: Data, tokenizer, render: Callable[[str], str] | None
) -> Sequence:
  """Returns the records of a teacher; each fits its row of tokens.

  Args:
    path: a file, or the folder that an evaluation wrote.

  Raises:
    ValueError: the tokens are of another tokenizer; names the model. Or names
      file, row and field, or the answer that is too long.
    FileNotFoundError: names the key; there is no such file.
  """
  index = opened(_file(path), _keyed, {'fields': ','.join(FIELDS)})
  found, own = Pairs(index, index.place, render), digest(tokenizer)
  first = found[0]
  _refuse_other_tokens(path, first, own, tokenizer)
  if d.too_long == 'drop':

    def fits(row: dict) -> bool:
      prompt = len(pipeline.prompt_ids(row, tokenizer))
      n = len(row['top']['tokens'])
      return prompt <= d.prompt_len and n <= d.completion_len

    found = lengths.without_long(found, fits, d, path)
  encode = encoder(d, tokenizer)

  def check(i: int, row: dict) -> dict:
    _refuse_other_tokens(path, row, own, tokenizer)
    if row['top']['k'] != first['top']['k']:
      raise ValueError(
        f'its k is {row["top"]["k"]}, and {first["top"]["k"]} in the first row'
      )
    return encode(i, row)

  problems = Problems(found, (), None, None, '', None)
  lengths.check_encoded(problems, d, check)
  return found


def of_score(found: Sequence, least: float) -> Sequence:
  """Returns the records whose verdict has at least a score; 0: all records.

  Raises:
    ValueError: a record has no verdict, or no record has such a score.
  """
  if not least:
    return found
  scores = [row['score'] for row in found]
  if None in scores:
    raise ValueError(
      f'sft.least_score={least:g}: {found[scores.index(None)]["place"]} has no '
      'verdict: write it with `jaxrl grade`, or set sft.least_score=0'
    )
  kept = np.flatnonzero(np.array(scores) >= least)
  if not len(kept):
    raise ValueError(
      f'sft.least_score={least:g}: none of the {len(scores)} answers of '
      f'{KEY} has this score, the highest has {max(scores):g}'
    )
  return pipeline.Subset(found, kept)


def with_answers(
  problems: Problems, configs: Sequence, tokenizer, render
) -> Problems:
  """Returns the problems with the records of the stages' teachers.

  Args:
    configs: of the stages with `sft.teacher`.

  Raises:
    ValueError: also of `of_score`, before an earlier stage begins.
  """
  found = {
    name_of(c.sft, c.data): load(c.sft.teacher, c.data, tokenizer, render)
    for c in configs
  }
  for c in configs:
    of_score(found[name_of(c.sft, c.data)], c.sft.least_score)
  return dataclasses.replace(problems, pairs=problems.pairs | found)


def encoder(d: Data, tokenizer) -> Callable[[int, dict], dict]:
  """Returns a function from (index, record) to its row: tokens, valid, mask
  [T], and the likeliest tokens, top_ids i32 [T,k] and top_logp f32 [T,k+1].
  """

  def encode(i: int, row: dict) -> dict:
    ids, logp = arrays(row['top'])
    own = np.int32(row['top']['tokens'])
    if len(own) > d.completion_len:
      raise ValueError(
        f'the answer has {len(own)} tokens and data.completion_len is '
        f'{d.completion_len}. Raise it, or drop long ones with '
        'data.too_long="drop"'
      )
    prompt = pipeline.prompt_ids(row, tokenizer)
    prompt = pipeline.pad_prompt(prompt, d.prompt_len, f'answer {i}')

    def placed(x):
      room = (d.prompt_len, d.completion_len - len(x))
      return np.pad(x, (room,) + ((0, 0),) * (x.ndim - 1))

    tokens, mask = placed(own), placed(np.ones(len(own), bool))
    valid = mask.copy()
    tokens[: d.prompt_len] = prompt['tokens']
    valid[: d.prompt_len] = prompt['valid']
    row = {'tokens': tokens, 'valid': valid, 'mask': mask}
    return row | {'top_ids': placed(ids), 'top_logp': placed(logp)}

  return encode


def blank(path: str) -> dict:
  """Returns a record for shapes alone, with the k of the file's first row."""
  file = _file(path)
  for number, row in rows(file):
    try:
      k = _keyed(row)[0]['top']['k']
    except BadRow as e:
      raise BadRow(f'{file}, row {number}: {e}') from e
    top = field([0], np.zeros((1, k)), np.zeros((1, k + 1)), '')
    return {'prompt': '', 'top': top, 'score': 1.0}
  raise ValueError(f'{file} has no rows')


def _file(path: str) -> epath.Path:
  """Returns the file of a teacher's answers.

  Raises:
    FileNotFoundError: there is none.
    ValueError: a folder has several.
  """
  found = epath.Path(path)
  if found.is_dir():
    files = sorted((found / 'answers').glob('*.jsonl'))
    if len(files) > 1:
      names = ', '.join(file.name for file in files[:4])
      raise ValueError(f'{KEY}={path!r} has several files ({names}): name one')
    found = files[0] if files else found / 'answers'
  if not found.exists() or found.is_dir():
    raise FileNotFoundError(
      f'{KEY}={path!r}: there is no {found}; name a file that `{FLAG}` wrote, '
      'or its folder'
    )
  return found


def _refuse_other_tokens(path: str, row: dict, own: str, tokenizer) -> None:
  if row['top']['tokenizer'] != own:
    raise ValueError(
      f'{KEY}={path!r} has another tokenizer, that of its model '
      f'{row["model"]!r}; the policy has {tokenizer.vocab_size} tokens of its '
      'own. Write the answers with a model that has the tokenizer of the policy'
    )


def _keyed(row) -> tuple[dict, int]:
  """Returns the fields of a record that are trained on, and their key.

  Raises:
    BadRow: names the field.
  """
  if not isinstance(row, Mapping):
    raise BadRow('it is not a JSON object')
  prompt, top = text_of(row.get('prompt')), row.get('top')
  if prompt is None:
    raise BadRow(f"its 'prompt' is {row.get('prompt')!r:.80}: a text is needed")
  if not isinstance(top, Mapping):
    raise BadRow(f"it has no field 'top': write the file with `{FLAG}`")
  for name, kind in FIELDS.items():
    if not isinstance(top.get(name), kind):
      raise BadRow(f"its 'top' has no {name!r}: write the file with `{FLAG}`")
  if not top['tokens'] or any(type(x) is not int for x in top['tokens']):
    raise BadRow("its 'top' has no list of token ids in 'tokens'")
  arrays(top)
  found = {'prompt': prompt, 'top': dict(top), 'model': row.get('model', '')}
  verdict = row.get('verdict')
  found['score'] = verdict.get('score') if isinstance(verdict, dict) else None
  parts = (prompt, repr(top['tokens']), *map(str, top.values()))
  return found, key_of('\0'.join(parts))
