"""Generation on one mesh and training on another (`sampler_mesh`)."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_hosts
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec
from test_hosts import env
from test_recipe_features import recipe, rows

from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.run import prepare, train, two_meshes
from jaxrl_reason.run.records import rollout_files
from jaxrl_reason.run.rl import split_step
from jaxrl_reason.update import rollout_dump

__all__ = ['env']

COIN = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
STEP = {
  'rl.algorithm': 'dr_grpo',
  'rl.old_logp': 'sampler',
  'rl.samples': 8,
  'rl.rewards': COIN,
  'rl.steps': 4,
  'rl.optimizer.lr': 1e-2,
  'rollouts.every': 1,
  'rollouts.problems': 99,
}


@pytest.fixture
def dumps(monkeypatch):
  """Returns the arrays of the batches that runs train on, in order, with the
  prompts.
  """
  found, note = [], rollout_files.RolloutFiles.note
  arrays = rollout_dump._arrays

  def with_prompts(step):
    return arrays(step) | rollout_dump._prompts(step)

  def noted(self, total, stage, told, asked):
    one = told['tokens'].ndim == 3  # one mesh stacks the steps of a dispatch
    found.append({k: np.asarray(x[0] if one else x) for k, x in told.items()})
    return note(self, total, stage, told, asked)

  monkeypatch.setattr(rollout_dump, '_arrays', with_prompts)
  monkeypatch.setattr(rollout_files.RolloutFiles, 'note', noted)
  return found


@pytest.fixture
def versions(monkeypatch):
  """Returns the weights with which the steps on two meshes begin, in order."""
  found, call = [], split_step.SplitStep.__call__

  def noted(self, state, prompts):
    found.append(jax.tree.map(np.asarray, state.params))
    return call(self, state, prompts)

  monkeypatch.setattr(split_step.SplitStep, '__call__', noted)
  return found


def made(at, **changes):
  """Runs the recipe; returns the metrics of its steps."""
  train.run(recipe(**STEP | changes), at)
  return rows(at)


def gap_to(model, params, batch) -> float:
  """Returns the largest difference between the sampler's log-probs of a batch
  and those that the trainer computes with some weights.
  """
  start = batch['prompt'].shape[1]
  tokens = np.concatenate([batch['prompt'], batch['tokens']], axis=1)
  there = np.concatenate([batch['prompt'] >= 0, batch['valid']], axis=1)
  rows = Rows(jnp.maximum(tokens, 0), jnp.asarray(there))
  logp = logprobs.score(model, params, rows, Sampling.make())[0][:, start:]
  gap = np.where(batch['sampled'], logp - batch['sampler_logp'], 0)
  return np.abs(gap).max()


# Staleness, the trainer's mesh, the sampler's mesh, problems of a step.
SPLITS = [
  (0, (2, 2, 1), (1, 4, 1), 8),
  (1, (3, 1, 2), (1, 2, 1), 12),
  pytest.param(2, (-1, 1, 1), (2, 1, 2), 8, marks=pytest.mark.slow),
]


@pytest.mark.parametrize('stale, mesh, sampler, prompts', SPLITS, ids=str)
def test_a_run_equals_that_of_one_mesh(
  tmp_path, dumps, versions, stale, mesh, sampler, prompts
):
  """At equal staleness, tokens are equal, and numbers are equal to rounding.
  The trainer computes the sampler's log-probs, with the weights that sampled.
  """
  more = {'rl.staleness': stale, 'rl.prompts': prompts}
  shards = 8 if prompts % 8 == 0 else 4
  one = made(tmp_path / 'one', **more | {'mesh': (shards, 1, 8 // shards)})
  two = {'mesh': mesh, 'sampler_mesh': sampler}
  two = made(tmp_path / 'two', **more | two)
  first, second = dumps[: len(one)], dumps[len(one) :]
  for i, (a, b) in enumerate(zip(first, second, strict=True)):
    assert a['trained'].any() == (i >= stale)
    np.testing.assert_array_equal(a['tokens'], b['tokens'])
    np.testing.assert_array_equal(a['sampled'], b['sampled'])
    for name in ('logp', 'sampler_logp', 'reward'):
      np.testing.assert_allclose(a[name], b[name], atol=1e-5)
  model = prepare.prepare(recipe(**STEP), epath.Path(tmp_path)).model
  for i, batch in enumerate(second[stale:]):
    assert batch['sampled'].sum() > 64
    assert gap_to(model, versions[i], batch) <= 1e-5
    if i >= stale and i + 1 < len(versions):  # the next version differs
      assert gap_to(model, versions[i + 1], batch) > 1e-3
  assert sum(r['train/grad_norm'] > 0 for r in one) == len(one) - stale
  for a, b in zip(one, two, strict=True):
    names = [name for name in a if name.startswith('train/')]
    assert names == [name for name in b if name.startswith('train/')]
    for name in names:
      np.testing.assert_allclose(b[name], a[name], rtol=2e-4, atol=1e-5)
    assert b['train/policy_lag'] == (stale if b['step'] > stale else 0)


@pytest.mark.parametrize(
  'dtype, least, most', [('bfloat16', 0, 0), ('int8', 1e-4, 0.2)]
)
def test_the_sampler_stores_smaller_weights(
  tmp_path, dumps, dtype, least, most
):
  """With bfloat16, tokens and log-probs are equal if the model computes in
  bfloat16. With int8 the distribution differs, and the distance is measured.
  """
  more = {'rl.steps': 1, 'mesh': (4, 1, 1), 'sampler_mesh': (1, 2, 2)}
  more |= {'model.dtype': 'bfloat16', 'checkpoint.every': 1}
  made(tmp_path / 'a', **more)
  made(tmp_path / 'b', **more | {'sampler_dtype': dtype})
  a, b = dumps
  same = (a['tokens'] == b['tokens']).all(axis=1)
  gap = np.abs(a['sampler_logp'] - b['sampler_logp'])[same].max()
  assert same.mean() > 0.5 and least <= gap <= most


def test_adapters_beside_frozen_weights_are_sent_unchanged(tmp_path, dumps):
  more = {'lora.rank': 2, 'frozen_dtype': 'int8', 'rl.steps': 2}
  made(tmp_path / 'one', **more | {'mesh': (8, 1, 1)})
  two = {'mesh': (4, 1, 1), 'sampler_mesh': (2, 2, 1)}
  made(tmp_path / 'two', **more | two)
  for a, b in zip(dumps[:2], dumps[2:], strict=True):
    np.testing.assert_array_equal(a['tokens'], b['tokens'])
    np.testing.assert_allclose(a['sampler_logp'], b['sampler_logp'], atol=1e-5)


def test_a_batch_is_sampled_while_another_is_trained_on(tmp_path, monkeypatch):
  """With slow sampling, a step's update ends before its samples are there, and
  the call that queues both returns before either.
  """
  sample, note, seen = split_step.rl_sample, split_step.Clock.note, []

  def slow(*given):
    groups, account = sample(*given)
    length = groups.rollout.length
    work = jnp.full((384, 384), length.sum(), jnp.float32)
    work = jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), work)
    length += (work.sum() > 1e9).astype(length.dtype)  # false
    rollout = groups.rollout.replace(length=length)
    return groups.replace(rollout=rollout), account

  def noted(self, begun, *events):
    note(self, begun, *events)
    seen.append((time.monotonic(), self._steps[-1][1]))

  monkeypatch.setattr(split_step, 'rl_sample', slow)
  monkeypatch.setattr(split_step.Clock, 'note', noted)
  two = {'rl.staleness': 1, 'mesh': (4, 1, 1), 'sampler_mesh': (1, 1, 1)}
  made(tmp_path, **two | {'mesh': (-1, 1, 1), 'rl.prompts': 7})
  assert len(seen) == 4
  for returned, events in seen[1:]:  # the first step compiles
    *_, sampled, _, updated = (x.result() for x in events)
    assert max(returned, updated) < sampled


def test_waiting_times_of_sampler_and_trainer():
  times = split_step.Times
  # begun, sent, weights, sampled, samples, updated
  before = times(0.0, 1.0, 2.0, 9.0, 10.0, 6.0)
  now = times(5.0, 6.5, 11.0, 15.0, 17.0, 14.0)
  seconds = split_step.seconds(before, now, queued=True)
  assert seconds == {
    'sampler_wait_s': 11 - 9,  # the last batch was ready at 9, weights at 11
    'trainer_wait_s': 10 - 6,  # the batch of the previous step came at 10
    'weights_s': 11 - 6.5,
    'samples_s': 17 - 15,
    'sample_s': 15 - 11,
    'train_s': 14 - 10,
  }
  in_turn = split_step.seconds(before, now._replace(updated=20.0), False)
  assert in_turn['trainer_wait_s'] == 17 - 6
  assert in_turn['train_s'] == 20 - 17


@pytest.mark.parametrize('shape', [(6, 4), (5, 3), (3, 2, 8), ()])
@pytest.mark.parametrize('n', [1, 2, 4])
def test_a_transfer_changes_the_devices_and_nothing_else(monkeypatch, shape, n):
  monkeypatch.setattr(two_meshes, 'CHUNK', 64)  # several chunks
  a, b = two_meshes.split((-1, 1, 1), (1, n, 1))
  assert not {*a.devices.flat} & {*b.devices.flat}
  value = np.random.default_rng(n).normal(size=shape).astype(np.float32)
  whole = NamedSharding(a, PartitionSpec())
  tree = {'x': value, 'y': (value > 0, value.astype(np.float16))}
  tree = jax.device_put(tree, whole)
  transfer = two_meshes.Transfer(a, b, two_meshes.by_rows(b))
  moved = transfer(tree).tree
  for old, new in zip(*map(jax.tree.leaves, (tree, moved)), strict=True):
    assert new.dtype == old.dtype
    np.testing.assert_array_equal(new, old)
    split = bool(shape) and shape[0] % n == 0
    spec = PartitionSpec(('data', 'fsdp')) if split else PartitionSpec()
    assert new.sharding.is_equivalent_to(NamedSharding(b, spec), new.ndim)


def test_copied_shards_are_donated_and_the_weights_stay(monkeypatch):
  """All but the last array, whose arrival is timed."""
  monkeypatch.setattr(two_meshes, 'CHUNK', 64)  # several chunks
  seen, copy = [], two_meshes.Transfer._copied

  def copied(self, x):
    seen.append(copy(self, x))
    return seen[-1]

  monkeypatch.setattr(two_meshes.Transfer, '_copied', copied)
  a, b = two_meshes.split((-1, 1, 1), (1, 4, 1))
  tree = {name: jnp.ones((8, 4)) for name in 'xyz'}
  tree = jax.device_put(tree, NamedSharding(a, PartitionSpec()))
  moved = two_meshes.Transfer(a, b, two_meshes.by_rows(b))(tree)
  jax.block_until_ready(moved.tree)
  assert [x.is_deleted() for x in seen] == [True, True, False]
  assert moved.copied is seen[-1]
  assert not any(x.is_deleted() for x in jax.tree.leaves((tree, moved.tree)))


def test_one_device_has_no_second_mesh():
  words = r'leave none to train on; set it to \(\) for one mesh'
  with pytest.raises(ValueError, match=words):
    two_meshes.split((-1, 1, 1), (1, 1, 1), jax.devices()[:1])


def test_missing_devices_are_refused():
  with pytest.raises(ValueError, match=r'sampler_mesh=\(1, 8, 1\): 8 devices'):
    two_meshes.split((-1, 1, 1), (1, 8, 1))
  with pytest.raises(ValueError, match='needs 8 devices, but there are 4'):
    two_meshes.split((8, 1, 1), (1, 4, 1))


@pytest.mark.slow
@pytest.mark.parametrize('first', [0, 1])
def test_a_checkpoint_of_one_mesh_is_one_of_two(tmp_path, first):
  """The checkpoint contains the queue. Restores in both directions."""
  one = {'mesh': (8, 1, 1)}
  meshes = one, {'mesh': (4, 1, 1), 'sampler_mesh': (1, 4, 1)}
  more = {'rl.staleness': 2, 'checkpoint.every': 4, 'eval.every': 4}
  longer = more | {'rl.steps': 8}
  made(tmp_path / 'changed', **more | meshes[first])
  changed = made(tmp_path / 'changed', **longer | meshes[1 - first])
  same = made(tmp_path / 'same', **longer | meshes[first])
  assert len(changed) == 8
  for a, b in zip(same, changed, strict=True):
    names = [name for name in a if name.startswith('train/')]
    for name in names:
      np.testing.assert_allclose(b[name], a[name], rtol=2e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_of_four_devices_equal_one_of_eight(env, tmp_path):
  """Each process has half of both meshes."""
  keys = test_hosts.FUSED | {
    'rl.steps': 4,
    'rl.steps_per_dispatch': 1,
    'rl.prompts': 8,
    'rl.old_logp': 'sampler',
    'rl.staleness': 1,
    'mesh': (1, 4, 1),
    'sampler_mesh': (2, 2, 1),
  }
  for n, devices in ((1, 8), (2, 4)):
    flags = f'--xla_force_host_platform_device_count={devices}'
    own = env | {'XLA_FLAGS': env['XLA_FLAGS'] + f' {flags}'}
    runs = [(tmp_path / str(n), keys)]
    started = test_hosts.start_worker(own, tmp_path / f'log{n}', n, runs)
    test_hosts.finish(started, tmp_path / f'log{n}')
  one, two = (rows(tmp_path / str(n)) for n in (1, 2))
  assert len(one) == 2 and one[-1]['train/grad_norm'] > 0
  for a, b in zip(one, two, strict=True):
    for name in a:
      if name.startswith(('train/', 'eval/')):
        np.testing.assert_allclose(b[name], a[name], rtol=2e-4, atol=1e-5)
