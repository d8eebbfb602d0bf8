"""Reads rollouts on disk once: statistics of each step's answers, and blocks of
answers for the page.
"""

import base64
import dataclasses
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from etils import epath

from jaxrl_reason.reports import metrics_file, signs, workdirs
from jaxrl_reason.reports.signs import is_right
from jaxrl_reason.reports.workdirs import Run

TEXT_ROWS, TOKEN_ROWS = 2000, 100  # of a block
QUANTILES = (10, 50, 90)
SHORT = 160  # characters of a completion in a list


@dataclasses.dataclass
class Step:
  """The statistics of a step's rollouts.

  Attributes:
    parts: mean of each reward part.
    lengths: (of correct answers, of incorrect answers), tokens; None if there
      are none.
    entropy: quantiles of the tokens', nats.
    spread: standard deviation of the advantages.
    signs: share of answers with each sign, as `signs.shares`.
  """

  step: int
  score: float
  parts: dict[str, float]
  lengths: tuple[float | None, float | None]
  entropy: list[float]
  spread: float
  signs: dict[str, float]


def _mean(values: Iterable[float]) -> float | None:
  values = [*values]
  return float(np.mean(values)) if values else None


def _of_step(step: int, rows: list[dict]) -> Step:
  """Summarises the records of one step."""
  parts = defaultdict(list)
  judged = [row for row in rows if not signs.has_failed(row)]
  for row in judged:
    for name, value in ((row.get('verdict') or {}).get('parts') or {}).items():
      if value is not None:
        parts[name].append(value)
  split = [
    _mean(r['length'] for r in judged if is_right(r) == right)
    for right in (True, False)
  ]
  entropies = [x for r in rows for x in _tokens(r, 'entropy') if x is not None]
  return Step(
    step,
    _mean(map(is_right, rows)) or 0.0,
    {name: float(np.mean(values)) for name, values in parts.items()},
    (split[0], split[1]),
    np.percentile(entropies, QUANTILES).tolist() if entropies else [],
    float(np.std([r.get('advantage') or 0.0 for r in rows])),
    signs.shares(rows),
  )


def _tokens(row: dict, name: str) -> list[float]:
  """Returns the fields of a row's sampled tokens."""
  told = row.get('tokens') or {}
  values = told.get(name, [])
  own = told.get('sampled')
  return [v for v, s in zip(values, own) if s] if own else values


class Uncertain:
  """Counts the tokens with the largest sums of entropy."""

  def __init__(self):
    self._sums = defaultdict(lambda: [0, 0.0])

  def add(self, row: dict) -> None:
    """Counts a record's tokens."""
    for text, nats in zip(_tokens(row, 'text'), _tokens(row, 'entropy')):
      if nats is not None:
        seen = self._sums[text]
        seen[0] += 1
        seen[1] += nats

  def include(self, other: 'Uncertain') -> None:
    """Counts the tokens that another has counted."""
    for text, (count, nats) in other._sums.items():
      seen = self._sums[text]
      seen[0] += count
      seen[1] += nats

  def top(self, n: int = 15) -> list[tuple[str, int, float, float]]:
    """Returns (text, count, mean in nats, share of all entropy), with the
    largest shares first.
    """
    whole = sum(total for _, total in self._sums.values()) or 1.0
    ranked = sorted(self._sums.items(), key=lambda x: -x[1][1])[:n]
    return [(t, c, total / c, total / whole) for t, (c, total) in ranked]


COLUMNS = (
  'run', 'step', 'problem', 'sample', 'right', 'score', 'status', 'length',
  'truncated', 'reward', 'advantage', 'entropy',
)  # fmt: skip


class Blocks:
  """Records packed for a page, in the order in which they are added: numbers by
  column, texts and tokens in compressed blocks that the page opens on demand.
  """

  def __init__(self):
    self.columns = {name: [] for name in COLUMNS}
    self._full: dict[str, list[str]] = {'texts': [], 'tokens': []}
    self._texts, self._tokens = [], []
    self._problems: dict[str, int] = {}  # numbers of their texts

  def add(self, run: int, row: dict) -> None:
    """Adds a record of the run with this number."""
    verdict = row.get('verdict') or {}
    known = row | {'run': run, 'right': int(is_right(row))}
    known |= {'score': verdict.get('score'), 'status': verdict.get('status')}
    # Data sets number their problems alike, so the text is the identity.
    text = row.get('prompt') or str(row['problem'])
    known['problem'] = self._problems.setdefault(text, len(self._problems))
    for name, column in self.columns.items():
      column.append(known.get(name))
    self._texts.append(
      {
        'prompt': row.get('prompt', ''),
        'answer': row.get('answer'),
        'completion': row.get('completion', ''),
        'conversation': row.get('conversation'),
        'extracted': verdict.get('extracted'),
        'detail': verdict.get('detail'),
        'parts': verdict.get('parts'),
      }
    )
    self._tokens.append(row.get('tokens') or {})
    if len(self._texts) == TEXT_ROWS:
      self._put('texts', self._texts)
    if len(self._tokens) == TOKEN_ROWS:
      self._put('tokens', self._tokens)

  def sizes(self) -> dict[str, int]:
    """Returns the index of the blocks for the page."""
    sizes = {'textRows': TEXT_ROWS, 'tokenRows': TOKEN_ROWS}
    return sizes | {'rows': len(self.columns['run'])}

  def named(self) -> dict[str, str]:
    """Returns all blocks by their names in the page: texts-0, tokens-0, ..."""
    begun = {'texts': self._texts, 'tokens': self._tokens}
    return {
      f'{kind}-{i}': block
      for kind, rows in begun.items()
      for i, block in enumerate(
        [*self._full[kind], *([packed(rows)] if rows else [])]
      )
    }

  def _put(self, kind: str, rows: list) -> None:
    self._full[kind].append(packed(rows))
    rows.clear()


def packed(tree) -> str:
  """Packs JSON, compressed, as text."""
  text = json.dumps(tree, ensure_ascii=False, separators=(',', ':'))
  # Level 1: the size of numbers hardly depends on it, and it takes a third of
  # the time.
  data = gzip.compress(text.encode('utf-8', 'replace'), 1)  # lone surrogates
  return base64.b64encode(data).decode()


def records(path: epath.Path) -> list[dict]:
  """Returns the records of a file of rollouts."""
  found = map(workdirs.finite, metrics_file.lines(path))
  return [row for row in found if is_record(row)]


KINDS = {'completion': str, 'problem': int, 'sample': int, 'length': int}
KINDS_IF_ANY = {'verdict': dict, 'tokens': dict, 'conversation': list}


def is_record(row: dict) -> bool:
  """Returns whether a line is an answer."""
  return all(isinstance(row.get(k), kind) for k, kind in KINDS.items()) and all(
    isinstance(row.get(k) or kind(), kind) for k, kind in KINDS_IF_ANY.items()
  )


@dataclasses.dataclass
class Answers:
  """The rollouts of a run.

  Attributes:
    steps: one by one.
    top: the tokens with the largest share of entropy in the last third.
    support: (step, problems solved for the first time, lost again).
    worst: the record with the lowest reward of the last step.
  """

  steps: list[Step]
  top: list[tuple]
  support: list[tuple[int, int, int]]
  worst: dict | None = None


class Reader:
  """Reads the rollouts of a run into blocks, each file once.

  Attributes:
    unread: number of files that the last call left to the next one.
  """

  def __init__(self, number: int, blocks: Blocks):
    """Args:
    number: of the run among those of the page.
    """
    self._number, self._blocks, self.unread = number, blocks, 0
    self._seen: set[int] = set()
    self._uncertain: dict[int, Uncertain] = {}  # of the late steps
    self._support = Support()
    self._answers = Answers([], [], [])

  def read(self, run: Run, limit: float = math.inf) -> Answers:
    """Reads the files that are new since the last call.

    Args:
      limit: tokens after which the other files are left to the next call.
    """
    steps, self.unread = [int(path.stem) for path in run.rollouts], 0
    late = {*steps[len(steps) * 2 // 3 :]}
    for step, path in zip(steps, run.rollouts):
      if step in self._seen:
        continue
      if limit <= 0:
        self.unread += 1
      elif rows := records(path):
        self._seen.add(step)
        self._add(step, rows, late=step in late)
        limit -= sum(row['length'] for row in rows)
    uncertain = Uncertain()
    # A growing run has files that were late when they were read.
    for step in sorted(late & self._uncertain.keys()):
      uncertain.include(self._uncertain[step])
    self._answers.top = uncertain.top()
    return self._answers

  def _add(self, step: int, rows: list[dict], *, late: bool) -> None:
    """Adds the records of a step."""
    found = self._answers
    found.steps.append(_of_step(step, rows))
    found.support.append((step, *self._support.add(rows)))
    found.worst = min(rows, key=lambda row: row.get('reward') or 0.0)
    if late:
      self._uncertain[step] = Uncertain()
    for row in rows:
      self._blocks.add(self._number, row)
      if late:
        self._uncertain[step].add(row)


class Support:
  """Records for training problems whether their last visit had a correct
  answer.
  """

  def __init__(self):
    self._solved: dict[int, bool] = {}

  def add(self, rows: list[dict]) -> tuple[int, int]:
    """Counts the problems that a step solves for the first time, and the lost
    problems: solved at their last visit, and not now.
    """
    first = lost = 0
    now: dict[int, bool] = {}
    for row in rows:
      number = row['problem']
      now[number] = now.get(number, False) or is_right(row)
    for number, solved in now.items():
      first += solved and number not in self._solved
      lost += not solved and self._solved.get(number, False)
      if solved or number in self._solved:
        self._solved[number] = solved
    return first, lost
