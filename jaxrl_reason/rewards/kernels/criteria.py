"""Rubrics inside the compiled step: the items of a problem as arrays.

They are those of `verifiers.judges.rubric`, of example['rubric'].

  items   {'weight': f32 [K], 'threshold': f32 [K], 'required': bool [K],
           'needs': bool [K,K]}
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_reason.verifiers import fields
from jaxrl_reason.verifiers.judges import rubric_items
from jaxrl_reason.verifiers.tasks import problem


def items_of(
  example: problem.Example, most: int
) -> tuple[rubric_items.Item, ...]:
  """Returns the rubric of a problem.

  Raises:
    ValueError: it is missing or invalid, or has more than `most` items.
  """
  rows = fields.field(example, 'rubric', (list, tuple))
  items = rubric_items.make(rows)
  if len(items) > most:
    raise ValueError(
      f"'rubric' has {len(items)} items, and kwargs.criteria={most}"
    )
  texts = [isinstance(item.criterion, str) for item in items]
  if not all(texts):
    raise ValueError(f"'rubric': criterion {texts.index(False)} is not a text")
  return items


def encode(
  items: tuple[rubric_items.Item, ...], most: int
) -> dict[str, np.ndarray]:
  """Encodes the items as arrays of K = `most`; further items weigh nothing."""
  names, n = [item.name for item in items], len(items)
  needs = np.zeros((most, most), bool)
  needs[:n, :n] = [[name in item.needs for name in names] for item in items]

  def padded(key, dtype):
    own = np.array([getattr(item, key) for item in items], dtype)
    return np.pad(own, (0, most - n))

  return {
    'weight': padded('weight', np.float32),
    'threshold': padded('threshold', np.float32),
    'required': padded('required', bool),
    'needs': needs,
  }


def aggregate(marks: jax.Array, items: Mapping[str, jax.Array]) -> jax.Array:
  """Computes the scores f32 [N] of marks [N,K] as `rubric_items.aggregate`.

  Args:
    items: of each row, [N,K] and [N,K,K].
  """
  passed, weight = marks >= items['threshold'], items['weight']
  failed = jnp.any(items['required'] & ~passed, axis=1)
  counts = jnp.all(passed[:, None] | ~items['needs'], axis=2)
  total = jnp.sum(jnp.where(counts, weight * marks, 0), axis=1)
  score = jnp.clip(total / jnp.maximum(weight, 0).sum(axis=1), 0, 1)
  return jnp.where(failed, 0.0, score)
