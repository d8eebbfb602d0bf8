"""The verifier of a task as the value of the leaves of a search.

  evaluate --leaf=judge             the judge's probability (--judge)
  evaluate --leaf=verifier          the verifier's score of the candidate and
                                    one sampled continuation to the end
  evaluate --leaf=verifier_at_end   the verifier's score of completions that
                                    have ended, and 0 of others

The search is compiled, so the verifier must be a device kernel. The kernel
reads the correct answer, so the accuracy is not that of the policy.
"""

from collections.abc import Callable
from typing import Any

import jax

from jaxrl_reason import batch
from jaxrl_reason.base import Rows
from jaxrl_reason.data import mixture
from jaxrl_reason.evals.suites import Suite
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import device

JUDGE = 'judge'


def kernel_of(suite: Suite, leaf: str) -> kernels.Kernel:
  """Returns the kernel that verifies the answers of a suite.

  Args:
    leaf: value of the flag, for the error.

  Raises:
    ValueError: there is no kernel, or it reads more than completions.
  """
  own = suite.kernel
  names = own.kernels if isinstance(own, mixture.Routes) else (own,)
  found = device.named('task', own)
  reads = [
    k for k in names if k in kernels.KERNELS and kernels.KERNELS[k].reads
  ]
  if found is not None and not reads:
    return found
  what = f'{suite.reward!r}, which runs in Python'
  if reads:
    what = f'{reads[0]!r}, which reads more than a completion'
  raise ValueError(
    f'--leaf={leaf}: {suite.name} is verified by {what}, and the program of a '
    'search needs a verifier inside it. Choose a task of this package, such as '
    'task:arithmetic, or --leaf=judge with a --judge'
  )


def score_of(
  kernel: kernels.Kernel, tokenizer: Any, max_new: int
) -> Callable[[Rows, dict], jax.Array]:
  """Returns (rows [N,P+C], encoded answers [B,...]) -> f32 [N], the scores of
  completions of C = max_new tokens; rows of one problem are next to each other.
  """
  table, lengths = kernels.token_bytes_table(tokenizer)
  width = max_new * table.shape[1]

  def score(rows: Rows, answers: dict) -> jax.Array:
    own, valid = rows.tokens[:, -max_new:], rows.valid[:, -max_new:]
    answers = jax.tree.map(lambda x: batch.per_row(x, len(own)), answers)
    text, n = kernels.to_bytes(own, valid, table, lengths, max_bytes=width)
    return kernel.score(text, n, answers)

  return score
