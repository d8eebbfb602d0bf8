"""Several sources as one pool: `data.sources`.

  sources = {'short': dict(name='arithmetic', knobs=..., weight=1.0), ...}

A source's keys are those of the `data` section that say what is asked (KEYS);
what it does not say is the section's own. Every example says the number of its
source (`source`), its name (`domain`) and what verifies it (`verifier`).
"""

from collections.abc import Mapping, Sequence

import ml_collections

from jaxrl_reason.data import pipeline

# Of the `data` section, and of a source alone.
KEYS = ('name', 'dir', 'files', 'knobs', 'harder', 'template', 'system')
OWN = {'weight': 1.0, 'difficulty': None}


def complete(given: Mapping) -> dict:
  """A source's own keys with the defaults of those it does not set."""
  return OWN | dict(given)


def sections(data: ml_collections.ConfigDict) -> dict:
  """Gives each source's `data` section, by name."""
  out = {}
  for name, given in data.sources.items():
    section = ml_collections.ConfigDict(data.to_dict())
    section.sources = {}
    changes = {k: v for k, v in given.to_dict().items() if k in KEYS}
    for key in ('knobs', 'harder'):
      if 'name' in changes or key in changes:
        section[key] = changes.pop(key, {})
    section.files.update(changes.pop('files', {}))
    section.update(changes)
    out[name] = section
  return out


def names_and_weights(data: ml_collections.ConfigDict) -> tuple:
  """Gives the names of the sources and their weights, numbers or (at, values);
  a section without sources is one.
  """
  if not data.sources:
    return (data.name,), (1.0,)
  weights = [complete(s)['weight'] for s in data.sources.values()]
  return tuple(data.sources), tuple(map(_weight, weights))


def _weight(weight) -> float | tuple:
  if isinstance(weight, int | float):
    return float(weight)
  return tuple(weight['at']), tuple(weight['values'])


class Mixed:
  """The problems of several sources, one after the other; of an endless one
  the first `window`.
  """

  def __init__(
    self,
    sources: Sequence,
    names: Sequence[str],
    rewards: Sequence[str],
    window: int,
  ):
    """Args: rewards: what verifies each source's answers."""
    self._parts, self._names, self._rewards = [], names, rewards
    for source in sources:
      endless = len(source) >= pipeline.ENDLESS
      part = pipeline.Subset(source, range(window)) if endless else source
      self._parts.append(part)

  def __len__(self) -> int:
    return sum(map(len, self._parts))

  def __getitem__(self, index: int) -> dict:
    left = int(index)
    for number, part in enumerate(self._parts):
      if left < len(part):
        return part[left] | {
          'source': number,
          'domain': self._names[number],
          'verifier': self._rewards[number],
        }
      left -= len(part)
    raise IndexError(f'problem {index} of {len(self)}')


class Turns:
  """The problems of several sources, one of each in turn, for evaluations."""

  def __init__(self, mixed: Sequence):
    """Args: mixed: a Mixed per source."""
    self._parts = mixed

  def __len__(self) -> int:
    return len(self._parts) * min(map(len, self._parts))

  def __getitem__(self, index: int) -> dict:
    turn, number = divmod(int(index), len(self._parts))
    return self._parts[number][turn]
