"""Six updates of a tabular policy: loss, optimizer, clipping together.

A softmax policy with its own logits for every prompt and position is trained
on fixed samples, with two minibatches for three epochs. The library trains it
with optax, and NumPy in float64: with the losses of the twin, gradients of the
softmax by hand, global-norm clipping and AdamW. Updates are large, so that
ratios leave the clip range.
"""

import jax
import jax.numpy as jnp
import losses_twin as twin
import numpy as np
import optax
import pytest
from losses_batch import run_in

from jaxrl_reason import losses

P, G, T, V = 4, 4, 5, 6  # prompts, samples, tokens, vocabulary
MAX_NORM = 0.15
SGD = dict(lr=20.0)
ADAMW = dict(lr=0.15, b1=0.9, b2=0.95, eps=1e-5, decay=0.1)

# name -> (twin's advantage, twin's loss, aggregation)
ALGORITHMS = {
  'grpo': (twin.group_zscore, twin.ppo_clip, 'seq_mean_token_mean'),
  'dr_grpo': (twin.group_mean, twin.ppo_clip, 'fixed_length'),
  'dapo': (
    twin.group_zscore,
    lambda *x: twin.ppo_clip(*x, high=0.28),
    'token_mean',
  ),
  'gspo': (
    twin.group_zscore,
    lambda *x: twin.ppo_clip(*x, low=0.15, high=0.2, ratio='sequence'),
    'seq_mean_token_mean',
  ),
  'cispo': (
    twin.group_zscore,
    lambda *x: twin.cispo(*x, low=0.3, high=0.5),
    'token_mean',
  ),
  'rloo': (twin.leave_one_out, twin.log_likelihood, 'seq_mean_token_sum'),
}
# Narrower than published, so that six updates reach the clips.
OVERRIDES = {
  'grpo': {'kl_coef': 0.04},
  'gspo': {'clip_low': 0.15, 'clip_high': 0.2},
  'cispo': {'clip_low': 0.3, 'clip_high': 0.5},
  'rloo': {'kl_coef': 0.0},
}


def log_softmax(z):
  z = z - z.max(-1, keepdims=True)
  return z - np.log(np.exp(z).sum(-1, keepdims=True))


@pytest.fixture(scope='module')
def data():
  rng = np.random.default_rng(7)
  theta = np.float64(np.float32(rng.normal(size=(P, T, V))))
  prompt = np.repeat(np.arange(P), G)
  tokens = rng.integers(V, size=(P * G, T))
  mask = np.arange(T) < rng.integers(1, T + 1, size=P * G)[:, None]
  mask[3, 1], mask[6] = False, False  # a hole, an empty row
  reward = rng.integers(0, 2, size=P * G).astype(float)
  reward[8:12] = 1.0  # a dead group
  minibatches = np.split(rng.permutation(P * G), 2)
  at = prompt[:, None], np.arange(T)[None], tokens
  old = log_softmax(theta)[at]
  ref = np.float64(np.float32(old + 0.3 * rng.normal(size=old.shape)))
  return dict(
    theta=theta,
    prompt=prompt,
    tokens=tokens,
    mask=mask,
    reward=reward,
    old=old,
    ref=ref,
    minibatches=minibatches,
  )


def in_numpy(name, adamw, d):
  """Returns theta after each of the six updates."""
  advantage, policy, how = ALGORITHMS[name]
  s = losses.resolve({'name': name, **OVERRIDES.get(name, {})})
  adv = advantage(d['reward'], d['prompt'], np.ones(P * G, bool))
  adv = np.broadcast_to(adv[:, None], (P * G, T))
  theta, m, v, path = d['theta'].copy(), 0.0, 0.0, []
  for step, rows in enumerate(d['minibatches'] * 3, start=1):
    where = d['prompt'][rows][:, None], np.arange(T)[None], d['tokens'][rows]
    mask, logs = d['mask'][rows], log_softmax(theta)
    logp = logs[where]
    x, J = policy(logp, d['old'][rows], adv[rows], mask)
    kl, kl_J = twin.k3(logp, d['ref'][rows], mask)
    w = twin.aggregation_weights(mask, how, count_empty=s['count_empty'])
    coef = s['kl_coef']
    by_logp = twin.total((x + coef * kl, J + coef * kl_J), w)[1]
    grad = np.zeros_like(theta)
    for i, row in enumerate(rows):
      for t in range(T):
        p = np.exp(logs[d['prompt'][row], t])
        onehot = np.eye(V)[d['tokens'][row, t]]
        grad[d['prompt'][row], t] += by_logp[i, t] * (onehot - p)
    grad *= min(1.0, MAX_NORM / np.sqrt((grad**2).sum()))
    if adamw:
      m = ADAMW['b1'] * m + (1 - ADAMW['b1']) * grad
      v = ADAMW['b2'] * v + (1 - ADAMW['b2']) * grad**2
      m_hat, v_hat = (
        m / (1 - ADAMW['b1'] ** step),
        v / (1 - ADAMW['b2'] ** step),
      )
      update = m_hat / (np.sqrt(v_hat) + ADAMW['eps']) + ADAMW['decay'] * theta
      theta = theta - ADAMW['lr'] * update
    else:
      theta = theta - SGD['lr'] * grad
    path.append(theta)
  return np.array(path)


def in_jax(name, adamw, d, dtype):
  s = losses.resolve({'name': name, **OVERRIDES.get(name, {})})
  optimizer = optax.adamw(
    ADAMW['lr'],
    b1=ADAMW['b1'],
    b2=ADAMW['b2'],
    eps=ADAMW['eps'],
    weight_decay=ADAMW['decay'],
  )
  optimizer = optax.chain(
    optax.clip_by_global_norm(MAX_NORM),
    optimizer if adamw else optax.sgd(SGD['lr']),
  )
  arrays = {k: x for k, x in d.items() if k not in ('theta', 'minibatches')}
  arrays = {
    k: jnp.asarray(x, dtype if x.dtype == np.float64 else None)
    for k, x in arrays.items()
  }
  adv = losses.advantages(
    s, arrays['reward'], arrays['prompt'], mask=arrays['mask']
  )

  def loss(theta, b, adv):
    at = b['prompt'][:, None], jnp.arange(T)[None], b['tokens']
    logp = jax.nn.log_softmax(theta)[at]
    return losses.policy_loss(
      s, logp, adv, b['mask'], old_logp=b['old'], ref_logp=b['ref']
    )

  def update(carry, rows):
    theta, state = carry
    b, a = jax.tree.map(lambda x: x[rows], (arrays, adv))
    grad, metrics = jax.grad(loss, has_aux=True)(theta, b, a)
    change, state = optimizer.update(grad, state, theta)
    theta = optax.apply_updates(theta, change)
    return (theta, state), (theta, metrics)

  @jax.jit
  def run(theta, minibatches):
    return jax.lax.scan(update, (theta, optimizer.init(theta)), minibatches)[1]

  theta = jnp.asarray(d['theta'], dtype)
  return run(theta, np.array(d['minibatches'] * 3))


@pytest.mark.parametrize('adamw', [False, True], ids=['sgd', 'adamw'])
@pytest.mark.parametrize('name', ALGORITHMS)
def test_six_updates(name, adamw, data):
  want = in_numpy(name, adamw, data)
  assert np.abs(want[-1] - data['theta']).max() > 0.3
  (path, metrics), rtol = run_in(
    64, lambda dtype: in_jax(name, adamw, data, dtype)
  )
  np.testing.assert_allclose(path, want, rtol=rtol)
  if 'clip_high' in metrics:
    assert metrics['clip_high'].max() > 0 and metrics['clip_low'].max() > 0


@pytest.mark.parametrize('name', ALGORITHMS)
def test_six_updates_in_float32(name, data):
  """Relative to the norm of the parameters, since single entries are near 0."""
  want = in_numpy(name, False, data)
  (path, _), rtol = run_in(32, lambda dtype: in_jax(name, False, data, dtype))
  error = np.abs(np.float64(path) - want).max() / np.abs(want).max()
  assert error < rtol
