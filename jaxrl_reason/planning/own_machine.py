"""Settings of a recipe for the GPUs or the CPU of this machine.

Arithmetic gives the trained weights, the mesh and the settings of memory, as no
search compiles for these devices. Trials of two steps give the batch.
"""

import math
import pathlib
from collections.abc import Callable, Iterator

import jax

from jaxrl_reason import config as config_lib
from jaxrl_reason.planning import abstract, mesh_search, plan_settings
from jaxrl_reason.planning.recipe_draft import Draft
from jaxrl_reason.run.process import chips

LEAST, MOST = 2, 64  # prompts of a step
SECONDS = 60  # of a step; with more prompts than LEAST
SHORTER = (
  'Shorter: a lower --completion_len, or a lower number of '
  '--config.rl.samples or --config.rl.steps.'
)
UNTRIED = {'cpu': 8, 'gpu': 32}  # prompts of a step without a trial
OPEN = (-1, 1, 1)  # mesh of all devices that a run finds
Mesh = tuple[int, int, int]


def batch(
  draft: Draft, folder: pathlib.Path | None, trial: Callable | None, say
) -> None:
  """Adds the batch, and the settings with which it fits.

  Args:
    folder: with the config.json of the model; None: a small new model.
    trial: returns the seconds of a step of the draft; None: no trial.

  Raises:
    ValueError: the model does not fit, or the smallest batch failed.
  """
  n = jax.device_count()

  def fit(prompts: int) -> None:
    draft.set('rl', prompts=prompts)
    if folder:
      _fit(draft, folder, say)

  if not trial or 'rl.prompts' in draft.changes:
    fit(_multiple(UNTRIED.get(jax.default_backend(), MOST), n))
    seconds = trial() if trial else math.nan
  else:
    seconds = _largest(fit, trial, _multiple(LEAST, n), say)
  if trial:
    rl = draft.config().rl
    cost = (
      f'On this machine ({n} x {jax.devices()[0].device_kind}): a step of '
      f'{rl.rows} completions takes {seconds:.3g} s, and the {rl.steps} steps '
      f'{_duration(rl.steps * seconds)}, without evaluations.'
    )
    draft.notes.append(cost)
    say(cost if seconds <= SECONDS else f'{cost} {SHORTER}')


def _duration(seconds: float) -> str:
  """Returns seconds as minutes or hours, for people."""
  minutes = seconds / 60
  return f'{minutes:.0f} min' if minutes < 90 else f'{minutes / 60:.1f} h'


def _multiple(number: int, unit: int) -> int:
  """Returns the least multiple of a unit that is at least a number."""
  return -(-number // unit) * unit


def _largest(fit: Callable, trial: Callable, least: int, say) -> float:
  """Fits the largest batch whose step runs and takes at most SECONDS, or the
  smallest batch. Returns the seconds of this step.
  """
  fit(least)
  seconds = trial()
  sizes = [least * 2**i for i in range(1, MOST.bit_length())]
  sizes = [size for size in sizes if size <= MOST]
  for size in reversed(sizes):
    most = seconds * size / least
    if most <= SECONDS:
      say(
        f'{least} prompts: {seconds:.3g} s; trying {size}, at most {most:.3g} s'
      )
      fit(size)
      try:
        return trial()
      except ValueError as e:
        say(str(e))
  fit(least)
  return seconds


def _fit(draft: Draft, folder: pathlib.Path, say) -> None:
  """Adds the trained weights, the mesh and the settings of memory: of those
  that fit, the most trained weights over the fewest splits.

  Raises:
    ValueError: nothing fits.
  """
  devices = jax.devices()
  whole = chips.memory(devices[0])
  if not whole:
    return
  for what, way in draft.ways():
    config = way.config().changed(model_dir=str(folder))
    for mesh, n in _meshes(plan_settings.lean(config, OPEN), devices):
      # Devices of a CPU share its memory.
      shared = devices[0].platform == 'cpu'
      has = whole * len(devices) / n if shared else whole
      if found := plan_settings.estimated(config, has, mesh, devices[:n]):
        draft.values = way.values | _settings(found[0], mesh, n)
        each = f' of each of {n} devices' if n > 1 else ''
        say(
          f'{what}: about {found[1] / chips.GIB:.1f} of {has / chips.GIB:.1f} '
          f'GiB{each}, by arithmetic'
        )
        return
  raise ValueError(
    f'--model={draft.values["model_dir"]}: does not fit {len(devices)} x '
    f'{whole / chips.GIB:.0f} GiB, not even with LoRA on int8 weights: choose '
    'a smaller model, shorter --completion_len, or chips with --on'
  )


def _settings(found: config_lib.Run, mesh: Mesh, n: int) -> dict:
  """Returns the values of the keys that arithmetic chooses for n devices."""
  rl, usual = found.rl, config_lib.RL().parts
  values = {
    'model.remat': found.model.remat,
    'rl.micro_batches': rl.micro_batches,
    'rl.logprob_chunk': rl.logprob_chunk,
    'rl.parts': rl.parts,
  }
  # Parts also let rewards in Python run beside the program.
  if rl.path != 'host' or (rl.parts <= usual and not rl.prompts % (n * usual)):
    del values['rl.parts']
  return values | ({} if mesh == OPEN else {'mesh': mesh})


def _meshes(config: config_lib.Run, devices) -> Iterator[tuple[Mesh, int]]:
  """Yields (mesh, number of its devices): first all devices with whole weights.
  Devices of a CPU gain nothing from a split of weights.
  """
  n = len(devices)
  yield OPEN, n
  if devices[0].platform == 'cpu':
    if n > 1:
      yield (1, 1, 1), 1
    return
  heads = abstract.shape_of(config.model, config.model_dir).kv_heads
  found = mesh_search.meshes(config, n, heads, whole=False)
  for mesh in sorted(found, key=lambda m: (m[2], m[1])):
    if mesh[0] < n:
      yield mesh, n
