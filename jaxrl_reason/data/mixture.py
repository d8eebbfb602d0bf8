"""Several sources as one: `data.sources`.

  data.sources = {
    'short': dict(knobs=dict(max_ops=2), weight=2.0, difficulty=1),
    'words': dict(name='gsm8k', difficulty=2),
  }

A source's keys are those of the `data` section that say what is asked (KEYS),
and its own (OWN); what it does not say is the section's. Every example says the
number of its source (`source`), its name (`domain`, by which parts of rewards
are routed) and what verifies it (`verifier`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from jaxrl_reason.data import pipeline

KEYS = ('name', 'dir', 'files', 'knobs', 'harder', 'template', 'system')
OWN = {
  'weight': 1.0,  # share of the draws, in any unit; or a schedule over steps
  'difficulty': None,  # of its problems, in any unit; None: each one's own
  'reward': None,  # what verifies its answers; None: what does for its data
  'supervised': True,  # whether supervised stages are trained on it too
}


def own(data: ml_collections.ConfigDict, key: str) -> list:
  """Gives a key of OWN of every source; of one, where there are none."""
  given = [source.to_dict() for source in data.sources.values()] or [{}]
  return [source.get(key, OWN[key]) for source in given]


def sections(data: ml_collections.ConfigDict) -> dict[str, Any]:
  """Gives each source's `data` section, by name."""
  out = {}
  for name, given in data.sources.items():
    section = ml_collections.ConfigDict(data.to_dict() | {'sources': {}})
    changes = {k: v for k, v in given.to_dict().items() if k in KEYS}
    for key in ('knobs', 'harder'):
      # Another task has other knobs.
      same = changes.get('name', data.name) == data.name
      old = data[key].to_dict() if same else {}
      section[key] = ml_collections.ConfigDict(old | changes.pop(key, {}))
    section.files.update(changes.pop('files', {}))
    section.update(changes)
    out[name] = section
  return out


def names_and_weights(
  data: ml_collections.ConfigDict,
) -> tuple[tuple[str, ...], tuple]:
  """Gives the names of the sources and their weights, numbers or (at, values);
  a section without sources is one.
  """
  names = tuple(data.sources) or (data.name,)
  return names, tuple(map(_weight, own(data, 'weight')))


def _weight(weight) -> float | tuple:
  if isinstance(weight, Mapping):
    return tuple(weight['at']), tuple(weight['values'])
  return float(weight)


@dataclasses.dataclass(frozen=True)
class Routes:
  """Which device kernel verifies the answers of each source.

  Attributes:
    kernels: names; examples: a problem of each source.
  """

  kernels: tuple[str, ...]
  examples: tuple[dict, ...]


class Labelled:
  """Problems that say which source they are of."""

  def __init__(self, source, number: int, name: str, verifier: str):
    self._source = source
    self._label = {'source': number, 'domain': name, 'verifier': verifier}

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> dict:
    return self._source[index] | self._label


class OneAfterAnother:
  """The problems of several sources; of an endless one the first `window`."""

  def __init__(self, sources: Sequence, window: int, number: int = 0):
    """Args: number: of the window, from 0."""
    self._sources, self._window = sources, window
    self.endless = tuple(len(s) >= pipeline.ENDLESS for s in sources)
    at = range(number * window, (number + 1) * window)
    self._parts = [
      pipeline.Subset(source, at) if endless else source
      for source, endless in zip(sources, self.endless)
    ]

  def moved(self, number: int) -> 'OneAfterAnother':
    """Gives the same with another window."""
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
  """The problems of several sources, one of each in turn: for evaluations, of
  as many problems as the smallest has.
  """

  def __init__(self, sources: Sequence):
    self._parts = sources

  def __len__(self) -> int:
    return len(self._parts) * min(map(len, self._parts))

  def __getitem__(self, index: int) -> dict:
    turn, number = divmod(int(index), len(self._parts))
    return self._parts[number][turn]
