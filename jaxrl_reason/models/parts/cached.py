"""Attention from new tokens to caches, of a prompt and of a row's own."""

import jax
import jax.numpy as jnp

from jaxrl_reason.models.parts.layers import MASKED, soft_cap


def _cached_scores(q, keys, mask, cap: float) -> jax.Array:
  """Scores [B,I,K,g,S] of q [B,I,K,g,H] over cached keys [B,K,S,H], float32;
  mask bool [1 or B,1 or I,S].
  """
  scores = jnp.einsum(
    'bikgh,bksh->bikgs', q, keys.values, preferred_element_type=jnp.float32
  )
  if keys.scale is not None:
    scores = scores * keys.scale[:, None, :, None]
  return jnp.where(mask[:, :, None, None], soft_cap(scores, cap), MASKED)


def _cached_values(p, values, dtype) -> jax.Array:
  """Values [B,K,S,H] weighted by p [B,I,K,g,S], float32."""
  if values.scale is not None:
    p = p * values.scale[:, None, :, None]
  return jnp.einsum('bikgs,bksh->bikgh', p.astype(dtype), values.values)


def attend(
  q: jax.Array,
  prompt: tuple,
  own: tuple,
  prompt_mask: jax.Array,
  own_mask: jax.Array,
  *,
  scale: float,
  cap: float = 0.0,
  sinks: jax.Array | None = None,
) -> jax.Array:
  """Attends from new tokens of rows to their group's prompt and their own
  completion.

  The rows of a prompt read one copy of its keys: that part is a real matrix
  product instead of one of matrix and vector for each, and nothing is repeated.
  One softmax over the scores of both parts is what merging two of them by their
  log-sum-exps gives, and needs no second pass.

  Args:
    q: [S,Q,H] or, O tokens of each row, [S,O,Q,H]; S = B*I, the I rows of a
      prompt adjacent.
    prompt: keys, values of the prompts: `cache.Kept` of [B,K,P,H].
    own: keys, values of the completions so far: Kept of [S,K,R,H].
    prompt_mask: bool [B,1 or I*O,P], the prompt tokens each may look at.
    own_mask: bool [1 or S,O,R], the columns each may look at.
    scale: of the scores; cap: their soft cap, 0 for none.
    sinks: [Q], a score per head that is nobody's.

  Returns:
    As q.
  """
  shape, (b, kv, n_prompt, _) = q.shape, prompt[0].values.shape
  s, width = shape[0], shape[-1]
  alone = q.reshape(s, -1, kv, shape[-2] // kv, width) * scale  # [S,O,K,g,H]
  grouped = alone.reshape(b, -1, *alone.shape[2:])  # [B,I*O,K,g,H]
  shared = _cached_scores(grouped, prompt[0], prompt_mask, cap)
  single = _cached_scores(alone, own[0], own_mask, cap)
  shared = shared.reshape(*single.shape[:-1], n_prompt)
  scores = [shared, single]
  if sinks is not None:
    nobody = sinks.astype(jnp.float32).reshape(kv, -1, 1)
    scores.append(jnp.broadcast_to(nobody, (*single.shape[:-1], 1)))
  p = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
  ends = n_prompt, n_prompt + single.shape[-1]
  p_shared, p_single, *_ = jnp.split(p, ends[: len(scores) - 1], axis=-1)
  p_shared = p_shared.reshape(*grouped.shape[:-1], n_prompt)
  out = _cached_values(p_single, own[1], q.dtype)
  out_shared = _cached_values(p_shared, prompt[1], q.dtype)
  return (out.reshape(shape) + out_shared.reshape(shape)).astype(q.dtype)
