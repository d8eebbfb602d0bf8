"""Several models as one, whose logits are a weighted sum of theirs.

  logits = sum_i w_i logits_i

With w = (1, s, -s) what training has changed in a small model is added to a
large one that was not trained: RAST, https://arxiv.org/abs/2506.15710. All have
the same tokens; each keeps a cache of its own. The sum is a `base.Model` like
any other: hidden states lie side by side, [...,D_1 + D_2 + ...].
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from jaxrl_reason.base import Model


def total(
  models: Sequence[Model], weights: Sequence[float], widths: Sequence[int]
) -> Model:
  """Gives the model whose logits are sum_i weights[i] * logits of models[i].

  Args:
    widths: D of each, of its hidden states.

  Returns:
    A Model whose params are {'0': those of the first, '1': ...}.
  """
  if not len(models) == len(weights) == len(widths) > 0:
    raise ValueError(f'{len(models)} models, {len(weights)} weights')
  bounds = [sum(widths[:i]) for i in range(1, len(widths))]

  def each(name: str) -> list[Callable]:
    return [getattr(model, name) for model in models]

  def of(params, i: int):
    return params[str(i)]

  def hidden(params, tokens, valid):
    parts = each('hidden')
    states = [f(of(params, i), tokens, valid) for i, f in enumerate(parts)]
    return jnp.concatenate(states, axis=-1)

  def unembed(params, states):
    parts = zip(each('unembed'), jnp.split(states, bounds, axis=-1), weights)
    return sum(w * f(of(params, i), x) for i, (f, x, w) in enumerate(parts))

  def decode_params(params):
    found = each('decode_params')
    return {str(i): f(of(params, i)) for i, f in enumerate(found)}

  def prefill(params, *given):
    found = [f(of(params, i), *given) for i, f in enumerate(each('prefill'))]
    return _side_by_side(found)

  def decode(params, tokens, caches, t, step=None):
    parts = zip(each('decode'), caches)
    found = [
      f(of(params, i), tokens, c, t, step) for i, (f, c) in enumerate(parts)
    ]
    return _side_by_side(found)

  def grow(caches, columns):
    return tuple(f(c, columns) for f, c in zip(each('grow'), caches))

  def flops_per_token(context):
    return sum(f(context) for f in each('flops_per_token'))

  return Model(
    specs={str(i): specs for i, specs in enumerate(each('specs'))},
    hidden=hidden,
    unembed=unembed,
    decode_params=decode_params,
    prefill=prefill,
    decode=decode,
    grow=grow,
    flops_per_token=flops_per_token,
  )


def _side_by_side(found: Sequence[tuple]):
  """(hidden states side by side, caches) of (hidden, cache) each."""
  states, caches = zip(*found)
  return jnp.concatenate(states, axis=-1), caches


def refuse_other_tokens(names: Sequence[str], tokenizers: Sequence) -> None:
  """Refuses models that do not mean the same by a token.

  Raises:
    ValueError: names the first two that differ.
  """
  said = [(t.token_bytes(), t.eos_ids) for t in tokenizers]
  for name, own in zip(names, said):
    if own != said[0]:
      raise ValueError(
        f'{name} has other tokens than {names[0]}: logits are added token by '
        'token'
      )
