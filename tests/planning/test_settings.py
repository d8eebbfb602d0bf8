"""A search finds settings that fit, and the fastest of them. A formula replaces
the compiler.
"""

import dataclasses
import math

import jax
import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.planning import abstract, roofline
from jaxrl_reason.planning import plan_settings as settings
from jaxrl_reason.planning.described_model import DoesNotFit
from jaxrl_reason.run.process import chips

# GiB of activations of the whole minibatch, and seconds of its update.
KEPT = {'dots': 48, 'attention': 24, 'full': 12}
TAKES = {'dots': 10.0, 'attention': 11.0, 'full': 13.0}


class Planner:
  """Computes facts by a formula: a cache of 24 GiB in total, activations of
  KEPT, and `gather` additional seconds for each micro-batch.
  """

  def __init__(self, config, hbm=15.75, gather=0.1, shared=0.9, only=()):
    self.config = config_lib.read(config)
    self.only, self.tried = tuple(only), []
    self.hbm, self.gather, self.shared = hbm, gather, shared
    chip = chips.CHIPS['v5e']
    chip = dataclasses.replace(chip, hbm=int(hbm * chips.GIB))
    self.machine = roofline.Machine(chip, (2, 4))
    self.said = []
    self.say = self.said.append

  def parts(self, config):
    return abstract.shapes(config, sharding.make_mesh(config.mesh))

  def facts_of(self, parts, names):
    (name,), config = names, parts.config
    self.tried.append((name, config))
    c = config.rl
    if name == 'generate':
      needs, seconds = 24 / c.parts, 5.0 + c.parts
    else:
      needs = KEPT[config.model.remat] / c.micro_batches
      seconds = TAKES[config.model.remat] + self.gather * c.micro_batches
      if c.padding == settings.SHARED:
        seconds *= self.shared
    fits = needs <= self.hbm
    return [
      dict(phase=name, needs_gib=needs, fits=fits, serial_seconds=seconds)
    ]


@pytest.fixture
def recipe():
  """Returns a recipe of lengths and sizes only."""
  c = config_lib.default()
  c.stages = ('rl',)
  c.rl.update(path='host', prompts=64, samples=8)
  return c


def found(planner, mesh=(1, 8, 1)):
  lean = settings.lean(planner.config, mesh)
  return settings.fitting(planner, lean)


def test_the_least_divisor_that_fits_is_found(recipe):
  """The search finds it for the remat policy with the least recomputation."""
  planner = Planner(recipe)
  made = found(planner)
  c = made.config
  # A cache of 24 GiB in two parts, and 48 GiB of `dots` in four.
  assert (c.rl.parts, c.model.remat, c.rl.micro_batches) == (2, 'dots', 4)
  assert set(made.phases) == {'generate', 'update'}
  assert made.seconds == 5 + 2 + 10 + 0.1 * 4


@pytest.mark.parametrize(
  'gather, shared, want',
  [
    (0.0, 2.0, ('dots', 4, 'whole')),
    # If gathering is expensive, fewer micro-batches are faster than less
    # recomputation.
    (10.0, 2.0, ('full', 1, 'whole')),
    (1.0, 2.0, ('attention', 2, 'whole')),
    (0.0, 0.5, ('dots', 4, settings.SHARED)),
  ],
)
def test_the_faster_setting_is_chosen(recipe, gather, shared, want):
  planner = Planner(recipe, gather=gather, shared=shared)
  first = found(planner)
  best = settings.faster(planner, first)
  c = best.config
  assert (c.model.remat, c.rl.micro_batches, c.rl.padding) == want
  assert best.seconds <= first.seconds


def test_more_recomputation_is_compiled_only_with_fewer_micro_batches(recipe):
  """With as many micro-batches it is slower. One micro-batch is the least."""
  for hbm, most in ((50.0, 0), (30.0, 2), (15.75, 3)):
    planner = Planner(recipe, hbm=hbm, shared=2.0)
    first = found(planner)
    planner.tried.clear()
    planner.said.clear()
    settings.faster(planner, first)
    tried = [c for _, c in planner.tried if c.rl.padding != settings.SHARED]
    assert len(tried) <= most, hbm
    batches = first.config.rl.micro_batches
    assert all(c.rl.micro_batches < batches for c in tried)
    policies = [x for x in planner.said if x.startswith('model.remat=')]
    assert len(policies) <= most + 1, hbm  # one shares the prompt


def test_a_setting_that_xla_cannot_compile_is_left_out(recipe, monkeypatch):
  def broken(*_, **changes):
    raise jax.errors.JaxRuntimeError(f'FAILED_PRECONDITION: {changes}')

  planner = Planner(recipe)
  first = found(planner)
  monkeypatch.setattr(settings, '_trained', broken)
  assert settings.faster(planner, first) is first
  assert 'FAILED_PRECONDITION' in planner.said[-1]


def test_other_keys_of_the_recipe_do_not_change(recipe):
  recipe.rl.samples = 16
  planner = Planner(recipe)
  made = settings.faster(planner, found(planner))
  searched = ('mesh', 'model.remat', 'rl.parts', 'rl.micro_batches')
  searched += ('rl.logprob_chunk', 'rl.padding')
  back = made.config.changed({k: recipe_value(recipe, k) for k in searched})
  assert back.to_dict() == recipe.to_dict()


def recipe_value(config, key):
  for name in key.split('.'):
    config = config[name]
  return config


def test_the_output_is_a_recipe(recipe):
  planner = Planner(recipe)
  made = settings.faster(planner, found(planner))
  c = recipe.copy_and_resolve_references()
  exec(made.recipe(), {'c': c})
  assert c.to_dict() == made.config.to_dict()


def test_without_a_fit_the_result_is_none(recipe):
  """The smallest micro-batches do not fit either. Few settings are tried."""
  planner = Planner(recipe, hbm=0.01)
  assert found(planner) is None
  planner.facts_of = lambda parts, names: [
    dict(fits=names == ('generate',), serial_seconds=1.0)
  ]
  assert found(planner) is None


@pytest.mark.parametrize('needs, want', [(20.0, None), (1.0, 'dots')])
def test_an_update_that_may_not_fit_is_compiled_where_it_needs_least(
  recipe, needs, want, monkeypatch
):
  """If it does not fit there, nothing else is compiled."""
  monkeypatch.setattr(settings, '_activations', lambda parts: math.inf)
  monkeypatch.setitem(KEPT, 'full', needs * 64)
  planner = Planner(recipe)
  made = found(planner)
  assert (made and made.config.model.remat) == want
  (name, least), *later = planner.tried
  assert name == 'update' and bool(later) == bool(want)
  assert (least.model.remat, least.rl.micro_batches) == ('full', 64)


def test_a_mesh_whose_generation_exceeds_the_limit_has_no_update(recipe):
  planner = Planner(recipe)
  lean = settings.lean(planner.config, (1, 8, 1))
  with pytest.raises(settings.TooSlow, match='generation alone takes 7 s'):
    settings.fitting(planner, lean, limit=6.9)
  assert {name for name, _ in planner.tried} == {'generate'}
  assert settings.fitting(planner, lean, limit=7.1)


def test_one_phase_alone(recipe):
  planner = Planner(recipe, only=('generate',))
  made = found(planner)
  assert set(made.phases) == {'generate'}
  assert settings.faster(planner, made) is made
  with pytest.raises(ValueError, match='generate'):
    found(Planner(recipe, only=('evaluate',)))


def test_one_program_and_supervised_stages_are_searched(recipe):
  recipe.rl.path = 'fused'
  made = found(Planner(recipe))
  assert set(made.phases) == {'step'} and made.config.rl.micro_batches == 4
  recipe.stages = ('sft',)
  planner = Planner(recipe)
  planner.facts_of = lambda parts, names: [
    dict(
      phase=names[0],
      fits=parts.config.sft.micro_batches > 1,
      serial_seconds=1.0,
    )
  ]
  made = found(planner)
  assert set(made.phases) == {'sft'} and made.config.sft.micro_batches == 2
  assert 'c.sft.update(micro_batches=2' in made.recipe()


def test_other_phases_are_compiled_with_the_settings_that_are_faster(recipe):
  """Settings of the update may change the time of scoring."""
  recipe.rl.loss.kl_coef = 0.01
  planner = Planner(recipe, shared=0.5, gather=0.0)
  first = settings.completed(planner, found(planner))
  assert list(first.phases) == ['generate', 'score', 'update']
  best = settings.completed(planner, settings.faster(planner, first))
  score, update = best.phases['score'], best.phases['update']
  assert best.config.rl.padding == settings.SHARED
  assert score['serial_seconds'] == update['serial_seconds']
  assert score['serial_seconds'] < first.phases['score']['serial_seconds']
  planner.hbm = 11.0
  with pytest.raises(DoesNotFit, match='score does not fit: needs 12.0 of'):
    settings.completed(planner, first)
  planner.only = 'generate', 'update'
  assert set(settings.completed(planner, first).phases) == set(planner.only)


WIDE = {'model.width': 256, 'model.mlp': 1024, 'model.layers': 2}
MOE = {'model.experts': 16, 'model.experts_per_token': 2, 'model.mlp': 256}
LORA = {'lora.rank': 4, 'frozen_dtype': 'bfloat16', 'model.dtype': 'bfloat16'}


@pytest.mark.parametrize(
  'changes, mesh, only, needs',
  [
    # Weights, two moments and gradients in float32, all on every device.
    ({}, (8, 1, 1), '', lambda n, moe, lora: 16 * n),
    # Frozen weights have no gradient, and decoding reads them as they are.
    (LORA, (8, 1, 1), '', lambda n, moe, lora: 2 * n + 16 * lora),
    # Decoding gathers weights, but no experts.
    (
      MOE | {'model.dtype': 'bfloat16'},
      (1, 8, 1),
      'generate',
      lambda n, moe, lora: (12 * n + 2 * moe) / 8 + 2 * (n - moe),
    ),
    # A supervised stage does not decode.
    ({'stages': ('sft',)}, (1, 8, 1), '', lambda n, moe, lora: 16 * n / 8),
  ],
)
def test_only_meshes_that_no_setting_fits_are_refused(
  recipe, changes, mesh, only, needs
):
  recipe.rl.loss.kl_coef = 0.0  # without a reference
  config = config_lib.read(recipe).changed(WIDE | changes)
  specs = trees.flatten(Planner(config).parts(config).model.specs)
  sizes = {k: math.prod(s.shape) for k, s in specs.items()}
  lora = sum(n for k, n in sizes.items() if k.startswith('lora/'))
  moe = sum(n for k, n in sizes.items() if 'expert' in specs[k].axes)
  least = needs(sum(sizes.values()) - lora, moe, lora) / chips.GIB
  for share, refused in ((0.97, True), (1.03, False)):
    planner = Planner(config, hbm=share * least, only=(only,) * bool(only))
    planner.facts_of = lambda parts, names: [
      dict(fits=True, serial_seconds=1.0)
    ]
    made = settings.fitting(planner, settings.lean(config, mesh))
    assert (made is None) == refused


@pytest.mark.parametrize(
  'changes, columns, width',
  [
    # Of 8 prompt columns the 8 samples of a problem share the keys.
    ({}, 8 / 8 + 24, 32 * 4),
    ({'dtype': 'bfloat16'}, 8 / 8 + 24, 32 * 2),
    ({'windows': (4, -4)}, 4 / 8 + 4, 32 * 4),
    ({'cache_dtype': 'int8'}, 8 / 8 + 24, 32 + 4),
  ],
)
def test_the_first_number_of_parts_is_that_of_the_stored_keys(
  recipe, changes, columns, width
):
  sizes = {'model.layers': 2, 'model.kv_heads': 2, 'model.head_dim': 32}
  sizes |= {'data.prompt_len': 8, 'data.completion_len': 24}
  config = config_lib.read(recipe).changed(sizes, mesh=(1, 8, 1))
  parts = Planner(config).parts(config)
  shape = dataclasses.replace(parts.shape, **changes)
  parts = parts._replace(shape=shape)
  # 64 rows of a device, 2 layers, keys and values of 2 heads.
  assert settings._cache(parts) == 64 * columns * 2 * 2 * 2 * width
