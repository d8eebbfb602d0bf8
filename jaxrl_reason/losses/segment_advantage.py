"""Advantages of segments of rows, [N, T]: of turns and of nodes of trees."""

import jax
import jax.numpy as jnp

from jaxrl_reason.losses import groups
from jaxrl_reason.losses.arrays import (
  Array,
  as_float,
  as_mask,
  check_shapes,
  choose,
  keep,
  safe_divide,
)
from jaxrl_reason.losses.baselines import (
  Advantage,
  group_mean,
  group_zscore,
  reinforce,
)
from jaxrl_reason.losses.objective_part import part
from jaxrl_reason.losses.token_advantage import suffix_scan, token_rewards


def _no_baseline(r, group, ok, ddof, eps):
  return reinforce(r, valid=ok)


def _mean_baseline(r, group, ok, ddof, eps):
  return group_mean(r, group, valid=ok)


def _zscore_baseline(r, group, ok, ddof, eps):
  return group_zscore(r, group, valid=ok, ddof=ddof, eps=eps)


SEGMENT_BASELINES = {
  'none': _no_baseline,
  'group_mean': _mean_baseline,
  'group_zscore': _zscore_baseline,
}


def segments(
  reward: Array,
  group: Array,
  segment_reward: Array,
  segment_ids: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  node_ids: Array | None = None,
  segment_gamma: float = 1.0,
  segment_baseline: str = 'group_mean',
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """Computes advantages of tokens from rewards of turns or steps [N, S].

  The return of a segment is its reward plus gamma times the return of the next
  segment. The row's outcome is added to its last segment. A return is compared
  with the same segment of the other rows of the group. gamma = 0 credits each
  turn with its own reward only (https://arxiv.org/abs/2505.11821), 1 is the
  reward to go.

  If rows share segments, the nodes of a tree, the return of a segment is the
  mean of the leaves below it. It is compared with the same segment of its
  siblings: nodes with the same parent, each counted once. Nodes without a
  parent are compared over the group.

  Args:
    segment_reward: [N, S], NaN where a row has no such segment.
    segment_ids: int [N, T], the segment of each token; others get 0.
    node_ids: int [N, T], above 0, the node of each token as in `tree`, the same
      for all tokens of a segment. None: no row shares a segment.
  """
  check_shapes(
    mask=mask,
    reward=reward,
    group=group,
    segment_reward=segment_reward,
    segment_ids=segment_ids,
    node_ids=node_ids,
  )
  segment_ids = jnp.asarray(segment_ids)
  ok = groups.valid_rows(reward, valid)
  present = jnp.isfinite(as_float(segment_reward)) & ok[:, None]
  r = token_rewards(
    reward, present, valid=ok, process_reward=keep(present, segment_reward)
  )
  togo = suffix_scan(r, jnp.where(present, segment_gamma, 1.0))
  baseline = choose('segment_baseline', segment_baseline, SEGMENT_BASELINES)

  ids = jnp.clip(segment_ids, 0, togo.shape[1] - 1)
  inside = ids == segment_ids
  if node_ids is None:
    node = parent = jnp.zeros(togo.shape, jnp.int32)
  else:
    node = _segment_nodes(node_ids, ids, inside, present)
    with_token = present & (node > 0)
    parent = _of_parent(node, node, with_token, -1 - jnp.asarray(group))

  def column(r, there, node, parent):
    if node_ids is None:
      return baseline(r, group, there, ddof, eps)
    value, first, segment = _of_node(r, node, there)
    adv = baseline(value, parent, first, ddof, eps)
    adv = groups.over_group(jnp.where(first, adv, 0), segment)
    return jnp.where(there, adv, 0)

  given = togo, present, node, parent
  adv = jax.vmap(column, in_axes=1, out_axes=1)(*given)
  return keep(as_mask(mask) & inside, jnp.take_along_axis(adv, ids, 1))


def _segment_nodes(node_ids, ids, inside, present) -> jax.Array:
  """Returns the node of each segment, int [N, S]. A segment without a token is
  a node of its own.

  Args:
    ids: int [N, T], the segment of each token where `inside` is true.
    present: bool [N, S].
  """
  row = jnp.arange(len(ids))[:, None]
  node = jnp.where(inside, node_ids, 0)
  node = jnp.zeros(present.shape, node.dtype).at[row, ids].max(node)
  # Below all ids of groups and nodes.
  return jnp.where(node > 0, node, jnp.iinfo(node.dtype).min + 1 + row)


def _of_node(r, node, there):
  """Returns the mean of r [N] over the rows of a node, bool [N] for the first
  row of each node, and the nodes as segments of `groups.over_group`.
  """
  g = groups.group_of(r, node, there)
  rows = jnp.where(g.valid, jnp.arange(len(r)), len(r))
  first = groups.over_group(rows, g.segment, jax.ops.segment_min)
  value = g.low + groups.group_mean_of(g)  # exact if all are equal
  return value, g.valid & (rows == first), g.segment


class Segments(part('Segments', segments, Advantage)):
  """`segments` as a part."""

  @property
  def keys_read(self) -> set[str]:
    by_std = self.segment_baseline == 'group_zscore'
    return super().keys_read - (set() if by_std else {'ddof', 'eps'})


def tree(
  reward: Array,
  group: Array,
  node_ids: Array,
  mask: Array,
  *,
  valid: Array | None = None,
  tree_global: float = 1.0,
  tree_local: float = 1.0,
  tree_power: float = 0.5,
) -> jax.Array:
  """Computes advantages in a tree of samples that share prefixes: TreeRL.

  https://arxiv.org/abs/2506.11902. V(node) is the mean reward of the leaves
  below it, L their number:
    A = (w_g (V(node) - V(root)) + w_l (V(node) - V(parent))) / L^power
  The root is the group; V(parent) is the mean over the node's siblings, each
  weighted by its leaves. power = 1/2 reduces the weight of nodes that many rows
  share, because each of these rows trains on them.

  Args:
    node_ids: int [N, T], the node of each token. Rows that share a node have it
      at the same positions.
  """
  check_shapes(mask=mask, node_ids=node_ids, reward=reward)
  node_ids = jnp.asarray(node_ids)
  g = groups.group_of(reward, group, valid)
  ok = as_mask(mask) & g.valid[:, None]

  def column(node, there):
    segment = groups.segment_ids(node)
    n = groups.over_group(as_float(there), segment)
    total = groups.over_group(jnp.where(there, g.shifted, 0.0), segment)
    return safe_divide(total, n), n

  value, leaves = jax.vmap(column, in_axes=1, out_axes=1)(node_ids, ok)
  root = groups.group_mean_of(g)
  parent = _of_parent(value, node_ids, ok, root)
  adv = tree_global * (value - root[:, None]) + tree_local * (value - parent)
  return keep(ok, adv / jnp.maximum(leaves, 1.0) ** tree_power)


Tree = part('Tree', tree, Advantage)


def _of_parent(value, node_ids, mask, root):
  """Returns the value [N, T] of the previous node in each row; for the first
  node, that of `root` [N].
  """

  def step(carry, now):
    node, v, parent = carry
    there, node_t, v_t = now
    new = there & (node_t != node)
    parent = jnp.where(new, v, parent)
    v = jnp.where(new, v_t, v)
    return (jnp.where(new, node_t, node), v, parent), parent

  # Built from node_ids, not a constant: inside shard_map the carry has to vary
  # over the mesh from the start.
  first = node_ids[:, 0] * 0 + jnp.iinfo(node_ids.dtype).min
  over_time = (mask.T, node_ids.T, value.T)
  return jax.lax.scan(step, (first, root, root), over_time)[1].T
