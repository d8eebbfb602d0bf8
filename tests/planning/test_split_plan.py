"""A plan for two meshes: programs, transfers and the time of a step."""

import jax
import pytest
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.models import spec
from jaxrl_reason.planning import abstract, phases, roofline, split_plan
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run import two_meshes
from jaxrl_reason.run.process import chips

MACHINE = roofline.Machine(chips.CHIPS['v5e'], (2, 4))


def made(stale: int, dtype: str = 'float32'):
  """Returns the abstract parts of a recipe on four and four devices."""
  c = config_lib.read(load_recipe(ROOT / 'tests/tiny_recipe.py').get_config())
  c = c.changed(
    stages=('rl',),
    sampler_mesh=(1, 4, 1),
    sampler_dtype=dtype,
    rl__staleness=stale,
    rl__steps_per_dispatch=1,
    rl__old_logp='sampler' if stale else 'trainer',
  )
  mesh, sampler = two_meshes.split(c.mesh, c.sampler_mesh, jax.devices()[:8])
  return abstract.shapes(c, mesh)._replace(sampler_mesh=sampler)


@pytest.mark.parametrize('stale, dtype', [(0, 'float32'), (2, 'int8')])
def test_the_halves_of_a_step_have_its_work_on_their_own_devices(stale, dtype):
  parts = made(stale, dtype)
  *_, sample, update = split_plan.all_phases(parts)
  (whole,) = (p for p in phases.phases(parts) if p.name == 'step')
  assert (sample.name, update.name) == ('sample', 'update')
  assert sample.flops + update.flops == pytest.approx(whole.flops)
  assert 0 < sample.flops < update.flops
  for phase, mesh in ((sample, parts.sampler_mesh), (update, parts.mesh)):
    lowered = phase.lower(phase.mesh or parts.mesh)
    (shape,) = {x.sharding.mesh for x in jax.tree.leaves(phase.state)}
    assert shape == mesh
    assert f'num_partitions = {mesh.size}' in lowered.as_text()[:400]
  # With a queue, the next weights arrive while the sampler reads these.
  weights = described.on_chip(sample.state)
  size = described.resident(sample, 3 * weights)
  assert size == (weights if stale else 0) < described.on_chip(update.state)
  assert described.resident(update, described.on_chip(update.state)) == 0


def test_a_step_takes_the_longer_half_or_without_overlap_the_sum():
  def phase(name, seconds):
    keys = 'step_seconds', 'serial_seconds', 'ordered_seconds'
    work = {'flops': 1.0, 'model_flops': 4e12, 'calls_per_step': 1}
    return {'phase': name} | dict.fromkeys(keys, seconds) | work

  each = [phase('sample', 3.0), phase('update', 5.0)]
  given = MACHINE, jax.devices()[:8]
  ahead, turns = (split_plan.facts(each, made(k), *given) for k in (1, 0))
  sent = ahead['split']['weights_seconds']
  assert ahead['step_seconds'] == 5.0
  assert turns['step_seconds'] == pytest.approx(8.0 + sent)
  # Each half computes 4e12 FLOPs on each of 4 chips; the peak is that of 8.
  assert ahead['mfu'] == pytest.approx(8 * 4e12 / 5.0 / (8 * 197e12))
  one = {'mesh': {'data': 8}, 'step_seconds': 6.0, 'serial_seconds': 6.0}
  text = '\n'.join(split_plan.lines(ahead | {'one_mesh': one}))
  assert '1.20 to 1.20 times as many steps' in text


def test_weights_cross_once_for_every_shard():
  parts = made(1)
  found = split_plan.transfer(parts, MACHINE, hosts=1)
  params = 4 * spec.n_params(parts.model.specs)
  assert found['weights_bytes'] == params
  # A quarter is gathered and then sent, over one dimension of the torus.
  quarter, ici = params / 4, 200e9
  want = 2 * quarter / (ici / 2)
  assert found['weights_seconds'] == pytest.approx(want)
  less = split_plan.transfer(made(1, 'int8'), MACHINE, hosts=1)
  assert 1 / 4 < less['weights_bytes'] / params < 1 / 2


def test_the_slice_of_a_half_is_a_box():
  assert split_plan.box('v5e:4x4', 4) == 'v5e:2x2'
  assert split_plan.box('v5e:4x4', 12) == 'v5e:3x4'
  assert split_plan.box('v5p:4x4x4', 32) == 'v5p:2x4x4'
  with pytest.raises(ValueError, match='v5e:4x4 has no box of 5 chips'):
    split_plan.box('v5e:4x4', 5)
