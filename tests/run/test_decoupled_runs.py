"""Corrections of off-policy samples in whole runs equal NumPy."""

import jax
import numpy as np
import pytest
from test_recipe_features import PARITY, recipe, rows

from jaxrl_reason.losses import correction
from jaxrl_reason.run import train

DECOUPLED = {
  'rl.old_logp': 'trainer',
  'rl.algorithm': 'dr_grpo',
  'rl.loss.correction': 'mask',
  'rl.loss.correction_low': 0.5,
  'rl.loss.correction_high': 3.0,
  'rl.optimizer.lr': 0.02,
  'rl.optimizer.warmup_steps': 0,
  'rl.samples': 8,
  'rl.steps': 4,
}
SOURCES = {
  'replay': {'rl.replay.rows': 16, 'rl.replay.capacity': 20},
  'staleness': {'rl.path': 'host', 'rl.staleness': 1, 'log_every': 4},
  'queue': {'rl.staleness': 2},
  'kept refills': {
    'rl.filter': 'dead_groups',
    'rl.refill_rounds': 3,
    'rl.refill_keep': True,
    'rl.samples': 2,  # half of the groups have no signal
  },
}


@pytest.mark.parametrize('source', SOURCES)
def test_weights_are_proximal_over_sampler(tmp_path, monkeypatch, source):
  """Weights of old samples differ from 1, those of new samples do not."""
  seen, weight = [], correction.correction_weight

  def recorded(old_logp, sampler_logp, mask, **settings):
    w = weight(old_logp, sampler_logp, mask, **settings)
    jax.debug.callback(
      lambda *x: seen.append([np.float64(a) for a in x]),
      old_logp,
      sampler_logp,
      mask,
      w,
    )
    return w

  monkeypatch.setattr(correction, 'correction_weight', recorded)
  c = recipe(**DECOUPLED | SOURCES[source])
  coin = dict(reward='random', kwargs=dict(p=0.5), weight=1.0)
  host = dict(reward=PARITY, weight=1.0)
  c.rl.rewards = {'answer': host if c.rl.path == 'host' else coin}
  train.run(c, tmp_path)
  jax.effects_barrier()
  sizes = []
  for proximal, sampler, mask, w in seen:
    kept = mask > 0
    ratio = np.exp(proximal[kept] - sampler[kept])
    inside = (ratio >= 0.5) & (ratio <= 3.0)
    np.testing.assert_allclose(w[kept], np.where(inside, ratio, 0), rtol=1e-4)
    sizes.append(np.abs(ratio - 1).max(initial=0))
  # The first step has only its own samples.
  assert sizes[0] < 1e-3 < 0.02 < max(sizes), sizes
  metrics = rows(tmp_path)
  assert metrics[0]['train/weight_mean'] == pytest.approx(1, abs=1e-3) or (
    'rl.staleness' in SOURCES[source]
  )
  assert any(abs(r['train/weight_mean'] - 1) > 1e-3 for r in metrics)
