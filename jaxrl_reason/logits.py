"""The distribution tokens are drawn from: temperature, top-k, top-p, min-p.

All settings are traced arrays, so changing one never recompiles; a run, whose
filters stay what they are, has none in its program where it uses none. The same
functions give the sampler its distribution and the trainer the log-probability
under it, so the two agree (float32: 1e-5) whatever the settings.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

# Log-weight of a token that cannot be drawn; finite, so that gradients of a
# filtered distribution stay finite.
OUT = -1e30


@struct.dataclass
class Filters:
  """Which tokens are left to be drawn. Neutral values (0, 1, 0) keep all.

  They apply after the temperature and in this order, as in `transformers`.
  Tokens of equal probability are kept or removed together.

  Attributes:
    top_k: i32 [], keep the k likeliest; 0 keeps all.
    top_p: f32 [], of the tokens that top_k keeps, keep the smallest set whose
      share of their mass is >= p (nucleus sampling,
      https://arxiv.org/abs/1904.09751); 1 keeps all.
    min_p: f32 [], of those, keep tokens of at least min_p times the largest
      probability (https://arxiv.org/abs/2407.01082); 0 keeps all.
  """

  top_k: jax.Array
  top_p: jax.Array
  min_p: jax.Array


@struct.dataclass
class Sampling:
  """Sampling settings. Temperature 1 without filters means the policy itself.

  Attributes:
    temperature: f32 [N] or [], > 0; 0 means greedy.
    filters: None: none, and none in the program.
  """

  temperature: jax.Array
  filters: Filters | None = None

  @classmethod
  def make(cls, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> 'Sampling':
    """Makes settings that share a program with all others made here."""
    filters = Filters(
      top_k=jnp.asarray(top_k, jnp.int32),
      top_p=jnp.asarray(top_p, jnp.float32),
      min_p=jnp.asarray(min_p, jnp.float32),
    )
    return cls(jnp.asarray(temperature, jnp.float32), filters)

  @classmethod
  def fixed(cls, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> 'Sampling':
    """Makes settings of a program that will see no other filters: neutral ones
    are left out of it.
    """
    given = top_k, top_p, min_p
    made = cls.make(temperature, *given)
    return made.replace(filters=None) if given == (0, 1, 0) else made


def _least(p: jax.Array, enough: Callable) -> jax.Array:
  """The largest t [...] with enough(p >= t), for p [..., V] in [0, 1].

  Found bit by bit, since numbers from 0 on are ordered as their bits are: 30
  sums over the vocabulary, each local to its shards. A sort would gather it
  whole, and takes the TPU compiler 12 s each.
  """

  def value(bits):
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  def body(i, bits):
    t = bits | (1 << (29 - i))
    return jnp.where(enough(p >= value(t)[..., None]), t, bits)

  zero = jnp.zeros(p.shape[:-1], jnp.int32)
  return value(jax.lax.fori_loop(0, 30, body, zero))


def _kept(logits: jax.Array, s: Filters) -> jax.Array:
  """bool [..., V]: which tokens top-k, top-p and min-p leave."""
  p = jax.nn.softmax(logits, axis=-1)
  kth = _least(p, lambda m: m.sum(axis=-1) >= s.top_k)
  kth = jnp.where(s.top_k > 0, kth, 0)
  # Of the mass that top-k leaves, a token stays while the share before it is
  # below top_p: the likeliest always stays, and ties stay or go together.
  left = jnp.where(p >= kth[..., None], p, 0)
  mass = jnp.where(s.top_k > 0, jnp.sum(left, axis=-1), 1)
  floor = _least(left, lambda m: jnp.sum(left * m, axis=-1) >= s.top_p * mass)
  floor = jnp.where(s.top_p < 1, floor, 0)
  # min_p is a ratio of two probabilities, the same before and after top-k and
  # top-p.
  top = jnp.max(p, axis=-1)
  least = jnp.maximum(jnp.maximum(kth, floor), s.min_p * top)
  # Rounding must not take the likeliest itself.
  return p >= jnp.minimum(least, top)[..., None]


def _floor(logits: jax.Array, s: Filters) -> jax.Array:
  """The least of the logits [..., V] that the filters leave, a bit less; -inf
  where they are neutral.
  """

  def least(x):
    return jnp.min(jnp.where(_kept(x, s), x, jnp.inf), axis=-1)

  def none(x):
    return jnp.full(x.shape[:-1], -jnp.inf)

  # Reading a vocabulary 60 times costs more than the rest of a decode step;
  # skip it at run time when every filter is neutral. Only a number per row
  # leaves the branches: logits that did would be copied there.
  active = (s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0)
  logits = jax.lax.stop_gradient(logits)
  floor = jax.lax.cond(active, least, none, logits)
  # The compiler may compute logits once more here, rounded otherwise: those of
  # a sum of models would then lie below their own least. What is as likely as
  # the least to 1e-5 stays with it.
  return floor - 1e-5 * jnp.maximum(jnp.abs(floor), 1)


def shaped(
  logits: jax.Array, s: Sampling, taken: jax.Array | None = None
) -> jax.Array:
  """Computes logits [..., V] of the distribution that is drawn from.

  Args:
    logits: f32 [..., V].
    s: settings; temperature broadcasts against logits[..., 0].
    taken: int [...], tokens kept whatever the filters say. A policy that has
      moved since it sampled may rank a token out of its own nucleus; its
      log-probability must stay finite there.
  """
  temperature = jnp.where(s.temperature > 0, s.temperature, 1.0)
  logits = logits / temperature[..., None]
  if s.filters is None:
    return logits
  floor = _floor(logits, s.filters)
  out = logits < floor[..., None]  # not of NaN, which must not be hidden
  if taken is not None:
    out &= jnp.arange(logits.shape[-1]) != taken[..., None]
  return jnp.where(out, OUT, logits)


def token_logp(logits: jax.Array, tokens: jax.Array) -> jax.Array:
  """Computes log p(tokens) [...] under logits [..., V]."""
  return _picked(logits, tokens) - jax.nn.logsumexp(logits, axis=-1)


def _picked(x: jax.Array, index: jax.Array) -> jax.Array:
  """x [..., V] at index [...].

  A masked sum picks it: that stays local to each shard of a split vocabulary,
  where take_along_axis would gather x whole.
  """
  hit = jnp.arange(x.shape[-1]) == index[..., None]
  return jnp.sum(jnp.where(hit, x, 0), axis=-1)


def entropy(logits: jax.Array) -> jax.Array:
  """Computes the entropy [...] in nats of logits [..., V]."""
  logp = jax.nn.log_softmax(logits, axis=-1)
  return -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def draw(
  logits: jax.Array, s: Sampling, keys: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Draws (a token per row [N], its log-probability [N]) from shaped logits
  [N,V].

  Inverse of the cumulative distribution in two levels, first a block of the
  vocabulary, then a token in it: two uniforms per row, where Gumbel-max needs
  V of them (noise was a third of a small model's decode step). The vocabulary
  is read three times: for the largest logit, the blocks' masses and the chosen
  block. A row's token depends on its own key only. Temperature 0 takes the
  likeliest.
  """

  def chosen(x, weight, u):
    likeliest = jnp.argmax(x, axis=-1)
    return jnp.where(s.temperature <= 0, likeliest, _invert(weight, u))

  n, vocab = logits.shape
  # A power of two, so that shards of the vocabulary hold whole blocks.
  blocks = min(128, 2 ** math.ceil(math.log2(vocab) / 2))
  u = jax.vmap(functools.partial(jax.random.uniform, shape=(2,)))(keys)
  logits = jnp.pad(logits, ((0, 0), (0, -vocab % blocks)), constant_values=OUT)
  logits = logits.reshape(n, blocks, -1)
  highest = jnp.max(logits, axis=-1)
  top = jnp.max(highest, axis=-1, keepdims=True)
  mass = jnp.exp(logits - top[..., None]).sum(axis=-1)  # of blocks [N,K]
  # Else the compiler sums the vocabulary up once more for their sum.
  mass = jax.lax.optimization_barrier(mass)
  block = chosen(highest, mass, u[:, 0])
  hit = jnp.arange(blocks) == block[:, None]
  within = jnp.sum(jnp.where(hit[..., None], logits, 0), axis=1) - top
  token = chosen(within, jnp.exp(within), u[:, 1])
  logp = _picked(within, token) - jnp.log(mass.sum(axis=-1))
  return block * within.shape[1] + token, logp


def _invert(weight: jax.Array, u: jax.Array) -> jax.Array:
  """The first index [N] at which the running sum of weight [N,K] reaches the
  share 1 - u of the total, u in [0, 1).

  Only where the weight is not 0: a prefix sum made as a tree may step up by
  rounding where nothing was added.
  """
  total = jnp.where(weight > 0, jnp.cumsum(weight, axis=-1), 0)
  goal = (1 - u[:, None]) * jnp.max(total, axis=-1, keepdims=True)
  return jnp.argmax((total >= goal) & (weight > 0), axis=-1)
