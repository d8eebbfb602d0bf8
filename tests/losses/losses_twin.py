"""Implements the published formulas in NumPy float64, one loop at a time.

The formulas are written from the papers and share no code with the library.
They are slow and obvious: no masking tricks, no vectorisation over rows. The
tests compare the library with them.
"""

import numpy as np

# --------------------------------------------------------------- advantages


def members(group, valid, i):
  """Returns the valid rows in the group of row i."""
  return [j for j in range(len(group)) if group[j] == group[i] and valid[j]]


def per_group(fn, reward, group, valid):
  """Computes fn(rewards of the group, position in it) for valid rows, else
  0.
  """
  out = np.zeros(len(reward))
  for i in range(len(reward)):
    if valid[i]:
      rows = members(group, valid, i)
      r = np.array([reward[j] for j in rows], np.float64)
      out[i] = 0.0 if len(rows) == 1 else fn(r, rows.index(i))
  return out


def group_mean(reward, group, valid):
  return per_group(lambda r, i: r[i] - r.mean(), reward, group, valid)


def group_zscore(reward, group, valid, ddof=1, eps=1e-6):
  def fn(r, i):
    if r.max() == r.min():
      return 0.0
    return (r[i] - r.mean()) / (r.std(ddof=ddof) + eps)

  return per_group(fn, reward, group, valid)


def leave_one_out(reward, group, valid):
  return per_group(
    lambda r, i: r[i] - np.delete(r, i).mean(), reward, group, valid
  )


def group_mean_batch_std(reward, group, valid, ddof=1, eps=1e-6):
  everyone = np.array([r for r, ok in zip(reward, valid) if ok], np.float64)
  std = everyone.std(ddof=ddof)
  return per_group(
    lambda r, i: (r[i] - r.mean()) / (std + eps), reward, group, valid
  )


def length_weighted(reward, group, valid, mask):
  out = np.zeros(len(reward))
  for i in range(len(reward)):
    rows = members(group, valid, i) if valid[i] else []
    if len(rows) < 2:
      continue
    l = np.array([mask[j].sum() for j in rows], np.float64)
    r = np.array([reward[j] for j in rows], np.float64)
    out[i] = reward[i] - ((l * r).sum() / l.sum() if l.sum() else r.min())
  return out


def gpg(reward, group, valid):
  live = sum(
    bool(ok) and len({reward[j] for j in members(group, valid, i)}) > 1
    for i, ok in enumerate(valid)
  )
  scale = sum(valid) / live if live else 0.0
  return scale * group_mean(reward, group, valid)


def maxrl(reward, group, valid):
  return per_group(
    lambda r, i: (r[i] - r.mean()) / r.mean() if r.mean() else 0.0,
    reward,
    group,
    valid,
  )


def rank(reward, group, valid):
  return per_group(
    lambda r, i: ((r < r[i]).sum() - (r > r[i]).sum()) / (len(r) - 1),
    reward,
    group,
    valid,
  )


def whiten(x, where, ddof=1, eps=1e-8):
  """Returns x where `where` is set, minus their mean, over their deviation."""
  chosen = x[where]
  var = ((chosen - chosen.mean()) ** 2).sum() / (chosen.size - ddof)
  out = np.zeros_like(x)
  out[where] = (chosen - chosen.mean()) / np.sqrt(var + eps)
  return out


def returns(token_reward, mask, gamma):
  out = np.zeros(mask.shape)
  for i in range(mask.shape[0]):
    running = 0.0
    for t in reversed(range(mask.shape[1])):
      if mask[i, t]:
        running = token_reward[i, t] + gamma * running
        out[i, t] = running
  return out


def gae(token_reward, values, mask, gamma, lam):
  """Computes generalized advantages; `lam` is one number per row."""
  out = np.zeros(mask.shape)
  for i in range(mask.shape[0]):
    adv = after = 0.0
    for t in reversed(range(mask.shape[1])):
      if mask[i, t]:
        delta = token_reward[i, t] + gamma * after - values[i, t]
        adv = delta + gamma * lam[i] * adv
        after = values[i, t]
        out[i, t] = adv
  return out


def outcome_on_last(reward, mask, valid):
  out = np.zeros(mask.shape)
  for i in range(mask.shape[0]):
    if valid[i] and mask[i].any():
      out[i, np.flatnonzero(mask[i])[-1]] = reward[i]
  return out


# ------------------------------------------------- losses and their gradients
# Each returns x [N, T], the loss of each token, and J [N, T, T]: J[i, t, s] is
# the derivative of x[i, t] by logp[i, s] (stop_gradients taken into account).


def _empty(mask):
  n, t = mask.shape
  return np.zeros((n, t)), np.zeros((n, t, t))


def _cells(mask):
  return [(i, t) for i, t in np.ndindex(mask.shape) if mask[i, t]]


def log_likelihood(logp, old, adv, mask):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    x[i, t] = -adv[i, t] * logp[i, t]
    J[i, t, t] = -adv[i, t]
  return x, J


def importance_sampling(logp, old, adv, mask):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    x[i, t] = J[i, t, t] = -adv[i, t] * np.exp(logp[i, t] - old[i, t])
  return x, J


def _row(logp, old, mask, i):
  return [logp[i, t] - old[i, t] for t in np.flatnonzero(mask[i])]


def ppo_clip(logp, old, adv, mask, low=0.2, high=0.2, dual=None, ratio='token'):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    a = adv[i, t]
    row = _row(logp, old, mask, i)
    r = np.exp(logp[i, t] - old[i, t] if ratio == 'token' else np.mean(row))
    terms = [r * a, np.clip(r, 1 - low, 1 + high) * a]
    x[i, t] = -min(terms)
    active = terms[0] <= terms[1]
    if dual is not None and a < 0 and min(terms) < dual * a:
      x[i, t], active = -dual * a, False
    if active and ratio == 'sequence':
      J[i, t, mask[i] != 0] = -a * r / len(row)
    elif active:
      J[i, t, t] = -a * r
  return x, J


def cispo(logp, old, adv, mask, low=1.0, high=4.0):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    w = np.clip(np.exp(logp[i, t] - old[i, t]), 1 - low, 1 + high)
    x[i, t] = -w * adv[i, t] * logp[i, t]
    J[i, t, t] = -w * adv[i, t]
  return x, J


def gmpo(logp, old, adv, mask, low=0.4, high=0.4):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    a, at = adv[i, t], np.flatnonzero(mask[i])
    total, free = 0.0, []
    for s in at:
      d = logp[i, s] - old[i, s]
      clipped = np.clip(d, -low, high)
      # The log-ratio with the larger loss, by the sign of the advantage.
      pick = min(d, clipped) if a > 0 else max(d, clipped)
      if a == 0:
        pick = d
      total += pick
      free += [s] if pick == d else []
    mean = np.exp(total / len(at))
    x[i, t] = -a * mean
    J[i, t, free] = -a * mean / len(at)
  return x, J


def sapo(logp, old, adv, mask, pos=1.0, neg=1.05):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    r, tau = np.exp(logp[i, t] - old[i, t]), pos if adv[i, t] > 0 else neg
    e = np.exp(-tau * (r - 1))
    x[i, t] = -adv[i, t] * 4 / tau / (1 + e)
    J[i, t, t] = -adv[i, t] * 4 * e / (1 + e) ** 2 * r
  return x, J


def cpgd(logp, old, adv, mask, low=0.2, high=0.2, drift=0.3):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    a, d = adv[i, t], logp[i, t] - old[i, t]
    clipped = np.clip(d, np.log(1 - low), np.log(1 + high))
    x[i, t] = -min(d * a, clipped * a) + drift * (np.exp(d) - 1 - d)
    active = d * a <= clipped * a
    J[i, t, t] = -a * active + drift * (np.exp(d) - 1)
  return x, J


def dppo(logp, old, adv, mask, kind='tv', limit=0.15):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    p, q, a = np.exp(logp[i, t]), np.exp(old[i, t]), adv[i, t]
    if kind == 'tv':
      far = abs(p - q)
    else:
      far = q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
    if far > limit and ((a > 0 and p > q) or (a < 0 and p < q)):
      continue
    x[i, t] = J[i, t, t] = -a * p / q
  return x, J


def mirror_descent(logp, old, adv, mask, tau=0.1, level='sequence'):
  x, J = log_likelihood(logp, old, adv, mask)
  for i, t in _cells(mask):
    at = np.flatnonzero(mask[i])
    if level == 'token':
      d = logp[i, t] - old[i, t]
      x[i, t] += tau / 2 * d**2
      J[i, t, t] += tau * d
    else:
      total = sum(_row(logp, old, mask, i))
      x[i, t] += tau / 2 * total**2 / len(at)
      J[i, t, at] += tau * total / len(at)
  return x, J


def vespo(logp, old, adv, mask, pos=(2.0, 3.0), neg=(3.0, 2.0)):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    c1, c2 = pos if adv[i, t] >= 0 else neg
    log_w = sum(_row(logp, old, mask, i))
    kernel = np.exp(c1 * log_w + c2 - c2 * np.exp(min(log_w, 50.0)))
    x[i, t] = -kernel * adv[i, t] * logp[i, t]
    J[i, t, t] = -kernel * adv[i, t]
  return x, J


def topr(logp, old, adv, mask):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    w = np.exp(min(sum(_row(logp, old, mask, i)), 50.0))
    w = 1.0 if adv[i, t] >= 0 else min(w, 1.0)
    x[i, t] = -w * adv[i, t] * logp[i, t]
    J[i, t, t] = -w * adv[i, t]
  return x, J


def k3(logp, ref, mask):
  x, J = _empty(mask)
  for i, t in _cells(mask):
    d = ref[i, t] - logp[i, t]
    x[i, t] = np.expm1(d) - d if abs(d) > 1e-3 else d * d / 2 + d**3 / 6
    J[i, t, t] = -np.expm1(d)
  return x, J


# -------------------------------------------------------------- aggregation


def aggregation_weights(mask, how, length=None, count_empty=False):
  """Returns w [N, T] such that the loss is sum w x."""
  n, t = mask.shape
  size = (mask != 0).sum(1)
  rows = n if count_empty else (size > 0).sum()
  w = np.zeros((n, t))
  for i, s in _cells(mask):
    w[i, s] = {
      'token_mean': 1 / size.sum(),
      'token_sum': 1.0,
      'seq_mean_token_mean': 1 / (size[i] * rows),
      'seq_mean_token_sum': 1 / rows,
      'fixed_length': 1 / (rows * (length or t)),
    }[how]
  return w


def total(x_and_J, w):
  """Computes the loss and its gradient by logp [N, T]."""
  x, J = x_and_J
  return (w * x).sum(), np.einsum('it,its->is', w, J)
