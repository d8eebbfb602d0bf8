"""Rows that share their beginnings have the samples and log-probs of rows that
do not.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.tree import Tree, fork_of, generate

B, G, P, C = 4, 8, 6, 10
COLUMNS, ENTROPY = Tree(2, (1, 4)), Tree(2)
STEPS = Tree(2, ends=(3, 6, 9, 12))
WAYS = {
  'columns': COLUMNS,
  'late': Tree(4, (7,)),
  'entropy': ENTROPY,
  'steps': STEPS,
  'wide': Tree(4),
}
STOP = jnp.array([0, 1])
GEMMA = dict(norm_place='sandwich', windows=(3, 0, 3), cache_dtype='int8')


def _prompts():
  r = np.random.default_rng(0)
  valid = np.arange(P) >= P - np.array([[2], [6], [4], [1]])
  return jnp.asarray(r.integers(2, 16, (B, P))), jnp.asarray(valid)


@functools.cache
def _sampled(way: str, shape=()):
  _, model, params = small_model(**dict(shape))
  return model, params, _run(WAYS[way], model, params)


def _run(how: Tree | None, model, params):
  given = *_prompts(), jax.random.key(3), Sampling.make(), STOP
  room = dict(n_samples=G, max_new=C)

  @jax.jit
  def run(params):
    if how is None:
      return sampler.generate(model, params, *given, **room)
    return generate(how, model, params, *given, **room)

  return run(params)


def _nodes(out) -> np.ndarray:
  return np.asarray(out.node).reshape(B, G, C)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('shape', [{}, GEMMA], ids=['plain', 'gemma'])
def test_log_probs_are_those_of_the_trainer(way, shape):
  """So the keys that rows share are those of the tokens of each row."""
  model, params, out = _sampled(way, tuple(shape.items()))
  tokens, valid = (jnp.repeat(x, G, axis=0) for x in _prompts())
  tokens = jnp.concatenate([tokens, out.tokens], axis=1)
  valid = jnp.concatenate([valid, out.sampled], axis=1)
  score = jax.jit(
    lambda p: logprobs.score(
      model, p, Rows(tokens, valid), Sampling.make(), start=P
    )[0][:, P:]
  )
  gap = jnp.abs(jnp.where(out.sampled, score(params) - out.logp, 0))
  limit = 0.05 if shape.get('cache_dtype') else 3e-5
  assert out.sampled.any() and gap.max() < limit


@pytest.mark.parametrize('way', WAYS)
def test_first_leaves_are_the_completions_of_the_sampler(way):
  """A first child continues with the noise of its parent."""
  model, params, out = _sampled(way)
  plain = _run(None, model, params)
  first = slice(0, None, WAYS[way].leaves)
  for name in ('tokens', 'length', 'truncated', 'logp'):
    got, want = (getattr(x, name)[first] for x in (out, plain))
    np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)
  assert not np.array_equal(out.tokens, plain.tokens)


@pytest.mark.parametrize('way', WAYS)
def test_rows_share_the_tokens_of_a_node_and_no_others(way):
  _, _, out = _sampled(way)
  node = _nodes(out)
  arrays = [np.asarray(x).reshape(B, G, C) for x in (out.tokens, out.logp)]
  assert np.array_equal(node > 0, np.asarray(out.sampled).reshape(B, G, C))
  for a in range(G):
    for b in range(a):
      same = (node[:, a] == node[:, b]) & (node[:, a] > 0)
      for x in arrays:
        np.testing.assert_array_equal(x[:, a][same], x[:, b][same])
  columns = np.arange(C)
  seen = set(
    zip(
      *(
        x.ravel().tolist()
        for x in np.broadcast_arrays(np.arange(B)[:, None, None], columns, node)
      ),
      (node > 0).ravel().tolist(),
    )
  )
  once = sum(there for *_, there in seen)
  shared = WAYS[way].shared(out)
  np.testing.assert_allclose(shared, 1 - once / (node > 0).sum(), rtol=1e-5)
  # Siblings are sampled apart: some of them differ in their first own token.
  assert len(np.unique(arrays[0].reshape(B * G, C), axis=0)) > B * G // 3


def test_rows_fork_before_the_tokens_of_the_columns():
  node = _nodes(_sampled('columns')[2])
  there = node > 0
  for column, leaves in ((0, 4), (1, 2), (3, 2), (4, 1), (C - 1, 1)):
    trees = node[:, :, column].reshape(B, G // leaves, leaves)
    on = there[:, :, column].reshape(trees.shape)
    for rows, real in zip(trees.reshape(-1, leaves), on.reshape(-1, leaves)):
      assert len(set(rows[real])) <= 1
    heads = [set(x[x > 0].tolist()) for x in trees[:, :, 0]]
    assert all(len(x) == (y > 0).sum() for x, y in zip(heads, trees[:, :, 0]))


@pytest.mark.parametrize('way', ['entropy', 'steps'])
def test_rows_fork_before_the_token_with_the_highest_entropy(way):
  """The second child of a row has other nodes from that token on. With ends of
  steps, only tokens after one of them are compared.
  """
  model, params, out = _sampled(way)
  tokens, valid = _prompts()
  keys = dict(n_samples=G, max_new=C, entropy=True)
  plain = sampler.generate(
    model, params, tokens, valid, jax.random.key(3), Sampling.make(), STOP,
    **keys,
  )  # fmt: skip
  node, checked = _nodes(out).reshape(B * G, C), 0
  for row in range(0, B * G, 2):
    n, ends = int(plain.length[row]), WAYS[way].ends
    own = np.asarray(plain.tokens[row]).tolist()
    may = [i for i in range(1, n) if not ends or own[i - 1] in ends]
    if not may:
      np.testing.assert_array_equal(out.tokens[row], out.tokens[row + 1])
      continue
    at = max(may, key=lambda i: float(plain.entropy[row, i]))
    other = int(out.length[row + 1])
    assert (node[row, :at] == node[row + 1, :at]).all()
    assert not set(node[row, at:n]) & set(node[row + 1, at:other])
    checked += 1
  assert checked > 3


def test_a_row_without_a_place_for_a_fork_has_none():
  """It has one token, or does not go on after the end of a step."""
  tokens = jnp.array([[5, -1, -1], [5, 4, 5], [4, 5, -1]])
  entropy = jnp.array([[9.0, 8.0, 7.0], [9.0, 1.0, 2.0], [9.0, 0.0, 7.0]])
  np.testing.assert_array_equal(fork_of(tokens, entropy), [0, 2, 1])
  np.testing.assert_array_equal(fork_of(tokens, entropy, (4,)), [0, 2, 1])
  np.testing.assert_array_equal(fork_of(tokens, entropy, (5,)), [0, 1, 0])


@pytest.mark.parametrize('way', ['columns', 'entropy', 'steps'])
def test_eight_devices_sample_as_one_does(way):
  model, params, want = _sampled(way)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = _run(WAYS[way], model, params)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.node, want.node)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


def test_a_model_that_cannot_share_is_named():
  _, model, params = small_model()
  model = dataclasses.replace(model, fork=None)
  with pytest.raises(ValueError, match=r'rl.tree.width: .*Model.fork'):
    _run(COLUMNS, model, params)
