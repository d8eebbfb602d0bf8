"""Recipes build, every key is read, and nonsense is refused with its name."""

import ast

import jax
import pytest
from small import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import sharding
from jaxrl_reason.models import spec, transformer
from jaxrl_reason.run import config_checks
from jaxrl_reason.update import optim

RECIPES = sorted((ROOT / 'configs').glob('*.py'))


@pytest.mark.parametrize('path', RECIPES, ids=lambda p: p.stem)
def test_recipe_builds(path):
  module = load_recipe(path)
  config = module.get_config()
  config_checks.check(config, 1)
  changed = set(config.keys()) ^ set(config_lib.default().keys())
  assert not changed, 'a recipe changes keys, it adds none'
  model = transformer.build(
    transformer.Config(vocab=64, **config.model.to_dict())
  )
  shapes = spec.abstract(model.specs)
  for stage in config.stages:
    tx = optim.make(config[stage].optimizer, config[stage].steps)
    jax.eval_shape(tx.init, shapes)
  sharding.shardings(
    model.specs, sharding.make_mesh((4, 2, 1)), sharding.TRAIN_RULES
  )
  for word in ('python -m jaxrl_reason.main', 'pass@1', 'min'):
    assert word in module.__doc__, f'{path.name}: docstring lacks {word!r}'


def leaves(config, prefix=''):
  for key, value in config.items():
    yield prefix + key, key
    if hasattr(value, 'items'):
      yield from leaves(value, f'{prefix}{key}.')


def test_every_key_is_read():
  """Each key is an attribute or a subscript somewhere in the package, or a
  field of the model's Config or a setting of the losses.
  """
  read = set()
  for path in (ROOT / 'jaxrl_reason').rglob('*.py'):
    if path.name == 'config.py' or 'losses' in path.parts:
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Attribute):
        read.add(node.attr)
      elif isinstance(node, ast.Subscript) and isinstance(
        node.slice, ast.Constant
      ):
        read.add(node.slice.value)
  config = config_lib.default()
  del config.rl.loss  # the losses' own tests hold those
  read |= set(transformer.Config.__dataclass_fields__)
  read |= {'rl', 'sft', 'pretrain', 'answer'}  # read by the stage's name
  unread = [name for name, key in leaves(config) if key not in read]
  assert not unread


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'stages': ('sft', 'dpo')}, 'stages=.*dpo'),
    ({'rl.prompts': 6, 'rl.minibatches': 5}, r'6 x rl.samples 8 = 48 .*= 5'),
    ({'rl.micro_batches': 7}, r'= 256 does not divide by .*micro_batches 7'),
    ({'sft.micro_batches': 0}, 'sft.micro_batches=0 must be at least 1'),
    ({'rl.steps_per_dispatch': 7}, r'rl.steps = 200 does not divide'),
    ({'rl.algorithm': 'grpq'}, "'grpq'.*grpo"),
    ({'rl.path': 'gpu'}, 'rl.path'),
    ({'rl.pack_len': 63}, r'pack_len=63 .* 32 .* 32 = 64'),
    ({'rl.pack_len': 64, 'rl.length_buckets': 4}, 'pack_len=64 and.*=4'),
    ({'rl.pack_len': 64, 'rl.pack_sizes': 0}, 'pack_sizes=0'),
    ({'rl.pack_len': 64, 'rl.algorithm': 'tbrm'}, 'whole logits'),
    ({'rl.filter': 'some'}, 'rl.filter'),
    ({'rl.temperature': 0.0}, 'rl.temperature'),
    ({'rl.slots': -1}, 'rl.slots=-1'),
    ({'model.prefill_chunk': -1}, 'prefill_chunk=-1'),
    (
      {'model.prefill_chunk': 8, 'model.prompt_buckets': 2},
      'buckets=2.*chunk=8.*one of them',
    ),
    ({'rl.cache_segments': 0}, 'rl.cache_segments=0'),
    ({'rl.path': 'host', 'rl.steps_per_dispatch': 10}, 'steps_per_dispatch'),
    ({'checkpoint.every': 15}, 'checkpoint.every = 15 does not.*log_every 10'),
    ({'rl.algorithm': 'tree_rl'}, 'tree_rl.*needs node_ids'),
    ({'rl.algorithm': 'luffy'}, 'luffy.*set rl.demos=1'),
    ({'rl.demos': 1}, 'rl.demos=1.*offpolicy to luffy'),
    ({'rl.overlong': 33}, 'rl.overlong=33 .*completion_len=32'),
    ({'rl.demos': 8}, 'rl.demos=8 leaves no sample'),
    ({'sft.optimizer.schedule': 'sine'}, 'sft.*schedule.*sine'),
    ({'profile.steps': '12:10'}, "profile.steps='12:10'.*first:last"),
    ({'sft.optimizer.name': 'adam'}, 'sft.*optimizer.name.*adam'),
  ],
)
def test_impossible_configs_are_refused(changes, words):
  config = config_lib.default()
  config.update_from_flattened_dict(changes)
  with pytest.raises(ValueError, match=words):
    config_checks.check(config, 1)


def test_rows_must_divide_over_the_devices():
  with pytest.raises(ValueError, match='row shards.* 3'):
    config_checks.check(config_lib.default(), 3)


def test_a_loss_setting_overrides_its_recipe():
  config = config_lib.default()
  config.rl.algorithm = 'dapo'
  before = config_lib.algorithm(config)
  config.rl.loss.clip_high = 0.5
  after = config_lib.algorithm(config)
  assert after == before | {'clip_high': 0.5} and before['clip_high'] == 0.28


def test_dr_grpo_divides_by_the_completions_room():
  config = config_lib.default()
  config.rl.algorithm = 'dr_grpo'
  assert config_lib.algorithm(config)['fixed_length'] == 32
  config.rl.loss.fixed_length = 7
  assert config_lib.algorithm(config)['fixed_length'] == 7


def test_the_host_side_imports_no_jax():
  """Verifier workers and data workers start without a device library."""
  import subprocess
  import sys

  code = (
    'import sys, jaxrl_reason.tasks, jaxrl_reason.rewards.pool;'
    'import jaxrl_reason.rewards.task, jaxrl_reason.rewards.math.numbers;'
    'sys.exit("jax" in sys.modules)'
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
