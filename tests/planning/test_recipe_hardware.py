"""The stated hardware of a recipe has enough memory, by a lower bound, and a
recipe for TPUs has the settings of the planner's arithmetic.
`tests/tpu/test_hardware.py` checks both with the compiler.
"""

import math

import jax.numpy as jnp
import pytest
from hardware import FOR_TPUS, NAMES, RECIPES, stated, to_plan
from jax.sharding import AbstractMesh, AxisType
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.models import spec
from jaxrl_reason.planning import abstract, phases, plan_settings
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.process import chips


def planned(path, variant: str = ''):
  """Returns the config of a recipe with the changes for a plan."""
  config = load_recipe(path).get_config(variant)
  config = config_lib.read(config).changed(to_plan(path, variant))
  return staging.last_of_each_kind(staging.each(config))


def mesh_of(shape, topology: str) -> AbstractMesh:
  n = math.prod(chips.torus_of(topology))
  n *= 2 if topology.startswith('tpu7x') else 1  # devices of a chip
  sizes = [*shape, 1][:4]
  rest = n // math.prod(x for x in sizes if x != -1)
  sizes = [rest if x == -1 else x for x in sizes]
  assert math.prod(sizes) == n, f'mesh {sizes} on {topology}'
  return AbstractMesh(
    tuple(sizes), sharding.AXES, axis_types=(AxisType.Auto,) * 4
  )


def least_bytes(config, mesh) -> dict[str, float]:
  """Returns a lower bound of each phase's bytes on a device."""
  parts = abstract.shapes(config, mesh)
  c, d, r = parts.shape, config.data, config.rl
  shards, tensor = sharding.row_shards(mesh), mesh.shape['tensor']
  number = jnp.dtype(config.model.dtype).itemsize
  made = {p.name: p for p in phases.phases(parts)}
  state = max(described.on_chip(p.state) for p in made.values())
  weights = trees.n_params(spec.abstract(parts.model.specs)) * number / tensor
  grid = phases.evaluation_grid(config.eval, config.eval.rows(config.rl), mesh)
  kept = 2 * c.layers * c.kv_heads * c.head_dim * number / tensor / shards

  def decoding(prompts, rows):
    room = config.prompt_columns
    cache = kept * (prompts * room + rows * d.completion_len)
    return state + (0 if any(c.layer_windows) else cache) + weights

  out = {phases.EVALUATE: decoding(grid.b, grid.b * grid.s)}
  if 'rl' not in config.stages:
    return out
  n = r.prompts // (r.parts if r.path == 'host' else 1)
  out['generate'] = decoding(n, n * (r.slots or r.samples))
  rows = r.prompts * r.samples / r.minibatches / r.micro_batches / shards
  saved = c.width  # of a token and layer: what a layer begins with
  if config.model.remat == 'dots':
    heads = (c.heads + 2 * c.kv_heads) * c.head_dim
    saved += (heads + 2 * c.mlp) / tensor + 2 * c.width
  if config.model.remat == 'none':
    saved *= 2
  tokens = rows * (config.prompt_columns + d.completion_len)
  logits = 4 * rows * (r.logprob_chunk or 1) * c.vocab / tensor
  out['update'] = state + tokens * saved * c.layers * number + logits
  return out


@pytest.mark.parametrize('path, variant', RECIPES, ids=NAMES)
def test_a_recipe_states_chips_that_can_hold_it(path, variant):
  topologies, config = stated(path, variant), planned(path, variant)
  assert topologies, f'{path.name}: its line Hardware: names no topology'
  for topology in topologies:
    has = chips.chip_of(topology).hbm
    for phase, needs in least_bytes(
      config, mesh_of(config.mesh, topology)
    ).items():
      gib = f'{needs / chips.GIB:.1f} of {has / chips.GIB:.1f} GiB'
      assert needs < has, f'{path.name}, {topology}: {phase} needs {gib}'


def test_a_chip_that_is_too_small_is_refused():
  """One chip with 24 GB: the update stores 21 GB of products alone."""
  config = planned(ROOT / 'configs' / 'lora_gsm8k_gemma3_1b.py')
  config = config.changed(model__remat='dots', rl__micro_batches=8)
  needs = least_bytes(config, mesh_of((-1, 1, 1), 'v6e:1x1'))
  assert needs['update'] > 24e9


@pytest.mark.parametrize('path, variant', FOR_TPUS)
def test_a_recipe_for_tpus_follows_its_planner(path, variant, monkeypatch):
  """More parts, recomputation or micro-batches than the chips need take more
  time. The arithmetic may differ from compiled programs by one step.
  """
  config = planned(path, variant)
  least = 'none', *plan_settings.POLICIES
  for topology in stated(path, variant):
    mesh, hbm = mesh_of(config.mesh, topology), chips.chip_of(topology).hbm
    monkeypatch.setattr(sharding, 'make_mesh', lambda *_, mesh=mesh: mesh)
    found, _ = plan_settings.estimated(config, hbm, mesh.axis_sizes[:3])
    assert config.rl.parts == found.rl.parts
    assert config.rl.micro_batches <= 2 * found.rl.micro_batches
    remat = config.model.remat, found.model.remat
    assert least.index(remat[0]) <= least.index(remat[1])
