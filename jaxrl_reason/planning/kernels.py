"""FLOPs and bytes of the kernels of a TPU program, which XLA does not count."""

import math
import re

from jaxrl_reason.models.parts import cached
from jaxrl_reason.planning import hlo

# Of Pallas splash attention: products of [T,S,H] in each of its kernels (fwd:
# scores, output; dq: scores, their gradient, dq; dkv: the same two, dk, dv).
SPLASH = {'splash_mha_fwd': 2, 'splash_mha_dq': 3, 'splash_mha_dkv': 4}
GROUPED = ('ragged-dot', 'tgmm')
# The name of a grouped product that was traced inside `trees.own_rows`.
_OWN_ROWS = re.compile(r'own_rows_of_(\d+)')


def stated(op: hlo.Op, what: str) -> float | None:
  """Returns the 'flops' or 'bytes_accessed' that our kernel states for a call:
  it reads the live columns of one layer. None for other kernels.
  """
  if not op.name.startswith(cached.NAME):
    return None
  return float(re.search(rf'"{what}":"(\d+)"', op.attrs)[1])


def flops(ops: dict, op: hlo.Op, experts: int) -> float:
  """Counts the FLOPs of one call; 0 for unknown kernels.

  Attention counts the causal scores of a grid of all blocks, and all of a
  narrower grid, which has a sliding window. A device with some of
  the experts receives the uses of all experts and skips those of others, or has
  room for several times its own (`trees.own_rows`). With balanced routing its
  share remains.
  """
  if (said := stated(op, 'flops')) is not None:
    return said
  shapes = [s for o in op.operands if o in ops for s in ops[o].shapes[:1]]
  arrays = [s.dims for s in shapes if s.dtype in ('bf16', 'f32', 'f16')]
  for name, products in SPLASH.items():
    if op.name.startswith(name):
      q, k, *_ = arrays  # [...,T,H], [...,S,H]; one row has no N
      seen = _share(shapes[0].dims, q[-2], k[-2], name.endswith('dkv'))
      return products * 2 * math.prod(q) * k[-2] * seen
  if op.name.startswith(GROUPED):
    own = _OWN_ROWS.search(op.attrs)
    share = 1 / int(own[1]) if own else None
    return _ragged(op.shapes[0].dims, arrays, experts, share)
  return 0.0


def _share(grid: tuple[int, ...], t: int, s: int, by_keys: bool) -> float:
  """Returns the share of scores [t,s] that a grid (1, blocks of queries, of
  keys) computes. The complete one of the two axes gives the length of a block.
  The queries are the last t of the s tokens.
  """
  _, n_q, n_k = grid
  share = n_q * (s // n_k) / t if by_keys else n_k * (t // n_q) / s
  return 1 - t / (2 * s) if share >= 1 else share


def _ragged(
  result: tuple[int, ...],
  arrays: list[tuple[int, ...]],
  experts: int,
  share: float | None,
) -> float:
  """Counts rows [M,K] times [E,K,F], one expert per row; or the gradient
  [E,K,F] of rows [M,K] and [M,F].

  Args:
    share: of the rows that are multiplied; None: that of the device's experts.
  """
  stacks = [dims for dims in (result, *arrays) if len(dims) == 3]
  rows = [dims[0] for dims in (result, *arrays) if len(dims) == 2]
  if not stacks or not rows:
    return 0.0
  held = stacks[0][0]
  if share is None:
    share = held / experts if held < experts else 1
  return 2.0 * max(rows) * share * math.prod(stacks[0][1:])
