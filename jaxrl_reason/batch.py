"""Rollouts and rewards -> the Batch an update reads, and its statistics.

The named stages between sampler and batch: `make_batch` assembles, `FILTERS`
decide which groups count, `split` cuts rows into micro-batches.
"""

import jax
import jax.numpy as jnp

from jaxrl_reason import losses, sharding
from jaxrl_reason.base import Batch, Metrics, Prompts, Reward, Rollout
from jaxrl_reason.models.parts import moe


def per_row(x: jax.Array, n: int) -> jax.Array:
  """What belongs to prompts [B,...], for each of their N rows [N,...]."""
  return sharding.rows(jnp.repeat(x, n // x.shape[0], axis=0))


def rows_of(prompts: Prompts, rollout: Rollout) -> tuple:
  """(tokens [N,T], valid [N,T], routes [N,T,L,k] or None): the prompts trained
  under and their completions, and the experts to replay.
  """
  n, c = rollout.tokens.shape
  first = lambda x, y: y if x is None else x
  tokens = first(prompts.train_tokens, prompts.tokens)
  valid = first(prompts.train_valid, prompts.valid)
  sampled = jnp.arange(c) < rollout.length[:, None]
  tokens = jnp.concatenate([per_row(tokens, n), rollout.tokens], axis=1)
  valid = jnp.concatenate([per_row(valid, n), sampled], axis=1)
  routes = rollout.routes
  if routes is not None and prompts.train_tokens is not None:
    # Those of another prompt.
    routes = routes.at[:, : tokens.shape[1] - c].set(moe.UNKNOWN)
  return tokens, valid, routes


def make_batch(prompts: Prompts, rollout: Rollout, reward: Reward) -> Batch:
  """Rows [N,T] of B prompts and their N = B*G completions."""
  n, c = rollout.tokens.shape
  b, p = prompts.tokens.shape
  sampled = jnp.arange(c) < rollout.length[:, None]
  tokens, valid, routes = rows_of(prompts, rollout)
  beside = lambda x: jnp.pad(x, ((0, 0), (p, 0)))
  demo = rollout.is_demo
  return Batch(
    tokens=tokens,
    valid=valid,
    mask=beside(sampled),
    reward=reward.total,
    reward_parts=reward.parts,
    reward_valid=reward.valid,
    group=per_row(jnp.arange(b, dtype=jnp.int32), n),
    truncated=rollout.truncated,
    temperature=rollout.temperature,
    sampler_logp=beside(rollout.logp),
    is_offpolicy=None if demo is None else beside(sampled & demo[:, None]),
    prompt_id=per_row(prompts.prompt_id, n),
    routes=routes,
  )


def interleaved(parts, n_samples: int, np_=jnp):
  """Rows of a batch's parts as one tree, in the order of the prompts.

  Args:
    parts: trees [n,...]; part i is of prompts i, i + len(parts), ...
    np_: numpy for arrays of the host.
  """

  def whole(*parts):
    shape = (-1, n_samples, *parts[0].shape[1:])
    both = np_.stack([x.reshape(shape) for x in parts], axis=1)
    return both.reshape(-1, *parts[0].shape[1:])

  return jax.tree.map(whole, *parts)


def with_demos(rollout: Rollout, prompts: Prompts, n_demos: int) -> Rollout:
  """The last n_demos samples of every prompt, replaced by its reference
  solution: off-policy tokens for losses that know how to learn from them.
  """
  n, b = rollout.length.shape[0], prompts.tokens.shape[0]
  is_demo = jnp.arange(n) % (n // b) >= n // b - n_demos
  pick = lambda demo, own: jnp.where(
    is_demo.reshape(-1, *[1] * (own.ndim - 1)), demo, own
  )
  routes = rollout.routes
  return rollout.replace(
    tokens=pick(per_row(prompts.demo, n), rollout.tokens),
    length=pick(per_row(prompts.demo_length, n), rollout.length),
    logp=pick(0.0, rollout.logp),
    truncated=rollout.truncated & ~is_demo,
    is_demo=is_demo,
    routes=None if routes is None else pick(moe.UNKNOWN, routes),
  )


def with_greedy(batch: Batch, greedy: Reward) -> Batch:
  """The reward [B] of each prompt's greedy completion, beside its samples'."""
  n = batch.reward.shape[0]
  return batch.replace(
    greedy_reward=per_row(greedy.total, n),
    reward_valid=batch.reward_valid & per_row(greedy.valid, n),
  )


def group_stats(batch: Batch) -> dict[str, jax.Array]:
  """Per row [N], over the rows of its group with a valid reward: the largest
  and smallest total, and whether all / none got the first reward part.
  """
  same = (batch.group[:, None] == batch.group) & batch.reward_valid
  over = lambda f, x, fill: f(jnp.where(same, x, fill), axis=1)
  solved = batch.reward_parts[:, 0] > 0.5
  return {
    'high': over(jnp.max, batch.reward, -jnp.inf),
    'low': over(jnp.min, batch.reward, jnp.inf),
    'solved_all': over(jnp.all, solved, True),
    'solved_none': ~over(jnp.any, solved, False),
  }


def drop_dead_groups(batch: Batch) -> Batch:
  """Takes groups of equal rewards out of every mean (the dynamic sampling of
  DAPO, https://arxiv.org/abs/2503.14476, with the batch shrunk, not refilled).
  """
  stats = group_stats(batch)
  alive = stats['high'] > stats['low']
  return batch.replace(mask=batch.mask & alive[:, None])


def drop_truncated(batch: Batch) -> Batch:
  """Takes rows that ran out of room out of the loss (overlong filtering)."""
  return batch.replace(mask=batch.mask & ~batch.truncated[:, None])


def overlong_penalty(batch: Batch, cache: int, max_new: int) -> jax.Array:
  """[N], 0 to -1: what DAPO takes off the reward of long completions.

  Args:
    cache: tokens at the end of the room over which it falls.
    max_new: C, the room.
  """
  length = batch.mask.sum(axis=1)
  return losses.soft_overlong_penalty(length, max_length=max_new, cache=cache)


FILTERS = {
  'none': lambda batch: batch,
  'dead_groups': drop_dead_groups,
  'truncated': drop_truncated,
}


def stats(batch: Batch, part_names: tuple[str, ...]) -> Metrics:
  """What to watch of a batch before any filter."""
  ok = batch.reward_valid
  n_ok = jnp.maximum(ok.sum(), 1)
  mean = lambda x: jnp.sum(jnp.where(ok, x, 0)) / n_ok
  reward = mean(batch.reward)
  lengths = batch.mask.sum(axis=1)
  groups = group_stats(batch)
  out = {
    'reward_mean': reward,
    'reward_std': jnp.sqrt(mean((batch.reward - reward) ** 2)),
    'reward_invalid': 1 - jnp.mean(ok),
    'groups_solved_all': jnp.mean(groups['solved_all']),
    'groups_solved_none': jnp.mean(groups['solved_none']),
    'length_mean': jnp.mean(lengths.astype(jnp.float32)),
    'length_max': jnp.max(lengths),
    'truncated': jnp.mean(batch.truncated),
    'tokens': lengths.sum(),
  }
  for i, name in enumerate(part_names):
    out[f'reward/{name}'] = mean(batch.reward_parts[:, i])
  return out


def split(tree, parts: int):
  """Rows [N,...] -> [parts, N/parts, ...], part i taking rows i, i+parts, ...

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
  merge = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])
  return jax.tree.map(merge, tree)
