"""Recipes are built, every key is read, and invalid values are refused by
name.
"""

import ast
import copy
import dataclasses

import jax
import numpy as np
import pytest
from etils import epath
from paths import ROOT, load_recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, sharding, trees
from jaxrl_reason.config import changes, record, rules
from jaxrl_reason.evals import loading
from jaxrl_reason.models import adapters, spec, transformer
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.run import stage_list as staging
from jaxrl_reason.run.checks import (
  config_checks,
  data_checks,
  loss_checks,
)
from jaxrl_reason.run.records import events
from jaxrl_reason.run.rl import turn_settings
from jaxrl_reason.update import optim

RECIPES = sorted((ROOT / 'configs').glob('*.py'))


def changed(**flat):
  return config_lib.Run().changed(flat)


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
  for planned in staging.each(config):
    own = planned.config.training(planned.kind)
    jax.eval_shape(optim.make(own.optimizer, own.steps).init, shapes)
  sharding.shardings(
    model.specs, sharding.make_mesh((4, 2, 1)), sharding.TRAIN_RULES
  )
  for word in ('tools/run --config=', 'pass@1', 'min'):
    assert word in module.__doc__, f'{path.name}: docstring lacks {word!r}'


def leaves(config, prefix=''):
  for key, value in config.items():
    yield prefix + key, key
    if hasattr(value, 'items'):
      yield from leaves(value, f'{prefix}{key}.')


def test_every_key_is_read():
  """Each key is read as an attribute or a subscript in the package, or is a
  field of the model's Config, or a setting of the losses.
  """
  read = set()
  for path in (ROOT / 'jaxrl_reason').rglob('*.py'):
    of_losses = 'losses' in path.relative_to(ROOT).parts
    if path.name == 'config.py' or (of_losses and path.stem != 'imitation'):
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Attribute):
        read.add(node.attr)
      elif isinstance(node, ast.Subscript) and isinstance(
        node.slice, ast.Constant
      ):
        read.add(node.slice.value)
  config = config_lib.default().unlock()
  del config.rl.loss  # the tests of losses check these keys
  read |= set(transformer.Config.__dataclass_fields__)
  read |= {'rl', 'sft', 'pretrain', 'answer'}  # read by the stage's name
  unread = [name for name, key in leaves(config) if key not in read]
  assert not unread


@pytest.mark.parametrize(
  'changes',
  [
    {'rl.loss.advantage': 'reinforce'},
    {'rl.loss.singleton': 'reward'},
    {'rl.loss.advantage': 'pkpo', 'rl.loss.pass_k': 1},
  ],
)
def test_one_sample_is_enough_if_it_has_an_advantage(changes):
  config = config_lib.default()
  config.update_from_flattened_dict({'rl.samples': 1} | changes)
  config_checks.check(config, 1)
  # Compares the table of the check with the losses.
  settings = config_lib.read(config).objective
  reward, group = jax.numpy.array([0.0, 1.0, 3.0]), jax.numpy.arange(3)
  mask = jax.numpy.ones((3, 2))
  assert jax.numpy.any(losses.advantages(settings, reward, group, mask=mask))


def test_refused_single_samples_have_no_advantage():
  """Tests every advantage that needs only rewards and groups."""
  reward, group = jax.numpy.array([0.0, 1.0, 3.0]), jax.numpy.arange(3)
  config, refused = config_lib.default(), set()
  config.rl.samples = 1
  for name in losses.ADVANTAGES:
    settings = losses.resolve({'advantage': name})
    config.rl.loss.advantage = name
    try:
      c = config_lib.read(config).rl
      rules.refuse(loss_checks.group_rules, c, settings)
    except ValueError:
      refused.add(name)
  arrays = {
    k: jax.numpy.ones((3, 2))
    for k in (
      'reward_parts',
      'values',
      'process_reward',
      'segment_reward',
      'sum_p_squared',
      'old_logp',
    )
  } | {
    'greedy_reward': reward * 0,
    'mask': jax.numpy.ones((3, 2)),
    **{k: jax.numpy.arange(6).reshape(3, 2) for k in ('node_ids',)},
    'segment_ids': jax.numpy.array([[0, 1]] * 3),
    'pass_rate': jax.numpy.full(3, 0.5),
  }
  dead = {
    name
    for name in losses.ADVANTAGES
    if not jax.numpy.any(
      losses.advantages(
        losses.resolve({'advantage': name}), reward, group, **arrays
      )
    )
  }
  # 'none' has no advantage with any number of samples: the loss computes it.
  assert refused == dead - {'none'}


@pytest.mark.parametrize(
  'change, near',
  [
    (lambda c: setattr(c.rl, 'epoch', 2), "'epoch'.*'epochs'"),
    (lambda c: c.rl.update(epoch=2), "'epoch'.*'epochs'"),
    (lambda c: c.rl.update({'loss': {'cliphigh': 1.0}}), "'clip_high'"),
    (lambda c: setattr(c, 'rl', {'epoch': 2}), "'epoch'.*'epochs'"),
    (lambda c: c.eval.__setitem__('problem', 2), "'problem'.*'problems'"),
    (lambda c: setattr(c.sft.optimizer, 'learning_rate', 1.0), 'lr'),
    (lambda c: setattr(c.model, 'vocab', 9), 'decode_layers, dtype'),
    (
      lambda c: setattr(c.sft, 'optimizer', {'warmup': 1}),
      "'warmup'.*'warmup_steps'",
    ),
    (lambda c: setattr(c, 'stage', ('rl',)), "'stage'.*'stages'"),
  ],
)
def test_a_misspelled_key_is_an_error_where_it_is_set(change, near):
  config = config_lib.default()
  with pytest.raises((AttributeError, KeyError), match=near) as error:
    change(config)
  assert '\n' not in str(error.value)
  config_checks.check(config, 1)  # the failed check changed nothing


def test_keys_of_a_config_that_was_unlocked_are_checked():
  config = config_lib.default().unlock()
  config.rl.critic.warmup = 3
  with pytest.raises(
    ValueError, match=r'key rl\.critic\.warmup\. .*warmup_updates'
  ):
    config_checks.check(config, 1)
  del config.rl.critic.warmup, config.eval.show
  with pytest.raises(ValueError, match=r'eval\.show is missing'):
    config_checks.check(config, 1)


def test_a_replaced_section_keeps_its_other_keys():
  config = config_lib.default()
  config.eval = {'samples': 7}
  config.rl = dict(steps=30, optimizer=dict(lr=0.5))
  want = config_lib.default()
  want.eval.samples, want.rl.steps, want.rl.optimizer.lr = 7, 30, 0.5
  assert config.to_dict() == want.to_dict()


def test_open_sections_keep_the_order_of_their_keys(tmp_path):
  """The first reward is the verifier, and links follow each other."""
  parts = {name: {'reward': 'task'} for name in ('task', 'format', 'answer')}
  want = {
    'rl.rewards': 'task, format, answer',
    'rl.turns.links': 'solve, check',
    'named.long.rl.rewards': 'task, format, answer',
  }
  c = config_lib.default()
  links = "rl.turns.links={'solve': {}, 'check': {}}"
  changes.apply(c, [f'rl.rewards={parts}', links])
  c.rl.rewards.task.kwargs = {'z': 1, 'a': 2}
  changes.apply(c, ['rl.rewards.task.kwargs.z=3'])
  c.named = {'long': {'kind': 'rl', 'rl': {'rewards': parts}}}
  run = config_lib.read(c).changed({'rl.rewards.format.weight': 2.0})
  del run.rl.rewards['format']['weight']
  events.write_config(run.json_values(), epath.Path(tmp_path), resuming=False)
  for config in (c, copy.deepcopy(c), c.copy_and_resolve_references(), run):
    got = changes.orders(config.to_dict())
    assert got == want
    assert [*config.rl.rewards['task']['kwargs']] == ['z', 'a']
  (tmp_path / 'checkpoints').mkdir()
  stored = loading.run_of(f'{tmp_path}').to_dict()
  assert changes.orders(stored) == changes.orders(run.json_values())
  assert turn_settings.part_names(run.rl) == ('task', 'format', 'answer')


def test_open_sections_accept_keys_that_are_read():
  config = config_lib.default().lock()
  config.data.knobs.max_ops = 5
  config.data.harder = {'max_ops': 6}
  config.rl.rewards.short = {'reward': 'length', 'weight': 0.1}
  config_checks.check(config, 1)
  for key, value, words in (
    ('data.knobs.max_opps', 3, r"knobs\.max_opps: .*'arithmetic'.*'max_ops'"),
    ('data.harder.maxops', 3, "harder.maxops: .*'max_ops'"),
    ('data.knobs.max_ops', 'three', "knobs.max_ops='three': must be a int"),
    ('rl.rewards.short.wieght', 3, "rewards.short.wieght.*'weight'"),
    ('rl.rewards.more', 3, 'rewards.more=3: must be a section'),
    ('rl.rewards.more.weight', 3.0, 'rewards.more lacks the key reward'),
  ):
    bad = config_lib.default()
    *path, last = key.split('.')
    section = bad
    for name in path:
      if name not in section:
        section[name] = {}
      section = section[name]
    section[last] = value
    with pytest.raises(ValueError, match=words):
      config_checks.check(bad, 1)
  config.data.name, config.data.dir = 'files', 'nowhere'
  with pytest.raises(ValueError, match="'files' has no such knob"):
    config_checks.check(config, 1)


def fields(kind: type, prefix: str = ''):
  """Yields (dotted key, `record.Kind`) of every field of a record."""
  for field in dataclasses.fields(kind):
    found = record.kind_of(field.type)
    yield prefix + field.name, found
    if issubclass(found.type, record.Record):
      yield from fields(found.type, f'{prefix}{field.name}.')


RANGES = {
  key: kind.range
  for key, kind in fields(config_lib.Run)
  if kind.range and not kind.optional
}


def test_every_number_has_a_range_and_no_other_key_has():
  numbers = {
    name
    for name, kind in fields(config_lib.Run)
    if kind.type in (int, float) and not kind.optional
    if not name.startswith('rl.loss.')
  }
  assert numbers == RANGES.keys()


@pytest.mark.parametrize('key', RANGES)
def test_values_out_of_range_are_refused_with_key_value_and_range(key):
  kind = RANGES[key]
  bad = [min(-1, kind.low - 1), float('nan'), float('inf'), None]
  bad += [kind.low] if kind.above else []
  bad += [kind.high] if kind.below else [kind.high + 1]
  bad += [2.5, True] if kind.whole else []
  for value in bad:
    config = config_lib.default()
    *path, last = key.split('.')
    section = config
    for name in path:
      section = section[name]
    with config.ignore_type():
      section[last] = value
    with pytest.raises(ValueError) as error:
      config_checks.check(config, 1)
    # An int given for a float is one by now.
    assert f'{key}={section[last]!r}: must be {kind}' in str(error.value)
    assert '\n' not in str(error.value)


def test_values_that_cannot_work_are_refused():
  """The bounds are written here, not read from the table."""
  for key, value in {
    'rl.optimizer.lr': -1e-4, 'sft.steps': -1, 'rl.prompts': -8,
    'rl.epochs': 0, 'rl.top_p': 1.7, 'rl.workers': 0,
    'eval.samples': 0, 'checkpoint.keep': 0, 'lora.rank': -2,
    'model.heads': 0, 'model.width': -4, 'data.prompt_len': 0,
    'log_every': 0, 'rl.min_p': -0.1, 'rl.top_k': -5, 'rl.timeout_s': 0.0,
    'eval.temperature': -1.0, 'data.completion_len': 0, 'seed': -1,
    'rl.optimizer.b1': 1.0, 'rl.minibatches': 0, 'rl.samples': 0,
    'data.files.heldout': 1.0, 'model.layers': 0, 'remat_gib': 0.0,
    'rl.critic.optimizer.lr': float('nan'), 'eval.problems': 0,
    'sft.rows': 0, 'pretrain.stop_loss': -1.0, 'rl.parts': 0,
    'rl.temperature': 0.0, 'lora.alpha': 0.0, 'rl.repetition_penalty': 0.0,
    'rl.presence_penalty': 2.5, 'rl.frequency_penalty': -2.5,
  }.items():  # fmt: skip
    config = config_lib.default()
    config.update_from_flattened_dict({key: value})
    with pytest.raises(ValueError, match=f'{key}={value!r}: must be'):
      config_checks.check(config, 1)


@pytest.mark.parametrize(
  'key, value',
  [('rl.path', None), ('stages', None), ('steering', None), ('model', None)],
)
def test_no_key_may_be_none(key, value):
  config = config_lib.default()
  config.update_from_flattened_dict({key: value})
  with pytest.raises(ValueError, match=f'{key}=None: must be a'):
    config_checks.check(config, 1)


def test_a_regex_that_trains_nothing_is_refused():
  config = config_lib.default()
  shape = transformer.Config(vocab=16, **config.model.to_dict())
  paths = trees.flatten(transformer.build(shape).specs)
  with pytest.raises(ValueError, match="='.*atn.*matches none .*embed"):
    config_checks.check_trainable(changed(trainable='.*/atn/.*'), paths)
  config_checks.check_trainable(changed(trainable='.*/attn/.*'), paths)


@pytest.mark.parametrize('added', [{'lora.rank': 2}, {'steering': True}])
def test_new_adapters_that_are_not_trained_are_refused(added):
  """Adapters of another run have an effect without training."""
  run = changed(**added | {'trainable': '.*norm.*'})
  shape = transformer.Config(vocab=16, **run.model.to_dict())
  model = adapters.attach(
    transformer.build(shape),
    lora=lora.Lora(rank=2, alpha=4.0) if run.lora.rank else None,
    steering=run.steering,
    frozen_dtype='float32',
    trainable=run.trained_paths,
  )
  paths = [*trees.flatten(model.specs)]
  key = next(iter(added))
  with pytest.raises(ValueError, match=f"='.*norm.*' and {key}=.*none of the"):
    config_checks.check_trainable(run, paths)
  config_checks.check_trainable(run.changed({'init_from': 'a_run'}), paths)
  config_checks.check_trainable(changed(**added), paths)


def test_a_share_held_out_beside_test_files_is_refused(tmp_path):
  for name in ('train', 'test'):
    (tmp_path / f'{name}.jsonl').write_text('{"question": "q", "answer": 1}\n')
  files = {'data.name': 'files', 'data.dir': str(tmp_path)}
  run = changed(**files | {'data.files.heldout': 0.1})
  with pytest.raises(ValueError, match='heldout=0.1 has no effect: data.dir='):
    rules.refuse(data_checks.heldout_rules, run.data)
  alone = {'data.dir': str(tmp_path / 'train.jsonl')}
  rules.refuse(data_checks.heldout_rules, run.changed(alone).data)
  rules.refuse(data_checks.heldout_rules, changed(**files).data)


@pytest.mark.parametrize('key, value', [('window', 64), ('refresh', 10)])
def test_windows_of_a_data_set_are_refused(key, value):
  of_pool = {'data.controller.name': 'uniform', f'data.controller.{key}': value}
  d = changed(**of_pool).data
  with pytest.raises(ValueError, match=f'{key}={value}: .* is a data set'):
    rules.refuse(data_checks.pool_rules, d)


def test_rows_must_divide_over_the_devices():
  with pytest.raises(ValueError, match='row shards.* 3'):
    config_checks.check(config_lib.default(), 3)


def test_a_loss_setting_overrides_its_recipe():
  config = config_lib.default()
  config.rl.algorithm = 'dapo'
  before = dict(config_lib.read(config).objective)
  config.rl.loss.clip_high = 0.5
  after = dict(config_lib.read(config).objective)
  assert after == before | {'clip_high': 0.5} and before['clip_high'] == 0.28


def test_gdpo_weighs_the_parts_as_the_reward_does():
  parts = {'task': {'reward': 'task'}, 'format': {'reward': 'format'}}
  gdpo = {'rl.algorithm': 'gdpo', 'rl.rewards': parts}
  run = changed(**gdpo | {'rl.rewards.format.weight': 0.0})
  assert run.objective['part_weights'] == (1.0, 0.0)
  assert 'weight' not in parts['format']  # changes are of a copy
  env = {'rl.turns.env': 'calculator', 'rl.turns.reward': 0.5}
  assert changed(**gdpo | env).objective['part_weights'] == (1.0, 1.0, 0.5)
  own = changed(**gdpo | {'rl.loss.part_weights': (1.0, 2.0)})
  assert own.objective['part_weights'] == (1.0, 2.0)
  rng = np.random.default_rng(0)
  one, group = rng.normal(size=(8, 1)), np.arange(8) // 4
  found = [
    losses.advantages(
      run.objective,
      one[:, 0],
      group,
      mask=np.ones((8, 2)),
      reward_parts=np.concatenate([one, rng.normal(size=(8, 1))], axis=1),
    )
    for _ in range(2)
  ]
  np.testing.assert_allclose(*found)


def test_dr_grpo_divides_by_the_completions_room():
  config = config_lib.default()
  config.rl.algorithm = 'dr_grpo'
  assert config_lib.read(config).objective['fixed_length'] == 32
  config.rl.loss.fixed_length = 7
  assert config_lib.read(config).objective['fixed_length'] == 7


def test_the_host_side_imports_no_jax():
  """Verifier workers and data workers start without a device library."""
  import subprocess
  import sys

  code = (
    'import sys, jaxrl_reason.verifiers.tasks, jaxrl_reason.verifiers.pool;'
    'import jaxrl_reason.verifiers.task, jaxrl_reason.verifiers.math.numbers;'
    'sys.exit("jax" in sys.modules)'
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0
