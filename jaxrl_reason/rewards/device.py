"""Device rewards: kernels composed into `(Rollout, answers) -> Reward`.

  encode, reward_fn = make({'answer': {'reward': 'task'}}, 'integer', ...)

`encode(example)` runs in the data pipeline and gives the arrays a kernel
compares with; `reward_fn` runs inside the compiled step.
"""

from collections.abc import Callable

import jax.numpy as jnp

from jaxrl_reason.base import Reward, Rollout
from jaxrl_reason.rewards import kernels


def _kernel(part: str, spec: dict, task_kernel: str | None) -> str:
  """The kernel a reward part names; 'task' stands for the task's own."""
  host_only = sorted(spec.keys() - {'reward', 'weight'})
  name = task_kernel if spec['reward'] == 'task' else spec['reward']
  if name in kernels.KERNELS and not host_only:
    return name
  problem = (
    f'{host_only[0]!r} is for rewards in Python'
    if host_only
    else f'there is no device kernel for {spec["reward"]!r} '
    f'(kernels: {", ".join(kernels.KERNELS)})'
  )
  raise ValueError(f'rl.rewards.{part}: {problem}. Set rl.path="host".')


def make(
  spec: dict[str, dict], task_kernel: str | None, tokenizer, max_new: int
) -> tuple[Callable, Callable]:
  """(encode, reward_fn) of weighted kernels.

  Args:
    spec: part -> {'reward': kernel or 'task', 'weight': number}.
    task_kernel: the kernel that 'task' means.
    tokenizer: whose `token_bytes` give the completions' bytes.
    max_new: C.
  """
  names = {k: _kernel(k, v, task_kernel) for k, v in spec.items()}
  weights = [v.get('weight', 1.0) for v in spec.values()]
  table, lengths = kernels.token_bytes_table(tokenizer)
  max_bytes = max_new * table.shape[1]

  def encode(example: dict) -> dict:
    return {
      part: kernels.KERNELS[name].encode(example)
      for part, name in names.items()
    }

  def reward_fn(rollout: Rollout, answers: dict) -> Reward:
    text, n = kernels.to_bytes(
      rollout.tokens, rollout.length, table, lengths, max_bytes=max_bytes
    )
    scores = [
      kernels.KERNELS[name].score(text, n, answers[part])
      for part, name in names.items()
    ]
    parts = jnp.stack(scores, axis=1)
    # A sum, not a product with the weights: TPUs multiply in bf16.
    total = sum(w * s for w, s in zip(weights, scores))
    return Reward(total=total, parts=parts, valid=jnp.ones(len(total), bool))

  return encode, reward_fn
