"""A recipe for the GPUs or the CPU of this machine: what fits by arithmetic,
and the batch of which a step takes a minute.
"""

import functools
import json
import types

import jax
import pytest

from jaxrl_reason.models import families, zoo
from jaxrl_reason.planning import own_machine, plan_settings
from jaxrl_reason.planning.recipe_draft import Draft
from jaxrl_reason.run.process import chips

SIZE = 'smollm2-135m'


@pytest.fixture
def folder(tmp_path):
  """Returns a folder with the config.json of a model, without weights."""
  text = json.dumps(families.to_hf(zoo.ZOO[SIZE]))
  (tmp_path / 'config.json').write_text(text)
  return tmp_path


def a_draft(folder) -> Draft:
  draft = Draft([''])
  draft.set('', stages=('rl',), model_dir=str(folder))
  draft.set('data', prompt_len=64, completion_len=64)
  draft.set('rl', path='host', samples=8, prompts=8)
  draft.set('rl.optimizer', lr=1e-6)
  return draft


def fitted(folder, monkeypatch, gib: float) -> dict:
  """Returns the values of a draft for devices with that memory."""
  monkeypatch.setattr(chips, 'memory', lambda _: gib * chips.GIB)
  draft = a_draft(folder)
  own_machine.batch(draft, folder, None, lambda _: None)
  draft.config()
  return draft.values


def test_less_memory_takes_more_of_what_saves_it(folder, monkeypatch):
  """The same batch takes first micro-batches, then one device of the CPU, then
  adapters.
  """
  seen = [fitted(folder, monkeypatch, 64 / 4**i) for i in (2, 3, 4)]
  assert [v['rl.micro_batches'] for v in seen] == [2, 4, 16]
  assert [v.get('mesh') for v in seen] == [None, (1, 1, 1), (1, 1, 1)]
  assert [v.get('lora.rank', 0) for v in seen] == [0, 0, 32]
  assert seen[2]['frozen_dtype'] == 'bfloat16'
  with pytest.raises(ValueError, match='does not fit 8 x 0 GiB, not even with'):
    fitted(folder, monkeypatch, 1 / 512)


def test_gpus_split_weights_that_fit_no_single_one(folder):
  """The meshes are in the order of their exchanges."""
  config = plan_settings.lean(a_draft(folder).config(), own_machine.OPEN)
  gpus = [types.SimpleNamespace(platform='gpu')] * 8
  meshes = [mesh for mesh, _ in own_machine._meshes(config, gpus)]
  assert meshes == [(-1, 1, 1), (1, 8, 1)]
  has, devices = 1.5 * chips.GIB, jax.devices()
  whole, split = (
    plan_settings.estimated(config, has, mesh, devices) for mesh in meshes
  )
  assert not whole and split[1] < 0.8 * has


def largest(seconds, most_that_runs: int = 64) -> tuple[int, list[int]]:
  """Returns (prompts of the fitted batch, those of the trials)."""
  now, tried = [0], []

  def trial() -> float:
    tried.append(now[0])
    if now[0] > most_that_runs:
      raise ValueError('out of memory')
    return seconds * now[0]

  fit = functools.partial(now.__setitem__, 0)
  assert own_machine._largest(fit, trial, 2, print) == seconds * now[0]
  return now[0], tried


def test_the_batch_is_the_largest_that_runs_and_takes_a_minute():
  assert largest(seconds=2) == (16, [2, 16])
  assert largest(seconds=0.1) == (64, [2, 64])
  assert largest(seconds=50) == (2, [2])
  assert largest(seconds=2, most_that_runs=4) == (4, [2, 16, 8, 4])
  assert largest(seconds=2, most_that_runs=3) == (2, [2, 16, 8, 4])
  with pytest.raises(ValueError, match='out of memory'):
    largest(seconds=2, most_that_runs=1)
