"""Folders of safetensors are read and written exactly; wrong folders are
refused with the name of the tensor.
"""

import errno
import json
import os
import re
import sys

import jax
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason import sharding
from jaxrl_reason.checkpoints import hf, pretrained, streams
from jaxrl_reason.models import families, spec, weights
from jaxrl_reason.models.published import tensors

library = pytest.importorskip('safetensors.numpy')
CONFIG = small_config(qk_norm=False, tied=False, vocab=24, kv_heads=4)


@pytest.fixture(scope='module')
def params():
  return small_model(qk_norm=False, tied=False, vocab=24, kv_heads=4)[2]


@pytest.fixture
def folder(tmp_path, params):
  hf.save(tmp_path / 'model', params, CONFIG, dtype='float32')
  return tmp_path / 'model'


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def edit(folder, change):
  """Rewrites the weights after change(dict of arrays)."""
  tensors = library.load_file(folder / hf.SINGLE)
  change(tensors)
  library.save_file(tensors, folder / hf.SINGLE, metadata={'format': 'pt'})


@pytest.mark.parametrize('dtype', hf.DTYPES)
@pytest.mark.parametrize('shard_bytes', [2000, 1 << 30])
def test_import_of_export_is_bit_identical(
  params, tmp_path, dtype, shard_bytes
):
  want = jax.tree.map(lambda x: x.astype(dtype), params)
  hf.save(tmp_path, want, CONFIG, dtype=dtype, shard_bytes=shard_bytes)
  files = sorted(tmp_path.glob('*.safetensors'))
  assert (len(files) > 3) == (tmp_path / hf.INDEX).exists()
  assert (len(files) > 3) == (shard_bytes == 2000)
  assert hf.dtype_of(tmp_path) == dtype
  assert hf.read_config(tmp_path)['torch_dtype'] == dtype
  assert families.from_hf(hf.read_config(tmp_path)) == CONFIG
  assert_same(hf.load(tmp_path, CONFIG, dtype=dtype), want)
  # float32 represents every number of the narrower types.
  wide = jax.tree.map(lambda x: x.astype('float32'), want)
  assert_same(hf.load(tmp_path, CONFIG), wide)


def test_layouts_by_hand(folder, params):
  """Our [in, heads, width] is [heads * width, in] on disk."""
  disk = library.load_file(folder / hf.SINGLE)
  q = disk['model.layers.1.self_attn.q_proj.weight']
  ours = np.asarray(params['layers']['attn']['q'])
  assert q.shape == (16, 16) and q[4 + 3, 5] == ours[1, 5, 1, 3]
  o = disk['model.layers.2.self_attn.o_proj.weight']
  assert o[7, 4 + 3] == params['layers']['attn']['o'][2, 1, 3, 7]
  assert disk['lm_head.weight'][20, 3] == params['head'][3, 20]


@pytest.mark.parametrize('mesh, chunk', [((1, 8, 1), 1 << 20), ((2, 2, 2), 64)])
def test_loads_straight_into_shards(folder, params, mesh, chunk, monkeypatch):
  monkeypatch.setattr(streams, 'CHUNK_BYTES', chunk)
  mesh = sharding.make_mesh(mesh)
  specs = weights.specs(CONFIG)
  where = sharding.shardings(specs, mesh, sharding.TRAIN_RULES)
  got = hf.load(folder, CONFIG, where=where)
  assert_same(got, params)
  jax.tree.map(lambda x, s: pytest.fail() if x.sharding != s else 0, got, where)


def test_a_missing_tensor_is_named(folder):
  edit(folder, lambda t: t.pop('model.layers.1.mlp.up_proj.weight'))
  with pytest.raises(hf.BadCheckpoint, match='lacks model.layers.1.mlp.up'):
    hf.load(folder, CONFIG)


def test_an_unexpected_tensor_is_named(folder):
  edit(folder, lambda t: t.update(extra=np.ones(2, np.float32)))
  with pytest.raises(hf.BadCheckpoint, match='unexpected tensors: extra'):
    hf.load(folder, CONFIG)


def test_a_wrong_shape_is_named_with_both(folder):
  edit(folder, lambda t: t.update({tensors.EMBED: np.ones((24, 8), 'f4')}))
  with pytest.raises(hf.BadCheckpoint, match=r'embed.*\(24, 8\), not \(24, 16'):
    hf.load(folder, CONFIG)


def test_another_dtype_is_named(folder):
  edit(folder, lambda t: t.update({tensors.EMBED: np.ones((24, 16), 'i4')}))
  with pytest.raises(hf.BadCheckpoint, match='embed_tokens.weight is I32'):
    hf.load(folder, CONFIG)


def test_a_tensor_in_two_files_is_named(tmp_path, params):
  hf.save(tmp_path, params, CONFIG, dtype='float32', shard_bytes=2000)
  first, second = sorted(tmp_path.glob('*.safetensors'))[:2]
  library.save_file(
    library.load_file(first) | library.load_file(second), second
  )
  with pytest.raises(hf.BadCheckpoint, match='embed.* is in both .*00001.*000'):
    hf.load(tmp_path, CONFIG)


def test_a_file_or_tensor_the_index_lacks_is_named(tmp_path, params):
  hf.save(tmp_path, params, CONFIG, dtype='float32', shard_bytes=2000)
  index = json.loads((tmp_path / hf.INDEX).read_text())
  del index['weight_map']['model.norm.weight']
  (tmp_path / hf.INDEX).write_text(json.dumps(index))
  with pytest.raises(hf.BadCheckpoint, match='disagree on model.norm.weight'):
    hf.load(tmp_path, CONFIG)
  next(tmp_path.glob('model-00002*')).unlink()
  with pytest.raises(hf.BadCheckpoint, match='00002.*is missing'):
    hf.load(tmp_path, CONFIG)
  index['weight_map']['lm_head.weight'] = '../elsewhere.safetensors'
  (tmp_path / hf.INDEX).write_text(json.dumps(index))
  with pytest.raises(hf.BadCheckpoint, match='no plain file name'):
    hf.load(tmp_path, CONFIG)


def test_a_table_must_map_every_weight_once():
  specs = weights.specs(CONFIG)
  twice = (*tensors.LLAMA, tensors.Row('norm2', ('final_norm',), 'vector'))
  with pytest.raises(hf.BadCheckpoint, match='final_norm.*mapped twice: norm2'):
    hf.plan(specs, twice)
  same = (tensors.ENDS[0], tensors.ENDS[0]._replace(leaves=('head',)))
  with pytest.raises(
    hf.BadCheckpoint, match='embed_tokens.weight is mapped tw'
  ):
    hf.plan({k: specs[k] for k in ('embed', 'head')}, same)
  with pytest.raises(hf.BadCheckpoint, match="mapped to .'final_norm'"):
    hf.plan(specs, [r for r in tensors.LLAMA if r.name != 'model.norm.weight'])


def test_a_half_fetched_folder_is_named(folder):
  file = folder / hf.SINGLE
  whole = file.read_bytes()
  for part, said in (
    (whole[: len(whole) // 2], 'model.safetensors'),
    (whole[:5], 'model.safetensors'),
    (b'', 'model.safetensors'),
    (b'version https://git-lfs.github.com/spec/v1\noid x', 'git lfs pull'),
  ):
    file.write_bytes(part)
    with pytest.raises(ValueError, match=said):
      hf.load(folder, CONFIG)


@pytest.mark.parametrize('index', ['{}', '{"weight_map": {}}', '[]', ''])
def test_an_empty_index_is_named(folder, index):
  (folder / hf.INDEX).write_text(index)
  with pytest.raises(ValueError, match=re.escape(str(folder / hf.INDEX))):
    hf.load(folder, CONFIG)


def test_pickles_are_never_read(folder):
  (folder / hf.SINGLE).rename(folder / 'pytorch_model.bin')
  with pytest.raises(hf.BadCheckpoint, match='Pickles.*are never read'):
    hf.load(folder, CONFIG)


def test_a_tied_model_may_store_a_head_equal_to_the_embedding(tmp_path):
  c, _, params = small_model(qk_norm=False)
  hf.save(tmp_path, params, c, dtype='float32')
  edit(tmp_path, lambda t: t.update({tensors.HEAD: t[tensors.EMBED]}))
  assert_same(hf.load(tmp_path, c), params)
  edit(tmp_path, lambda t: t.update({tensors.HEAD: t[tensors.EMBED] + 1}))
  with pytest.raises(hf.BadCheckpoint, match='lm_head.weight differs'):
    hf.load(tmp_path, c)


def test_a_folder_with_weights_is_not_written_over(folder, params):
  with pytest.raises(FileExistsError, match='has .*safetensors'):
    hf.save(folder, params, CONFIG)


def test_a_combination_of_no_family_is_refused(tmp_path):
  c = small_config(qk_norm=True, norm_place='post')
  with pytest.raises(ValueError, match='no published family'):
    hf.save(tmp_path, {}, c)
  assert not any(tmp_path.iterdir())


def test_without_the_library_the_error_names_the_package(folder, monkeypatch):
  monkeypatch.setitem(sys.modules, 'safetensors.numpy', None)
  with pytest.raises(ImportError, match=r'pip install "jaxrl_reason\[hf\]"'):
    hf.load(folder, CONFIG)


def test_small_files_of_a_model_that_are_not_written_whole_are_not_used(
  folder, tmp_path, monkeypatch
):
  """The disk is full when the last of the small files is written."""
  workdir, fsync = tmp_path / 'run', os.fsync
  marker = workdir / pretrained.HF_CONFIG

  def full(fd):
    if marker.name in os.readlink(f'/proc/self/fd/{fd}'):
      raise OSError(errno.ENOSPC, 'No space left on device')
    fsync(fd)

  with monkeypatch.context() as patch:
    patch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
      pretrained.begin(str(folder), workdir)
  assert not marker.exists()
  kept = pretrained.begin(str(folder), workdir)
  want = (folder / 'config.json').read_text()
  for path in (marker, kept / 'config.json'):
    assert json.loads(path.read_text()) == json.loads(want)


def test_the_bias_of_experts_is_exported_without_rounding(tmp_path):
  """LFM2-MoE has another name for it than the other families."""
  h = {
    'model_type': 'lfm2_moe', 'vocab_size': 16, 'hidden_size': 16,
    'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
    'layer_types': ['conv', 'full_attention'], 'intermediate_size': 24,
    'moe_intermediate_size': 8, 'num_dense_layers': 0, 'num_experts': 4,
    'num_experts_per_tok': 2,
  }  # fmt: skip
  c = families.from_hf(h)
  params = spec.init(weights.specs(c), jax.random.key(0))
  bias = jax.random.normal(jax.random.key(1), (1, 4))
  params['layers']['mlp']['choice_bias'] = bias
  hf.save(tmp_path, params, c, dtype='bfloat16', config_json=h)
  found = hf.load(tmp_path, c, dtype='bfloat16')
  np.testing.assert_array_equal(found['layers']['mlp']['choice_bias'], bias)
  assert hf.dtype_of(tmp_path) == 'bfloat16'
