"""Runs with a teacher: another run, a folder, or the reference."""

import functools
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from paths import ROOT, load_recipe
from test_recipe_features import learnt, recipe, rows

from jaxrl_reason import trees
from jaxrl_reason.checkpoints import conversion, hf, other_run, pretrained
from jaxrl_reason.models import families
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import teachers

pytestmark = pytest.mark.one_device


def taught(weights, **flat):
  c = recipe(**{'rl.algorithm': 'opd', 'rl.optimizer.lr': 1e-2} | flat)
  c.rl.teacher.weights = str(weights)
  c.rl.steps = 4
  if c.rl.algorithm == 'gkd':
    c.rl.logprob_chunk = 3
  return c


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  """Returns a run of a model that is larger than the student of `taught`."""
  where = tmp_path_factory.mktemp('teacher')
  c = recipe(stages=('sft',))
  c.model.update(layers=2, width=32, mlp=48, heads=4, kv_heads=4)
  train.run(c, where)
  return where


def weights_of(workdir):
  return trees.flatten(other_run.read_params(epath.Path(workdir)))


def kl(workdir):
  return [row['train/teacher_kl'] for row in rows(workdir)]


# A teacher in int8, in host memory.
STORED = {'rl.teacher.dtype': 'int8', 'rl.teacher.memory': 'host'}
EVERY = {'checkpoint.every': 2, 'checkpoint.keep': 9}


@pytest.fixture(scope='module')
def fused(teacher, tmp_path_factory):
  """Returns a function: algorithm, keys -> (workdir, last state) of a run on
  the fused path.
  """

  def run(algorithm, stored=()):
    where = tmp_path_factory.mktemp(algorithm)
    own = {'rl.algorithm': algorithm, **dict(stored), **EVERY}
    return where, train.run(taught(teacher, **own), where)

  cached = functools.cache(run)
  return lambda algorithm, **flat: cached(algorithm, tuple(flat.items()))


@pytest.fixture(scope='module')
def opd(fused):
  return fused('opd')


def test_a_student_comes_nearer_to_its_teacher(opd, teacher):
  where, state = opd
  for path, x in trees.flatten(state.teacher_params).items():
    np.testing.assert_array_equal(x, weights_of(teacher)[path])
  assert kl(where)[-1] < kl(where)[0]
  assert all(row['train/teacher_kl'] > 0 for row in rows(where)[:1])


@pytest.mark.parametrize('algorithm', ['opd', 'gkd', 'kdrl'])
def test_the_host_path_is_the_fused_path(algorithm, fused, teacher, tmp_path):
  own = {'rl.algorithm': algorithm, 'rl.path': 'host', 'rl.workers': 1}
  train.run(taught(teacher, **own), tmp_path)
  np.testing.assert_allclose(kl(fused(algorithm)[0]), kl(tmp_path), rtol=1e-4)


@pytest.mark.parametrize(
  'algorithm, stored', [('opd', {}), ('gkd', {}), ('gkd', STORED)]
)
def test_eight_devices_equal_one(algorithm, stored, fused, teacher, tmp_path):
  one, want = fused(algorithm, **stored)
  own = {'rl.algorithm': algorithm, 'mesh': (2, 2, 2)} | stored
  got = train.run(taught(teacher, **own), tmp_path)
  assert len(trees.flatten(got.teacher_params)['embed'].sharding.device_set) > 1
  np.testing.assert_allclose(kl(tmp_path), kl(one), rtol=2e-3)
  kinds = {x.sharding.memory_kind for x in jax.tree.leaves(got.teacher_params)}
  assert kinds == {'pinned_host' if stored else 'device'}
  for path, x in trees.flatten(want.teacher_params).items():
    np.testing.assert_array_equal(trees.flatten(got.teacher_params)[path], x)


def test_a_folder_of_weights_is_the_run_it_was_made_of(opd, teacher, tmp_path):
  """The tokenizer is that of the run, since such a folder has none."""
  conversion.convert(teacher, tmp_path / 'folder', form='orbax')
  shutil.copy(teacher / 'config.json', tmp_path / 'folder')
  (tmp_path / 'folder' / 'hf_config.json').unlink()
  train.run(taught(tmp_path / 'folder'), tmp_path / 'run')
  assert kl(tmp_path / 'run') == kl(opd[0])


@pytest.mark.parametrize('dtype', ['float32', 'int8'])
def test_a_published_model_teaches_one_of_another_family(dtype, tmp_path):
  """Random weights of both families, with one tokenizer and chat template."""
  pytest.importorskip('tokenizers')
  c = load_recipe(ROOT / 'configs/gsm8k_smollm2_135m.py').get_config('smoke')
  c.stages, c.compile_cache, c.rl.algorithm = ('rl',), '', 'gkd'
  c.rl.teacher.weights = 'random:hf:Qwen/Qwen3-0.6B'
  c.rl.teacher.update(dtype=dtype, prompt_len=700)
  c.rl.teacher.prompt = '{prompt}\nA solution:\n{solution}\nAnother one:'
  state = train.run(c, tmp_path)
  found = trees.flatten(state.teacher_params)
  folder, _ = pretrained.resolve(c.rl.teacher.weights)
  shape = families.from_hf(hf.read_config(folder))
  want = trees.flatten(hf.load(folder, shape))
  assert any('q_norm' in path for path in want)  # which the policy lacks
  assert not any('q_norm' in path for path in trees.flatten(state.params))
  if dtype == 'float32':
    assert found.keys() == want.keys()
    for path, x in want.items():
      np.testing.assert_array_equal(found[path], x)
  assert all(x > 0 for x in kl(tmp_path))


@pytest.mark.parametrize('dtype', ['bfloat16', 'int8'])
def test_weights_in_fewer_bytes_are_nearly_the_same(
  dtype, opd, teacher, tmp_path
):
  c = taught(teacher, **{'rl.teacher.dtype': dtype})
  state = train.run(c, tmp_path)
  kept = {str(x.dtype) for x in trees.flatten(state.teacher_params).values()}
  assert dtype in kept
  first = kl(tmp_path)[0], kl(opd[0])[0]
  assert first[0] != first[1]
  np.testing.assert_allclose(*first, rtol=0.1)


@pytest.mark.parametrize('algorithm, stored', [('opd', {}), ('gkd', STORED)])
def test_a_resumed_run_is_the_uninterrupted_one(
  algorithm, stored, fused, teacher, tmp_path
):
  whole, want = fused(algorithm, **stored)
  cut = tmp_path / 'cut'
  shutil.copytree(whole, cut)
  for folder in (cut / 'checkpoints').glob('4*'):
    shutil.rmtree(folder)
  own = {'rl.algorithm': algorithm} | EVERY | stored
  got = train.run(taught(teacher, **own), cut)
  for path, x in trees.flatten(want.params).items():
    np.testing.assert_array_equal(trees.flatten(got.params)[path], x)
  assert kl(cut) == kl(whole)


def test_the_reference_as_a_teacher_moves_with_it(tmp_path):
  """The teacher is a running mean of the policy, without weights of its own."""
  c = taught('reference', **{'rl.reference.ema': 0.5, 'rl.algorithm': 'kdrl'})
  c.rl.loss.distill_coef = 1.0
  c.rl.rewards = dict(answer=dict(reward='random', kwargs=dict(p=0.5)))
  state = train.run(c, tmp_path)
  assert state.teacher_params is None and state.ref_params is not None
  found = kl(tmp_path)
  assert found[0] == 0 and found[-1] > 0


@pytest.mark.parametrize('algorithm', ['opd', 'gkd'])
def test_the_policy_learns_from_itself_with_the_solution(algorithm, tmp_path):
  """This works on both paths. The teacher's prompt has the solution and the
  problem.
  """
  own = {'rl.algorithm': algorithm, 'rl.teacher.prompt_len': 24}
  own |= {'rl.teacher.prompt': '{solution} {answer}={prompt}', 'rl.workers': 1}
  for path in ('fused', 'host'):
    c = taught('policy', **own, **{'rl.path': path})
    state = train.run(c, tmp_path / path)
    assert state.teacher_params is None and state.ref_params is None
  found = [kl(tmp_path / path) for path in ('fused', 'host')]
  np.testing.assert_allclose(*found, rtol=1e-4)
  assert found[0][0] != 0


def test_a_prompt_that_does_not_fit_is_refused(tmp_path):
  own = {'rl.teacher.prompt': '{prompt}{prompt}', 'rl.teacher.prompt_len': 13}
  with pytest.raises(ValueError, match='rl.teacher.prompt_len is 13'):
    train.run(taught('policy', **own), tmp_path)


def test_another_tokenizer_is_refused(teacher, tmp_path):
  c = taught(teacher)
  c.data.tokenizer = 'byte'
  with pytest.raises(ValueError, match='has another tokenizer: .* token 2 is'):
    train.run(c, tmp_path)


@pytest.mark.parametrize(
  'weights, message',
  [
    ('nowhere', "rl.teacher.weights='nowhere': .* is no folder"),
    ('{teacher}@99', 'has no checkpoint of step 99'),
  ],
)
def test_a_missing_teacher_is_refused(weights, message, teacher, tmp_path):
  c = taught(weights.format(teacher=teacher))
  with pytest.raises(ValueError, match=message):
    train.run(c, tmp_path)


@pytest.mark.parametrize(
  'text, error, message',
  [
    (
      'RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4 bytes',
      ValueError,
      "rl.teacher.weights='.*' has no room on the devices .*memory='host'",
    ),
    ('INTERNAL: a fault', jax.errors.JaxRuntimeError, '^INTERNAL: a fault'),
  ],
)
def test_a_teacher_without_room_is_named(
  text, error, message, teacher, tmp_path, monkeypatch
):
  def full(*rest):
    raise jax.errors.JaxRuntimeError(text)

  monkeypatch.setattr(teachers, 'load', full)
  with pytest.raises(error, match=message):
    train.run(taught(teacher), tmp_path)


FEEDBACK = {
  'rl.samples': 4,
  'rl.workers': 1,
  'rl.teacher.prompt': '{sample}={prompt}{verdict}',
  'rl.teacher.prompt_len': 30,
  'rl.teacher.right': '1',
  'rl.teacher.wrong': '0',
  'rl.teacher.no_sample': '{solution}',
}


@pytest.fixture(scope='module')
def with_feedback(tmp_path_factory):
  """Returns a function: keys -> recipe with feedback, whose policy has some
  correct samples.
  """
  warm = tmp_path_factory.mktemp('warm')
  train.run(recipe(stages=('sft',), **{'sft.steps': 40}), warm)
  beside = FEEDBACK | {'init_from': str(warm)}
  return lambda flat: taught('policy', **beside | flat)


@pytest.fixture(scope='module')
def informed(with_feedback, tmp_path_factory):
  """Returns a function: algorithm -> the workdir of a run with feedback."""

  def run(algorithm):
    where = tmp_path_factory.mktemp(algorithm)
    c = with_feedback(EVERY | {'rl.algorithm': algorithm})
    return where, train.run(c, where)

  return functools.cache(run)


@pytest.mark.parametrize('algorithm', ['opd', 'gkd'])
def test_feedback_on_the_host_path_is_that_of_the_fused(
  algorithm, informed, with_feedback, tmp_path
):
  """On the host, old log-probs are computed before the verdicts."""
  own = {'rl.algorithm': algorithm, 'rl.path': 'host'}
  train.run(with_feedback(own), tmp_path)
  want = informed(algorithm)[0]
  np.testing.assert_allclose(kl(tmp_path), kl(want), rtol=1e-4)
  share = learnt(want, 'feedback/sample')
  assert share == learnt(tmp_path, 'feedback/sample')
  assert 0 < np.mean(share) < 1


def test_feedback_on_eight_devices_is_that_on_one(
  informed, with_feedback, tmp_path
):
  train.run(with_feedback({'mesh': (2, 2, 2)}), tmp_path)
  want = informed('opd')[0]
  np.testing.assert_allclose(kl(tmp_path), kl(want), rtol=2e-3)
  share = [learnt(x, 'feedback/sample') for x in (tmp_path, want)]
  assert share[0] == share[1]


def test_a_resumed_run_with_feedback_is_the_uninterrupted_one(
  informed, with_feedback, tmp_path
):
  whole, want = informed('opd')
  cut = tmp_path / 'cut'
  shutil.copytree(whole, cut)
  last = max((cut / 'checkpoints').glob('[0-9]*'), key=lambda x: int(x.name))
  shutil.rmtree(last)
  got = train.run(with_feedback(EVERY), cut)
  for path, x in trees.flatten(want.params).items():
    np.testing.assert_array_equal(trees.flatten(got.params)[path], x)
  assert kl(cut) == kl(whole)


MESSAGES = """
from jaxrl_reason.verifiers import tasks
from jaxrl_reason.verifiers.verdict import Verdict

def judged(completion, example):
  right = tasks.check(completion, example)
  return Verdict(right, detail='1' if right else '0')
"""


@pytest.mark.parametrize(
  'flat',
  [
    {'rl.old_logp': 'sampler', 'rl.replay.rows': 8, 'rl.replay.capacity': 16},
    *(
      pytest.param(x, marks=pytest.mark.slow)
      for x in (
        {'mesh': (2, 2, 2)},
        {'rl.refill_rounds': 1, 'rl.filter': 'dead_groups'},
      )
    ),
  ],
  ids=('replay', 'eight', 'refill'),
)
def test_a_message_that_is_the_verdict_teaches_as_the_verdict(
  flat, with_feedback, tmp_path
):
  """The texts of {verdict} are the messages of the verifier."""
  (tmp_path / 'messages.py').write_text(MESSAGES)
  reward = {'reward': f'{tmp_path}/messages.py:judged'}
  own = flat | {'rl.path': 'host', 'rl.rewards': {'own': reward}}
  train.run(with_feedback(own), tmp_path / 'verdict')
  own |= {'rl.teacher.prompt': '{sample}={prompt}{detail}'}
  own |= {'rl.teacher.right': '', 'rl.teacher.wrong': ''}
  own |= {'rl.teacher.detail_len': 2}
  train.run(with_feedback(own), tmp_path / 'detail')
  assert kl(tmp_path / 'detail') == kl(tmp_path / 'verdict')
  # Both messages occur.
  assert any(0 < x < 1 for x in learnt(tmp_path / 'detail', 'reward_mean'))
