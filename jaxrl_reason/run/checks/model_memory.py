"""Memory that a model on the Hub needs, logged before its weights are
fetched.
"""

import math
import sys

import jax
from etils import epath

from jaxrl_reason import command
from jaxrl_reason.checkpoints import pretrained
from jaxrl_reason.models import families, spec, weights, zoo
from jaxrl_reason.run.process import chips

# Bytes per parameter, without activations and caches.
WAYS = {
  'every weight trained': 16,  # float32, its gradient, two moments of Adam
  "adapters (frozen_dtype='bfloat16')": 2,
  "adapters (frozen_dtype='int8')": 1,
}
ROOM = 0.7  # share of a chip's memory for it; the rest for activations
SHOWN = ('v5e', 'v6e', 'v5p')


def least(n_bytes: float, chip: str) -> int:
  """Computes the number of chips, a power of two, that can store n_bytes."""
  n = n_bytes / (ROOM * chips.CHIPS[chip].hbm)
  return 2 ** max(math.ceil(math.log2(n)), 0)


def line(name: str, h: dict) -> str:
  """Returns a line with the memory that the model of a config.json needs, and
  the number of chips.

  Raises:
    ValueError: the model cannot be read, with the reason.
  """
  c = families.from_hf(h)
  n = spec.n_params(weights.specs(c))
  parts = []
  for way, size in WAYS.items():
    where = ', '.join(f'{least(n * size, x)} of {x}' for x in SHOWN)
    parts.append(f'{way} {n * size / chips.GIB:,.0f} GiB ({where})')
  return (
    f'{name}: {h["model_type"]}, {n / 1e9:.1f} B parameters. Without '
    f'activations and caches: {"; ".join(parts)}. '
    f'{command.program()} plan computes all of it for a recipe and a topology.'
  )


def _published(name: str) -> dict | None:
  """Returns the config.json of a known published size with that name, or
  None.
  """
  size = name.rpartition('/')[2].partition('@')[0].lower()
  return families.to_hf(zoo.ZOO[size]) if size in zoo.ZOO else None


def tell(name: str, workdir) -> None:
  """Logs the memory needs of a model that a run is about to fetch from the Hub.

  Raises:
    ValueError: the model cannot be read; nothing is fetched.
  """
  begun = (epath.Path(workdir) / pretrained.HF_CONFIG).exists()
  if begun or not name.startswith(pretrained.HUB):
    return
  h, known = pretrained.first_look(name), _published(name)
  text = line(name, h or known) if h or known else ''
  if text and not h:
    text += ' (From the published config: the Hub cannot be reached.)'
  if text:
    if jax.process_index() == 0:
      print(text, file=sys.stderr, flush=True)
