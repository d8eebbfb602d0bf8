"""reasoning-gym: every family is a task, which is scored only in the pool."""

import pytest

from jaxrl_reason.verifiers import gym_scorers as reward
from jaxrl_reason.verifiers import resolve, tasks
from jaxrl_reason.verifiers.pool import VerifierPool
from jaxrl_reason.verifiers.tasks import gym


def installed():
  return pytest.importorskip('reasoning_gym')


def test_it_runs_in_the_pool_only():
  assert 'gym' in resolve.POOL_ONLY
  with pytest.raises(resolve.RewardError, match='VerifierPool'):
    reward.reward('1', {'task': 'gym:chain_sum', 'meta': {'entry': {}}})


def test_without_the_package_the_error_names_the_extra(monkeypatch):
  monkeypatch.setitem(__import__('sys').modules, 'reasoning_gym', None)
  with pytest.raises(ValueError, match=r'jaxrl_reason\[gym\]'):
    tasks.get('gym:no_such_family')


def test_every_family_is_a_task_whose_answers_score():
  installed()
  families = gym.families()
  assert len(families) >= 100
  examples = []
  # A held-out problem takes eight draws, so only some families have one.
  for split, some in (('train', families), ('heldout', families[::8])):
    drawn = [tasks.example(f'gym:{f}', 0, 0, split=split) for f in some]
    sides = {tasks.is_heldout(example['prompt']) for example in drawn}
    assert sides == {split == 'heldout'}
    examples += drawn
  known = [ex for ex in examples if ex['answer']]
  assert len(known) > 0.9 * len(examples)
  with VerifierPool('gym', workers=1, timeout_s=20) as pool:
    right = pool.map([(ex['solution'], ex) for ex in known])
    wrong = pool.map([('<answer>\u00a7</answer>', ex) for ex in known])
    none = pool.map([('<answer> </answer>', ex) for ex in known])
  wrongly = [(ex['task'], v) for ex, v in zip(known, right) if v.score != 1.0]
  assert not wrongly
  assert all(v.valid for v in wrong)
  # A few scorers of its own take anything for "no" or "false".
  assert sum(v.score for v in wrong) < 0.05 * len(wrong)
  assert {(v.score, v.status) for v in none} == {(0.0, 'no_answer')}


def test_splits_are_disjoint_and_deterministic():
  installed()

  def draw(split, seed=0):
    return [
      tasks.example('gym:chain_sum', seed, i, split=split) for i in range(30)
    ]

  train, heldout = draw('train'), draw('heldout')
  assert train == draw('train') and train != draw('train', 1)
  assert not {e['prompt'] for e in train} & {e['prompt'] for e in heldout}


def test_knobs_reach_the_family_and_unknown_ones_are_refused():
  installed()
  knobs = dict(min_terms=5, max_terms=5, min_digits=1, max_digits=1)
  example = tasks.example('gym:chain_sum', 0, 0, split='train', knobs=knobs)
  assert example['meta']['entry']['metadata']['num_terms'] == 5
  with pytest.raises(ValueError, match='max_terms'):
    tasks.example('gym:chain_sum', 0, 0, split='train', knobs={'n_terms': 1})
  with pytest.raises(ValueError, match='chain_sum'):
    tasks.get('gym:no_such_family')


def test_partial_credit_has_a_threshold():
  installed()
  example = tasks.example('gym:power_function', 0, 0, split='train')
  scores = {}
  for threshold in (0.0, 0.5, 1.0):
    spec = {'a': {'reward': 'gym', 'kwargs': {'threshold': threshold}}}
    with VerifierPool(spec, workers=1, timeout_s=20) as pool:
      (verdict,) = pool.map([('<answer>nonsense</answer>', example)])
    assert verdict.valid
    scores[threshold] = verdict.score
  assert 0 < scores[0.0] < 0.5
  assert scores[0.5] == scores[1.0] == 0


def test_a_scorer_that_raises_gives_zero():
  installed()
  example = tasks.example('gym:prime_factorization', 0, 0, split='train')
  with VerifierPool('gym', workers=1, timeout_s=20) as pool:
    (verdict,) = pool.map([('<answer>garbage</answer>', example)])
  assert (verdict.score, verdict.status) == (0.0, 'unparsed')
  assert 'ValueError' in verdict.detail
