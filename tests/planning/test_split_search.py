"""Splits of the chips between two meshes, compared."""

import math

import jax
import pytest
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.planning import described_model as described
from jaxrl_reason.planning import planner as plan
from jaxrl_reason.planning import split_plan, split_search
from jaxrl_reason.run.process import chips


@pytest.fixture
def made(monkeypatch):
  """Returns the planner of a recipe on two of eight devices. Sampling takes
  6 s of a chip, training 24 s, and one mesh 4 s.
  """

  def devices(topology, slices=1):
    return jax.devices()[: math.prod(chips.torus_of(topology))]

  monkeypatch.setattr(described, 'devices', devices)
  c = config_lib.read(load_recipe(ROOT / 'tests/tiny_recipe.py').get_config())
  changes = dict(rl__staleness=1, rl__old_logp='sampler', rl__prompts=12)
  changes |= dict(rl__steps_per_dispatch=1, stages=('rl',))
  c = c.changed(sampler_mesh=(1, 2, 1), **changes)
  given = dict(slices=1, model='', say=lambda text: None)
  found = plan.Planner(c, 'v5e:2x4', **given)

  def facts_of(parts, names):
    split_plan.all_phases(parts)  # raises if rows do not divide
    sizes = parts.sampler_mesh.size, parts.mesh.size
    keys = 'step_seconds', 'serial_seconds', 'ordered_seconds'
    work = {'flops': 1.0, 'model_flops': 1.0, 'calls_per_step': 1}
    work |= {'fits': sizes[1] > 2, 'needs_gib': 1.0}
    seconds = 6 / sizes[0], 24 / sizes[1]
    return [
      {'phase': name} | dict.fromkeys(keys, s) | work
      for name, s in zip(names, seconds, strict=True)
    ]

  one = {'mesh': {'data': 8}, 'step_seconds': 4.0, 'serial_seconds': 4.0}
  found.facts_of, found.one_mesh = facts_of, lambda parts: one
  return found


def test_the_fastest_split_is_first(made):
  found = split_search.compared(made, [2, 4, 6, 8])
  rows = found['splits']
  assert [x['sampler'] for x in rows] == [2, 4, 6, 8] and found['fits']
  assert [x['step_seconds'] for x in rows[:2]] == [4.0, 6.0]
  assert [x['sampler_mesh'] for x in rows[:2]] == [(1, 2, 1), (2, 2, 1)]
  assert 'sample and update: more memory' in rows[2]['why']
  assert 'leave none to train on' in rows[3]['why']
  text = split_search.table(found).splitlines()
  assert text[1].split()[:5] == ['2', '6', '3', '4', '4']
  assert text[-2].split()[:3] == ['one', 'mesh', '4']


def test_a_size_that_the_other_axes_do_not_divide_is_refused():
  assert split_search.resized((2, 1, 3), 12) == (4, 1, 3)
  with pytest.raises(ValueError, match='8 chips are no multiple'):
    split_search.resized((2, 1, 3), 8)


@pytest.mark.parametrize(
  'flags, words',
  [
    ({'only': ('sample',)}, '--only has no effect with --splits'),
    ({}, 'which the recipe lacks; set it'),
  ],
)
def test_splits_without_effect_are_refused(made, flags, words):
  one = made.config.changed(sampler_mesh=())
  options = dict(search=False, largest=True, slices=1, model='') | flags
  with pytest.raises(ValueError, match=words):
    plan.run(one, 'v5e:2x4', say=print, splits=('2',), **options)
