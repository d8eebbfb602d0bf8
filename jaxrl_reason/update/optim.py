"""Optimizers by name, learning-rate schedules, and regex masks."""

import functools
import re

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from jaxrl_reason import names, trees
from jaxrl_reason.models import weights

# Weight decay skips vectors: norms, biases, attention sinks, log_decay (A_log)
# and skip (D) of recurrent layers, factors of layers and experts, steering
# vectors, and the heads of critics and reward models. The weights of an indexer
# have no gradient, and stay as they are.
INDEXER = rf'.*/{weights.INDEX}/.*'
NOT_DECAYED = (
  r'.*(norm|bias|sinks|log_decay|skip|positive|negative|factor|_scale)'
  r'|steering|value_head|reward_head'
  rf'|{INDEXER}'
)


def decayed(params) -> dict:
  """Masks the parameters that weight decay applies to."""
  rules = ((NOT_DECAYED, False), ('.*', True))
  return trees.map_with_path(lambda path, _: trees.match(rules, path), params)


# Projections: leaf name -> numbers of input and output dimensions; earlier
# dimensions (layers, experts) count matrices.
PROJECTIONS = {
  **dict.fromkeys(('q', 'k', 'v', 'q_up', 'kv_up'), (1, 2)),
  **dict.fromkeys(('z', 'qkvz', 'ba', 'share', 'step'), (1, 2)),
  'o': (2, 1),
  **dict.fromkeys(('q_down', 'kv_down', 'gate', 'up', 'down'), (1, 1)),
  **dict.fromkeys(('router', 'a', 'b'), (1, 1)),
}


def projections(params) -> dict:
  """Returns the dimensions of each projection that form its matrix; None for
  other weights.
  """

  def leaf(path, x):
    name = path.rpartition('/')[2]
    if name not in PROJECTIONS or re.fullmatch(INDEXER, path):
      return None
    n, m = PROJECTIONS[name]
    first = len(x.shape) - n - m
    axes = tuple(range(first, len(x.shape)))
    return optax.contrib.MuonDimensionNumbers(axes[:n], axes[n:])

  return trees.map_with_path(leaf, params)


def _sgd(lr, c) -> optax.GradientTransformation:
  return optax.sgd(lr, momentum=c.b1 or None)


def _adamw(lr, c) -> optax.GradientTransformation:
  mask = decayed if c.weight_decay else None
  return optax.adamw(
    lr, b1=c.b1, b2=c.b2, eps=c.eps, weight_decay=c.weight_decay, mask=mask
  )


def _lion(lr, c) -> optax.GradientTransformation:
  mask = decayed if c.weight_decay else None
  return optax.lion(
    lr, b1=c.b1, b2=c.b2, weight_decay=c.weight_decay, mask=mask
  )


def _adafactor(lr, c) -> optax.GradientTransformation:
  # optax's own decay is not multiplied by the learning rate.
  return _with_decay(optax.adafactor, lr, c)


def _muon(lr, c) -> optax.GradientTransformation:
  """Orthogonalised momentum for the layers' projections
  (https://kellerjordan.github.io/posts/muon), Adam with Nesterov's momentum
  for the rest.
  """
  make_rule = functools.partial(
    optax.contrib.muon,
    beta=c.b2,
    eps=c.eps,
    adam_b1=c.b1,
    adam_b2=c.b2,
    consistent_rms=0.2,  # of updates: AdamW's learning rates fit
    muon_weight_dimension_numbers=projections,
  )
  return _with_decay(make_rule, lr, c)


def _with_decay(make_rule, lr, c) -> optax.GradientTransformation:
  """Adds weight decay, times the learning rate, to a rule that has none.

  Args:
    make_rule: learning rate -> transformation.
  """
  if not c.weight_decay:
    return make_rule(lr)
  return optax.chain(
    make_rule(1.0),
    optax.scale(-1.0),
    optax.add_decayed_weights(c.weight_decay, decayed),
    optax.scale_by_learning_rate(lr),
  )


OPTIMIZERS = {
  'sgd': _sgd,
  'adamw': _adamw,
  'adafactor': _adafactor,
  'muon': _muon,
  'lion': _lion,
}


def _to_zero(lr: float, updates: int, begin: int = 0) -> optax.Schedule:
  """Returns a schedule: `lr` until `begin`, then linear to 0 over `updates`."""
  return optax.linear_schedule(lr, 0.0, updates, transition_begin=begin)


def _wsd(lr: float, updates: int) -> optax.Schedule:
  last = updates // 5
  return _to_zero(lr, max(last, 1), begin=updates - last)


def _constant(lr: float, updates: int) -> optax.Schedule:
  del updates
  return optax.constant_schedule(lr)


# (peak, updates from there to the end) -> the learning rate by update.
SCHEDULES = {
  'constant': _constant,
  'linear': _to_zero,
  'cosine': optax.cosine_decay_schedule,
  'wsd': _wsd,
}


def schedule(c, steps: int) -> optax.Schedule:
  """Makes the learning rate by step: linear warm-up, then `c.schedule`.

  'constant'; 'linear' or 'cosine' to 0 at the last step; 'wsd'
  (warm-up, stable, decay: https://arxiv.org/abs/2404.06395) keeps the peak and
  falls linearly to 0 over the last fifth.
  """
  if c.schedule not in SCHEDULES:
    raise ValueError(names.choice('schedule', c.schedule, SCHEDULES))
  tail = SCHEDULES[c.schedule](c.lr, max(steps - c.warmup_steps, 1))
  warmup = optax.linear_schedule(
    c.lr / max(c.warmup_steps, 1), c.lr, max(c.warmup_steps - 1, 1)
  )
  if not c.warmup_steps:
    return tail
  return optax.join_schedules([warmup, tail], [c.warmup_steps])


def rescheduled(state):
  """Resets the optimizer states in a tree to the beginning of the learning-rate
  schedule; moments and their counts stay.
  """

  def is_place(x):
    return isinstance(x, optax.ScaleByScheduleState)

  def leaf(x):
    # Not a new array, which could have another sharding.
    return x._replace(count=0 * x.count) if is_place(x) else x

  return jax.tree.map(leaf, state, is_leaf=is_place)


def stored(tx: optax.GradientTransformation, dtype: str):
  """Stores the transformation's moments in `dtype`; computes in float32."""
  if dtype == 'float32':
    return tx

  def cast(tree, to):
    def leaf(x):
      is_mean = x.ndim and jnp.issubdtype(x.dtype, jnp.floating)
      return x.astype(to) if is_mean else x

    return jax.tree.map(leaf, tree)

  def update(updates, state, params=None):
    updates, state = tx.update(updates, cast(state, jnp.float32), params)
    return updates, cast(state, dtype)

  def init(params):
    return cast(tx.init(params), dtype)

  return optax.GradientTransformation(init, update)


def make(c, steps: int) -> optax.GradientTransformation:
  """Makes the optimizer of an `optimizer` section for a stage of `steps`
  updates.
  """
  if c.name not in OPTIMIZERS:
    raise ValueError(names.choice('optimizer.name', c.name, OPTIMIZERS))
  if c.state_dtype not in ('float32', 'bfloat16'):
    raise ValueError(
      f'optimizer.state_dtype={c.state_dtype!r}: float32 or bfloat16'
    )
  if c.state_dtype == 'bfloat16' and max(c.b1, c.b2) > 0.99:
    raise ValueError(
      f'optimizer.state_dtype={c.state_dtype!r}, b1={c.b1}, b2={c.b2}: of a '
      'mean that moves by less than 1/256 of its value an update, bfloat16 '
      'keeps nothing; use at most 0.99, or float32'
    )
  if c.state_dtype == 'bfloat16' and c.name == 'adafactor':
    raise ValueError(
      "optimizer.name='adafactor' averages over more and more updates. Changes "
      "of the mean then round to 0 in bfloat16: set state_dtype='float32'"
    )
  rule = stored(OPTIMIZERS[c.name](schedule(c, steps), c), c.state_dtype)
  if c.clip_norm:
    return optax.chain(optax.clip_by_global_norm(c.clip_norm), rule)
  return rule
