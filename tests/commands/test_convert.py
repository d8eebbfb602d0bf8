"""Conversions between Hugging Face folders and checkpoints lose nothing."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import ROOT, small_config, small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason.base import TrainState
from jaxrl_reason.checkpoints import conversion, hf, manager
from jaxrl_reason.models import transformer

CHANGES = dict(qk_norm=False)


@pytest.fixture(scope='module')
def params():
  return small_model(**CHANGES)[2]


@pytest.fixture
def folder(tmp_path, params):
  """A Hugging Face folder with a tokenizer beside its weights."""
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
  """Its parameters, of the newest checkpoint, without the optimizer's."""
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


def test_what_does_not_fit_is_said_in_a_line(folder, tmp_path):
  with pytest.raises(FileExistsError, match='is not empty'):
    conversion.convert(folder, folder)
  with pytest.raises(ValueError, match='no folder'):
    conversion.convert(tmp_path / 'nowhere', tmp_path / 'out')
  (tmp_path / 'empty').mkdir()
  done = subprocess.run(
    [sys.executable, '-m', 'jaxrl_reason.convert']
    + [f'--from={tmp_path / "empty"}', f'--to={tmp_path / "out"}'],
    capture_output=True,
    text=True,
    cwd=ROOT,
  )
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  assert 'config.json does not exist' in done.stderr
