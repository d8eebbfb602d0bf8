"""Published folders with more than the plain weights of a text model: packed
weights are widened, and other weights are written back unchanged.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models import hf_models as H
from models.hf_models import torch, transformers

from jaxrl_reason import sharding
from jaxrl_reason.checkpoints import conversion, hf
from jaxrl_reason.checkpoints import packed as packing
from jaxrl_reason.models import families, transformer, weights

library = pytest.importorskip('safetensors.numpy')
mxfp4 = pytest.importorskip('transformers.integrations.mxfp4')

pytestmark = pytest.mark.parity
EXPERTS = ('gate_up_proj', 'down_proj')


def tensors_of(folder) -> dict:
  return library.load_file(folder / hf.SINGLE)


def rewrite(folder, tensors: dict, **config) -> None:
  path = folder / hf.SINGLE
  library.save_file(tensors, path, metadata={'format': 'pt'})
  path = folder / 'config.json'
  path.write_text(json.dumps(json.loads(path.read_text()) | config))


@pytest.fixture(scope='module')
def packed(tmp_path_factory):
  """Returns (folder, experts' weights by name as transformers widens them)."""
  folder = tmp_path_factory.mktemp('mxfp4')
  shape = dict(hidden_size=64, intermediate_size=32, num_hidden_layers=2)
  shape |= dict(num_key_value_heads=2)
  H.make('gpt_oss', **shape).bfloat16().save_pretrained(folder)
  tensors, want = tensors_of(folder), {}
  rng = np.random.default_rng(0)
  for name in [n for n in tensors if n.endswith(EXPERTS)]:
    experts, n_in, n_out = tensors.pop(name).shape
    shape = experts, n_out, n_in // 32
    blocks = rng.integers(0, 256, (*shape, 16), np.uint8)
    scales = rng.integers(120, 126, shape, np.uint8)
    tensors |= {f'{name}_blocks': blocks, f'{name}_scales': scales}
    both = torch.tensor(blocks), torch.tensor(scales)
    wide = mxfp4.convert_moe_packed_tensors(*both)
    want[name] = wide.float().numpy()
  rewrite(folder, tensors, quantization_config={'quant_method': 'mxfp4'})
  return folder, want


def test_mxfp4_is_widened_as_transformers_widens_it(packed, tmp_path):
  """Runs the command: its output is not packed, and no value was rounded."""
  folder, want = packed
  conversion.convert(folder, tmp_path / 'out')
  got = tensors_of(tmp_path / 'out')
  assert {n for n in want if 'down' in n} < want.keys() <= got.keys()
  for name, x in got.items():
    assert x.dtype == 'bfloat16'
    other = want[name] if name in want else tensors_of(folder)[name]
    np.testing.assert_array_equal(x.astype('f4'), other.astype('f4'), name)
  assert 'quantization_config' not in hf.read_config(tmp_path / 'out')
  again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'out')
  assert type(again).__name__ == 'GptOssForCausalLM'
  for name, p in again.named_parameters():
    np.testing.assert_array_equal(p.detach().float(), got[name].astype('f4'))


def test_a_slice_of_a_packed_weight_is_the_slice_of_the_weight(packed):
  folder, want = packed
  with hf.open_folder(folder) as slices:
    for name, whole in want.items():
      for where in np.index_exp[1:2, 5:50, 3:4], np.index_exp[0:5, 31:32, 0:7]:
        np.testing.assert_array_equal(slices[name][where], whole[where])


def test_packed_weights_are_read_straight_into_shards(packed):
  folder, want = packed
  c = families.from_hf(hf.read_config(folder))
  mesh = sharding.make_mesh((4, 1, 2))
  where = sharding.shardings(weights.specs(c), mesh, sharding.TRAIN_RULES)
  mlp = hf.load(folder, c, where=where)['layers']['mlp']
  assert mlp['up'].addressable_shards[0].data.shape == (2, 5, 64, 16)
  name = 'model.layers.1.mlp.experts'
  both, down = (want[f'{name}.{x}'] for x in EXPERTS)
  np.testing.assert_array_equal(mlp['gate'][1], both[..., ::2])
  np.testing.assert_array_equal(mlp['up'][1], both[..., 1::2])
  np.testing.assert_array_equal(mlp['down'][1], down)
  bias = tensors_of(folder)[f'{name}.gate_up_proj_bias'].astype('f4')
  np.testing.assert_array_equal(mlp['up_bias'][1], bias[:, 1::2])


def test_wrongly_packed_weights_are_named(packed, tmp_path):
  folder, _ = packed
  conversion.pretrained.copy_small(folder, tmp_path)
  tensors = tensors_of(folder)
  name = next(n for n in tensors if n.endswith('_scales'))
  rewrite(tmp_path, tensors | {name: tensors[name][:, 1:]})
  with pytest.raises(ValueError, match='down_proj_blocks is .* its scales'):
    hf.dtype_of(tmp_path)
  tensors.pop(name)
  rewrite(tmp_path, tensors)
  with pytest.raises(ValueError, match='down_proj_blocks lacks .*_scales'):
    hf.dtype_of(tmp_path)
  rewrite(tmp_path, tensors, quantization_config={'quant_method': 'gptq'})
  with pytest.raises(
    ValueError, match="quant_method='gptq' is not supported for gpt_oss"
  ):
    conversion.convert(tmp_path, tmp_path / 'out')


def made(name: str):
  """Makes a model of two layers, or of layers of both kinds, with odd tiles."""
  if name == 'qwen3_vl_moe':  # the experts of a layer are in one tensor
    return H.make_with_images(moe=True)
  layers = 4 if name in ('qwen3_next', 'qwen3_5', 'qwen3_5_moe') else 2
  return H.make(name, hidden_size=136, num_hidden_layers=layers)


@pytest.mark.parametrize(
  'kind',
  [
    'deepseek_v3',
    'qwen3',
    'qwen3_moe',
    'qwen3_next',
    'qwen3_5',
    'qwen3_5_moe',
    'qwen3_vl_moe',
  ],
)
def test_fp8_is_widened_tile_by_tile(kind, tmp_path):
  """Uses the format of DeepSeek V3; the product is in float32, rounded once."""
  made(kind).bfloat16().save_pretrained(tmp_path / 'in')
  path = tmp_path / 'in' / hf.SINGLE
  torch_files = pytest.importorskip('safetensors.torch')
  tensors, want = torch_files.load_file(path), {}
  torch.manual_seed(0)
  names = [n for n in tensors if 'proj' in n and 'visual' not in n]
  for name in [n for n in names if tensors[n].ndim > 1]:
    *lead, rows, columns = tensors[name].shape
    tiles = [*lead, -(-rows // 128), -(-columns // 128)]
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    scales = torch.rand(tiles)
    tensors[f'{name}_scale_inv'] = scales
    wide = scales.repeat_interleave(128, -2).repeat_interleave(128, -1)
    part = wide[..., :rows, :columns]
    want[name] = (tensors[name].float() * part).bfloat16().float().numpy()
  torch_files.save_file(tensors, path, metadata={'format': 'pt'})
  config = tmp_path / 'in' / 'config.json'
  packed = {'quantization_config': {'quant_method': 'fp8'}}
  config.write_text(json.dumps(json.loads(config.read_text()) | packed))
  conversion.convert(tmp_path / 'in', tmp_path / 'out')
  got = tensors_of(tmp_path / 'out')
  experts = kind not in ('qwen3', 'qwen3_5')
  assert want and any('experts' in name for name in want) == experts
  for name, x in want.items():
    assert got[name].dtype == 'bfloat16'
    if kind == 'qwen3_vl_moe' and 'experts' in name:
      x = x.swapaxes(-1, -2)  # written as published
    np.testing.assert_array_equal(got[name].astype('f4'), x, name)
  name = min(want)
  with hf.open_folder(tmp_path / 'in') as slices:
    where = np.index_exp[1:4, 3:9][: want[name].ndim]
    np.testing.assert_array_equal(slices[name][where], want[name][where])
  scales = f'{name}_scale_inv'
  wrong = tensors | {scales: tensors[scales].repeat_interleave(2, -1)}
  torch_files.save_file(wrong, path, metadata={'format': 'pt'})
  with pytest.raises(ValueError, match='one for each tile of 128'):
    hf.dtype_of(tmp_path / 'in')


@pytest.mark.parametrize(
  'where',
  [
    np.index_exp[:],
    np.index_exp[1],
    np.index_exp[1:, 120:140],
    np.index_exp[2, :, 100:135],
    np.index_exp[0:2, 5:199, 127:129],
  ],
)
@pytest.mark.parametrize('tiles', [(2, 2), (1, 1)])
def test_fp8_of_all_experts_is_sliced_with_its_scales(where, tiles):
  rng = np.random.default_rng(0)
  values = rng.normal(size=(3, 200, 140)).astype(jnp.float8_e4m3fn)
  scales = rng.uniform(size=(3, *tiles)).astype('f4')
  each = [-(-n // t) if t == 1 else 128 for n, t in zip((200, 140), tiles)]
  wide = scales.repeat(each[0], 1).repeat(each[1], 2)[:, :200, :140]
  want = (values.astype('f4') * wide).astype(jnp.bfloat16)
  got = packing.Fp8(values, scales)[where]
  np.testing.assert_array_equal(got, want[where])


def test_fp8_is_widened_by_the_scale_of_a_whole_weight(tmp_path):
  """Uses the format of Ministral 3, whose text model is beside a tower: one
  bf16 scale per weight, and a scale of the inputs that is not read.
  """
  H.make('ministral3').bfloat16().save_pretrained(tmp_path / 'in')
  path = tmp_path / 'in' / hf.SINGLE
  torch_files = pytest.importorskip('safetensors.torch')
  plain, tensors, want = torch_files.load_file(path), {}, {}
  for name, x in plain.items():
    tensors[f'language_model.{name}'] = x
    if 'proj' not in name:
      continue
    scale = (x.abs().max() / 448).bfloat16()
    packed = (x.float() / scale.float()).to(torch.float8_e4m3fn)
    module = f'language_model.{name}'.removesuffix('.weight')
    tensors |= {
      f'{module}.weight': packed,
      f'{module}.weight_scale_inv': scale,
      f'{module}.activation_scale': torch.tensor(0.5, dtype=torch.bfloat16),
    }
    product = packed.float() * scale.float()
    want[f'{module}.weight'] = product.bfloat16().float().numpy()
  tensors['vision_tower.x'] = torch.ones(3).bfloat16()
  torch_files.save_file(tensors, path, metadata={'format': 'pt'})
  config = tmp_path / 'in' / 'config.json'
  outer = {
    'model_type': 'mistral3',
    'text_config': json.loads(config.read_text()),
    'quantization_config': {'quant_method': 'fp8', 'weight_block_size': None},
  }
  config.write_text(json.dumps(outer))
  conversion.convert(tmp_path / 'in', tmp_path / 'out')
  got = tensors_of(tmp_path / 'out')
  assert got.keys() == {n for n in tensors if 'scale' not in n}
  for name, x in want.items():
    np.testing.assert_array_equal(got[name].astype('f4'), x, name)
  assert 'quantization_config' not in hf.read_config(tmp_path / 'out')


def gemma3(folder):
  """Saves and returns a random model with a tower for images."""
  text = dict(
    vocab_size=70, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=1, head_dim=16, sliding_window=6,
    layer_types=[H.SLIDING, H.FULL, H.SLIDING], query_pre_attn_scalar=24,
  )  # fmt: skip
  tower = dict(
    model_type='siglip_vision_model', hidden_size=16, intermediate_size=16,
    num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4,
  )  # fmt: skip
  config = transformers.Gemma3Config(
    text_config=text, vision_config=tower, mm_tokens_per_image=4,
    image_token_index=69, boi_token_index=67, eoi_token_index=68,
  )  # fmt: skip
  config._attn_implementation = 'eager'
  torch.manual_seed(0)
  model = transformers.Gemma3ForConditionalGeneration(config).eval()
  model.save_pretrained(folder)
  return model


def test_a_text_model_beside_a_tower_and_back(tmp_path):
  theirs = gemma3(tmp_path / 'in')
  c = families.from_hf(hf.read_config(tmp_path / 'in'))
  assert c.layer_windows == (6, 0, 6)
  params, model = hf.load(tmp_path / 'in', c), transformer.build(c)
  tokens = np.random.default_rng(0).integers(0, 60, (2, 12))
  with torch.no_grad():
    want = theirs(input_ids=torch.tensor(tokens)).logits.numpy()

  @jax.jit
  def logits(params):
    return model.unembed(params, model.hidden(params, tokens, tokens >= 0))

  np.testing.assert_allclose(logits(params), want, atol=1e-4)
  conversion.convert(tmp_path / 'in', tmp_path / 'out')
  assert_same_folders(tmp_path / 'in', tmp_path / 'out')
  again = transformers.AutoModelForImageTextToText.from_pretrained(
    tmp_path / 'out'
  )
  assert type(again) is type(theirs)
  with pytest.raises(hf.BadCheckpoint, match='beside its text model'):
    hf.save(
      tmp_path / 'alone', params, c, config_json=hf.read_config(tmp_path / 'in')
    )


def assert_same_folders(a, b):
  a, b = tensors_of(a), tensors_of(b)
  assert a.keys() == b.keys()
  for name, x in a.items():
    assert x.dtype == b[name].dtype, name
    np.testing.assert_array_equal(x.view('u1'), b[name].view('u1'), name)


def test_layers_for_further_tokens_are_written_back(tmp_path):
  theirs = H.make('glm4_moe').bfloat16()
  theirs.save_pretrained(tmp_path / 'in')
  tensors = tensors_of(tmp_path / 'in')
  # In float32, as published.
  third = np.full(6, 1 / 3, np.float32)
  biases = {n: third for n in tensors if n.endswith('e_score_correction_bias')}
  more = {'model.layers.3.eh_proj.weight': tensors['model.norm.weight'] * 2}
  rewrite(tmp_path / 'in', tensors | more | biases)
  conversion.convert(tmp_path / 'in', tmp_path / 'out')
  assert_same_folders(tmp_path / 'in', tmp_path / 'out')
  rewrite(tmp_path / 'in', tensors | {'model.layers.2.extra': third})
  with pytest.raises(hf.BadCheckpoint, match='unexpected.*layers.2.extra'):
    conversion.convert(tmp_path / 'in', tmp_path / 'other')


def test_a_stack_is_numbered_by_its_layers():
  h = dict(
    model_type='glm4_moe', vocab_size=8, hidden_size=8, intermediate_size=8,
    num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2,
    first_k_dense_replace=3,
  )  # fmt: skip
  c = families.from_hf(h)
  plan = hf.plan(weights.specs(c), families.tensors_of(h), c.stacks)
  dense = {n for n in plan if n.endswith('mlp.gate_proj.weight')}
  assert dense == {f'model.layers.{i}.mlp.gate_proj.weight' for i in range(3)}
  assert {n.split('.')[2] for n in plan if '.experts.' in n} == {'3'}
