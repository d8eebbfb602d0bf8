"""Losses of roles (`rl.roles`): each objective trains the rows of its role.

  loss = sum over roles of (rows of the role / rows) * loss of the role

Every mean in the loss of a role divides by a count of the role's own rows. The
factor is a share of rows, so that for losses that divide by rows two roles with
the same settings have the loss that one objective has.
"""

import functools

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Batch, Metrics

# Names and losses of roles (`Learner.roles`).
Roles = tuple[tuple[str, losses.Objective], ...]
MEASURED = 'loss', 'entropy', 'kl'  # metrics of every role
# Metrics with a weighted mean over roles, by the share that is the weight of a
# role. Metrics that end in `_max` have a maximum over roles. All other metrics
# are only those of each role.
SHARES = {
  'share': 'loss pg_loss dead_rows',
  'token_share': 'entropy kl nll nll_sampler gap_mean nonfinite_tokens '
  'approx_kl approx_kl_rev ratio_mean ratio_sq_mean weight_mean weight_sq_mean '
  'clip_low clip_high clip_dual drifted',
}
SHARE_OF = {k: share for share, ks in SHARES.items() for k in ks.split()}


def advantages(roles: Roles, role: jax.Array, **given) -> jax.Array:
  """Computes advantages [N] or [N,T]; baselines are over rows of one role.

  Args:
    role: int8 [N].
    others: see `losses.advantages`.
  """
  mask, valid, found = given['mask'], given['reward_valid'], []
  for i, (_, objective) in enumerate(roles):
    own = role == i
    given |= {'mask': mask & own[:, None], 'reward_valid': valid & own}
    found.append(losses.advantages(objective, **given))
  if any(x.ndim == 2 for x in found):
    found = [losses.rows_to_tokens(x, mask) for x in found]
  return sum(
    jnp.where((role == i) if x.ndim == 1 else (role == i)[:, None], x, 0.0)
    for i, x in enumerate(found)
  )


def denominators(roles: Roles, role: jax.Array, mask, **given) -> tuple:
  """Computes the divisors of a minibatch for each role, with the shares of the
  role in the rows and in the tokens.
  """
  found, of_roles = [], shares(roles, role, mask)
  for i, (name, objective) in enumerate(roles):
    own = role == i
    sums = losses.denominators(objective, mask & own[:, None], **given)
    # A minibatch may have no row of the role: its loss is then 0, not nan.
    rows = jnp.maximum(own.sum(), 1).astype(sums['rows'].dtype)
    found.append(sums | {'rows': rows} | of_roles[name])
  return tuple(found)


def shares(roles: Roles, role: jax.Array, mask) -> dict[str, dict]:
  """Computes the shares of each role in the rows and in the tokens of a
  minibatch, by its name.
  """
  found, tokens = {}, jnp.maximum(mask.sum(), 1)
  for i, (name, _) in enumerate(roles):
    own = role == i
    found[name] = {
      'share': own.mean(),
      'token_share': jnp.sum(mask & own[:, None]) / tokens,
    }
  return found


def shares_of_updates(roles: Roles, batch: Batch) -> dict[str, dict]:
  """Computes `shares` of stacked minibatches."""
  of = functools.partial(shares, roles)
  return jax.vmap(of)(batch.role, batch.mask)


def over_updates(
  metrics: Metrics,
  trained: jax.Array,
  sampled: jax.Array,
  of_roles: dict[str, dict],
) -> Metrics:
  """Averages stacked metrics over updates. A metric of a role is weighted by
  the role's share of an update, so `loss` remains the sum over roles.

  Args:
    of_roles: see `shares`, stacked over updates.
    others: see `losses.over_updates`.
  """
  weights = {
    name: found[SHARE_OF.get(name.rpartition('/')[2], 'share')]
    for role, found in of_roles.items()
    for name in metrics
    if name.startswith(f'role/{role}/')
  }
  return losses.over_updates(metrics, trained, sampled, weights)


def policy_loss(
  roles: Roles, role: jax.Array, mask: jax.Array, *, denominators, **given
) -> tuple[jax.Array, Metrics]:
  """Computes the loss, a scalar, and its metrics, from log-probs [N,T].

  Args:
    denominators: see `denominators`.
    others: see `losses.policy_loss`.
  """
  total, found = jnp.float32(0), {}
  for i, (name, objective) in enumerate(roles):
    sums, own = denominators[i], role == i
    given |= dict(mask=mask & own[:, None], denominators=sums)
    loss, found[name] = losses.policy_loss(objective, **given)
    # Rows of other roles have no token for this objective.
    found[name]['dead_rows'] -= jnp.sum(~own) / sums['rows']
    total += sums['share'] * loss
  return total, _together(found, denominators)


def _together(found: dict[str, Metrics], sums: tuple[dict, ...]) -> Metrics:
  """Joins the metrics that all roles have, with the weights SHARES. Metrics of
  MEASURED, and metrics that are not joined, are returned for each role.
  """
  common, out = set.intersection(*map(set, found.values())), {}
  for k in sorted(common):
    x = jnp.stack([metrics[k] for metrics in found.values()])
    if k.endswith('_max'):
      out[k] = x.max()
    elif k in SHARE_OF:
      out[k] = (x * jnp.stack([d[SHARE_OF[k]] for d in sums])).sum()
  for name, metrics in found.items():
    for k, x in metrics.items():
      if k in MEASURED or k not in out:
        out[f'role/{name}/{k}'] = x
  return out
