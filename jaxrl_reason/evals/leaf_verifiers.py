"""The verifier of a task as the value of the leaves of a search.

  evaluate --leaf=judge             the judge's probability (--judge)
  evaluate --leaf=verifier          the verifier's score of the candidate and
                                    one sampled continuation to the end
  evaluate --leaf=verifier_at_end   the verifier's score of completions that
                                    have ended, and 0 of others

The search is compiled, so the verifier must be a device kernel. The kernel
reads the correct answer, so the accuracy is not that of the policy.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.data import mixture
from jaxrl_reason.evals.suites import Suite
from jaxrl_reason.rewards import kernels
from jaxrl_reason.rewards.kernels import device
from jaxrl_reason.rollouts import gumbel_search

JUDGE = 'judge'
# Values of --leaf with a verifier, and the leaves of their searches.
LEAVES = {
  'verifier': gumbel_search.CONTINUED,
  'verifier_at_end': gumbel_search.ENDED,
}


@dataclasses.dataclass(frozen=True)
class LeafVerifier:
  """A verifier inside the program of a search.

  Attributes:
    encode: example -> arrays, the correct answer for the kernel.
    of: (rows [N,P+C], encoded answers [B,...]) -> f32 [N], scores of the
      completions; rows of one problem are next to each other.
  """

  encode: Callable[[dict], dict]
  of: Callable[[Rows, dict], jax.Array]


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


def make(suite: Suite, leaf: str, tokenizer: Any, max_new: int) -> LeafVerifier:
  """Builds the verifier of a suite's completions of C = max_new tokens.

  Raises:
    ValueError: see `kernel_of`.
  """
  kernel = kernel_of(suite, leaf)
  table, lengths = kernels.token_bytes_table(tokenizer)
  width = max_new * table.shape[1]

  def of(rows: Rows, answers: dict) -> jax.Array:
    own, valid = rows.tokens[:, -max_new:], rows.valid[:, -max_new:]
    each = len(own) // len(jax.tree.leaves(answers)[0])
    answers = jax.tree.map(
      lambda x: sharding.rows(jnp.repeat(x, each, axis=0)), answers
    )
    text, n = kernels.to_bytes(own, valid, table, lengths, max_bytes=width)
    return kernel.score(text, n, answers)

  return LeafVerifier(kernel.encode, of)
