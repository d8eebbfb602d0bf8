"""Conversions between Hugging Face folders and checkpoints lose nothing."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from paths import ROOT
from small import small_config, small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import convert
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import conversion, hf, manager
from jaxrl_reason.data import hf_tokenizers, problems, tokenizers
from jaxrl_reason.evals import generation as generate
from jaxrl_reason.models import adapters, spec, transformer
from jaxrl_reason.models.adapters import frozen, lora

library = pytest.importorskip('safetensors.numpy')
CHANGES = dict(qk_norm=False)


@pytest.fixture(scope='module')
def params():
  return small_model(**CHANGES)[2]


@pytest.fixture
def folder(tmp_path, params):
  """Returns a Hugging Face folder with a tokenizer beside its weights."""
  path = tmp_path / 'hf'
  config = small_config(**CHANGES)
  hf.save(path, params, config, dtype='float32', shard_bytes=2000)
  (path / 'tokenizer.json').write_text('{}')
  (path / 'pytorch_model.bin').write_bytes(b'never read')
  return path


def load(path, dtype='float32'):
  return hf.load(path, small_config(**CHANGES), dtype=dtype)


def assert_same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_folder_to_folder_in_another_dtype(folder, params, tmp_path):
  config = json.loads((folder / 'config.json').read_text())
  config |= {'eos_token_id': 3, 'kept': 'as it was'}
  (folder / 'config.json').write_text(json.dumps(config))
  line = conversion.convert(folder, tmp_path / 'half', dtype='bfloat16')
  assert 'qwen2' in line and 'bfloat16' in line
  half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
  assert_same(load(tmp_path / 'half', 'bfloat16'), half)
  names = {p.name for p in (tmp_path / 'half').iterdir()}
  assert names == {'config.json', 'tokenizer.json', hf.SINGLE}
  written = hf.read_config(tmp_path / 'half')
  assert written == config | {'torch_dtype': 'bfloat16'}


def test_to_a_checkpoint_and_back_is_bit_identical(folder, params, tmp_path):
  conversion.convert(folder, tmp_path / 'ours', form='orbax')
  conversion.convert(tmp_path / 'ours', tmp_path / 'back')
  assert_same(load(tmp_path / 'back'), params)
  assert hf.read_config(tmp_path / 'back') == hf.read_config(folder)


def test_a_run_becomes_a_folder(params, tmp_path):
  """Uses the parameters of the newest checkpoint, without optimizer state."""
  config = config_lib.default()
  c = small_config(**CHANGES)
  fields = {k: getattr(c, k) for k in config.model}
  config.model.update(fields)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'config.json').write_text(config.to_json_best_effort())
  checkpoints = manager.Checkpoints(conversion.epath.Path(tmp_path / 'run'), 2)
  for step in (1, 2):
    moved = jax.tree.map(lambda x: x * (step - 1), params)  # noqa: B023
    state = TrainState(jnp.int32(step), moved, {'mu': moved})
    checkpoints.save(step, state, {'stage': 0})
  checkpoints.wait()
  checkpoints.close()
  conversion.convert(tmp_path / 'run', tmp_path / 'out')
  assert_same(load(tmp_path / 'out'), params)
  written = hf.read_config(tmp_path / 'out')
  assert written['max_position_embeddings'] == 64  # prompt and completion
  assert transformer.build(c).specs.keys() == params.keys()


def test_incompatible_arguments_are_one_line(folder, tmp_path):
  with pytest.raises(FileExistsError, match='is not empty'):
    conversion.convert(folder, folder)
  with pytest.raises(ValueError, match='no folder'):
    conversion.convert(tmp_path / 'nowhere', tmp_path / 'out')
  (tmp_path / 'empty').mkdir()
  done = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason', 'convert']
    + [f'--from={tmp_path / "empty"}', f'--to={tmp_path / "out"}'],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  assert 'config.json does not exist' in done.stderr


def test_files_beside_the_weights_are_copied(folder, tmp_path):
  """Converts through a folder, and through a checkpoint and back."""
  beside = {
    'additional_chat_templates/tool_use.jinja': '{{ messages }}',
    'chat_template.jinja': 'hello',
    'LICENSE': 'terms',
    'NOTICE.txt': 'more terms',
    'README.md': '# A model',
    'USE_POLICY.md': 'be nice',
    'generation_config.json': '{"eos_token_id": 3}',
    'tokenizer.model': 'pieces',
  }
  for name, text in beside.items():
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
  conversion.convert(folder, tmp_path / 'direct')
  conversion.convert(folder, tmp_path / 'ours', form='orbax')
  conversion.convert(tmp_path / 'ours', tmp_path / 'back')
  for out in ('direct', 'back'):
    for name, text in (beside | {'tokenizer.json': '{}'}).items():
      assert (tmp_path / out / name).read_text() == text
    assert not (tmp_path / out / 'pytorch_model.bin').exists()
    assert not (tmp_path / out / hf.INDEX).exists()


def run_of(workdir, params, changes=(), h=None):
  """Returns a workdir with a checkpoint of these parameters."""
  config = config_lib.default()
  c = small_config(**CHANGES)
  config.model.update({k: getattr(c, k) for k in config.model})
  config.update_from_flattened_dict(dict(changes))
  workdir.mkdir()
  (workdir / 'config.json').write_text(config.to_json_best_effort())
  if h is not None:
    (workdir / conversion.HF_CONFIG).write_text(json.dumps(h))
  checkpoints = manager.Checkpoints(conversion.epath.Path(workdir), 2)
  checkpoints.save(1, TrainState(jnp.int32(1), params, {}), {'stage': 0})
  checkpoints.wait()
  checkpoints.close()
  return workdir


def test_a_run_is_written_in_the_dtype_of_the_model_it_began_from(
  folder, params, tmp_path
):
  h = hf.read_config(folder) | {'torch_dtype': 'bfloat16'}
  began = run_of(tmp_path / 'began', params, h=h)
  line = conversion.convert(began, tmp_path / 'out')
  assert hf.dtype_of(tmp_path / 'out') == 'bfloat16'
  assert 'bfloat16' in line and '--dtype=float32 rounds nothing' in line
  conversion.convert(began, tmp_path / 'wide', dtype='float32')
  assert_same(load(tmp_path / 'wide'), params)
  line = conversion.convert(
    run_of(tmp_path / 'scratch', params), tmp_path / 'own'
  )
  assert hf.dtype_of(tmp_path / 'own') == 'float32' and 'rounds' not in line


def test_weights_kept_as_int8_are_written_without_rounding(
  folder, params, tmp_path
):
  """The other weights of the run, and its source, are bfloat16."""
  c = small_config(**CHANGES)
  specs = frozen.specs(transformer.build(c).specs, 'int8', 'lora/.*')
  kept = jax.tree.map(frozen.keep, specs, params, is_leaf=frozen_leaf)
  h = hf.read_config(folder) | {'torch_dtype': 'bfloat16'}
  run = run_of(tmp_path / 'run', kept, {'frozen_dtype': 'int8'}, h)
  line = conversion.convert(run, tmp_path / 'out')
  assert hf.dtype_of(tmp_path / 'out') == 'float32' and 'float32' in line
  want = frozen.restored(kept, transformer.build(c).specs)
  assert_same(load(tmp_path / 'out'), want)


def frozen_leaf(x) -> bool:
  return frozen.is_pair(x) or spec.is_spec(x)


def test_a_folder_of_several_dtypes_loses_nothing(folder, params, tmp_path):
  names = sorted(folder.glob('*.safetensors'))
  first = library.load_file(names[0])
  half = {k: v.astype(jnp.bfloat16) for k, v in first.items()}
  library.save_file(half, names[0], metadata={'format': 'pt'})
  before = load(folder)
  assert hf.dtype_of(folder) == 'float32'
  conversion.convert(folder, tmp_path / 'out')
  assert_same(load(tmp_path / 'out'), before)


@pytest.mark.parametrize('dtype', [None, 'bfloat16', 'float16'])
def test_adapters_alone_have_the_dtype(tmp_path, params, dtype):
  model = adapters.attach(
    transformer.build(small_config(**CHANGES)), lora=lora.Lora(2, 4.0)
  )
  ab = spec.init(model.specs[lora.KEY], jax.random.key(7))
  ab = jax.tree.map(lambda x: x + 1 / 3, ab)
  changes = {'lora.rank': 2, 'lora.alpha': 4.0}
  run_of(tmp_path / 'run', params | {lora.KEY: ab}, changes)
  convert.run(str(tmp_path / 'run'), str(tmp_path / 'out'), dtype, 'peft')
  file = tmp_path / 'out' / 'adapter_model.safetensors'
  found = library.load_file(file)
  assert {str(x.dtype) for x in found.values()} == {dtype or 'float32'}
  name = 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'
  want = np.asarray(ab['layers']['attn']['q']['a'][0]).T
  np.testing.assert_array_equal(found[name], want.astype(found[name].dtype))


@pytest.mark.parametrize('kind', ['char', 'byte', 'sentencepiece'])
def test_a_run_from_scratch_exports_its_tokenizer(kind, tmp_path):
  """The exported tokenizer encodes to and decodes from the ids of the run."""
  workdir = epath.Path(tmp_path / 'run')
  c = config_lib.default()
  texts = [f'{i} + {i + 1} = {2 * i + 1}\n' for i in range(300)]
  if kind == 'sentencepiece':
    workdir.mkdir()
    path = workdir / 'tokenizer.model'
    own = tokenizers.train_sentencepiece(texts, 274, path)
    (workdir / 'tokenizer.model').rename(tmp_path / 'kept.model')
    workdir.rmdir()
  else:
    c.data.tokenizer = kind
    own = problems.make_tokenizer(c.data, problems.load(c.data, 0), workdir)
  vocab = -(-own.vocab_size // 8) * 8
  params = small_model(**CHANGES | {'vocab': vocab})[2]
  run_of(
    tmp_path / 'run',
    params,
    {'data.tokenizer': kind, 'data.name': 'arithmetic'},
  )
  if kind == 'sentencepiece':
    (tmp_path / 'kept.model').rename(tmp_path / 'run' / 'tokenizer.model')
  done = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason', 'convert']
    + [f'--from={workdir}', f'--to={tmp_path / "out"}'],
    env=os.environ | {'JAX_PLATFORMS': 'tpu'},  # it uses no chip
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  assert done.returncode == 0, done.stderr
  theirs = hf_tokenizers.load(tmp_path / 'out')
  text = '12+7-3=' if kind == 'char' else '12 + 7 = 19\n\u00e9'
  assert theirs.encode(text) == own.encode(text)
  assert theirs.decode(own.encode(text)) == text
  assert theirs.eos_ids == own.eos_ids and theirs.prefix_ids == ()
  # The run and its export generate equal text.
  answers = [
    generate.load(
      str(path), 'float32', False, n_samples=1, max_new=6,
      sampling={'temperature': 0.0},
    )([own.encode(text)], [0])[0]
    for path in (workdir, tmp_path / 'out')
  ]  # fmt: skip
  assert answers[0] == answers[1]
