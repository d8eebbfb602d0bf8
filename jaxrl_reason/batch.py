"""Trajectories -> the Batch an update reads, and its statistics.

`make_batch` assembles a batch, `summary` computes its metrics, and `split` cuts
its rows into micro-batches.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.base import (
  Account,
  Batch,
  Metrics,
  Outcomes,
  Prompts,
  Reward,
  Rollout,
  Rows,
  Trajectories,
)
from jaxrl_reason.losses import groups
from jaxrl_reason.models.parts import moe

# Fields that Batch and Outcomes have in common.
OF_OUTCOMES = (
  'reward reward_parts reward_valid group truncated prompt_id answer_id '
  'is_hinted'
).split()
# Fields of a Batch with a second axis that is not that of the row's tokens.
OTHER_AXES = frozenset(
  'reward_parts teacher_tokens teacher_valid detail episode hidden'.split()
)
# Fields of a Batch, and their names in a Reward.
OF_REWARD = {
  'reward': 'total',
  'reward_parts': 'parts',
  'reward_valid': 'valid',
  'answer_id': 'answer_id',
  'detail': 'detail',
}


def per_row(x: jax.Array, n: int) -> jax.Array:
  """Repeats arrays of prompts [B,...] for their N rows [N,...]."""
  return sharding.rows(jnp.repeat(x, n // x.shape[0], axis=0))


def _per_row(x: jax.Array | None, n: int) -> jax.Array | None:
  return None if x is None else per_row(x, n)


def rows_of(prompts: Prompts, rollout: Rollout) -> Rows:
  """Joins the training prompts and their completions to rows [N,T]."""
  n, c = rollout.tokens.shape
  tokens, valid = prompts.tokens, prompts.valid
  if prompts.train_tokens is not None:
    tokens, valid = prompts.train_tokens, prompts.train_valid
  tokens = jnp.concatenate([per_row(tokens, n), rollout.tokens], axis=1)
  valid = jnp.concatenate([per_row(valid, n), rollout.turn > 0], axis=1)
  routes = rollout.routes
  if routes is not None and prompts.train_tokens is not None:
    # Those of another prompt.
    routes = routes.at[:, : tokens.shape[1] - c].set(moe.UNKNOWN)
  return Rows(tokens, valid, rollout.temperature, routes, rollout.role)


def packed(tokens: jax.Array, there: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Moves the marked tokens of rows [N,C] to the front, and counts them."""
  order = jnp.argsort(~there, axis=1, stable=True)
  return jnp.take_along_axis(tokens, order, axis=1), there.sum(axis=1)


def sampled_of(rows: Rows, rollout: Rollout) -> jax.Array:
  """Marks the sampled tokens of rows that `rows_of` joined, bool [N,T]."""
  columns = rows.tokens.shape[1] - rollout.sampled.shape[1]
  return jnp.pad(rollout.sampled, ((0, 0), (columns, 0)))


def make_batch(found: Trajectories) -> Batch:
  """Assembles rows [N,T] of B prompts and their N = B*G completions."""
  prompts, rollout, reward = found.prompts, found.rollout, found.reward
  n, (b, p) = rollout.tokens.shape[0], prompts.tokens.shape
  rows, own = rows_of(prompts, rollout), jnp.arange(b, dtype=jnp.int32)
  group = own if found.group is None else found.group

  def beside(x):  # [N,C] -> [N,T]
    return jnp.pad(x, ((0, 0), (p, 0)))

  offpolicy, forced = None, prompts.forced
  if rollout.is_demo is not None:
    offpolicy = beside(rollout.sampled & rollout.is_demo[:, None])
  if forced is not None:
    forced = jnp.pad(
      per_row(forced, n), ((0, 0), (0, rows.tokens.shape[1] - p))
    )
  # No two prompts share a node: each has fewer of them than tokens.
  first = per_row(jnp.arange(b), n)[:, None] * (rollout.tokens.size // b + 1)
  node = rollout.node + jnp.where(rollout.node > 0, first, 0)
  batch = Batch(
    **vars(rows),
    mask=beside(rollout.sampled),
    **of_reward(reward),
    group=per_row(group, n),
    truncated=rollout.truncated,
    sampler_logp=beside(rollout.logp),
    is_offpolicy=offpolicy,
    forced=forced,
    version=beside(rollout.version),
    observed=beside(rollout.valid & ~rollout.sampled),
    turn=beside(rollout.turn),
    node=beside(node),
    episode=rollout.episode,
    prompt_id=per_row(prompts.prompt_id, n),
    prompt_index=per_row(own, n),
    row=found.row,
    is_hinted=_per_row(prompts.is_hinted, n),
    teacher_tokens=_per_row(prompts.teacher_tokens, n),
    teacher_valid=_per_row(prompts.teacher_valid, n),
    pass_rate=_per_row(prompts.pass_rate, n),
    views=_views(rollout),
  )
  if found.greedy is None:
    return batch
  return with_reward(batch, reward, found.greedy)


def _views(rollout: Rollout) -> dict[str, jax.Array] | None:
  """Returns the views that a rollout keeps, with one row per completion."""
  if rollout.views is None:
    return None
  return {k: x.reshape(-1, x.shape[-1]) for k, x in rollout.views.items()}


def of_reward(reward: Reward) -> dict[str, jax.Array | None]:
  """Returns the fields of a Batch that a Reward fills."""
  return {name: getattr(reward, x) for name, x in OF_REWARD.items()}


def with_reward(batch: Batch, reward: Reward, greedy: Reward | None) -> Batch:
  """Puts rewards [N] into a batch, and the rewards [B] of the greedy
  completions, if there are any.
  """
  batch = batch.replace(**of_reward(reward))
  if greedy is None:
    return batch
  n = batch.reward.shape[0]
  return batch.replace(
    greedy_reward=per_row(greedy.total, n),
    reward_valid=batch.reward_valid & per_row(greedy.valid, n),
  )


def interleaved(parts, n_samples: int, np_=jnp):
  """Joins rows of a batch's parts, in the order of the prompts.

  Args:
    parts: trees [n,...]; part i is of prompts i, i + len(parts), ...
    np_: numpy for arrays of the host.
  """

  def whole(*parts):
    shape = (-1, n_samples, *parts[0].shape[1:])
    both = np_.stack([x.reshape(shape) for x in parts], axis=1)
    return both.reshape(-1, *parts[0].shape[1:])

  return jax.tree.map(whole, *parts)


def outcomes(batch: Batch) -> Outcomes:
  """Returns the outcomes of a batch, which statistics read."""
  same, demos = {k: getattr(batch, k) for k in OF_OUTCOMES}, batch.is_offpolicy
  is_demo = None if demos is None else demos.any(axis=1)
  return Outcomes(**same, length=batch.mask.sum(axis=1), is_demo=is_demo)


def solved_groups(batch: Batch | Outcomes) -> tuple[jax.Array, jax.Array]:
  """Returns two marks of rows, bool [N]: all verified rows of the row's group
  are correct by the first reward part, or none is. Groups without a verified
  row have neither mark.
  """
  same = (batch.group[:, None] == batch.group) & batch.reward_valid
  solved = same & (batch.reward_parts[:, 0] > 0.5)
  verified = jnp.any(same, axis=1)
  solved_all = verified & jnp.all(solved == same, axis=1)
  return solved_all, verified & ~jnp.any(solved, axis=1)


def stats_of_rounds(account: Account, part_names: tuple[str, ...]) -> Metrics:
  """Summarises every completion of a step: the mean over its rounds of N rows
  each, and the sum of the tokens.
  """

  def of_round(seen):
    return summary(seen, part_names)

  ran, n = account.ran, jnp.maximum(account.rounds, 1)
  out = {}
  for name, x in jax.vmap(of_round)(account.seen).items():
    x = jnp.where(ran, x, 0)
    if name.endswith('_max'):
      out[name] = x.max()
    else:
      out[name] = x.sum()
      if name != 'tokens':
        out[name] /= n
  return out


def summary(batch: Outcomes, part_names: tuple[str, ...]) -> Metrics:
  """Summarises N completions, without those that statistics exclude: rows of
  past versions, and answers to invalid proposals.
  """
  there = jnp.ones_like(batch.reward_valid)
  if batch.is_excluded is not None:
    there = ~batch.is_excluded
  ok = batch.reward_valid & there
  batch = batch.replace(reward_valid=ok)

  def mean(x, rows=ok):
    return jnp.sum(jnp.where(rows, x, 0)) / jnp.maximum(rows.sum(), 1)

  reward = mean(batch.reward)
  solved_all, solved_none = solved_groups(batch)
  out = {
    'reward_mean': reward,
    'reward_std': jnp.sqrt(mean((batch.reward - reward) ** 2)),
    'reward_invalid': 1 - mean(ok, there),
    'groups_solved_all': mean(solved_all, there),
    'groups_solved_none': mean(solved_none, there),
    'length_mean': mean(batch.length.astype(jnp.float32), there),
    'length_max': jnp.max(batch.length),
    'truncated': mean(batch.truncated, there),
    'tokens': batch.length.sum(),
  }
  for i, name in enumerate(part_names):
    out[f'reward/{name}'] = mean(batch.reward_parts[:, i])
  return out


def length_by_verdict(batch: Batch) -> Metrics:
  """Averages the lengths of correct and of incorrect rows, by the first reward
  part; NaN if there are no such rows. Rows without a sampled token, such as
  those of past versions, do not count.
  """
  lengths = batch.mask.sum(axis=1)
  right = batch.reward_parts[:, 0] > 0.5

  def mean(chosen):
    chosen = chosen & batch.reward_valid & (lengths > 0)
    return jnp.where(chosen, lengths, 0).sum() / chosen.sum()

  return {'length_right': mean(right), 'length_wrong': mean(~right)}


def own_tokens(batch: Batch) -> jax.Array:
  """Returns the mask of trained tokens that the policy sampled, bool [N,T]."""
  others = batch.is_offpolicy
  return batch.mask if others is None else batch.mask & ~others


def policy_lag(batch: Batch, step: jax.Array) -> jax.Array:
  """Computes the mean policy lag, f32 [], of the trained tokens that the policy
  sampled: the updates between the weights that sampled a token and `step`.
  """
  own = own_tokens(batch)
  lag = jnp.where(own, step - batch.version, 0)
  return lag.sum() / jnp.maximum(own.sum(), 1)


def reward_correlation(batch: Batch) -> Metrics:
  """Correlates the reward with correctness, by the first reward part, over the
  samples of a problem: both minus their means over the group. NaN if either is
  constant in every group.
  """

  def centred(x):
    return groups.centred(groups.group_of(x, batch.group, batch.reward_valid))

  right = centred(batch.reward_parts[:, 0] > 0.5)
  reward = centred(batch.reward)
  spread = jnp.sqrt(jnp.sum(right**2) * jnp.sum(reward**2))
  return {'reward_correlation': jnp.sum(right * reward) / spread}


def answer_spread(batch: Batch) -> Metrics:
  """Computes the entropy of the final answers of a group in nats, averaged over
  rows: -mean log (rows of the group with the row's answer / rows of the group
  with an answer). Rows without a sampled token do not count.
  """
  if batch.answer_id is None:
    return {}
  said = batch.reward_valid & (batch.answer_id >= 0) & batch.mask.any(axis=1)
  group = (batch.group[:, None] == batch.group) & said
  same = group & (batch.answer_id[:, None] == batch.answer_id)
  share = same.sum(axis=1) / jnp.maximum(group.sum(axis=1), 1)
  surprise = jnp.where(said, -jnp.log(jnp.where(said, share, 1.0)), 0.0)
  return {'answer_entropy': surprise.sum() / jnp.maximum(said.sum(), 1)}


def turn_stats(batch: Batch) -> Metrics:
  """Summarises episodes: for each turn the reward and the sampled tokens, over
  the rows that sampled any (in a game, those of the player that moves: the
  rewards of its two rows sum to 0), and the mean counts of
  `rollouts.turns.EVENTS`.
  """
  reward = batch.episode.reward
  there = jnp.isfinite(reward)
  out = {'turns/mean': jnp.mean(there.sum(axis=1).astype(jnp.float32))}
  out['turns/done'] = jnp.mean(batch.episode.done)
  for name, count in batch.episode.events.items():
    out[f'turns/{name}'] = jnp.mean(count.astype(jnp.float32))
  for i in range(reward.shape[1]):
    own = (batch.turn == i + 1) & ~batch.observed
    moved = there[:, i] & jnp.any(own, axis=1)
    gained = jnp.where(moved, reward[:, i], 0).sum()
    out[f'turns/{i}/reward'] = gained / jnp.maximum(moved.sum(), 1)
    drawn = jnp.sum(batch.mask & (batch.turn == i + 1), axis=1)
    movers = jnp.maximum(jnp.sum(drawn > 0), 1)
    out[f'turns/{i}/length'] = drawn.sum() / movers
    out[f'turns/{i}/share'] = jnp.mean(there[:, i])
  return out


def chunk_stats(batch: Batch) -> Metrics:
  """Counts the chunks of completions; `turn` has the number of the chunk."""
  chunks = jnp.max(batch.turn, axis=1)
  mean = jnp.mean(chunks.astype(jnp.float32))
  return {'chunks': mean, 'chunks_max': jnp.max(chunks)}


def split(tree, parts: int):
  """Cuts rows [N,...] to [parts, N/parts, ...]: part i has i, i+parts, ...

  Strided, because a reshape to [parts, N/parts] would put the mesh's row
  sharding on the axis that is scanned over: every device would then hold
  whole micro-batches and idle through the others'.
  """

  def leaf(x):
    x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:])
    return sharding.rows(jnp.swapaxes(x, 0, 1), axis=1)

  return jax.tree.map(leaf, tree)


def join(tree):
  """Undoes `split`."""

  def leaf(x):
    return jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])

  return jax.tree.map(leaf, tree)
