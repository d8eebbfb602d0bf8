"""Rotary positions: frequencies by kind, angles, and rotation.

  angle[p, i] = p * frequency[i],  frequency[i] = theta**(-2i / W)

(RoFormer, https://arxiv.org/abs/2104.09864) over the first W = fraction * H
features of a head, in the half-split layout of published weights. The other
kinds in `KINDS` scale the frequencies, so that a model can read longer contexts
than in its first training. All is computed in float32: bf16 angles are wrong by
whole turns past a few hundred tokens.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

PROPORTIONAL, NONE = 'proportional', 'none'
NOPE = -1  # in Config.rope_of_layer: a layer without rotary positions


@dataclasses.dataclass(frozen=True)
class Rope:
  """One table of rotary positions; fields that a kind does not use are ignored.

  Attributes:
    kind: a name in `KINDS`.
    theta: base of the wavelengths.
    fraction: share of a head's features that are rotated; proportional: share
      of the pairs of features whose angle is not 0.
    factor: scale of positions.
    original: context of the weights' first training, in tokens (llama3, yarn,
      longrope).
    max_positions: context beyond which 'dynamic' scales.
    low, high: llama3, turns within `original` below which a frequency is
      scaled, and above which it is kept.
    beta_fast, beta_slow: yarn, the same for its ramp.
    truncate: yarn, whether the ramp's ends are rounded to whole features.
    attention: factor of cos and sin (yarn, longrope).
    growth: of queries: by 1 + growth * log(1 + floor((position + ahead) /
      original)), as in Llama 4 and Ministral 3; 0: none.
    ahead: see growth.
    unit: whether rotated queries and keys are divided by their root mean square
      (Llama 4).
    short, long: longrope, divisors of the frequencies, W/2 of each.
  """

  kind: str = 'default'
  theta: float = 10_000.0
  fraction: float = 1.0
  factor: float = 1.0
  original: int = 0
  max_positions: int = 0
  low: float = 1.0
  high: float = 4.0
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  attention: float = 1.0
  growth: float = 0.0
  ahead: int = 0
  unit: bool = False
  short: tuple[float, ...] = ()
  long: tuple[float, ...] = ()

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(f'rope kind {self.kind!r}: choose {", ".join(KINDS)}')


def rotary_width(rope: Rope, head_dim: int) -> int:
  """Returns W, the number of rotated features of a head."""
  return (
    head_dim if rope.kind == PROPORTIONAL else int(head_dim * rope.fraction)
  )


def _exponents(width: int) -> jax.Array:
  return jnp.arange(0, width, 2, dtype=jnp.float32) / width


def _default(rope: Rope, width: int, positions, max_tokens):
  return rope.theta ** -_exponents(width)


def _linear(rope: Rope, width: int, positions, max_tokens):
  """Computes position interpolation, https://arxiv.org/abs/2306.15595."""
  return _default(rope, width, positions, max_tokens) / rope.factor


def _dynamic(rope: Rope, width: int, positions, max_tokens):
  """Computes an NTK-aware base that grows with the position past max_positions.

  Differs from `transformers`, where the base grows with the longest row of a
  call, so that a key's angle depends on the batch and on the time it is
  computed in. Here a key depends on its own position only, as if every token
  had been generated one by one. Up to max_positions both are the same.
  """
  seen = jnp.maximum(positions + 1, rope.max_positions).astype(jnp.float32)
  grown = rope.factor * seen / rope.max_positions - (rope.factor - 1)
  theta = rope.theta * grown ** (width / (width - 2))
  return theta[..., None] ** -_exponents(width)


def _llama3(rope: Rope, width: int, positions, max_tokens):
  """Computes Llama 3.1's frequencies (https://arxiv.org/abs/2407.21783): long
  waves are scaled, short ones kept, and those between interpolated.
  """
  freq = _default(rope, width, positions, max_tokens)
  turns = rope.original * freq / (2 * math.pi)  # within the original context
  smooth = (turns - rope.low) / (rope.high - rope.low)
  smooth = jnp.clip(smooth, 0, 1)
  return (1 - smooth) * freq / rope.factor + smooth * freq


def _yarn(rope: Rope, width: int, positions, max_tokens):
  """Computes YaRN, https://arxiv.org/abs/2309.00071: a ramp over the features
  between those that turn beta_fast and beta_slow times in the original context.
  """

  def feature(turns: float) -> float:
    wave = math.log(rope.original / (turns * 2 * math.pi))
    return width * wave / (2 * math.log(rope.theta))

  low, high = feature(rope.beta_fast), feature(rope.beta_slow)
  if rope.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, width - 1)
  span = (high - low) or 0.001  # one feature: a step, not 0 / 0
  ramp = (jnp.arange(width // 2, dtype=jnp.float32) - low) / span
  kept = 1 - jnp.clip(ramp, 0, 1)
  freq = _default(rope, width, positions, max_tokens)
  return freq / rope.factor * (1 - kept) + freq * kept


def _longrope(rope: Rope, width: int, positions, max_tokens):
  """Computes LongRoPE, https://arxiv.org/abs/2402.13753: a divisor per feature.

  The long divisors are used if the program's max_tokens exceeds `original`,
  whatever the rows' lengths, so that sampler and trainer agree. `transformers`
  decides by the longest row of each call.
  """
  divisors = rope.long if max_tokens > rope.original else rope.short
  freq = _default(rope, width, positions, max_tokens)
  return freq / jnp.asarray(divisors, jnp.float32)


def _proportional(rope: Rope, width: int, positions, max_tokens):
  """Computes the frequencies of whole heads, of which only the first share of
  pairs is rotated (Gemma 4).
  """
  n = int(rope.fraction * width // 2)
  freq = _default(rope, width, positions, max_tokens) / rope.factor
  return jnp.where(jnp.arange(width // 2) < n, freq, 0)


def _none(rope: Rope, width: int, positions, max_tokens):
  """Returns frequencies of 0, for layers whose queries only grow."""
  return jnp.zeros(width // 2)


KINDS = {
  'default': _default,
  NONE: _none,
  PROPORTIONAL: _proportional,
  'linear': _linear,
  'dynamic': _dynamic,
  'llama3': _llama3,
  'yarn': _yarn,
  'longrope': _longrope,
}


def angles(
  rope: Rope, positions: jax.Array, head_dim: int, max_tokens: int
) -> tuple[jax.Array, jax.Array]:
  """Computes cos, sin f32 [..., W/2] of the rotary angles of int positions
  [...].

  Args:
    max_tokens: maximum tokens of a row in this program, prompt included.
  """
  return table(rope, turned(rope, positions, head_dim, max_tokens))


def turned(
  rope: Rope, positions: jax.Array, head_dim: int, max_tokens: int
) -> jax.Array:
  """Computes the rotary angles f32 [..., W/2] of positions, see `angles`."""
  width = rotary_width(rope, head_dim)
  freq = KINDS[rope.kind](rope, width, positions, max_tokens)
  return positions[..., None].astype(jnp.float32) * freq


def table(rope: Rope, turned: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Computes cos, sin of angles."""
  cos, sin = jnp.cos(turned), jnp.sin(turned)
  if rope.attention == 1.0:
    return cos, sin
  return cos * rope.attention, sin * rope.attention


class Turns(NamedTuple):
  """Changes of queries and keys by their position, from one table.

  Attributes:
    cos, sin: f32 [...,W/2] of the rotary angles.
    growth: factor f32 [...,1,1] of queries, or None.
    unit: bool [], whether both are divided by their root mean square, or None.
  """

  cos: jax.Array
  sin: jax.Array
  growth: jax.Array | None = None
  unit: jax.Array | None = None


def grown(rope: Rope, positions: jax.Array) -> jax.Array:
  """Computes the factor f32 [...,1,1] of queries."""
  at = positions[..., None, None] + rope.ahead
  if not rope.growth:
    return jnp.ones(at.shape)
  return 1 + rope.growth * jnp.log1p(jnp.floor(at / rope.original))


def rotate(
  x: jax.Array, cos: jax.Array, sin: jax.Array, *, interleaved: bool = False
) -> jax.Array:
  """Rotates the first W features of x [..., heads, H] by angles [..., W/2].

  Args:
  interleaved: input pairs are neighbours. The output has them in halves, which
    changes no product of two heads.
  """
  half = cos.shape[-1]
  x32 = x.astype(jnp.float32)
  a, b, rest = jnp.split(x32, [half, 2 * half], axis=-1)
  if interleaved:
    pairs = x32[..., : 2 * half]
    a, b = pairs[..., ::2], pairs[..., 1::2]
  cos, sin = cos[..., None, :], sin[..., None, :]
  turned = [a * cos - b * sin, b * cos + a * sin]
  if rest.shape[-1]:
    turned.append(rest)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
