"""The small models that tests share."""

import jax

from jaxrl_reason.models import spec, transformer


def small_config(**changes) -> transformer.Config:
  """Returns a config with all features: grouped queries, qk-norm, biases."""
  base = dict(
    vocab=16,
    layers=3,
    width=16,
    mlp=32,
    heads=4,
    kv_heads=2,
    head_dim=4,
    qk_norm=True,
    bias=True,
  )
  return transformer.Config(**(base | changes))


def small_model(seed: int = 0, **changes):
  """Returns (config, Model, params). All parameters differ from their initial
  values, zeros included, so that each of them has an effect.
  """
  config = small_config(**changes)
  model = transformer.build(config)

  def make():
    params = spec.init(model.specs, jax.random.key(seed))
    keys = iter(jax.random.split(jax.random.key(seed + 1), 100))

    def shake(x):
      return x + 0.3 * jax.random.normal(next(keys), x.shape)

    return jax.tree.map(shake, params)

  # One program: one by one, the operations of every shape compile in 5 s.
  return config, model, jax.jit(make)()
