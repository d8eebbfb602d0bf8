"""Archives of solutions between the stages of a run: archive/<stage>.jsonl, a
line per problem with its solutions, shortest first.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import files
from jaxrl_reason.data.problems import Problems
from jaxrl_reason.rollouts import archive
from jaxrl_reason.run.rl import problem_pool
from jaxrl_reason.run.stage_list import Planned


def _path(workdir: epath.Path, stage: str) -> epath.Path:
  return workdir / 'archive' / f'{stage.replace("#", "-")}.jsonl'


def write(
  workdir: epath.Path, p: Planned, state: TrainState, tokenizer: Any
) -> None:
  """Writes the archive of a stage."""
  known = state.control[archive.CONTROL]
  tokens, length = np.asarray(known['tokens']), np.asarray(known['length'])
  lines = []
  for i in np.flatnonzero(length.any(axis=1)):
    texts = [
      tokenizer.decode(row[:n].tolist())
      for row, n in zip(tokens[i], length[i])
      if n
    ]
    # Different tokens may have the same text.
    texts = list(dict.fromkeys(texts))
    lines.append(json.dumps({'problem': int(i), 'solutions': texts}) + '\n')
  path = _path(workdir, p.name)
  path.parent.mkdir(exist_ok=True)
  files.write_whole(path, ''.join(lines))


def _read(workdir: epath.Path, p: Planned) -> dict[int, list[str]]:
  path, name = _path(workdir, p.config.data.solutions), p.config.data.solutions
  if not path.exists():
    raise ValueError(
      f'named.{p.name}.data.solutions={name!r}: there is no {path}; that stage '
      'writes it at its end'
    )
  try:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = {row['problem']: row['solutions'] for row in rows}
  except (ValueError, TypeError, KeyError, RecursionError) as e:
    raise ValueError(
      f'{path} is damaged ({e!s:.80}): restore it, or move the checkpoints '
      f'since the end of stage {name!r} away, so that it is written again'
    ) from e
  if not found:
    raise ValueError(
      f'named.{p.name}.data.solutions={name!r}: that stage has solved no '
      'problem, so that there is nothing to learn from'
    )
  return found


class Solved:
  """Examples of an archive, one per solution."""

  def __init__(self, source: Sequence, found: Mapping[int, list[str]]):
    self._source = source
    self._rows = [(i, text) for i, texts in found.items() for text in texts]

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, index: int) -> dict:
    i, text = self._rows[int(index)]
    return _with(self._source[i], text)


class WithSolutions:
  """All problems, with the shortest solution of the archive if there is one."""

  def __init__(self, source: Sequence, found: Mapping[int, list[str]]):
    self._source, self._found = source, found

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict:
    texts = self._found.get(int(index))
    example = self._source[index]
    return _with(example, texts[0]) if texts else example


def _with(example: dict, solution: str) -> dict:
  kept = {k: v for k, v in example.items() if k != 'turns'}
  return kept | {'solution': solution}


def applied(p: Planned, problems: Problems, workdir: epath.Path) -> Problems:
  """Returns a stage's problems, with the solutions of the archive that it
  names.

  Raises:
    ValueError: names the key; the archive does not exist or is empty.
  """
  with hosts.zero_first():
    found = _read(workdir, p)
  asked = problem_pool.pool_of(p.config.data, problems.train)
  return dataclasses.replace(
    problems, train=WithSolutions(asked, found), supervised=Solved(asked, found)
  )
