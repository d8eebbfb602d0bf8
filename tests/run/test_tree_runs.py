"""Runs whose samples are trees: alone, and with other kinds of sampling."""

import numpy as np
import pytest
import run_records
from test_recipe_features import learnt, recipe

from jaxrl_reason import config as config_lib
from jaxrl_reason.data import tokenizers
from jaxrl_reason.run import train
from jaxrl_reason.run.rl import generation_settings

pytestmark = pytest.mark.one_device
COIN = dict(reward='random', kwargs=dict(p=0.5))
TREE = {'rl.samples': 4, 'rl.tree.width': 2, 'rl.algorithm': 'tree_rl'}
SEVERAL = {'rl.tree.forks': 3}
SAMPLER = {'rl.old_logp': 'sampler', 'rl.algorithm': 'dr_grpo'}


def planted(**flat):
  c = recipe(**TREE | {'rl.steps': 4} | flat)
  c.rl.rewards = dict(answer=COIN)
  c.checkpoint.every = 2
  return c


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """Returns the workdir of a run with several forks."""
  workdir = tmp_path_factory.mktemp('whole')
  train.run(planted(**SEVERAL), workdir)
  return workdir


def check_host(fused, folder, **forks):
  """Checks that rewards in Python give the trees of a run on the device."""
  train.run(planted(**{'rl.path': 'host', **forks}), folder)
  names = 'reward_mean', 'length_mean', 'loss', 'grad_norm'
  host, want = ([learnt(x, key) for key in names] for x in (folder, fused))
  assert np.shape(want) == (4, 4) and min(want[3]) > 0
  np.testing.assert_allclose(host, want, rtol=2e-3, atol=1e-4)
  assert 0 < min(learnt(fused, 'tree/shared'))


@pytest.mark.parametrize(
  'forks',
  [{'rl.tree.columns': (2, 4)}, {'rl.tree.step_end': ' '}],
  ids=['columns', 'steps'],
)
def test_both_paths_sample_the_same_trees(tmp_path, forks):
  train.run(planted(**forks), tmp_path / 'fused')
  check_host(tmp_path / 'fused', tmp_path / 'host', **forks)


def test_both_paths_fork_at_the_same_uncertain_tokens(whole, tmp_path):
  check_host(whole, tmp_path, **SEVERAL)


def test_rows_with_several_forks_resume_and_train_on_any_devices(
  whole, tmp_path
):
  """Log-probs are those of the trainer."""
  run_records.check_resumed(planted(**SEVERAL), whole, tmp_path / 'cut')
  train.run(planted(**SEVERAL, mesh=(8, 1, 1)), tmp_path / 'eight')
  seen = map(run_records.trained, (whole, tmp_path / 'eight'))
  for one, other in zip(*seen, strict=True):
    assert one['train/gap_max'] < 1e-5 and one['train/grad_norm'] > 0
    for name in ('loss', 'grad_norm', 'tree/shared', 'reward_mean'):
      near = pytest.approx(one[f'train/{name}'], rel=1e-3, abs=1e-5)
      assert other[f'train/{name}'] == near, name


def test_an_update_that_computes_shared_tokens_once_learns_the_same(tmp_path):
  """The reference is scored on shared tokens too."""
  found = {}
  for padding in ('whole', 'tree:2'):
    flat = {'rl.padding': padding, 'rl.micro_batches': 2, **SEVERAL}
    flat |= {'rl.loss.kl_coef': 0.1, 'rl.steps': 3}
    train.run(planted(**flat), tmp_path / padding)
    names = 'loss', 'grad_norm', 'kl', 'gap_max', 'reward_mean'
    found[padding] = [learnt(tmp_path / padding, key) for key in names]
  assert min(found['whole'][1]) > 0 and max(found['whole'][2]) > 0
  assert max(found['tree:2'][3]) < 1e-5
  np.testing.assert_allclose(
    found['tree:2'], found['whole'], rtol=1e-3, atol=1e-5
  )


@pytest.mark.parametrize(
  'text, message',
  [
    ('12', "rl.tree.step_end: '12' is the text of 2 tokens"),
    ('id:1', "rl.tree.step_end='id:1' ends a completion"),
    ('?', r"rl.tree.step_end: character '\?' of '\?' is not in the alph"),
  ],
)
def test_a_step_end_of_two_tokens_or_a_stop_token_is_refused(text, message):
  config = config_lib.read(recipe(**TREE | {'rl.tree.step_end': text}))
  tokenizer = tokenizers.CharTokenizer('0123456789 ')
  assert tuple(tokenizer.eos_ids) == (1,)
  with pytest.raises(ValueError, match=message):
    generation_settings.tree_of(config.rl, tokenizer)


WITH = {
  'stale batches': SAMPLER | {'rl.staleness': 2},
  'refill and replay': SAMPLER | {
    'rl.refill_rounds': 1, 'rl.filter': 'dead_groups',
    'rl.replay.rows': 8, 'rl.replay.capacity': 16,
  },
  'extra samples': {'rl.extra.groups': 8},
  'two meshes': {'mesh': (1, 4, 1), 'sampler_mesh': (1, 4, 1)},
}  # fmt: skip


@pytest.mark.parametrize('name', WITH)
def test_trees_are_trained_on_with(tmp_path, name):
  train.run(planted(**WITH[name]), tmp_path)
  norms = learnt(tmp_path, 'grad_norm')
  assert np.isfinite(norms).all() and max(norms) > 0
  if name == 'refill and replay':
    assert max(learnt(tmp_path, 'refill/rounds')) > 1
    assert max(learnt(tmp_path, 'replay/used')) > 0
