"""Settings of losses: defaults, errors, and the arrays that they need."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason import losses
from jaxrl_reason.losses.settings import keys_read

WANTED = (
  'ppo remax rloo reinforce reinforce_pp reinforce_pp_baseline grpo prime vapo '
  'dr_grpo dapo clip_cov kl_cov cispo gspo gmpo gfpo lite_ppo flash_rl opo gpg '
  'cpgd opmd sapo topr raft_pp passk pkpo nsr maxrl'
).split()


def test_the_presets_are_there_and_cited():
  assert set(WANTED) <= set(losses.PRESETS)
  for name, preset in losses.PRESETS.items():
    assert preset['cite'] and preset['paper'].startswith('https://'), name


@pytest.mark.parametrize('name', losses.PRESETS)
def test_resolving_twice_changes_nothing_and_every_key_is_read(name):
  s = losses.resolve(name)
  assert losses.resolve(s) is s
  assert s.settings == losses.resolve({'name': name}).settings
  assert losses.resolve(dict(s)).settings == s.settings
  own = {k for k in losses.PRESETS[name] if k in losses.DEFAULTS}
  assert own <= keys_read(s), own - keys_read(s)


def test_overrides_win_over_the_preset():
  s = losses.resolve({'name': 'dapo', 'clip_high': 0.3})
  assert (s['clip_low'], s['clip_high']) == (0.2, 0.3)
  assert losses.resolve({'policy': 'cispo'})['clip_high'] == 4.0
  assert losses.resolve({})['advantage'] == 'group_zscore'


@pytest.mark.parametrize(
  'settings,words',
  [
    ({'clip_hihg': 0.3}, ["'clip_hihg'", '0.3', "'clip_high'"]),
    ({'name': 'dapoo'}, ["'dapoo'", "'dapo'"]),
    ({'policy': 'ppo_clipped'}, ["'ppo_clipped'", "'ppo_clip'", 'gmpo']),
    ({'aggregation': 'mean'}, ["'mean'", 'token_mean', 'fixed_length']),
    ({'ratio': None}, ['ratio=None', 'sequence']),
    ({'clip_low': -0.1}, ['clip_low=-0.1', '[0, 1]']),
    ({'clip_low': 'big'}, ["clip_low='big'", 'number']),
    ({'pass_k': None}, ['pass_k=None', 'number']),
    ({'count_empty': 1}, ['count_empty=1', 'True or False']),
    ({'name': 'vespo', 'vespo_pos': 2.0}, ['vespo_pos=2.0', 'tuple']),
    (
      {'name': 'gspo', 'advantage': 'gae'},
      ["ratio='sequence_mean'", "'gae'", "'sequence_mean_token'"],
    ),
    ({'advantage': 'gae', 'whiten': 'rows'}, ["whiten='tokens'"]),
    ({'dual_clip': 1.1}, ['dual_clip=1.1', 'clip_high=0.2']),
    (
      {'kl_in': 'reward', 'kl': 'k3+', 'kl_coef': 0.1},
      ["kl='k3+'", "kl_in='loss'"],
    ),
    (
      {'kl_in': 'reward', 'kl_coef': 0.1, 'advantage': 'rank'},
      ["kl_in='reward'", "'rank'"],
    ),
    (
      {'correction': 'mask', 'correction_high': None},
      ['correction_low', 'correction_high'],
    ),
    (
      {'correction': 'truncate', 'ratio_to': 'sampler'},
      ["ratio_to='sampler'", "'truncate'"],
    ),
    ({'pos_weight': 0, 'neg_weight': 0}, ['pos_weight=0', 'neg_weight=0']),
    ({'policy': 'tbrm', 'kl_coef': 0.1}, ["'tbrm'", 'kl_coef']),
    # These settings have no effect.
    ({'advantage': 'group_mean', 'ddof': 0}, ['ddof=0', "'group_mean'"]),
    ({'policy': 'log_likelihood', 'clip_high': 0.3}, ['clip_high=0.3']),
    ({'kl': 'k1'}, ["kl='k1'", 'kl_coef=0.0']),
    ({'fixed_length': 100}, ['fixed_length=100', "'token_mean'"]),
    ({'correction_low': 0.5}, ['correction_low=0.5', "'none'"]),
    ({'advantage': 'gae', 'skip_empty': True}, ['skip_empty=True']),
  ],
)
def test_errors_contain_the_remedy(settings, words):
  with pytest.raises(ValueError) as e:
    losses.resolve(settings)
  for word in words:
    assert word in str(e.value), str(e.value)


@pytest.mark.parametrize(
  'settings,arrays',
  [
    ('reinforce', set()),
    ('dapo', {'old_logp'}),
    ('grpo', {'old_logp', 'ref_logp'}),
    ({'name': 'grpo', 'kl_coef': 0.0}, {'old_logp'}),
    ('rloo', {'old_logp', 'ref_logp'}),
    ('ppo', {'old_logp', 'values'}),
    ('remax', {'greedy_reward', 'old_logp', 'ref_logp'}),
    ('dro', {'ref_logp'}),
    ({'policy': 'ppo_clip', 'ratio_to': 'sampler'}, {'sampler_logp'}),
    ('flash_rl', {'old_logp', 'sampler_logp'}),
    ({'entropy_coef': 0.01}, {'old_logp', 'entropy_grad'}),
    ('entropy_advantage', {'old_logp', 'entropy'}),
    ('top_entropy', {'old_logp', 'entropy', 'selected'}),
    ('clip_cov', {'old_logp', 'key', 'selected'}),
    ({'kl_coef': 0.1, 'kl_to': 'old'}, {'old_logp'}),
    ('gdpo', {'old_logp', 'reward_parts'}),
    ('prime', {'old_logp', 'process_reward'}),
    ('tree_rl', {'node_ids'}),
    ('mt_grpo', {'old_logp', 'ref_logp', 'segment_reward', 'segment_ids'}),
    ('vapo', {'old_logp', 'values', 'sft_mask'}),
    ({'drop_truncated': True}, {'old_logp', 'truncated'}),
    ('luffy', {'old_logp', 'is_offpolicy', 'entropy_grad'}),
    ('tbrm', {'full_logits', 'ref_logp'}),
    ('rover', {'full_logits', 'old_logp', 'old_mean_logp'}),
  ],
)
def test_needs(settings, arrays):
  assert losses.needs(settings) == arrays


def test_a_missing_array_is_named():
  mask = jnp.ones((1, 1))
  for call, name in (
    (lambda: losses.policy_loss('grpo', -mask, mask, mask), 'ref_logp'),
    (
      lambda: losses.policy_loss({'ratio_to': 'ref'}, -mask, mask, mask),
      'ref_logp',
    ),
    (
      lambda: losses.advantages('ppo', mask[0], jnp.zeros(1, int), mask=mask),
      'values',
    ),
    (
      lambda: losses.policy_loss({'entropy_coef': 0.1}, -mask, mask, mask),
      'entropy',
    ),
  ):
    with pytest.raises(ValueError, match=name):
      call()
  with pytest.raises(ValueError, match='bellman_loss'):
    losses.policy_loss('tbrm', -mask, mask, mask)


NONSENSE = [
  {'clip_high': float('nan')},
  {'kl_coef': float('inf')},
  {'eps': float('-inf')},
  {'policy': 'mirror_descent', 'md_tau': -1},
  {'policy': 'sapo', 'tau_pos': 0},
  {'policy': 'sapo', 'tau_neg': -1.0},
  {'advantage': 'passk', 'pass_k': 2.5},
  {'advantage': 'gfpo', 'keep_k': 1.5},
  {'ddof': 0.5},
  {'policy': 'vespo', 'vespo_pos': (1.0, 2.0, 3.0)},
  {'policy': 'vespo', 'vespo_neg': (1.0, float('nan'))},
  {'policy': 'topr', 'topr_neg': (1.0, 0.0)},
  {'advantage': 'gdpo', 'part_weights': (1.0, 'x')},
  {'reject_low': 2.0, 'reject_high': 0.5},
  {'correction': 'mask', 'correction_low': 3.0, 'correction_high': 2.0},
  {'correction': 'truncate', 'correction_high': -1.0},
  {'policy': 'clip_cov', 'cov_low': 6.0},
  {'policy': 'cpgd', 'drift_coef': -0.1},
  {'policy': 'dppo', 'max_divergence': 0},
  {'advantage': 'gae', 'lambda_alpha': 0},
  {'adv_max': -1.0},
  {'entropy_alpha': 0.4, 'entropy_kappa': 0.9},
  {'entropy_target': -0.1},
  {'kl_target': 0.0},
  {'kl_coef': 0.0, 'kl_target': 0.1},
  {'sft_coef': 0.1, 'sft_coef_end': -1.0},
  {'kl_coef': 0.1, 'kl_max': 0},
  {'veto': -0.1},
  {'offpolicy': 'luffy', 'luffy_gamma': 0},
  {'clip_high_entropy': 1.5},
  {'name': 'gmpo', 'aggregation': 'token_mean'},
  {'name': 'opmd', 'aggregation': 'token_mean'},
  {'name': 'dro', 'aggregation': 'seq_mean_token_mean'},
]


@pytest.mark.parametrize('settings', NONSENSE, ids=str)
def test_invalid_values_are_refused_by_name(settings):
  with pytest.raises(ValueError) as e:
    losses.resolve(settings)
  assert list(settings)[-1] in str(e.value)


def test_whole_numbers_are_whole():
  assert losses.resolve({'advantage': 'passk', 'pass_k': 4.0})['pass_k'] == 4
  assert isinstance(losses.resolve({'ddof': 0.0})['ddof'], int)


def test_an_unknown_setting_shows_the_nearest_not_all():
  with pytest.raises(ValueError, match="Did you mean 'kl_horizon'") as e:
    losses.resolve({'kl_horizont': 1})
  assert len(str(e.value)) < 120


def test_luffy_is_its_authors_script():
  s = losses.resolve('luffy')
  assert s['policy'] == 'importance_sampling' and s['entropy_coef'] == 0.001


def test_none_and_names_of_other_libraries_suggest_the_setting():
  with pytest.raises(ValueError, match='settings is None'):
    losses.resolve(None)
  for name, ours in {'beta': 'kl_coef', 'epsilon_high': 'clip_high'}.items():
    with pytest.raises(ValueError, match=f'Did you mean {ours!r}'):
      losses.resolve({name: 0.1})


@pytest.mark.parametrize('settings', [3, ['dapo'], 0.5])
def test_settings_of_another_type_are_named(settings):
  with pytest.raises(ValueError, match="has to be a preset's name, a dict"):
    losses.resolve(settings)


def test_other_numbers_are_checked_and_shown():
  o = losses.resolve('dapo')
  assert o.with_numbers({'clip_high': 0.3})['clip_high'] == 0.3
  own = dataclasses.replace(o, policy=losses.PPOClip(high=0.5))
  assert (own['clip_high'], o['clip_high']) == (0.5, 0.28)
  assert dict(own)['clip_high'] == 0.5
  for bad in (-3.0, 'x', float('nan'), None):
    with pytest.raises(ValueError, match='clip_high'):
      o.with_numbers({'clip_high': bad})
  traced = jax.jit(lambda x: o.with_numbers({'clip_high': x})['clip_high'])
  assert traced(0.4) == np.float32(0.4)


def test_divisors_without_an_entry_are_not_those_of_a_part():
  x, mask = np.zeros((2, 3)), np.ones((2, 3))
  with pytest.raises(ValueError, match='denominators has no entry'):
    losses.policy_loss('dapo', x, np.ones(2), mask, denominators={})
  with pytest.raises(ValueError, match='denominators has no entry'):
    losses.critic_loss('ppo', x, x, mask, denominators={})


def test_lists_are_accepted_as_arrays():
  reward, group, mask = [1.0, 0.0], [0, 0], [[1, 1], [1, 0]]
  ids = [[0, 1], [0, 0]]
  calls = {
    losses.tree: (reward, group, [[1, 2], [1, 0]], mask),
    losses.segments: (reward, group, [[0.5, 1.0], [0.0, 2.0]], ids, mask),
    losses.divergence: ([[1.0, 2.0]], [[1.0, 0.0]]),
    losses.role_baseline: (reward, group, [0.0]),
  }
  for f, lists in calls.items():
    want, got = f(*map(np.asarray, lists)), f(*lists)
    jax.tree.map(np.testing.assert_array_equal, got, want)
