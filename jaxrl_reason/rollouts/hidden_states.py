"""Hidden states of rollouts after chosen layers, by name of the tokens.

The sampler reads them while it decodes: each decode step computes the states of
its tokens, and each row keeps its latest state, or a sum (`sampler.generate`).
For other rows (episodes, demonstrations) one more forward pass over the layers
up to a chosen layer computes them, in the micro-batches of the update. So a
state [N,T,D] exists for one micro-batch at a time, and no array has an axis of
layers.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Model, Prompts, Rows

HIDDEN = 'hidden'  # their name in `Rollout.views`


def last(mask: jax.Array, valid: jax.Array) -> jax.Array:
  """Weights the last token of each row, f32 [N,T]."""
  del mask
  return _at(valid.shape[1] - 1 - jnp.argmax(valid[:, ::-1], axis=1), valid)


def prompt_last(mask: jax.Array, valid: jax.Array) -> jax.Array:
  """Weights the token before the first sampled one of each row, f32 [N,T]."""
  return _at(jnp.maximum(jnp.argmax(mask, axis=1) - 1, 0), valid)


def mean(mask: jax.Array, valid: jax.Array) -> jax.Array:
  """Weights the sampled tokens of each row equally, f32 [N,T]."""
  del valid
  n = jnp.maximum(mask.sum(axis=1, keepdims=True), 1)
  return mask.astype(jnp.float32) / n


def _at(column: jax.Array, like: jax.Array) -> jax.Array:
  at = jnp.arange(like.shape[1]) == column[:, None]
  return at.astype(jnp.float32)


# Names in `rl.views.hidden.token` -> (sampled tokens bool [N,T], real tokens
# bool [N,T]) to weights of tokens f32 [N,T].
TOKENS = {'last': last, 'mean': mean, 'prompt_last': prompt_last}


def wrong_layers(layers: tuple[int, ...], n_layers: int) -> str:
  """Returns the reason why a model of n_layers has no such layers, or ''."""
  if not layers or any(type(layer) is not int for layer in layers):
    return 'must be one or more whole numbers, the numbers of layers'
  if all(-n_layers <= layer < n_layers for layer in layers):
    again = len({layer % n_layers for layer in layers}) < len(layers)
    return 'one layer is there twice; remove it' if again else ''
  return (
    f'must be from {-n_layers} to {n_layers - 1}: the model has {n_layers} '
    'layers, and negative numbers count from the last one'
  )


@dataclasses.dataclass(frozen=True, eq=False)
class HiddenStates:
  """Computes a hidden state of every row; static.

  Attributes:
    model: the policy's functions.
    layers: numbers of layers from 0; negative numbers count from the end.
    token: name in TOKENS.
    parts: parts of the rows, computed one after another.
    kept: the rollout keeps the states, for the probe.

  Raises:
    ValueError: the model has no layers that can be read.
  """

  model: Model
  layers: tuple[int, ...]
  token: str
  parts: int = 1
  kept: bool = False

  def __post_init__(self):
    if self.model.hidden_after is None:
      raise ValueError(
        'rl.views.hidden: this model has no layers that can be read '
        '(`Model.hidden_after`)'
      )

  def __call__(self, params, rows: Rows | Batch, mask: jax.Array) -> jax.Array:
    """Returns states f32 [N,D]; D is the sum over the layers.

    Args:
      mask: bool [N,T], sampled tokens.
    """
    return self.along(params, rows, mask, None)[0]

  def of_prompts(self, params, prompts: Prompts, n: int) -> jax.Array:
    """Returns the states f32 [n,D] of the prompts' last tokens, for n rows."""
    rows = Rows(prompts.tokens, prompts.valid)
    of_last = dataclasses.replace(self, token='last')
    return batch_lib.per_row(of_last(params, rows, rows.valid), n)

  def begin(self, n: int, width: int) -> jax.Array:
    """Returns the states [n,D] of rows without a decoded token."""
    return sharding.rows(jnp.zeros((n, len(self.layers) * width)))

  def with_token(self, states: jax.Array, new, there: jax.Array) -> jax.Array:
    """Adds the states of one more token of each row to states [N,D].

    Args:
      new: [N,D] after each layer; there: bool [N], the row has the token.
    """
    new = jnp.concatenate(new, axis=1).astype(jnp.float32)
    old = states if self.token == 'mean' else 0
    return jnp.where(there[:, None], old + new, states)

  def ended(self, states: jax.Array, sampled: jax.Array) -> jax.Array:
    """Returns the states f32 [N,D] of rows whose tokens were all decoded.

    Args:
      sampled: bool [N,C].
    """
    if self.token != 'mean':
      return states
    return states / jnp.maximum(sampled.sum(axis=1, keepdims=True), 1)

  def along(
    self, params, rows: Rows | Batch, mask: jax.Array, direction
  ) -> tuple[jax.Array, jax.Array | None]:
    """Returns states f32 [N,D], and the inner products f32 [N,T] of the states
    of all tokens with a direction, in the same pass.

    Args:
      mask: bool [N,T], sampled tokens.
      direction: f32 [D]; None: no products.
    """

    n = len(self.layers)
    own = [None] * n if direction is None else jnp.split(direction, n)

    def of_layer(layer, direction, tokens, valid, mask):
      x = self.model.hidden_after(params, tokens, valid, layer)  # [n,T,D]
      # Padding may have any values, even NaN.
      x = jnp.where(valid[..., None], x.astype(jnp.float32), 0)
      weight = TOKENS[self.token](mask, valid)
      states = jnp.sum(weight[..., None] * x, axis=1)
      if direction is None:
        return states, None
      highest = jax.lax.Precision.HIGHEST  # TPUs would multiply in bf16
      return states, jnp.matmul(x, direction, precision=highest)

    def of_part(part):
      each = [of_layer(*x, *part) for x in zip(self.layers, own)]
      states, products = zip(*each)
      states = jnp.concatenate(states, axis=1)
      return states, None if direction is None else sum(products)

    # Greedy completions may be fewer than micro-batches.
    parts = math.gcd(mask.shape[0], self.parts)
    each = batch_lib.split((rows.tokens, rows.valid, mask), parts)
    return batch_lib.join(jax.lax.map(of_part, each))
