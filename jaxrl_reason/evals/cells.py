"""The answers of one model to one suite: a file of records that can be resumed.

  OUT/answers/<model>--<suite>--<prompt>--t<temperature>.jsonl    the records
  the same with .json                                 their settings

Blocks of problems are written in order, so the number of records is the
position to resume from. The same command then samples the other answers as an
uninterrupted one.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from etils import epath

from jaxrl_reason import hosts
from jaxrl_reason.evals import grown
from jaxrl_reason.evals import sampled_answers as answers
from jaxrl_reason.verifiers import records

# Settings that files of earlier versions lack, and that are not compared there.
ADDED = (
  'version', 'base_version', 'judge_version', 'chat_template', 'timeout_s',
  'verifier', 'solved',
)  # fmt: skip
LONGEST = 60  # characters of a part of a file's name


def slug(text: str) -> str:
  """Returns a text as part of a file's name; long texts end in a hash."""
  name = re.sub(r'[^\w.=@+-]+', '_', text).strip('_')
  if len(name) <= LONGEST:
    return name
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  return f'{name[: LONGEST // 2]}..{name[9 - LONGEST // 2 :]}-{digest}'


@dataclasses.dataclass(frozen=True)
class Cell:
  """Attributes:
  path: of the records; samples: their numbers, of every problem.
  settings: all settings that the answers depend on, as JSON values.
  """

  path: epath.Path
  problems: int
  samples: range
  settings: dict[str, Any]

  def begin(self) -> int:
    """Returns the number of existing records, the same on every process; writes
    the settings of a new file.

    Raises:
      ValueError: the file was begun with other settings.
    """
    done = hosts.gather(self._begin() if hosts.is_main() else 0)
    if isinstance(done[0], str):
      raise ValueError(done[0])
    return done[0]

  def _begin(self) -> int | str:
    """The number of records, or why there can be none."""
    try:
      now = self.settings
      earlier = {k: now[k] for k in ADDED if k in now}
      records.note(self.path, now, earlier)
    except ValueError as e:
      return str(e)
    try:
      done = len(self.rows())
    except ValueError as e:
      return f'{e}; remove the file to begin it again'
    grown.cut_torn(self.path)
    if done == self.total:
      grown.finish(self.path)
    return done

  @property
  def total(self) -> int:
    return self.problems * len(self.samples)

  def rows(self) -> list[dict]:
    """Returns the records, on process 0; [] on others.

    Raises:
      ValueError: they are not the records of the problems in order, with
        verdicts: two commands wrote at once, or the file was edited.
    """
    rows = grown.read(self.path) if hosts.is_main() else []
    for i, row in enumerate(rows):
      row.pop('top', None)  # large, and no result reads it
      want = i // len(self.samples), self.samples[i % len(self.samples)]
      if (row.get('problem'), row.get('sample')) != want or i >= self.total:
        raise ValueError(
          f'{self.path}:{i + 1} is not sample {want[1]} of problem {want[0]}: '
          'two commands wrote it, or it was changed'
        )
      records.verdict_of(row, f'{self.path}:{i + 1}')
    return rows

  def fill(
    self,
    sampler: answers.AnswerSampler,
    asked: answers.EvalSet,
    grid: answers.Grid,
    done: int,
    tell: Callable[[int], Any],
  ) -> None:
    """Samples and writes the remaining answers.

    Args:
      done: number of existing records.
      tell: called with the number of records of each block.
    """
    first = done // len(self.samples)
    skip = done % len(self.samples)
    for rows in _rest(sampler.blocks(asked, grid, first), skip):
      if hosts.is_main():
        grown.add(self.path, done, rows)
      done += len(rows)
      tell(len(rows))
    if hosts.is_main():
      grown.finish(self.path)


def _rest(blocks: Iterator[list[dict]], skip: int) -> Iterator[list[dict]]:
  """Yields blocks without the existing records."""
  for rows in blocks:
    yield rows[skip:]
    skip = 0
