"""The distribution of tokens: grammar, bias, penalties, temperature, filters.

All settings are traced arrays, so changing one never recompiles. A run without
filters, penalties, bias or grammar has none in its program (`Sampling.fixed`).
Sampler and trainer use the same functions for the distribution and its
log-probabilities, so the two agree for all settings: to 1e-5 in float32, and
bit by bit with the sums of `models.parts.exact_layers`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

# Log-weight of a token that a filter excludes; finite, so that gradients of a
# filtered distribution stay finite.
OUT = -1e30
REFUSED = -1  # in `Automaton.after`: the state does not allow the token


@dataclasses.dataclass(frozen=True)
class Sums:
  """Functions that sum over the vocabulary, in the sampler and the trainer.

  Attributes:
    probabilities: logits [...,V] -> [...,V].
    mass: sum of probabilities [...,V] over the vocabulary.
    logsumexp: of logits [...,V].
    tempered: logits, temperatures that broadcast -> their quotient.
    slack: share by which a filter's least logit is lowered.
    sampled: whether `draw` computes log-probs by `token_logp`, in place of the
      masses that it draws by.
  """

  probabilities: Callable = jax.nn.softmax
  mass: Callable = functools.partial(jnp.sum, axis=-1)
  logsumexp: Callable = functools.partial(jax.nn.logsumexp, axis=-1)
  tempered: Callable = jnp.divide
  slack: float = 1e-5
  sampled: bool = False


SUMS = Sums()


@struct.dataclass
class Filters:
  """Settings of the filters. The neutral values (0, 1, 0) keep all tokens.

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
class Penalties:
  """Settings of the penalties for repeated tokens. The neutral values (1, 0, 0)
  change nothing.

  They apply to logits before the temperature and in this order, as in vLLM.

  Attributes:
    repetition: f32 [], > 0; divides the positive logits, and multiplies the
      negative ones, of tokens that the prompt or the completion so far has
      (https://arxiv.org/abs/1909.05858, as in `transformers`).
    frequency: f32 [], subtracted for each time that the completion so far has
      the token (as in OpenAI's API and vLLM).
    presence: f32 [], subtracted once if the completion so far has the token.
  """

  repetition: jax.Array
  frequency: jax.Array
  presence: jax.Array


@struct.dataclass
class Automaton:
  """K states over n tokens; a completion begins in state 0.

  Attributes:
    after: i32 [K,n], the state after a token, or REFUSED. Later tokens of the
      vocabulary are refused.
    ended: bool [K], the completion ends when it reaches the state.
  """

  after: jax.Array
  ended: jax.Array

  def refused(self, state: jax.Array, vocab: int) -> jax.Array:
    """Marks the tokens that states [...] refuse, bool [...,V]."""
    out = self.after[state] == REFUSED  # not of all states at every token
    room = [(0, 0)] * state.ndim + [(0, vocab - out.shape[-1])]
    return jnp.pad(out, room, constant_values=True)

  def next(self, state: jax.Array, token: jax.Array) -> jax.Array:
    """Returns the states [...] after tokens [...]."""
    return jnp.maximum(self.after[state, jnp.maximum(token, 0)], 0)


@struct.dataclass
class Seen:
  """The earlier tokens of rows, as far as the next token's distribution depends
  on them. Each is None if unused.

  Attributes:
    prompt: bool [...,V] or broadcast, the prompt has the token; for penalties.
    counts: i32 or f32 [...,V], times that the completion so far has the token.
    state: i32 [...], of `Sampling.automaton`.
  """

  prompt: jax.Array | None = None
  counts: jax.Array | None = None
  state: jax.Array | None = None


@struct.dataclass
class Sampling:
  """Sampling settings. Temperature 1 without the others is the policy itself.

  Attributes:
    temperature: f32 [N] or [], > 0; 0 means greedy.
    filters, penalties: None: the program has none.
    automaton: of the tokens that are allowed; None: all are.
    bias: f32 [n], added to the logits of the first n tokens, before penalties
      (`logit_bias` of OpenAI's API and vLLM); None: the program has none.
    by_problem: f32 [M], temperatures of problems by their numbers, which
      replace `temperature` in `of_problems`; None: one temperature for all.
  """

  temperature: jax.Array
  filters: Filters | None = None
  penalties: Penalties | None = None
  automaton: Automaton | None = None
  bias: jax.Array | None = None
  by_problem: jax.Array | None = None

  def of_problems(self, ids: jax.Array, n_samples: int) -> 'Sampling':
    """Returns the settings of the rows [N] of problems with numbers [B], G =
    n_samples rows each.
    """
    if self.by_problem is None:
      return self
    rows = jnp.repeat(self.by_problem[ids], n_samples)
    return self.replace(temperature=rows, by_problem=None)

  @classmethod
  def make(cls, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> 'Sampling':
    """Makes settings with filters; all such settings share one program."""
    filters = Filters(
      top_k=jnp.asarray(top_k, jnp.int32),
      top_p=jnp.asarray(top_p, jnp.float32),
      min_p=jnp.asarray(min_p, jnp.float32),
    )
    return cls(jnp.asarray(temperature, jnp.float32), filters)

  @classmethod
  def fixed(
    cls,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repetition_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    logit_bias: jax.Array | None = None,
    automaton: Automaton | None = None,
  ) -> 'Sampling':
    """Makes settings for a program whose filters and penalties never change:
    neutral ones are left out of the program.
    """
    given = top_k, top_p, min_p
    made = cls.make(temperature, *given).replace(automaton=automaton)
    if logit_bias is not None:
      made = made.replace(bias=jnp.asarray(logit_bias, jnp.float32))
    if given == (0, 1, 0):
      made = made.replace(filters=None)
    given = repetition_penalty, frequency_penalty, presence_penalty
    if given == (1, 0, 0):
      return made
    return made.replace(penalties=Penalties(*map(jnp.float32, given)))


def counts(tokens: jax.Array, there: jax.Array, vocab: int) -> jax.Array:
  """Counts each token in rows [N,T] where `there` is true, i32 [N,V]."""
  n = len(tokens)
  row = jnp.arange(n)[:, None]
  return jnp.zeros((n, vocab), jnp.int32).at[row, tokens].add(there)


def penalised(logits: jax.Array, s: Penalties, seen: Seen) -> jax.Array:
  """Applies the penalties to logits [..., V]."""
  present = seen.counts > 0
  repeated = jnp.where(logits > 0, logits / s.repetition, logits * s.repetition)
  logits = jnp.where(seen.prompt | present, repeated, logits)
  return logits - (s.frequency * seen.counts + s.presence * present)


def _least(p: jax.Array, enough: Callable) -> jax.Array:
  """Finds the largest t [...] with enough(p >= t), for p [..., V] in [0, 1].

  The search is by bits, because non-negative floats have the order of their
  bits: 30 sums over the vocabulary, each local to its shards. A sort would
  gather the vocabulary, and takes the TPU compiler 12 s.
  """

  def value(bits):
    return jax.lax.bitcast_convert_type(bits, jnp.float32)

  def body(i, bits):
    t = bits | (1 << (29 - i))
    return jnp.where(enough(p >= value(t)[..., None]), t, bits)

  zero = jnp.zeros(p.shape[:-1], jnp.int32)
  return value(jax.lax.fori_loop(0, 30, body, zero))


def _kept(logits: jax.Array, s: Filters, sums: Sums) -> jax.Array:
  """Marks the tokens that top-k, top-p and min-p keep, bool [..., V]."""
  p = sums.probabilities(logits)
  kth = _least(p, lambda m: m.sum(axis=-1) >= s.top_k)
  kth = jnp.where(s.top_k > 0, kth, 0)
  # Of the mass that top-k leaves, a token stays while the share before it is
  # below top_p: the likeliest always stays, and ties stay or go together.
  left = jnp.where(p >= kth[..., None], p, 0)
  mass = jnp.where(s.top_k > 0, sums.mass(left), 1)
  floor = _least(left, lambda m: sums.mass(left * m) >= s.top_p * mass)
  floor = jnp.where(s.top_p < 1, floor, 0)
  # min_p is a ratio of two probabilities, the same before and after top-k and
  # top-p.
  top = jnp.max(p, axis=-1)
  least = jnp.maximum(jnp.maximum(kth, floor), s.min_p * top)
  # Rounding must not take the likeliest itself.
  return p >= jnp.minimum(least, top)[..., None]


def _floor(logits: jax.Array, s: Filters, sums: Sums) -> jax.Array:
  """Returns a bound slightly below the least logit that the filters keep; -inf
  if they are neutral.
  """

  def least(x):
    return jnp.min(jnp.where(_kept(x, s, sums), x, jnp.inf), axis=-1)

  def none(x):
    return jnp.full(x.shape[:-1], -jnp.inf)

  # Reading a vocabulary 60 times costs more than the rest of a decode step, so
  # neutral filters are skipped. XLA copies results of branches: one per row.
  active = (s.top_k > 0) | (s.top_p < 1) | (s.min_p > 0)
  logits = jax.lax.stop_gradient(logits)
  with jax.named_scope('branches_1_0'):  # `trees.branches`: none in plans
    floor = jax.lax.cond(active, least, none, logits)
  # The compiler may compute the logits again with another rounding; the logits
  # of a sum of models could then be below their own bound. Tokens within 1e-5
  # of the least kept logit are therefore kept.
  return floor - sums.slack * jnp.maximum(jnp.abs(floor), 1)


def shaped(
  logits: jax.Array,
  s: Sampling,
  taken: jax.Array | None = None,
  sums: Sums | None = None,
  seen: Seen | None = None,
) -> jax.Array:
  """Computes logits [..., V] of the sampling distribution.

  Args:
    logits: f32 [..., V].
    s: settings; temperature broadcasts against logits[..., 0].
    taken: int [...], tokens that are kept although a filter or the automaton
      excludes them. A policy that was updated after sampling may have moved a
      token out of its nucleus; its log-probability must stay finite.
    seen: earlier tokens, which penalties and the automaton read.

  Raises:
    ValueError: the earlier tokens are not known where the caller generates or
      scores, and there are penalties or an automaton.
  """
  seen = seen or Seen()
  vocab = logits.shape[-1]

  def without(out):
    if taken is not None:
      out &= jnp.arange(vocab) != taken[..., None]
    return jnp.where(out, OUT, logits)

  if s.automaton is not None:
    if seen.state is None:
      raise ValueError(
        'a grammar needs the earlier tokens of a row, which are followed in '
        'single completions, not in episodes'
      )
    logits = without(s.automaton.refused(seen.state, vocab))
  if s.bias is not None:
    logits = logits + jnp.pad(s.bias, (0, vocab - len(s.bias)))
  if s.penalties is not None:
    if seen.counts is None:
      raise ValueError(
        'penalties for repeated tokens need the earlier tokens of a row, which '
        'are counted in single completions, not in episodes or packed rows'
      )
    logits = penalised(logits, s.penalties, seen)
  temperature = jnp.where(s.temperature > 0, s.temperature, 1.0)
  logits = (sums or SUMS).tempered(logits, temperature[..., None])
  if s.filters is None:
    return logits
  floor = _floor(logits, s.filters, sums or SUMS)
  return without(logits < floor[..., None])  # false for NaN, which must show


def token_logp(
  logits: jax.Array, tokens: jax.Array, sums: Sums | None = None
) -> jax.Array:
  """Computes log p(tokens) [...] under logits [..., V]."""
  return _picked(logits, tokens) - (sums or SUMS).logsumexp(logits)


def _picked(x: jax.Array, index: jax.Array) -> jax.Array:
  """Returns x [..., V] at index [...].

  A masked sum stays local to each shard of a split vocabulary; take_along_axis
  would gather all of x.
  """
  hit = jnp.arange(x.shape[-1]) == index[..., None]
  return jnp.sum(jnp.where(hit, x, 0), axis=-1)


def entropy(logits: jax.Array) -> jax.Array:
  """Computes the entropy [...] in nats of logits [..., V]."""
  logp = jax.nn.log_softmax(logits, axis=-1)
  return -jnp.sum(jnp.exp(logp) * logp, axis=-1)


def draw(
  logits: jax.Array, s: Sampling, keys: jax.Array, sums: Sums | None = None
) -> tuple[jax.Array, jax.Array]:
  """Draws (a token per row [N], its log-probability [N]) from shaped logits
  [N,V].

  Inverts the cumulative distribution in two levels: first a block of the
  vocabulary, then a token of the block. This needs two uniforms per row, and
  Gumbel-max needs V (noise was a third of a small model's decode step). The
  vocabulary is read three times: for the largest logit, the masses of blocks
  and the chosen block. The token of a row depends only on the row's key.
  Temperature 0 returns the likeliest token.
  """

  def chosen(x, weight, u):
    likeliest = jnp.argmax(x, axis=-1)
    return jnp.where(s.temperature <= 0, likeliest, _invert(weight, u))

  (n, vocab), whole = logits.shape, logits
  # A power of two, so that shards of the vocabulary hold whole blocks.
  blocks = min(128, 2 ** math.ceil(math.log2(vocab) / 2))
  u = jax.vmap(functools.partial(jax.random.uniform, shape=(2,)))(keys)
  logits = jnp.pad(logits, ((0, 0), (0, -vocab % blocks)), constant_values=OUT)
  logits = logits.reshape(n, blocks, -1)
  highest = jnp.max(logits, axis=-1)
  top = jnp.max(highest, axis=-1, keepdims=True)
  mass = jnp.exp(logits - top[..., None]).sum(axis=-1)  # of blocks [N,K]
  # Without the barrier the compiler sums over the vocabulary again.
  mass = jax.lax.optimization_barrier(mass)
  block = chosen(highest, mass, u[:, 0])
  hit = jnp.arange(blocks) == block[:, None]
  within = jnp.sum(jnp.where(hit[..., None], logits, 0), axis=1) - top
  token = chosen(within, jnp.exp(within), u[:, 1])
  drawn = block * within.shape[1] + token
  if sums is not None and sums.sampled:
    return drawn, token_logp(whole, drawn, sums)
  return drawn, _picked(within, token) - jnp.log(mass.sum(axis=-1))


def _invert(weight: jax.Array, u: jax.Array) -> jax.Array:
  """Finds the first index [N] at which the running sum of weight [N,K] reaches
  the share 1 - u of the total, u in [0, 1).

  An index with weight 0 is never returned: a prefix sum that is computed as a
  tree may rise there by rounding.
  """
  total = jnp.where(weight > 0, jnp.cumsum(weight, axis=-1), 0)
  goal = (1 - u[:, None]) * jnp.max(total, axis=-1, keepdims=True)
  return jnp.argmax((total >= goal) & (weight > 0), axis=-1)
