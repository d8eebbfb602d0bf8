"""Losses of roles (`rl.roles`): each objective trains the rows of its role.

  loss = sum over roles of (rows of the role / rows) * loss of the role

Every mean in the loss of a role divides by a count of the role's own rows. The
factor is a share of rows, so that for losses that divide by rows two roles with
the same settings have the loss that one objective has.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason import losses
from jaxrl_reason.base import Metrics
from jaxrl_reason.update.learner import Learner

MEASURED = 'loss', 'entropy', 'kl'  # metrics of every role
BY_ROWS = 'loss', 'pg_loss', 'dead_rows'  # metrics that are means over rows


def advantages(
  learner: Learner, role: jax.Array | None, reward, group, **given
) -> jax.Array:
  """Computes advantages [N] or [N,T]; baselines are over rows of one role.

  Args:
    role: int8 [N]; None if there is one objective.
    others: see `losses.advantages`.
  """
  if not learner.roles:
    return losses.advantages(learner.objective, reward, group, **given)
  mask, valid, found = given['mask'], given['reward_valid'], []
  for i, (_, objective) in enumerate(learner.roles):
    own = role == i
    given |= {'mask': mask & own[:, None], 'reward_valid': valid & own}
    found.append(losses.advantages(objective, reward, group, **given))
  if any(x.ndim == 2 for x in found):
    found = [losses.rows_to_tokens(x, mask) for x in found]
  return sum(
    jnp.where((role == i) if x.ndim == 1 else (role == i)[:, None], x, 0.0)
    for i, x in enumerate(found)
  )


def denominators(learner: Learner, role: jax.Array | None, mask, **given):
  """Computes the divisors of a minibatch; with roles a tuple of those of each
  role, with its shares of rows and of tokens.
  """
  if not learner.roles:
    return losses.denominators(learner.objective, mask, **given)
  found = []
  for i, (_, objective) in enumerate(learner.roles):
    own = role == i
    sums = losses.denominators(objective, mask & own[:, None], **given)
    rows, tokens = own.sum().astype(sums['rows'].dtype), jnp.sum(mask)
    share = {'share': rows / len(role)}
    share['token_share'] = sums['tokens'] / jnp.maximum(tokens, 1)
    # A minibatch may have no row of the role: its loss is then 0, not nan.
    found.append(sums | {'rows': jnp.maximum(rows, 1)} | share)
  return tuple(found)


def policy_loss(
  learner: Learner,
  role: jax.Array | None,
  logp: jax.Array,
  adv: jax.Array,
  mask: jax.Array,
  *,
  denominators,
  **given,
) -> tuple[jax.Array, Metrics]:
  """Computes the loss, a scalar, and its metrics, from log-probs [N,T].

  Args:
    denominators: see `denominators`.
    others: see `losses.policy_loss`.
  """
  given['adv'] = adv
  if not learner.roles:
    given |= dict(mask=mask, denominators=denominators)
    return losses.policy_loss(learner.objective, logp, **given)
  total, found = jnp.float32(0), {}
  for i, (name, objective) in enumerate(learner.roles):
    sums, own = denominators[i], role == i
    given |= dict(mask=mask & own[:, None], denominators=sums)
    loss, found[name] = losses.policy_loss(objective, logp, **given)
    # Rows of other roles have no token for this objective.
    found[name]['dead_rows'] -= jnp.sum(~own) / sums['rows']
    total += sums['share'] * loss
  return total, _together(found, denominators)


def _together(found: dict[str, Metrics], sums: tuple[dict, ...]) -> Metrics:
  """Joins the metrics of roles. If all have a metric, its mean over roles is
  weighted by rows for losses and by tokens for others. MEASURED ones, and those
  that not all have, are also those of each role.
  """
  common = set.intersection(*map(set, found.values()))
  out = {}
  for k in sorted(common):
    x = jnp.stack([metrics[k] for metrics in found.values()])
    share = 'share' if k in BY_ROWS else 'token_share'
    weighted = x * jnp.stack([d[share] for d in sums])
    out[k] = x.max() if k.endswith('_max') else weighted.sum()
  for name, metrics in found.items():
    for k, x in metrics.items():
      if k in MEASURED or k not in common:
        out[f'role/{name}/{k}'] = x
  return out
