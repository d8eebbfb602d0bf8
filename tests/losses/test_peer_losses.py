"""Losses of other trainers equal their source's formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from losses_batch import close

from jaxrl_reason import losses

RNG = np.random.default_rng(11)
N, T = 6, 7
MASK = RNG.random((N, T)) < 0.7
MASK[3] = False
SAMPLER = np.float32(-RNG.random((N, T)) - 0.1)
OLD = np.float32(SAMPLER + 0.3 * RNG.normal(size=(N, T)))
LOGP = np.float32(OLD + 0.2 * RNG.normal(size=(N, T)))
TEACHER = np.float32(LOGP + 0.5 * RNG.normal(size=(N, T)))
ADV = np.float32([1, -1, 0.5, -2, 1, 0.3])
GROUP = np.array([0, 0, 0, 1, 1, 1])
NO_REWARD = np.zeros(N)


def softmax(z):
  p = np.exp(z - z.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)


def teach(settings, poisoned=TEACHER):
  return losses.advantages(
    settings, NO_REWARD, GROUP, mask=MASK, old_logp=LOGP, teacher_logp=poisoned
  )


@pytest.mark.parametrize('gamma', [0.0, 0.5, 2.0])
def test_early_tokens_have_more_weight_in_iw_opd(gamma):
  """w_t = 1 + gamma (1 - sum_{j<t} |a_j| / sum_j |a_j|), as in TRL."""
  want = np.zeros((N, T))
  for i in range(N):
    a = [float(TEACHER[i, t]) - float(LOGP[i, t]) for t in range(T)]
    total = sum(abs(a[t]) for t in range(T) if MASK[i, t])
    before = 0.0
    for t in np.flatnonzero(MASK[i]):
      want[i, t] = a[t] * (1 + gamma * (1 - before / max(total, 1e-8)))
      before += abs(a[t])
  poisoned = np.where(MASK, TEACHER, np.nan)
  close(teach({'name': 'iw_opd', 'distill_gamma': gamma}, poisoned), want, 1e-4)


def test_a_token_that_the_teacher_cannot_draw_weighs_no_other():
  where = tuple(np.argwhere(MASK)[0])
  impossible = TEACHER.copy()
  impossible[where] = -np.inf
  adv = np.asarray(teach('iw_opd', impossible))
  assert np.isfinite(np.delete(adv.ravel(), 0)).all()
  without = MASK.copy()
  without[where] = False
  want = losses.advantages(
    'iw_opd',
    NO_REWARD,
    GROUP,
    mask=without,
    old_logp=LOGP,
    teacher_logp=TEACHER,
  )
  close(np.where(without, adv, 0), want, 1e-5)


def test_ref_kl_has_a_one_sided_trust_region():
  """prime-rl: keep (ref - pi) r, keep: pi >= mu - 0.2; + 1e-3 log(r)^2."""
  logp = np.float32(np.log([[0.1, 0.5, 0.9, 0.4], [0.2, 0.3, 0.6, 0.25]]))
  mu = np.float32(np.log([[0.4, 0.5, 0.5, 0.5], [0.5, 0.1, 0.7, 0.2]]))
  ref = np.float32(np.log([[0.3, 0.3, 0.3, 0.3], [0.1, 0.2, 0.9, 0.5]]))
  mask = np.bool_([[1, 1, 1, 0], [1, 1, 1, 1]])
  total = 0.0
  for i, t in np.argwhere(mask):
    lr = float(logp[i, t]) - float(mu[i, t])
    if np.exp(logp[i, t]) - np.exp(mu[i, t]) >= -0.2:
      total -= (float(ref[i, t]) - float(logp[i, t])) * np.exp(lr)
    total += 1e-3 * lr**2
  adv = losses.advantages(
    'ref_kl', np.zeros(2), np.zeros(2, int), mask=mask, old_logp=logp,
    teacher_logp=ref,
  )  # fmt: skip
  loss, metrics = losses.policy_loss(
    'ref_kl', logp, adv, mask, sampler_logp=mu, teacher_logp=ref
  )
  close(loss, total / mask.sum(), 1e-5)
  close(metrics['clip_low'], 2 / 7, 1e-6)
  assert not metrics['clip_high']


Z, Z_OLD = np.random.default_rng(1).normal(size=(2, N, T, 9))
TAKEN = np.random.default_rng(2).integers(0, 9, (N, T))


def region(k, kind):
  """Computes Stable-RL's compute_topk_kl: the rollout's top k, and the rest as
  one.
  """
  p, q = softmax(Z_OLD), softmax(Z)
  top = np.argsort(-p, -1)[..., :k]
  a, b = (np.take_along_axis(x, top, -1) for x in (p, q))
  rest_a, rest_b = (1 - x.sum(-1) for x in (a, b))
  if kind == 'tv':
    return (np.abs(a - b).sum(-1) + np.abs(rest_a - rest_b)) / 2
  rest = rest_a * (np.log(rest_a) - np.log(rest_b))
  return (a * (np.log(a) - np.log(b))).sum(-1) + rest


@pytest.mark.parametrize('kind', ['tv', 'kl'])
def test_dppo_by_the_divergence_of_top_k_distributions(kind):
  o = losses.resolve(
    {'name': 'dppo_top_k', 'divergence': kind, 'divergence_top_k': 3}
  )
  want = region(3, kind)
  got = o.policy.compare(jnp.asarray(Z), jnp.asarray(Z_OLD))
  close(got, want, 1e-4)
  limit = float(np.median(want))
  o = o.with_numbers({'max_divergence': limit})
  logp, old = (
    np.take_along_axis(np.log(softmax(x)), TAKEN[..., None], -1)[..., 0]
    for x in (Z, Z_OLD)
  )
  total, stopped = 0.0, 0
  for i, t in np.argwhere(MASK):
    r, a = np.exp(logp[i, t] - old[i, t]), float(ADV[i])
    far = want[i, t] > limit and (r > 1 if a > 0 else r < 1)
    stopped += far
    per_row = MASK[i].sum() * MASK.any(1).sum()
    total -= 0 if far else r * a / per_row
  loss, metrics = losses.policy_loss(
    o, logp, ADV, MASK, old_logp=old,
    old_divergence=np.where(MASK, want, np.nan),
  )  # fmt: skip
  close(loss, total, 1e-4)
  close(metrics['clip_low'] + metrics['clip_high'], stopped / MASK.sum(), 1e-5)
  assert 0 < stopped < MASK.sum() - 5


def test_sdpo_has_the_policys_top_k_and_a_tail():
  """SDPO: JSD, alpha 0.5, over the student's top k and one bucket more."""
  p, t = softmax(Z), softmax(Z_OLD)
  top = np.argsort(-p, -1)[..., :4]
  p, t = (
    np.concatenate([a, 1 - a.sum(-1, keepdims=True)], -1)
    for a in (np.take_along_axis(x, top, -1) for x in (p, t))
  )
  m = (p + t) / 2
  want = 0.5 * ((p * np.log(p / m)).sum(-1) + (t * np.log(t / m)).sum(-1))
  o = losses.resolve({'name': 'sdpo', 'distill_top_k': 4})
  got = o.distill.compare(jnp.asarray(Z), jnp.asarray(Z_OLD))
  close(got, want, 1e-4)
  other = losses.resolve({**o, 'distill_top_of': 'teacher'}).distill
  assert np.abs(other.compare(Z, Z_OLD) - want).max() > 1e-3
  assert losses.resolve('sdpo')['distill_top_k'] == 100


WEIGHTS = {
  'power': lambda r: np.abs(r) ** 3,
  'max_min': lambda r: (r == r.max()) | (r == r.min()),
  'max_random': lambda r: np.where(r == r.max(), 0.4, 0.1),
}


@pytest.mark.parametrize('how', WEIGHTS)
def test_rows_are_drawn_by_the_weights_of_verl(how):
  reward = np.float32([1, -2, 0.5, 0, 2, np.nan])
  o = losses.resolve(
    {'name': 'pf_ppo', 'resample': how, 'resample_power': 3.0}
    if how == 'power'
    else {'name': 'pf_ppo', 'resample': how}
  )
  arrays = {'reward': reward, 'valid': np.ones(6, bool)}
  want = np.append(WEIGHTS[how](reward[:5]) + 1e-8, 0)
  close(o.resample(arrays), want, 1e-5)
  keys = jax.random.split(jax.random.key(0), 2000)
  drawn = jax.vmap(lambda key: o.resample.draw(arrays, key))(keys)
  share = np.bincount(np.ravel(drawn), minlength=6) / drawn.size
  np.testing.assert_allclose(share, want / want.sum(), atol=0.02)
  assert losses.resolve('pf_ppo')['resample_power'] == 2.0


def test_optimal_values_of_a_star_po():
  """TRL: V* = beta log mean exp(r_i / beta) of the reference's samples."""
  samples = np.array([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], float)
  value = 0.5 * np.log(np.exp(samples / 0.5).mean(1))
  reward = np.float32([1, 0, 1, np.nan])
  rate = np.float32([*samples.mean(1), 0.5])
  adv = losses.optimal_value(reward, rate)
  close(adv, [*(reward[:3] - value), 0], 1e-5)
  small = losses.optimal_value(reward, rate, value_beta=1e-3)
  # V* is almost the best reward of any sample.
  close(small[:3], [-1e-3 * np.log(0.25), -1, 1], 1e-3)


def test_the_gradient_of_a_star_po_is_that_of_its_regression():
  """TRL: ((beta2 log(pi / ref) - (r - V*))^2).mean() over rows."""
  beta, rows = 0.3, MASK.any(1)
  a = jnp.asarray(ADV)

  def regression(logp):
    ratio = jnp.where(MASK, logp - OLD, 0.0).sum(1)
    return jnp.where(rows, (beta * ratio - a) ** 2, 0.0).sum() / rows.sum()

  def ours(logp):
    s = {'name': 'a_star_po', 'md_tau': beta}
    return losses.policy_loss(s, logp, a, MASK, ref_logp=OLD)[0]

  want, got = jax.grad(regression)(LOGP), jax.grad(ours)(LOGP)
  close(2 * beta * got, want, 1e-4)
  assert losses.needs('a_star_po') == {'ref_logp', 'pass_rate'}
  assert losses.resolve('a_star_po')['md_tau'] == 1e-3


def test_each_role_has_a_running_baseline():
  """prime-rl's RAE: credit r - b, then b = decay b + (1 - decay) r."""
  reward = np.float32([1, -1, 0.5, np.nan, -0.5, 1])
  role = np.array([0, 1, 0, 0, 1, 1])
  baseline, want = {0: 0.2, 1: -0.3}, []
  for r, k in zip(reward, role, strict=True):
    if np.isnan(r):
      want.append(0.0)
      continue
    want.append(r - baseline[k])
    baseline[k] = 0.9 * baseline[k] + 0.1 * r
  start = np.float32([0.2, -0.3])
  adv, after = losses.role_baseline(reward, role, start, decay=0.9)
  close(adv, want, 1e-5)
  close(after, [baseline[0], baseline[1]], 1e-5)


def test_echo_trains_on_observations():
  """prime-rl: cross-entropy of observations times alpha, beside the loss."""
  observed = ~MASK & (np.arange(T) < 5)
  plain, _ = losses.policy_loss('ipo_mask', LOGP, ADV, MASK, sampler_logp=OLD)
  loss, metrics = losses.policy_loss(
    'echo', LOGP, ADV, MASK, sampler_logp=OLD, sft_mask=observed
  )
  nll = -np.float64(LOGP)[observed].mean()
  close(loss - plain, 0.1 * nll, 1e-4)
  close(metrics['sft_loss'], nll, 1e-5)


@pytest.mark.parametrize('normalise', [False, True])
def test_the_optimal_baseline_weighs_samples_as_the_correction_does(normalise):
  squares = np.float32(RNG.random((N, T)))
  weight = np.minimum(np.exp(np.float64(OLD) - SAMPLER), 1.1) * MASK
  weight *= MASK.sum() / weight.sum() if normalise else 1
  rest = dict(mask=MASK, old_logp=OLD, sum_p_squared=squares)
  reward = np.float32([1, 0, 0.5, 1, 0, 0.3])
  settings = {
    'name': 'otb', 'correction': 'truncate', 'correction_high': 1.1,
    'correction_normalise': normalise,
  }  # fmt: skip
  got = losses.advantages(settings, reward, GROUP, sampler_logp=SAMPLER, **rest)
  want = losses.advantages(
    'otb', reward, GROUP, token_weight=np.float32(weight), **rest
  )
  close(got, want, 1e-4)
  plain = losses.advantages('otb', reward, GROUP, **rest)
  assert np.abs(got - plain).max() > 1e-3
