"""Weighted sums of several models' logits, as one model.

  logits = sum_i w_i logits_i

With w = (1, s, -s), the change that training made to a small model is added to
a large untrained one: RAST, https://arxiv.org/abs/2506.15710. All models have
the same tokens, and each keeps its own cache. If their vocabularies are padded
to several sizes, the sum has the smallest one. The sum is an ordinary
`base.Model`; its hidden states are concatenated, [...,D_1 + D_2 + ...].
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp

from jaxrl_reason.base import Model


def total(
  models: Sequence[Model], weights: Sequence[float], widths: Sequence[int]
) -> Model:
  """Builds the model whose logits are sum_i weights[i] * logits of models[i].

  Args:
    widths: D of each model's hidden states.

  Returns:
    A Model with parameters {'0': of the first, '1': ...}.
  """
  if not len(models) == len(weights) == len(widths) > 0:
    raise ValueError(
      f'{len(models)} models, {len(weights)} weights and {len(widths)} widths: '
      'pass one weight and one width per model'
    )
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
    parts = zip(each('unembed'), jnp.split(states, bounds, axis=-1))
    logits = [f(of(params, i), x) for i, (f, x) in enumerate(parts)]
    size = min(x.shape[-1] for x in logits)
    return sum(w * x[..., :size] for w, x in zip(weights, logits))

  def decode_params(params):
    casts = each('decode_params')
    return {str(i): f(of(params, i)) for i, f in enumerate(casts)}

  def prefill(params, *args):
    outputs = [f(of(params, i), *args) for i, f in enumerate(each('prefill'))]
    return _side_by_side(outputs)

  def decode(params, tokens, caches, t, step=None):
    parts = zip(each('decode'), caches)
    outputs = [
      f(of(params, i), tokens, c, t, step) for i, (f, c) in enumerate(parts)
    ]
    return _side_by_side(outputs)

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


def _side_by_side(outputs: Sequence[tuple]):
  """Concatenates the hidden states of (hidden, cache) pairs; lists the
  caches.
  """
  states, caches = zip(*outputs)
  return jnp.concatenate(states, axis=-1), caches


def refuse_other_tokens(names: Sequence[str], tokenizers: Sequence) -> None:
  """Raises an error if the models' tokenizers differ.

  Raises:
    ValueError: names the first two models that differ.
  """
  vocabularies = [(t.token_bytes(), t.eos_ids) for t in tokenizers]
  for name, vocabulary in zip(names, vocabularies):
    if vocabulary != vocabularies[0]:
      raise ValueError(
        f'{name} and {names[0]} have different tokens, so their logits cannot '
        'be added: use models with one tokenizer'
      )
