"""Proposer and solver: the policy writes the problems that it solves.

Absolute Zero (https://arxiv.org/abs/2505.03335), on arithmetic or on string
functions:

  problem + `ask` -> G proposals -> evaluated by the program -> the valid ones
  are prompts -> G answers to each of them

If a share s of the answers to a proposal is correct, the proposal has the
reward 1 - s, but 0 if s is 0 or 1. A proposal that is not a valid problem has
the reward -1. An answer has the reward of the kernel. The samples of a problem,
and the answers to a proposal, are groups, so both roles have baselines of their
own.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Metrics, Prompts, Rollout, Trajectories
from jaxrl_reason.envs import row_bytes
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import left_to_right, string_chain
from jaxrl_reason.rollouts import group_arrays
from jaxrl_reason.rollouts.fused import FusedSource
from jaxrl_reason.rollouts.rounds import key_of_round

INVALID = -1.0  # the reward of a proposal that is not a valid problem


def integers(text: jax.Array, length: jax.Array, like: dict) -> tuple:
  """Evaluates arithmetic as `kernels.final.encode_integer` encodes it."""
  value, fine = left_to_right.evaluate(text, length)
  digits, size = jax.vmap(row_bytes.number)(jnp.abs(value))
  zero, width = value == 0, like['digits'].shape[1]
  digits = jnp.pad(digits, ((0, 0), (0, max(0, width - digits.shape[1]))))
  return {
    'digits': jnp.where(zero[:, None], 0, digits[:, :width]),
    'n_digits': jnp.where(zero, 0, size),
    'negative': value < 0,
  }, fine


def strings(text: jax.Array, length: jax.Array, like: dict) -> tuple:
  """Evaluates string functions as `kernels.final.encode_text` encodes them."""
  found, size, fine = string_chain.evaluate(text, length)
  room = like['bytes'].shape[1] - found.shape[1]
  return {'bytes': jnp.pad(found, ((0, 0), (0, room))), 'n_bytes': size}, fine


@dataclasses.dataclass(frozen=True, eq=False)
class ProposalSource:
  """Samples proposals and the answers to them; itself a source.

  Attributes:
    proposer, solver: the sources of proposals and of answers.
    by_role: the two have adapters of their own.
    ask: the token after a problem that requests a new problem.
    evaluate: (text u8 [N,W], its bytes [N], encoded answers to imitate) ->
      (encoded answers to the problems, whether each is a valid problem [N]).
    bytes_of, n_bytes: see `kernels.token_bytes_table`.
  """

  proposer: FusedSource
  solver: FusedSource
  ask: int
  bytes_of: np.ndarray
  n_bytes: np.ndarray
  by_role: bool = False
  evaluate: Callable = integers

  def __call__(
    self, params, control, prompts: Prompts, root, step, sampling, stop
  ) -> Trajectories:
    """Returns B groups of proposals and B*G groups of answers."""
    rest = step, sampling, stop
    asked = requests(prompts, self.ask)
    first = self.proposer(params, control, asked, root, *rest)
    tasks, fine = self.problems(prompts, first.rollout, stop)
    root = key_of_round(root, 'proposals', 1)
    second = self.solver(params, control, tasks, root, *rest)
    if self.by_role:
      first, second = (with_role(x, i) for i, x in enumerate((first, second)))
    return combined(first, second, fine)

  def problems(
    self, prompts: Prompts, rollout: Rollout, stop: jax.Array
  ) -> tuple[Prompts, jax.Array]:
    """Builds the solver's prompts from proposals.

    Returns:
      (prompts [B*G,...]; whether the proposal is a valid problem, bool [B*G].
      If it is not, the prompt is the problem of the proposer's prompt).
    """
    (n, c), p = rollout.tokens.shape, prompts.tokens.shape[1]
    is_stop = jnp.any(rollout.tokens[..., None] == stop, axis=-1)
    own = rollout.sampled & ~is_stop
    size = own.sum(axis=1)
    text, length = kernels.to_bytes(
      rollout.tokens, own, self.bytes_of, self.n_bytes,
      max_bytes=c * self.bytes_of.shape[1],
    )  # fmt: skip
    old = jax.tree.map(lambda x: batch_lib.per_row(x, n), prompts)
    answer, fine = self.evaluate(text, length, next(iter(old.answer.values())))
    # The solver would read tokens without bytes, and the kernel does not.
    sizes = jnp.asarray(self.n_bytes)
    known = rollout.tokens < len(sizes)  # of a padded vocabulary, not all
    has_bytes = known & (sizes.at[rollout.tokens].get(mode='clip') > 0)
    fine &= ~rollout.truncated & (size <= p) & jnp.all(~own | has_bytes, axis=1)
    at = jnp.arange(p) - (p - size[:, None])
    new = jnp.take_along_axis(rollout.tokens, jnp.clip(at, 0, c - 1), axis=1)

    def pick(new, old):
      chosen = fine.reshape(-1, *[1] * (old.ndim - 1))
      return sharding.rows(jnp.where(chosen, new, old))

    return old.replace(
      tokens=pick(jnp.where(at >= 0, new, 0), old.tokens),
      valid=pick(at >= 0, old.valid),
      answer={k: jax.tree.map(pick, answer, x) for k, x in old.answer.items()},
    ), fine


def with_role(found: Trajectories, role: int) -> Trajectories:
  """Sets the role of all rows."""
  own = jnp.full_like(found.rollout.length, role, jnp.int8)
  return found.replace(rollout=found.rollout.replace(role=own))


def requests(prompts: Prompts, ask: int) -> Prompts:
  """Returns the prompts [B,P] with the token `ask` at their ends. If a prompt
  has P tokens, the first one is dropped.
  """
  tokens = jnp.roll(prompts.tokens, -1, axis=1).at[:, -1].set(ask)
  valid = jnp.roll(prompts.valid, -1, axis=1).at[:, -1].set(True)
  return prompts.replace(tokens=tokens, valid=valid)


def combined(
  first: Trajectories, second: Trajectories, fine: jax.Array
) -> Trajectories:
  """Joins proposals and answers to the trajectories of a step.

  Args:
    fine: bool [B*G], valid proposals. Answers to other proposals have no
      sampled token, and statistics leave them out.
  """
  n, g = len(fine), len(second.reward.total) // len(fine)
  right = (second.reward.parts[:, 0] > 0.5).reshape(n, g)
  rate = right.mean(axis=1)
  gained = jnp.where((rate > 0) & (rate < 1), 1 - rate, 0.0)
  reward = first.reward.replace(
    total=jnp.where(fine, gained, INVALID),
    parts=jnp.zeros_like(first.reward.parts),
    valid=jnp.ones_like(fine),
    answer_id=jnp.full_like(first.reward.answer_id, -1),
  )
  own = batch_lib.per_row(fine, n * g)
  sampled = second.rollout.sampled & own[:, None]
  rollout = second.rollout.replace(sampled=sampled, length=sampled.sum(axis=1))
  of_solver = second.reward.replace(
    total=jnp.where(own, second.reward.total, 0.0),
    parts=jnp.where(own[:, None], second.reward.parts, 0.0),
  )
  first = first.replace(reward=reward)
  second = second.replace(rollout=rollout, reward=of_solver)
  groups = map(group_arrays.of, (first, second))
  both = group_arrays.to_rows(group_arrays.joined(*groups))
  unasked = jnp.concatenate([jnp.zeros_like(fine), ~own])
  account = group_arrays.excluding(group_arrays.account(both), unasked)
  told = metrics(first, second, fine, rate)
  return both.replace(account=account.replace(metrics=told))


def metrics(
  first: Trajectories, second: Trajectories, fine: jax.Array, rate: jax.Array
) -> Metrics:
  """Summarises both roles: rewards, tokens, and the share of valid proposals;
  of valid proposals, the solve rate and the share with 0 < rate < 1.
  """
  n = jnp.maximum(fine.sum(), 1)

  def mean(x):
    return jnp.where(fine, x, 0).sum() / n

  g = len(second.reward.total) // len(fine)
  answers, lengths = (
    x.reshape(-1, g).mean(axis=1)
    for x in (second.reward.total, second.rollout.length)
  )
  return {
    'role/proposer/reward': first.reward.total.mean(),
    'role/proposer/length': first.rollout.length.mean(dtype=jnp.float32),
    'role/proposer/valid': fine.mean(dtype=jnp.float32),
    'role/proposer/learnable': mean((rate > 0) & (rate < 1)),
    'role/solver/reward': mean(answers),
    'role/solver/length': mean(lengths),
    'role/solver/rate': mean(rate),
  }
