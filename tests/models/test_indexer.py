"""An indexer chooses the same keys in whole rows and in every kind of cache."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.family_shapes import FAMILIES, SHARED, V, config

from jaxrl_reason import trees
from jaxrl_reason.models import (
  adapters,
  cache_layout,
  families,
  flops,
  spec,
  transformer,
)
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.models.parts import indexer
from jaxrl_reason.models.parts.stored import Stored
from jaxrl_reason.update import optim

B, I, P, R = 2, 3, 5, 7  # prompts, rows of each, columns of prompts and rows
S, J, W = B * I, 3, 4


def made(c):
  """Returns a model and its initial parameters."""
  model = transformer.build(c)
  return model, jax.jit(lambda: spec.init(model.specs, jax.random.key(0)))()


def plain(c):
  """Returns the config without an indexer."""
  return dataclasses.replace(c, index_topk=0, index_heads=0, index_dim=0)


def chosen_by_hand(found, seen, n):
  """Returns the n best of the seen keys, the first of equals first."""
  out = np.zeros_like(seen)
  for at in np.ndindex(found.shape[:-1]):
    keys = [s for s in range(found.shape[-1]) if seen[at][s]]
    keys.sort(key=lambda s: (-found[at][s], s))
    out[at][keys[:n]] = True
  return out


@pytest.mark.parametrize('n', [1, 4, 8, 20])
def test_the_best_keys_are_chosen_and_the_first_of_equals(n):
  """Half of the scores are 0, of either sign."""
  random = np.random.default_rng(0)
  found = random.integers(-2, 3, (6, 9, 12)).astype(np.float32)
  found = np.where(random.random(found.shape) < 0.5, -0.0, found)
  seen = random.random(found.shape) < 0.7
  want = chosen_by_hand(found, seen, n)
  got = indexer.best(jnp.asarray(found), jnp.asarray(seen), n)
  np.testing.assert_array_equal(got, want)
  order = random.permutation(12)
  moved = [jnp.asarray(x[..., np.argsort(order)]) for x in (found, seen)]
  places = jnp.asarray(np.argsort(order))
  got = indexer.best(*moved, n, places)
  np.testing.assert_array_equal(got, want[..., np.argsort(order)])


@pytest.mark.parametrize('n', [2, 6])
@pytest.mark.parametrize('first', [0, 3])  # column of a row's first token
def test_a_cache_and_whole_rows_choose_the_same_keys(n, first):
  """The columns of a ring begin anywhere. Integers make many equal scores."""
  random = np.random.default_rng(1)

  def integers(*shape):
    return random.integers(-1, 2, shape).astype(np.float32)

  queries, weights = integers(S, J, W), integers(S, J)
  prompt, own = integers(B, P, W), integers(S, R, W)
  real = np.arange(P) >= np.array([[2], [0]])
  at = (first + np.arange(R)) % R  # the column of each token
  ring = np.zeros_like(own)
  ring[:, at] = own
  rows = np.concatenate([np.repeat(prompt, I, 0), own], 1)
  seen = np.concatenate([np.repeat(real, I, 0), np.ones((S, R), bool)], 1)
  index = indexer.Index(queries, weights, n)
  whole = indexer.Index(queries[:, None], weights[:, None], n, rows[:, :, None])
  want = np.asarray(indexer.of_rows(whole, jnp.asarray(seen[:, None])))[:, 0]
  found = np.einsum(
    'sjk,sj->sk',
    np.maximum(np.einsum('sjw,skw->sjk', queries, rows), 0),
    weights,
  )
  np.testing.assert_array_equal(want, chosen_by_hand(found, seen, n))
  stored = (
    Stored(jnp.asarray(prompt[:, None])),
    Stored(jnp.asarray(ring[:, None])),
  )
  masks = jnp.asarray(real[:, None]), jnp.ones((1, 1, R), bool)
  cache = types.SimpleNamespace(at=None)
  order = cache_layout.order(cache, stored[1], first + R - 1)
  of_prompt, of_own = indexer.of_cache(index, *stored, masks, order)
  np.testing.assert_array_equal(of_prompt.reshape(S, P), want[:, :P])
  np.testing.assert_array_equal(of_own[:, 0][:, at], want[:, P:])


def test_tokens_of_several_calls_and_of_a_fork_equal_the_full_forward():
  model, params = made(config('deepseek_v32'))
  tokens = jax.random.randint(jax.random.key(1), (B, P + R), 3, V)
  valid = np.arange(P + R) >= np.array([[2], [0]])

  @jax.jit
  def run(params):
    decoding, out = model.decode_params(params), []
    prompts = tokens[:, :P], jnp.asarray(valid[:, :P])
    cache = model.gapped(model.prefill(params, *prompts, 1, R)[1], 3 * R)
    done = np.zeros(B, int)
    for column, counts in (0, (2, 1)), (3, (1, 2)), (6, (1, 1)):
      more = np.arange(3) < np.array(counts)[:, None]
      t = np.where(more, done[:, None] + np.arange(3), -1)
      done = done + counts
      new = jnp.take_along_axis(tokens, jnp.asarray(P + np.maximum(t, 0)), 1)
      h, _, cache = model.extend(decoding, new, cache, jnp.asarray(t), column)
      out.append((h, P + done - 1))
    cache = model.fork(cache, jnp.asarray(done - 1), I)
    for i in range(2):
      new = jnp.repeat(tokens[np.arange(B), P + done + i], I)[:, None]
      t = jnp.full((S, 1), i)
      h, _, cache = model.extend(decoding, new, cache, t, i)
      out.append((h[::I], P + done + i))
    return out

  want = jax.jit(model.hidden)(params, tokens, jnp.asarray(valid))
  for got, at in run(params):
    np.testing.assert_allclose(got, want[np.arange(B), at], atol=1e-5)


def test_the_weights_of_an_indexer_have_no_gradient_and_no_decay():
  model, params = made(
    dataclasses.replace(config('deepseek_v32'), remat='full')
  )
  tokens = jax.random.randint(jax.random.key(1), (B, P + R), 3, V)

  @jax.jit
  @jax.grad
  def grads(params):
    hidden = model.hidden(params, tokens, jnp.ones(tokens.shape, bool))
    return jnp.sum(jnp.sin(hidden))

  tree = spec.abstract(model.specs)
  decayed = trees.flatten(optim.decayed(tree))
  assert not any(x for path, x in decayed.items() if '/index/' in path)
  assert decayed['layers/attn/q_up'] and decayed['layers/attn/kv_up']
  by_muon = trees.flatten(optim.projections(tree))
  assert 'layers/attn/index/q' not in {k for k, x in by_muon.items() if x}
  for path, x in trees.flatten(grads(params)).items():
    if path.startswith('layers/attn') or path.startswith('dense_layers/attn'):
      assert np.any(x) != ('/index/' in path), path


def test_an_indexer_that_chooses_all_keys_changes_nothing():
  """With fewer keys, the model computes other numbers."""
  c = config('deepseek_v32')
  _, params = made(c)
  tokens = jax.random.randint(jax.random.key(5), (B, P + R), 3, V)
  valid = np.arange(P + R) >= np.array([[2], [0]])

  def of(c, params):
    hidden = jax.jit(transformer.build(c).hidden)
    return hidden(params, tokens, jnp.asarray(valid))[valid]

  without = trees.unflatten(
    {k: x for k, x in trees.flatten(params).items() if '/index/' not in k}
  )
  want = of(plain(c), without)
  all_ = of(dataclasses.replace(c, index_topk=P + R), params)
  np.testing.assert_array_equal(all_, want)
  assert np.abs(of(c, params) - want).max() > 0.01


@pytest.mark.parametrize(
  'changes, own',
  [
    (dict(index_topk_pattern='FSSFSFS'), (0, 3, 5)),
    (dict(indexer_types=['full', 'shared'] * 3 + ['full']), (0, 2, 4, 6)),
    (dict(index_topk_pattern=None, index_topk_freq=1), tuple(range(7))),
    (dict(index_topk_pattern=None, index_topk_freq=3), (0, 1, 4)),
    (
      dict(
        index_topk_pattern=None, index_topk_freq=4, index_skip_topk_offset=3
      ),
      (0, 1, 2, 6),
    ),
  ],
)
def test_the_layers_with_an_indexer_are_read_from_each_form(changes, own):
  h = SHARED | FAMILIES['glm_moe_dsa'] | {'model_type': 'glm_moe_dsa'}
  c = families.from_hf(h | changes)
  assert {*range(c.layers)} - {*c.indexless_layers} == {*own}
  assert families.from_hf(families.to_hf(c)) == c


def test_a_layer_without_an_indexer_uses_the_choice_of_an_earlier_one():
  """The output of the first layer's attention is zero. So only its choice of
  keys reaches the second layer.
  """
  base = config('glm_moe_dsa')
  tokens = jax.random.randint(jax.random.key(5), (B, P + R), 3, V)
  for second, changed in ((1, 2), True), ((), False):
    c = dataclasses.replace(base, layers=3, indexless_layers=second)
    model, params = made(c)
    first = params['dense_layers']['attn']
    first['o'] = first['o'].at[0].set(0.0)
    other = trees.map_with_path(lambda _, x: x, params)
    index = other['dense_layers']['attn']['index']
    index['q'] = index['q'].at[0].multiply(-1.0)
    run = jax.jit(model.hidden)
    valid = jnp.ones(tokens.shape, bool)
    a, b = (run(p, tokens, valid) for p in (params, other))
    assert np.any(np.asarray(a) != np.asarray(b)) == changed


@pytest.mark.parametrize('pattern, dense', [('FFSFSS', 1), ('FSFSS', 4)])
def test_a_choice_reaches_the_layers_behind_repeated_ones(
  pattern, dense, monkeypatch
):
  """In a scan of repeated layers, in one layer after the other, and in
  decoding.
  """
  h = SHARED | FAMILIES['glm_moe_dsa'] | {'model_type': 'glm_moe_dsa'}
  h |= dict(num_hidden_layers=len(pattern), index_topk_pattern=pattern)
  c = families.from_hf(h | {'first_k_dense_replace': dense})
  c = dataclasses.replace(c, decode_layers='scan')
  model, params = made(c)
  tokens = jax.random.randint(jax.random.key(1), (B, P + R), 3, V)
  valid = jnp.ones(tokens.shape, bool)

  def rows(params):
    return model.hidden(params, tokens, valid)

  def decoded(params):
    found, cache = model.prefill(params, tokens[:, :P], valid[:, :P], 1, R)
    weights, out = model.decode_params(params), [found]
    for t in range(R):
      found, cache, *_ = model.decode(weights, tokens[:, P + t], cache, t, t)
      out.append(found)
    return jnp.stack(out, 1)

  merged, one_by_one = jax.jit(rows)(params), jax.jit(decoded)(params)
  monkeypatch.setattr(type(c), 'repeated', staticmethod(lambda items: (1, 1)))
  model, _ = made(dataclasses.replace(c))
  apart = jax.jit(lambda params: rows(params))(params)
  np.testing.assert_allclose(merged, apart, atol=1e-5)
  np.testing.assert_allclose(one_by_one, apart[:, P - 1 :], atol=1e-5)


def test_a_cache_has_the_keys_of_an_indexer():
  c = config('deepseek_v32')
  model, params = made(c)
  tokens = jnp.zeros((B, P), int), jnp.ones((B, P), bool)
  shapes = jax.eval_shape(lambda p: model.prefill(p, *tokens, I, R)[1], params)
  kept = [[x.values.shape for x in layer] for layer in shapes.own]
  assert kept == [[(S, 1, R, 14), (S, 1, R, 6)]] * c.layers
  assert c.cached('layers') == ((1, 14), (1, 6))
  c = config('glm_moe_dsa')
  own = [((1, 14), (1, 6)), ((1, 14),)]
  assert [c.cached(name) for name in ('layers', 'indexless_layers')] == own


def test_operations_of_an_indexer_are_counted():
  """Two for each weight and each score's feature, four for a feature of a key
  that is attended to.
  """
  c = config('deepseek_v32')
  of_weights = 2 * (6 * 4 * 6 + 16 * (4 + 6))  # q, then weights and k
  for n, seen in (0, 0), (100, 2 * 100 * 4 * 6 - 2 * 95 * 4 * (10 + 10)):
    counts = [flops.flops_per_token(x, n) for x in (c, plain(c))]
    assert counts[0] - counts[1] == c.layers * (of_weights + seen)


def test_adapters_of_an_indexer_are_refused():
  settings = lora.Lora(rank=2, alpha=4.0, targets='.*/q')
  with pytest.raises(ValueError, match='attn/index/q: .* have no gradient'):
    adapters.attach(transformer.build(config('deepseek_v32')), lora=settings)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(index_topk=-1), 'index_topk=-1 and .* must be at least 1'),
    (dict(index_heads=0), 'index_heads=0 must be at least 1'),
    (dict(index_dim=3), 'index_dim=3 at least model.rope_dim=4'),
    (dict(index_topk=0), 'index_heads has no effect: model.index_topk=0'),
    (dict(indexless_layers=(0,)), 'indexless_layers=.0,. must be rising ind'),
    (dict(indexless_layers=(6,)), 'from 1 to model.layers - 1=5'),
    (dict(q_rank=0), 'index_topk needs a model.q_rank, now 0'),
    (
      dict(kv_rank=0, q_rank=0, rope_dim=0, value_dim=0),
      'index_topk has no ef',
    ),
    (dict(attention='splash'), 'keys that an indexer chooses .index_topk=5'),
    (dict(attention='xla'), "'xla' does not support values of another width"),
    (dict(cache_dtype='bfloat16'), "cache_dtype='bfloat16' rounds the keys"),
    (
      dict(numerics='exact', dtype='bfloat16'),
      'not support model.index_topk=5',
    ),
  ],
)
def test_settings_that_an_indexer_cannot_have_are_refused(changes, said):
  with pytest.raises(ValueError, match=said):
    dataclasses.replace(config('deepseek_v32'), **changes)


@pytest.mark.parametrize(
  'changes, said',
  [
    (dict(indexer_types=['full'] * 6), "indexer_types=.'full', .*layers=7"),
    (dict(indexer_types=['full'] * 6 + ['S']), "indexer_types=.'full', 'full"),
    (dict(index_topk_pattern='SFFFFFF'), "pattern='SFFFFFF' .* 'full' first"),
    (dict(q_lora_rank=None), 'q_lora_rank is null'),
    (dict(layer_types=['full_attention'] * 7), 'choose indexed_attention'),
  ],
)
def test_keys_of_glm_5_are_refused_by_name(changes, said):
  h = SHARED | FAMILIES['glm_moe_dsa'] | {'model_type': 'glm_moe_dsa'}
  with pytest.raises(ValueError, match=said):
    families.from_hf(h | changes)
