"""Published sizes have the published number of parameters."""

import jax
import pytest

from jaxrl_reason import sharding, trees
from jaxrl_reason.models import families, spec, transformer, zoo
from jaxrl_reason.models.parts import rope

# Counted by the Hub from the published files.
PUBLISHED = {
  'qwen2.5-0.5b': 494_032_768,
  'qwen2.5-1.5b': 1_543_714_304,
  'qwen2.5-3b': 3_085_938_688,
  'qwen2.5-7b': 7_615_616_512,
  'qwen2.5-14b': 14_770_033_664,
  'qwen2.5-32b': 32_763_876_352,
  'qwen2.5-72b': 72_706_203_648,
  # The published files of tied models also contain the head.
  'qwen3-0.6b': 751_632_384 - 151_936 * 1024,
  'qwen3-1.7b': 2_031_739_904 - 151_936 * 2048,
  'qwen3-4b': 4_022_468_096,
  'qwen3-8b': 8_190_735_360,
  'qwen3-14b': 14_768_307_200,
  'qwen3-32b': 32_762_123_264,
  'qwen3-30b-a3b': 30_532_122_624,
  'qwen3-235b-a22b': 235_093_634_560,
  # Text models: the published files also contain a tower for images.
  'qwen3-vl-2b': 1_720_574_976,
  'qwen3-vl-4b': 4_022_468_096,
  'qwen3-vl-8b': 8_190_735_360,
  'qwen3-vl-32b': 32_762_123_264,
  'llama-2-7b': 6_738_415_616,
  'llama-2-70b': 68_976_648_192,
  'llama-3-8b': 8_030_261_248,
  'llama-3.1-8b': 8_030_261_248,
  'llama-3.1-70b': 70_553_706_496,
  'llama-3.2-1b': 1_235_814_400,
  'llama-3.2-3b': 3_212_749_824,
  'mistral-7b-v0.1': 7_241_732_096,
  'mistral-7b-v0.3': 7_248_023_552,
  'mixtral-8x7b': 46_702_792_704,
  'gemma-2b': 2_506_172_416,
  'gemma-7b': 8_537_680_896,
  'gemma-2-2b': 2_614_341_888,
  'gemma-2-9b': 9_241_705_984,
  'gemma-2-27b': 27_227_128_320,
  'gemma-3-270m': 268_098_176,
  'gemma-3-1b': 999_885_952,
  'olmo-2-1b': 1_484_916_736,
  'olmo-2-7b': 7_298_617_344,
  'olmo-2-13b': 13_716_198_400,
  'olmoe-1b-7b': 6_919_161_856,
  'phi-3-mini-4k': 3_821_079_552,
  'phi-4-mini': 3_836_021_760,
  'smollm2-135m': 134_515_008,
  'smollm2-360m': 361_821_120,
  'smollm2-1.7b': 1_711_376_384,
  'smollm3-3b': 3_075_098_624,
  # Counted by hand for the published layers.
  'command-r7b': 8_028_033_024,
  # Counted in the text models that `transformers` builds.
  'llama-4-scout': 107_769_861_120,
  'llama-4-maverick': 400_711_848_960,
  'seed-oss-36b': 36_151_104_512,
  'ernie-4.5-0.3b': 360_748_032,
  'hunyuan-0.5b': 539_010_048,
  'hunyuan-1.8b': 1_791_080_448,
  'hunyuan-4b': 4_221_757_440,
  'hunyuan-7b': 7_504_568_320,
  'apertus-8b': 8_053_338_176,
  'apertus-70b': 70_599_864_480,
  'ministral-3-3b': 3_429_006_336,
  'ministral-3-8b': 8_489_553_920,
  'ministral-3-14b': 13_506_073_600,
  'minimax-m2': 228_689_764_864,
  'dots.llm1': 142_774_381_696,
  'qwen3.5-0.8b': 752_393_024,
  'qwen3.5-2b': 1_881_825_088,
  'qwen3.5-4b': 4_205_751_296,
  'qwen3.5-9b': 8_953_803_264,
  'qwen3.5-27b': 26_895_998_464,
  'qwen3.5-35b-a3b': 34_660_610_688,
  'qwen3.5-122b-a10b': 122_111_526_912,
  'qwen3.5-397b-a17b': 396_346_350_336,
  'lfm2-350m': 354_483_968,
  'lfm2-700m': 742_489_344,
  'lfm2-1.2b': 1_170_340_608,
  'lfm2-8b-a1b': 8_339_929_856 + 22 * 32,
  'lfm2-24b-a2b': 23_843_659_008 + 38 * 64,
  'granite-4.0-h-micro': 3_191_396_096,
  'nemotron-nano-9b-v2': 8_888_227_328,
  # The Hub does not count the corrections of choices.
  'nemotron-3-nano-30b-a3b': 31_577_937_344 + 23 * 128,
  'falcon-h1-0.5b': 521_411_104,
  # Only the text model: without the 416,866,032 parameters of a tower for
  # images, and without its projection.
  'gemma-3-4b': 4_300_079_472 - 416_866_032 - 1152 * 2561,
  'gemma-3-12b': 12_187_325_040 - 416_866_032 - 1152 * 3841,
  'gemma-3-27b': 27_432_406_640 - 416_866_032 - 1152 * 5377,
  # Counted in the text models that `transformers` builds from the published
  # config.json.
  'gemma-3n-e2b': 4_435_182_688,
  'gemma-3n-e4b': 6_835_235_568,
  'gemma-4-e2b': 4_628_569_379,
  'gemma-4-e4b': 7_463_013_418,
  'gemma-4-26b-a4b': 25_233_141_790,
  'gemma-4-12b': 11_907_350_320,
  'gemma-4-31b': 30_697_345_340,
  'gpt-oss-20b': 20_914_757_184,
  'gpt-oss-120b': 116_829_156_672,
  'qwen1.5-moe-a2.7b': 14_315_784_192,
  # Counted by hand, without the layer that predicts a further token.
  'qwen3-next-80b-a3b': 79_674_391_296,
  'glm-4-9b-0414': 9_400_279_040,
  # Without the layer that predicts a further token.
  'glm-4.5-air': 110_468_824_832 - 3_616_573_568,
  'deepseek-v3': 671_026_419_200,
  'deepseek-r1': 671_026_419_200,
  'kimi-k2': 1_026_408_232_448,
  'glm-4.7-flash': 29_943_393_920,
  # Counted in the models that `transformers` builds. Published as 671 B and
  # 744 B.
  'deepseek-v3.2': 671_877_944_064,
  'glm-5': 743_911_218_432,
  # Without the indexers of 57 layers.
  'glm-5.2': 743_911_218_432 - 57 * 9_371_904,
  'deepseek-r1-distill-qwen-1.5b': 1_777_088_000,  # untied
  'deepseek-r1-distill-qwen-7b': 7_615_616_512,
  'deepseek-r1-distill-qwen-14b': 14_770_033_664,
  'deepseek-r1-distill-qwen-32b': 32_763_876_352,
  'deepseek-r1-distill-llama-8b': 8_030_261_248,
  'deepseek-r1-distill-llama-70b': 70_553_706_496,
}
# Settings that have no parameter, from config.json: prefix of the name ->
# (rotary base, epsilon). The first prefix that fits counts.
NUMERICS = {
  'qwen3-next': (1e7, 1e-6),
  'qwen3-vl': (5e6, 1e-6),
  'qwen3.5': (1e7, 1e-6),
  'qwen2.5-14b': (1e6, 1e-5),
  'qwen2.5-32b': (1e6, 1e-5),
  'qwen2.5-72b': (1e6, 1e-5),
  'qwen': (1e6, 1e-6),
  'llama-2': (1e4, 1e-5),
  'llama-3': (5e5, 1e-5),
  'llama-4': (5e5, 1e-5),
  'mistral-7b-v0.1': (1e4, 1e-5),
  'mistral-7b-v0.3': (1e6, 1e-5),
  'mixtral': (1e6, 1e-5),
  'gemma-2': (1e4, 1e-6),
  'gemma-7b': (1e4, 1e-6),
  'gemma-3': (1e6, 1e-6),
  'gemma-4': (1e6, 1e-6),
  'gpt-oss': (1.5e5, 1e-5),
  'qwen1.5': (1e6, 1e-6),
  'glm-4-': (1e4, 1e-5),
  'glm-4.5': (1e6, 1e-5),
  'glm-4.7-flash': (1e6, 1e-5),
  'glm-5.2': (8e6, 1e-5),
  'glm-5': (1e6, 1e-5),
  'deepseek-v3': (1e4, 1e-6),
  'kimi-k2': (5e4, 1e-6),
  'minimax-m2': (5e6, 1e-6),
  'dots.llm1': (1e7, 1e-5),
  'seed-oss': (1e7, 1e-6),
  'ernie-4.5': (5e5, 1e-5),
  # A base of 10,000 times a fixed alpha to the power of 128 / 126.
  'hunyuan': (pytest.approx(1e4 * 1000 ** (128 / 126)), 1e-5),
  'apertus': (1.2e7, 1e-5),
  'ministral-3-14b': (1e9, 1e-5),
  'ministral-3': (1e6, 1e-5),
  'olmo-2': (5e5, 1e-6),
  'olmoe': (1e4, 1e-5),
  'phi': (1e4, 1e-5),
  'smollm2-1.7b': (1.3e5, 1e-5),
  'smollm2': (1e5, 1e-5),
  'smollm3': (5e6, 1e-6),
  'command-r7b': (5e4, 1e-5),
  'lfm2': (1e6, 1e-5),
  'granite-4': (1e4, 1e-5),
  'nemotron': (1e4, 1e-5),  # without positions
  'falcon-h1': (1e11, 1e-5),
  'deepseek-r1-distill-qwen-1.5b': (1e4, 1e-6),
  'deepseek-r1-distill-qwen-7b': (1e4, 1e-6),
  'deepseek-r1-distill-qwen': (1e6, 1e-5),
  'deepseek-r1-distill-llama': (5e5, 1e-5),
  'deepseek-r1': (1e4, 1e-6),
}


@pytest.mark.parametrize('name', zoo.ZOO)
def test_parameters_are_counted_as_published(name):
  shapes = spec.abstract(transformer.specs(zoo.ZOO[name]))
  assert trees.n_params(shapes) == PUBLISHED[name]


@pytest.mark.parametrize(
  ('name', 'billions'),
  [
    ('qwen3-30b-a3b', 3.3),
    ('qwen3-235b-a22b', 22),
    ('qwen3.5-397b-a17b', 17),
    ('kimi-k2', 32),
    ('dots.llm1', 14),
  ],
)
def test_parameters_a_token_uses_are_as_published(name, billions):
  c = zoo.ZOO[name]
  unused = (
    len(c.routed_layers)
    * (c.experts - c.experts_per_token)
    * 3
    * c.width
    * c.mlp
  )
  assert 0 <= (PUBLISHED[name] - unused) / 1e9 - billions < 0.03 * billions


@pytest.mark.parametrize('name', zoo.ZOO)
def test_settings_without_parameters_are_as_published(name):
  c = zoo.ZOO[name]
  want = next(v for k, v in NUMERICS.items() if name.startswith(k))
  assert (c.rope_tables[0].theta, c.norm_eps) == want


def test_differences_between_layers_are_as_published():
  """Counted from 0: even layers of Gemma 2 are local, all but every sixth layer
  of Gemma 3, and every fourth of SmolLM3 has no positions.
  """

  def layers(name, f):
    return [i for i in range(zoo.ZOO[name].layers) if f(zoo.ZOO[name], i)]

  def local(window):
    return lambda c, i: c.layer_windows[i] == window

  for name, n in ('2b', 26), ('9b', 42), ('27b', 46):
    want = list(range(0, n, 2))
    assert layers(f'gemma-2-{name}', local(4096)) == want
    assert layers(f'gemma-2-{name}', local(0)) == [i + 1 for i in want]
  assert layers('gemma-3-270m', local(0)) == [5, 11, 17]
  assert layers('gemma-3-1b', local(0)) == [5, 11, 17, 23]
  assert zoo.ZOO['gemma-3-1b'].layer_windows[0] == 512

  def slow(c, i):
    return c.rope_tables[c.layer_ropes[i]].theta == 1e6

  assert layers('gemma-3-1b', slow) == [5, 11, 17, 23]

  def without(c, i):
    return c.layer_ropes[i] == rope.NOPE

  assert layers('smollm3-3b', without) == list(range(3, 36, 4))
  assert set(zoo.ZOO['mistral-7b-v0.1'].windows) == {4096}
  assert set(zoo.ZOO['phi-3-mini-4k'].windows) == {2047}
  for name in 'llama-3.1-8b', 'qwen2.5-7b', 'qwen3-8b', 'mistral-7b-v0.3':
    assert not any(zoo.ZOO[name].windows)
  scale = {n: zoo.ZOO[f'gemma-2-{n}'].score_scale for n in ('9b', '27b')}
  assert scale == {'9b': 1 / 16, '27b': pytest.approx(1 / 12)}
  own = [0, 1, *range(2, 78, 4)]  # layers of GLM-5.2 with an indexer
  assert layers('glm-5.2', lambda c, i: i not in c.indexless_layers) == own
  gemma2 = [c for name, c in zoo.ZOO.items() if name.startswith('gemma-2-')]
  caps = {(c.attention_cap, c.logit_cap) for c in gemma2}
  assert caps == {(50.0, 30.0)}


def test_every_size_has_a_config_file_and_a_layout():
  for name, c in zoo.ZOO.items():
    # Qwen1.5-MoE has 60 experts.
    mesh = sharding.make_mesh((-1, 4 if c.experts % 8 else 8, 1))
    assert families.from_hf(families.to_hf(c)) == c, name
    specs = transformer.specs(c)
    where = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
    mlp = where['mlp_layers' if c.mlp_layers else 'layers']['mlp']
    assert not mlp['up'].is_fully_replicated, name


def test_the_largest_traces_without_weights():
  """Traces generation with 235 B parameters, as shapes."""
  model = transformer.build(zoo.ZOO['qwen3-235b-a22b'])
  params = spec.abstract(model.specs, 'bfloat16')
  shape = jax.eval_shape(
    model.hidden,
    params,
    jax.ShapeDtypeStruct((2, 16), 'int32'),
    jax.ShapeDtypeStruct((2, 16), 'bool'),
  )
  assert shape.shape == (2, 16, 4096)
