"""A pool: a finite set of problems with statistics of each.

  propose -> ids -> rollouts, rewards -> observe -> Statistics -> propose

Prompts and answers are constants on the device (`run.rl.problem_pool`). The
statistics are arrays in `TrainState.control['pool']`, so that they are saved,
resumed and read inside the compiled step. The id of a problem is its index in
the pool.

`draw` is stratified sampling: of n draws, problem i gets n p_i on average,
exactly, for any n, number of problems and p.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

PATTERN = 1024  # length of the pattern of sources
BITS = 32  # of the sketch of the answers seen
NEVER = -1  # `Statistics.seen` of an untried problem


@struct.dataclass
class Statistics:
  """Statistics of M problems of S sources."""

  visits: jax.Array  # i32 [M], steps in which it got a verdict
  rate: jax.Array  # f32 [M], running mean of `last`; data.controller.prior
  last: jax.Array  # f32 [M], solved share at the last visit
  same: jax.Array  # i32 [M], visits in a row on which all rewards were equal
  length: jax.Array  # f32 [M], running mean of sampled tokens
  # u32 [M], bit h: an answer with hash h modulo 32 was seen
  answers: jax.Array
  seen: jax.Array  # i32 [M], the run's step of the last visit, or NEVER
  source: jax.Array  # i32 [M]
  difficulty: jax.Array  # f32 [M], 0 the easiest to 1, see `ranked`
  begun: jax.Array  # i32 [], the run's step at which the stage began
  own: dict  # memory of the controller of problems
  arms: dict  # memory of the steering of sources


@struct.dataclass
class Seen:
  """Statistics of a batch by problem: U entries, one per problem, as many as
  rows; the rest are empty.
  """

  ids: jax.Array  # i32 [U], M for an entry without a verdict
  n: jax.Array  # f32 [U], rows with a verdict
  solved: jax.Array  # f32 [U], solved share of those rows
  same: jax.Array  # bool [U], all rewards equal
  length: jax.Array  # f32 [U], mean sampled tokens
  advantage: jax.Array  # f32 [U], mean |reward - mean| / (std + 1e-6)
  answers: jax.Array  # u32 [U], bits as in Statistics
  source: jax.Array  # i32 [U]
  # By source, whether or not there is a verdict:
  drawn: jax.Array  # f32 [S], rows
  used: jax.Array  # f32 [S], rows that are trained on
  tokens: jax.Array  # f32 [S], sampled tokens that are trained on

  @property
  def there(self) -> jax.Array:
    """Returns a mask of the entries that have a problem, bool [U]."""
    return self.n > 0


def start(
  source: jax.Array,
  difficulty: jax.Array,
  *,
  prior: float,
  begun: jax.Array,
  own: dict,
  arms: dict,
) -> Statistics:
  """Returns the statistics of M untried problems.

  Args:
    prior: their solve rate.
  """
  n = len(source)
  return Statistics(
    visits=jnp.zeros(n, jnp.int32),
    rate=jnp.full(n, prior, jnp.float32),
    last=jnp.full(n, prior, jnp.float32),
    same=jnp.zeros(n, jnp.int32),
    length=jnp.zeros(n),
    answers=jnp.zeros(n, jnp.uint32),
    seen=jnp.full(n, NEVER, jnp.int32),
    source=jnp.asarray(source, jnp.int32),
    difficulty=jnp.asarray(difficulty, jnp.float32),
    begun=jnp.asarray(begun, jnp.int32),
    own=own,
    arms=arms,
  )


def ranked(difficulty: np.ndarray) -> np.ndarray:
  """Ranks difficulties of any unit on a scale from 0 to 1: K distinct values
  become 0, 1/(K-1), ..., 1; one value alone becomes 0.
  """
  levels, place = np.unique(difficulty, return_inverse=True)
  return np.float32(place / max(len(levels) - 1, 1))


def tell(
  stats: Statistics,
  ids: jax.Array,
  reward: jax.Array,
  solved: jax.Array,
  valid: jax.Array,
  length: jax.Array,
  answer_id: jax.Array,
  used_ids: jax.Array,
  used_tokens: jax.Array,
  *,
  n_sources: int,
) -> Seen:
  """Computes the statistics of N rows by problem.

  Rows without a verdict, or with a reward that is not finite, count only in
  `drawn`. A row that was not generated has length 0.

  Args:
    ids: i32 [N], of their problems, in any order and number.
    reward: f32 [N]; solved, valid: bool [N].
    length: i32 [N], sampled tokens; answer_id: i32 [N], -1: no answer.
    used_ids: i32 [R], problems of the rows that are trained on, with
      used_tokens: i32 [R] tokens each; 0: the row is not trained on.
  """
  n, m = len(ids), len(stats.visits)
  ok = valid & jnp.isfinite(reward)
  reward = jnp.where(ok, reward, 0).astype(jnp.float32)
  unique, row = jnp.unique(ids, size=n, fill_value=m, return_inverse=True)
  row = row.reshape(n)

  def total(x):
    x = jnp.where(ok, x, 0).astype(jnp.float32)
    return jax.ops.segment_sum(x, row, n)

  count = total(1)
  n_ok = jnp.maximum(count, 1)
  centred = reward - (total(reward) / n_ok)[row]
  std = jnp.sqrt(total(centred**2) / n_ok)
  high = jax.ops.segment_max(jnp.where(ok, reward, -jnp.inf), row, n)
  low = jax.ops.segment_min(jnp.where(ok, reward, jnp.inf), row, n)
  same = high <= low
  spread = jnp.abs(centred) / (std[row] + 1e-6)
  bit = jnp.where(ok & (answer_id >= 0), answer_id % BITS, BITS)
  has_bit = jnp.zeros((n, BITS + 1), bool).at[row, bit].set(True)[:, :BITS]
  weight = jnp.uint32(1) << jnp.arange(BITS, dtype=jnp.uint32)

  def by_source(ids, x):
    of = stats.source[ids]
    return jax.ops.segment_sum(x.astype(jnp.float32), of, n_sources)

  return Seen(
    ids=jnp.where(count > 0, unique, m),
    n=count,
    solved=total(solved) / n_ok,
    same=same & (count > 0),
    length=total(length) / n_ok,
    # Exactly 0 if rewards are equal, because their mean may round.
    advantage=jnp.where(same, 0.0, total(spread) / n_ok),
    answers=jnp.sum(jnp.where(has_bit, weight, 0), axis=1, dtype=jnp.uint32),
    source=stats.source[jnp.minimum(unique, m - 1)],
    drawn=by_source(ids, length > 0),
    used=by_source(used_ids, used_tokens > 0),
    tokens=by_source(used_ids, used_tokens),
  )


def note(
  stats: Statistics, seen: Seen, step: jax.Array, memory: float
) -> Statistics:
  """Returns the statistics after a batch.

  Args:
    step: i32 [], of the run.
    memory: decay of a running mean per visit; the first visit sets the mean.
  """
  at = jnp.minimum(seen.ids, len(stats.visits) - 1)
  keep = jnp.where(stats.visits[at] > 0, memory, 0.0)

  def put(old, new):
    return old.at[seen.ids].set(new.astype(old.dtype), mode='drop')

  def mean(old, new):
    return put(old, keep * old[at] + (1 - keep) * new)

  return stats.replace(
    visits=put(stats.visits, stats.visits[at] + 1),
    rate=mean(stats.rate, seen.solved),
    last=put(stats.last, seen.solved),
    same=put(stats.same, jnp.where(seen.same, stats.same[at] + 1, 0)),
    length=mean(stats.length, seen.length),
    answers=put(stats.answers, stats.answers[at] | seen.answers),
    seen=put(stats.seen, jnp.full(len(at), step)),
  )


def draw(p: jax.Array, key: jax.Array, n: int) -> jax.Array:
  """Samples n ids, i32 [n], of problems with probabilities p [M] that sum to 1.

  There is one point in each of n equal strata of the cumulative distribution.
  So problem i comes n p_i times on average, and never if p_i is 0. The
  distribution is summed in two levels: with 10^6 problems, the error of one
  float32 sum would be as large as a problem's probability.
  """
  m = len(p)
  size = 2 ** (m.bit_length() // 2)  # of a block, about the root of m
  blocks = jnp.pad(p, (0, -m % size)).reshape(-1, size)
  sums = blocks.sum(axis=1)
  ends = jnp.cumsum(sums)
  points = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n * ends[-1]
  block = jnp.searchsorted(ends, _below(points, ends[-1]), side='right')
  inner = jnp.cumsum(blocks[block], axis=1)  # [n, size]
  rest = _below(points - (ends - sums)[block], inner[:, -1])
  inside = jnp.sum(inner <= rest[:, None], axis=1)
  return (block * size + inside).astype(jnp.int32)


def _below(x: jax.Array, limit: jax.Array) -> jax.Array:
  """Returns x, limited to the number just below `limit`, which rounding may
  exceed.
  """
  return jnp.clip(x, 0.0, jnp.nextafter(limit, jnp.zeros_like(limit)))


def turns(weights: Sequence[float]) -> tuple[np.ndarray, ...]:
  """Computes a pattern of PATTERN turns of S sources, in the ratio of their
  weights.

  Each turn goes to the source with the largest deficit (smooth weighted round
  robin), so that any part of the pattern has nearly that ratio.

  Returns:
    (source of each turn [L], number of its earlier turns [L], turns of each
    source [S]); a source with a positive weight has at least one.
  """
  share = np.float64(weights) / np.sum(weights)
  count = np.where(share > 0, np.maximum(np.rint(share * PATTERN), 1), 0)
  count = count.astype(np.int64)
  count[count.argmax()] += PATTERN - count.sum()
  had, source, before = np.zeros(len(share)), [], []
  for i in range(1, PATTERN + 1):
    one = int(np.argmax(np.where(had < count, i * count - had * PATTERN, -1)))
    source.append(one)
    before.append(had[one])
    had[one] += 1
  return np.uint32(source), np.uint32(before), np.uint32(count)


def in_turns(
  key: jax.Array, place: jax.Array, source: jax.Array, weights: tuple
) -> jax.Array:
  """Returns the ids at some places of an endless sequence in which sources
  alternate by their weights, each in epochs of its own (`shuffled`).

  Args:
    place: u32 [n]; source: i32 [M], in rising order.
  """
  pattern, before, count = map(jnp.asarray, turns(weights))
  at, of = place % PATTERN, pattern[place % PATTERN]
  number = place // PATTERN * count[of] + before[at]
  size = jnp.zeros(len(weights), jnp.uint32).at[source].add(1)
  first = jnp.cumsum(size) - size
  ids = shuffled(key, number, size[of], of)
  return first[of].astype(jnp.int32) + ids


def _half(m: int | jax.Array) -> int | jax.Array:
  """Returns half of the bits of range(m), rounded up."""
  if isinstance(m, int):
    return max(1, -(-(m - 1).bit_length() // 2))
  bits = 32 - jax.lax.clz(m - 1)
  return jnp.maximum((bits + 1) // 2, 1)


def shuffled(
  key: jax.Array,
  place: jax.Array,
  m: int | jax.Array,
  which: jax.Array | None = None,
) -> jax.Array:
  """Returns the ids at some places of an endless sequence, in which every m
  places are a different permutation of range(m).

  A Feistel network of four rounds is applied until the value is below m, so
  that no permutation is stored (Black and Rogaway 2002, Ciphers with arbitrary
  finite domains).

  Args:
    place: u32 [n]; m: one number, or u32 [n].
    which: u32 [n], index of the sequence; None: there is only one.
  """
  half = _half(m)
  low = (jnp.uint32(1) << jnp.uint32(half)) - 1
  keys = [jax.random.fold_in(key, i) for i in range(4)]
  epoch = place // m

  def scrambled(key, x):
    """Returns a pseudo-random number for every epoch and x."""
    fold, parts = jax.random.fold_in, [epoch, x]
    if which is not None:
      parts = [which, *parts]

    def drawn(*parts):
      return jax.random.bits(functools.reduce(fold, parts, key))

    return jax.vmap(drawn)(*parts)

  def step(x):
    left, right = x >> half, x & low
    for key in keys:
      left, right = right, left ^ (scrambled(key, right) & low)
    return (left << half) | right

  def outside(x):
    return jnp.any(x >= m)

  def walk(x):
    return jnp.where(x >= m, step(x), x)

  first = step(place % m)
  return jax.lax.while_loop(outside, walk, first).astype(jnp.int32)
