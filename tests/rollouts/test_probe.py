"""The probe of correctness: by NumPy, scored before it is trained, and equal on
eight devices.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.parts import Chain, Step
from jaxrl_reason.rollouts import probe
from jaxrl_reason.rollouts.hidden_states import HiddenStates
from jaxrl_reason.run.rl import programs

RNG = np.random.default_rng(0)
N, D = 64, 5
SETTINGS = dict(width=D, rate=4.0, updates=16, decay=1e-3)


@dataclasses.dataclass(frozen=True, eq=False)
class Given:
  """Returns the parameters of the policy, [N,D], as its hidden states."""

  def along(self, params, rows, mask, direction):
    return params, None


PART = probe.Probe(Given(), **SETTINGS)


def sample(n=N):
  """Returns (states, outcomes). The first feature depends on the outcome."""
  right = RNG.random(n) < 0.4
  x = 30 + RNG.normal(size=(n, D)) * [1, 2, 3, 4, 5]
  x[:, 0] += 3 * right
  return x.astype(np.float32), right


@jax.jit
def before(memory, x, right, valid):
  """Returns (memory, metrics) of a step of rows with these states."""
  batch = L.rollout_batch(L.learner())
  batch = jax.tree.map(lambda a: jnp.resize(a, (len(x), *a.shape[1:])), batch)
  batch = batch.replace(
    reward_parts=jnp.stack([right, ~right], axis=1) * 1.0, reward_valid=valid
  )
  state = L.state(L.learner()).replace(params=x)
  step = Step(None, state, L.NEUTRAL, batch, batch, None)
  memory, _, metrics = PART.before(memory, step)
  return memory, metrics


def by_numpy(memory, x, right):
  """Returns the memory after a step: running moments, then gradient steps."""
  m = {k: np.asarray(v, np.float64) for k, v in memory.items()}
  x = x.astype(np.float64)
  steps = 0.9 * m['steps'] + 1
  old = 1 - 1 / steps
  mean = old * m['mean'] + x.mean(0) / steps
  # The second moment of a mixture of the two distributions, about its mean.
  second = old * (m['variance'] + m['mean'] ** 2)
  second += (x.var(0) + x.mean(0) ** 2) / steps
  variance = second - mean**2
  z = (x - mean) / np.sqrt(variance * D)
  w, b = m['weight'], m['bias']
  for _ in range(SETTINGS['updates']):
    p = 1 / (1 + np.exp(-(z @ w + b)))
    slope = z.T @ (p - right) / len(x) + SETTINGS['decay'] * w
    w, b = w - 4.0 * slope, b - 4.0 * np.mean(p - right)
  return dict(weight=w, bias=b, mean=mean, variance=variance, steps=steps)


def test_two_steps_by_numpy():
  memory, everything = PART.init(jnp.int32(0)), np.ones(N, bool)
  for _ in range(2):
    x, right = sample()
    want = by_numpy(memory, x, right)
    memory, _ = before(memory, x, right, everything)
    for name, value in want.items():
      np.testing.assert_allclose(memory[name], value, rtol=2e-3, atol=2e-3)


def test_metrics_are_of_samples_before_the_probe_trains_on_them():
  memory, seen = PART.init(jnp.int32(0)), []
  everything = np.ones(N, bool)
  for _ in range(12):
    x, right = sample()
    memory, metrics = before(memory, x, right, everything)
    seen.append({k: float(v) for k, v in metrics.items()})
  assert seen[0]['probe/auroc'] == 0.5  # all scores are 0 before training
  np.testing.assert_allclose(seen[0]['probe/loss'], np.log(2), rtol=1e-6)
  assert np.mean([s['probe/auroc'] for s in seen[-4:]]) > 0.95
  assert np.mean([s['probe/loss'] for s in seen[-4:]]) < 0.4
  # With random outcomes, the AUROC is 1/2 up to chance.
  x, _ = sample(512)
  coin = RNG.random(512) < 0.5
  _, metrics = before(memory, x, coin, np.ones(512, bool))
  assert abs(float(metrics['probe/auroc']) - 0.5) < 0.1


def test_rows_that_do_not_count_change_nothing():
  x, right = sample()
  memory, _ = before(PART.init(jnp.int32(0)), *sample(), np.ones(N, bool))
  counts = np.arange(N) % 4 > 0
  want, m = before(memory, x[counts], right[counts], counts[counts])
  x[~counts], right[~counts] = np.nan, ~right[~counts]
  got, metrics = before(memory, x, right, counts)
  for name in want:
    np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
  for name in m:
    np.testing.assert_allclose(metrics[name], m[name], rtol=1e-5)


def test_a_step_without_rows_keeps_the_memory():
  memory, _ = before(PART.init(jnp.int32(0)), *sample(), np.ones(N, bool))
  got, metrics = before(memory, *sample(), np.zeros(N, bool))
  jax.tree.map(np.testing.assert_array_equal, got, memory)
  assert np.isnan(metrics['probe/auroc'])


@pytest.mark.parametrize('ties', [False, True])
def test_auroc_by_pairs(ties):
  scores, right = RNG.normal(size=40), RNG.random(40) < 0.3
  scores = scores.round() if ties else scores
  counts = RNG.random(40) < 0.7
  pairs = [
    (a > b) + 0.5 * (a == b)
    for a in scores[right & counts]
    for b in scores[~right & counts]
  ]
  got = probe.auroc(*map(jnp.asarray, (scores, right, counts)))
  np.testing.assert_allclose(got, np.mean(pairs), rtol=1e-5)


def test_weights_of_tokens_by_numpy():
  """Tokens at which the prediction changes count more; the mean is 1. The probe
  reads two layers.
  """
  states = HiddenStates(L.MODEL, (1, 0), 'last', 2)
  part = probe.Probe(states, **SETTINGS | {'width': 32}, token_weight=0.75)
  batch = L.rollout_batch(L.learner())
  params = L.model_and_params()[1]
  memory = {
    'weight': RNG.normal(size=32),
    'bias': np.float64(0.3),
    'mean': RNG.normal(size=32),
    'variance': RNG.uniform(0.5, 2, 32),
    'steps': np.float64(1),
  }

  @jax.jit
  def weights(memory, batch):
    state = L.state(L.learner())
    outcomes = batch_lib.outcomes(batch)
    step = Step(None, state, L.NEUTRAL, batch, batch, outcomes)
    return part.before(memory, step)[1].batch.token_weight

  got = np.asarray(weights(jax.tree.map(jnp.float32, memory), batch))
  own = params, batch.tokens, batch.valid
  x = [L.MODEL.hidden_after(*own, layer) for layer in (1, 0)]
  x = np.concatenate(x, axis=-1)
  std = np.sqrt(memory['variance'] * 32)
  z = (np.asarray(x, np.float64) - memory['mean']) / std
  p = 1 / (1 + np.exp(-(z @ memory['weight'] + memory['bias'])))
  spread = []
  for i, mask in enumerate(np.asarray(batch.mask)):
    (at,) = np.nonzero(mask)
    change = np.abs(p[i, at] - p[i, at - 1])
    want = 0.25 + 0.75 * change / change.mean()
    np.testing.assert_allclose(got[i, at], want, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[i, at].mean(), 1, rtol=1e-5)
    spread.append(got[i, at].std())
  assert max(spread) > 0.2


def test_a_new_probe_weights_all_tokens_equally():
  """Its prediction is constant, so a step of the policy is unchanged."""
  part = dataclasses.replace(learner().chain.parts[0], token_weight=1.0)
  steps = []
  for lr in (L.learner(micro_batches=2), learner(part)):
    state = L.state(lr).replace(control=lr.chain.init(jnp.int32(0)))
    run = jax.jit(lambda s, p, lr=lr: L.fused(lr, s, p))
    steps.append(run(state, L.prompts())[0].params)
  L.assert_close(*steps)


def learner(*parts):
  states = HiddenStates(L.MODEL, (0,), 'last', 2)
  part = probe.Probe(states, **SETTINGS | {'width': 16})
  return L.learner(chain=Chain(parts or (part,)), micro_batches=2)


def fused(state, prompts):
  return L.fused(learner(), state, prompts)


def test_eight_devices_equal_one():
  lr = learner()
  state = L.state(lr).replace(control=lr.chain.init(jnp.int32(0)))
  want, m1 = jax.jit(fused)(state, L.prompts())
  mesh = sharding.make_mesh((4, 2, 1))
  with jax.set_mesh(mesh):
    specs = sharding.shardings(L.MODEL.specs, mesh, sharding.TRAIN_RULES)
    where = sharding.state_shardings(state, specs, mesh, lr.offload)
    start = jax.tree.map(
      lambda x, s: jax.device_put(np.asarray(x), s), state, where
    )
    rows = sharding.to_global(L.prompts(), mesh)
    got, m8 = programs.updating(fused, 0, where)(start, rows)
  L.assert_close(got.control, want.control, rtol=1e-3, atol=1e-4)
  for name in ('probe/auroc', 'probe/loss'):
    np.testing.assert_allclose(m8[name], m1[name], rtol=1e-4)
  assert np.any(got.control['probe']['weight'] != 0)
