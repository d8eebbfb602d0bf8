"""Mixtures: several sources as one (`data.sources`).

  data.sources = {
    'short': dict(knobs=dict(max_ops=2), weight=2.0, difficulty=1),
    'words': dict(name='gsm8k', difficulty=2),
  }

A source has the keys of the `data` section that select problems (KEYS), with
the section's values as defaults, and keys of its own (SOURCE_KEYS). Every
example has the index of its source (`source`), its name (`domain`, which routes
parts of the reward) and its verifier (`verifier`).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from jaxrl_reason.config import Data, leaves
from jaxrl_reason.data import example_files, pipeline

KEYS = ('name', 'dir', 'files', 'knobs', 'harder', 'template', 'system')
SOURCE_KEYS = {
  'weight': 1.0,  # share of the draws, in any unit; or a schedule over steps
  'difficulty': None,  # of its problems, in any unit; None: of each example
  'reward': None,  # verifier of its answers; None: that of its data
  'supervised': True,  # whether supervised stages train on it too
}


def own(data: Data, key: str) -> list:
  """Returns a key of SOURCE_KEYS for every source; for one, if there are
  none.
  """
  sources = [*data.sources.values()] or [{}]
  return [source.get(key, SOURCE_KEYS[key]) for source in sources]


def sections(data: Data) -> dict[str, Data]:
  """Returns the `data` section of each source, by name."""
  out = {}
  for name, source in data.sources.items():
    changes = {k: v for k, v in source.items() if k in KEYS}
    for key in ('knobs', 'harder'):
      # Another task has other knobs.
      same = changes.get('name', data.name) == data.name
      changes[key] = (data[key] if same else {}) | changes.get(key, {})
    changes = leaves(changes, Data, f'data.sources.{name}.')
    out[name] = data.changed({'sources': {}} | changes)
  return out


def prompted(data: Data) -> list[Data]:
  """Returns the sections that prompts are rendered with: those of the sources,
  or the section itself without a mixture.
  """
  return [*sections(data).values()] or [data]


def uses_chat(data: Data) -> bool:
  """Returns whether prompts are in the chat template; of a mixture, the rules
  require the same of all sources.
  """
  return 'chat' in {c.template for c in prompted(data)}


def names_and_weights(data: Data) -> tuple[tuple[str, ...], tuple]:
  """Returns the names of the sources, and weights as numbers or (at, values).

  A section without sources is one source.
  """
  names = tuple(data.sources) or (data.name,)
  return names, tuple(map(_weight, own(data, 'weight')))


def _weight(weight) -> float | tuple:
  if isinstance(weight, Mapping):
    return tuple(weight['at']), tuple(weight['values'])
  return float(weight)


@dataclasses.dataclass(frozen=True)
class Routes:
  """Device kernels that verify the answers of each source.

  Attributes:
    kernels: names, by source.
    examples: a problem of each source.
  """

  kernels: tuple[str, ...]
  examples: tuple[dict, ...]


class Labelled:
  """Problems with labels of their source."""

  def __init__(self, source, number: int, name: str, verifier: str):
    self._source = source
    self._label = {'source': number, 'domain': name, 'verifier': verifier}

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict:
    return self._source[index] | self._label


def without_heldout(
  train: Mapping[str, Sequence], heldout: Sequence[Sequence]
) -> dict[str, Sequence]:
  """Returns the problems of each finite source that no source holds out.

  Args:
    train: finite problems by the name of their source.
    heldout: finite problems.

  Raises:
    ValueError: a source has no other problems.
  """
  held = np.concatenate([example_files.keys_of(source) for source in heldout])
  out = {}
  for name, source in train.items():
    kept = np.flatnonzero(~np.isin(example_files.keys_of(source), held))
    left_out = len(source) - len(kept)
    if not len(kept):
      raise ValueError(
        f'data.sources.{name}: another source holds out all of its '
        f'{left_out} questions; remove one of the two'
      )
    out[name] = pipeline.Subset(source, kept) if left_out else source
    if left_out:
      logging.warning(
        'data.sources.%s: left out %d questions that another source holds out.',
        name,
        left_out,
      )
  return out


class OneAfterAnother:
  """Concatenation of several sources; of an endless one, the `window`-th
  block.
  """

  def __init__(self, sources: Sequence, window: int, number: int = 0):
    """Args: number: index of the window, from 0."""
    self._sources, self._window = sources, window
    self.endless = tuple(len(s) >= pipeline.ENDLESS for s in sources)
    at = range(number * window, (number + 1) * window)
    self._parts = [
      pipeline.Subset(source, at) if endless else source
      for source, endless in zip(sources, self.endless)
    ]

  def moved(self, number: int) -> 'OneAfterAnother':
    """Returns the same sources with another window."""
    return OneAfterAnother(self._sources, self._window, number)

  def __len__(self) -> int:
    return sum(map(len, self._parts))

  def __getitem__(self, index: int) -> dict:
    left = int(index)
    for part in self._parts:
      if left < len(part):
        return part[left]
      left -= len(part)
    raise IndexError(f'problem {index} of {len(self)}')


class InTurns:
  """Problems of several sources, alternating, for evaluations; each source has
  as many as the smallest.
  """

  def __init__(self, sources: Sequence):
    self._parts = sources

  def __len__(self) -> int:
    return len(self._parts) * min(map(len, self._parts))

  def __getitem__(self, index: int) -> dict:
    turn, number = divmod(int(index), len(self._parts))
    return self._parts[number][turn]
