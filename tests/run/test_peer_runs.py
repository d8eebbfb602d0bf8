"""Losses of other trainers in whole runs equal NumPy."""

import json

import jax
import numpy as np
import pytest
import test_chain_runs
from test_recipe_features import recipe, rows

from jaxrl_reason import losses
from jaxrl_reason.losses import correction
from jaxrl_reason.run import train

pytestmark = pytest.mark.one_device

COIN = {'answer': dict(reward='random', kwargs=dict(p=0.5), weight=1.0)}
FAST = {'rl.optimizer.lr': 0.02, 'rl.optimizer.warmup_steps': 0}
REPLAY = FAST | {
  'rl.replay.rows': 16,
  'rl.replay.capacity': 20,
  'rl.samples': 8,
  'rl.steps': 4,
  'rl.loss.correction': 'truncate',
}


def train_on_coins(tmp_path, **flat):
  c = recipe(**flat)
  c.rl.rewards = COIN
  train.run(c, tmp_path)
  jax.effects_barrier()


def record_calls(seen, f, pick):
  """Calls f, and appends the arrays that pick(*args, result) returns by
  name.
  """

  def call(*args, **kwargs):
    out = f(*args, **kwargs)
    jax.debug.callback(
      lambda *x: seen.append([np.asarray(a, np.float64) for a in x]),
      *pick(*args, out),
    )
    return out

  return call


def test_old_log_probs_are_interpolated_by_age(tmp_path, monkeypatch):
  """AReaL: a = (proximal - behaviour) / (current - behaviour) versions."""
  seen = []
  wrapped = record_calls(seen, losses.proximal_logp, lambda *x: x)
  monkeypatch.setattr(losses, 'proximal_logp', wrapped)
  own = {'rl.old_logp': 'loglinear', 'rl.algorithm': 'dr_grpo'}
  train_on_coins(tmp_path, **REPLAY | own)
  ages, away = set(), 0.0
  for logp, sampler, age, mask, got in seen:
    kept = mask > 0
    behaviour, proximal, current = 0, age, age + 1
    share = (proximal - behaviour) / (current - behaviour)
    want = sampler + share * (logp - sampler)
    np.testing.assert_allclose(got[kept], want[kept], rtol=1e-4, atol=1e-5)
    ages |= {*age[kept].tolist()}
    away = max(away, np.abs(got - sampler)[kept].max(initial=0))
  assert {0, 1} <= ages and away > 0.01
  found = [row['train/weight_mean'] for row in rows(tmp_path)]
  assert found[0] == pytest.approx(1, abs=1e-5)
  assert max(abs(x - 1) for x in found) > 1e-3


def test_the_optimal_baseline_is_weighed_by_proximal_over_sampler(
  tmp_path, monkeypatch
):
  seen, part = [], correction.Truncate

  def pick(part, arrays, out):
    names = 'old_logp sampler_logp mask sum_p_squared'.split()
    return *(arrays[k] for k in names), out

  monkeypatch.setattr(part, 'of_batch', record_calls(seen, part.of_batch, pick))
  train_on_coins(tmp_path, **REPLAY | {'rl.algorithm': 'otb'})
  away = []
  for proximal, sampler, mask, squares, w in seen:
    kept = mask > 0
    ratio = np.exp(proximal[kept] - sampler[kept])
    np.testing.assert_allclose(w[kept], np.minimum(ratio, 2), rtol=1e-4)
    assert (squares[kept] > 0).all() and (squares[kept] <= 1 + 1e-5).all()
    away.append(np.abs(ratio - 1).max(initial=0))
  assert away[0] < 1e-3 < 0.02 < max(away)


def test_a_trust_region_of_distributions_stops_tokens(tmp_path):
  own = {
    'rl.algorithm': 'dppo_top_k', 'rl.epochs': 2, 'rl.logprob_chunk': 3,
    'rl.loss.divergence_top_k': 4, 'rl.loss.max_divergence': 1e-3,
    'rl.samples': 4, 'rl.steps': 2,
  }  # fmt: skip
  train_on_coins(tmp_path, **FAST | own)
  stopped = [r['train/clip_low'] + r['train/clip_high'] for r in rows(tmp_path)]
  # The mask stops no token of the first epoch, and some of the second.
  assert all(0 < x < 0.5 for x in stopped), stopped


def test_links_of_a_chain_have_baselines_and_observations_are_learnt(tmp_path):
  """Computes SPIRAL's baselines from the rewards on disk, and checks ECHO."""
  c = test_chain_runs.recipe(algorithm='echo', role_decay=0.9)
  c.log_every = c.sft.steps_per_dispatch = c.rl.steps_per_dispatch = 1
  c.rl.loss.update(advantage='segments', segment_baseline='none')
  c.rl.loss.segment_gamma = 0.0
  c.rollouts.update(every=1, problems=8)
  train.run(c, tmp_path)
  found = test_chain_runs.told(tmp_path)
  metrics = [r for r in found if 'train/role/0/baseline' in r]
  baseline, weights = np.zeros(2), (1.0, 0.5)
  dumps = sorted((tmp_path / 'rollouts').glob('*.jsonl'))
  for row, path in zip(metrics, dumps, strict=True):
    for k in (0, 1):
      got = row[f'train/role/{k}/baseline']
      assert got == pytest.approx(baseline[k], abs=1e-5)
    assert row['train/sft_loss'] > 0
    for line in path.read_text().splitlines():
      said = json.loads(line)
      there = set(said['tokens']['turn'])
      parts = said['verdict']['parts'].values()
      for k, part in enumerate(parts):
        if k in there:
          baseline[k] = 0.9 * baseline[k] + 0.1 * weights[k] * part
  assert len(metrics) == 4 and baseline[0] > 0


@pytest.mark.parametrize('name', ['iw_opd', 'ref_kl', 'sdpo'])
def test_forms_of_distillation_run(tmp_path, name):
  own = {
    'rl.algorithm': name, 'rl.teacher.weights': 'reference', 'rl.steps': 3,
    'rl.logprob_chunk': 3, 'rl.minibatches': 2, 'rl.loss.entropy_coef': 1.0,
  }  # fmt: skip
  train_on_coins(tmp_path, **FAST | own)
  found = [row['train/teacher_kl'] for row in rows(tmp_path)]
  assert np.isfinite(found).all() and abs(found[-1]) > 1e-4


def problems(path, rates):
  lines = [
    dict(question=f'{i}+1=', answer=str(i + 1)) | rate
    for i, rate in enumerate(rates)
  ]
  path.write_text(''.join(json.dumps(x) + '\n' for x in lines))
  c = recipe(**{'rl.algorithm': 'a_star_po', 'rl.path': 'host', 'rl.steps': 2})
  c.data.update(name='files', dir=str(path), tokenizer='byte')
  c.data.knobs, c.data.harder = {}, {}
  c.data.files.heldout = 0.3
  c.rollouts.update(every=1, problems=8)
  return c


def test_advantages_are_less_the_optimal_value_of_the_reference(tmp_path):
  rates = [i / 40 for i in range(40)]
  c = problems(tmp_path / 'a.jsonl', [{'pass_rate': x} for x in rates])
  train.run(c, tmp_path / 'run')
  seen = 0
  for path in (tmp_path / 'run/rollouts').glob('*.jsonl'):
    for line in path.read_text().splitlines():
      row = json.loads(line)
      p = rates[int(row['prompt'].partition('+')[0])]
      value = 0.5 * np.log(1 - p + p * np.exp(2))
      assert row['advantage'] == pytest.approx(row['reward'] - value, abs=1e-4)
      seen += 1
  assert seen == 32


def test_a_problem_without_a_pass_rate_is_named_before_the_first_step(tmp_path):
  rates = [{'pass_rate': 0.5}] * 30 + [{}] * 10
  c = problems(tmp_path / 'a.jsonl', rates)
  with pytest.raises(ValueError, match='has pass_rate=None'):
    train.run(c, tmp_path / 'run')
  assert not (tmp_path / 'run/metrics.jsonl').exists()
