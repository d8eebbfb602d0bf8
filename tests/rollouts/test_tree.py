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

from jaxrl_reason import losses, sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.rollouts.tree import Tree, forks_of, generate

B, G, P, C = 4, 8, 6, 10
COLUMNS, ENTROPY = Tree(2, (1, 4)), Tree(2)
STEPS = Tree(2, ends=(3, 6, 9, 12))
WAYS = {
  'columns': COLUMNS,
  'late': Tree(4, (7,)),
  'entropy': ENTROPY,
  'steps': STEPS,
  'wide': Tree(4),
  'several': Tree(2, forks=3),
  'several steps': Tree(2, ends=STEPS.ends, forks=3),
}
BY_ENTROPY = ['entropy', 'steps', 'several', 'several steps']
STOP = jnp.array([0, 1])
GEMMA = dict(norm_place='sandwich', windows=(3, 0, 3), cache_dtype='int8')


def _prompts():
  r = np.random.default_rng(0)
  valid = np.arange(P) >= P - np.array([[2], [6], [4], [1]])
  return jnp.asarray(r.integers(2, 16, (B, P))), jnp.asarray(valid)


@functools.cache
def _small(shape=()):
  """Returns (Model, params)."""
  return small_model(**dict(shape))[1:]


@functools.cache
def _sampled(way: str | None, shape=()):
  model, params = _small(shape)
  return model, params, _run(way and WAYS[way], model, params)


@functools.cache
def _trainer(shape):
  """Returns a function: (tokens, valid) -> log-probs, compiled once."""
  model, params = _small(shape)

  @jax.jit
  def score(tokens, valid):
    rows = Rows(tokens, valid)
    return logprobs.score(model, params, rows, Sampling.make(), start=P)[0]

  return score


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
  shape = tuple(shape.items())
  _, _, out = _sampled(way, shape)
  tokens, valid = (jnp.repeat(x, G, axis=0) for x in _prompts())
  tokens = jnp.concatenate([tokens, out.tokens], axis=1)
  valid = jnp.concatenate([valid, out.sampled], axis=1)
  logp = _trainer(shape)(tokens, valid)[:, P:]
  gap = jnp.abs(jnp.where(out.sampled, logp - out.logp, 0))
  limit = 0.1 if 'cache_dtype' in dict(shape) else 1e-5
  assert out.sampled.any() and gap.max() < limit


@pytest.mark.parametrize('way', WAYS)
def test_first_leaves_are_the_completions_of_the_sampler(way):
  """A first child continues with the noise of its parent."""
  (_, _, out), (_, _, plain) = _sampled(way), _sampled(None)
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


@pytest.mark.parametrize('way', BY_ENTROPY)
def test_rows_fork_before_the_tokens_with_the_highest_entropies(way):
  """The leaves of a fork have other nodes from its token on, and those of the
  row before it. With ends of steps, only tokens after one are compared.
  """
  model, params, out = _sampled(way)
  tokens, valid = _prompts()
  keys = dict(n_samples=G, max_new=C, entropy=True)
  plain = sampler.generate(
    model, params, tokens, valid, jax.random.key(3), Sampling.make(), STOP,
    **keys,
  )  # fmt: skip
  how, checked = WAYS[way], 0
  for row in range(0, B * G, how.leaves):
    own, n = np.asarray(plain.tokens[row]).tolist(), int(plain.length[row])
    may = [i for i in range(1, n) if not how.ends or own[i - 1] in how.ends]
    node = np.asarray(out.node[row : row + how.leaves])
    if not may:
      assert (node == node[0]).all()
      continue
    by_entropy = sorted(may, key=lambda i: -float(plain.entropy[row, i]))
    chosen = (by_entropy[: how.forks] * how.forks)[: how.forks]
    seen = set(node[0].tolist())
    for leaf, at in enumerate(sorted(chosen, reverse=True), 1):
      np.testing.assert_array_equal(node[leaf, :at], node[0, :at])
      apart = set(node[leaf, at:].tolist()) - {0}
      assert apart and not apart & seen
      seen |= apart
    # The row's own nodes change at its forks, and nowhere else.
    moved = 1 + np.flatnonzero(np.diff(node[0, :n]))
    assert moved.tolist() == sorted(set(chosen))
    checked += len(set(chosen))
  assert checked > 3 * how.forks


def test_the_nodes_of_forks_that_a_row_chose():
  """Two forks with three children each, one fork chosen twice, and no fork."""
  got = Tree(3, forks=2).nodes_of_forks(jnp.array([[3, 1], [2, 2], [0, 0]]), 4)
  want = [
    [[0, 6, 6, 1], [0, 6, 6, 2], [0, 6, 6, 3], [0, 4, 4, 4], [0, 5, 5, 5]],
    [[0, 0, leaf, leaf] for leaf in range(1, 6)],
    [[0] * 4] * 5,
  ]
  np.testing.assert_array_equal(got, want)


def _advantages(fork, length, reward, root, weights):
  """Returns advantages [leaves,C] of a tree, from the leaves that share each
  token with a leaf: itself, and those that fork later, as it does.

  Args:
    fork: int [leaves], C for the row itself; weights: of root and parent.
  """
  adv = np.zeros((len(fork), C))
  for leaf, end in enumerate(length):
    value, below = root, None
    for t in range(end):
      same = [
        i for i, f in enumerate(fork) if i == leaf or t < min(f, fork[leaf])
      ]
      if same != below:
        parent, value, below = value, reward[same].mean(), same
      gain = value - np.array([root, parent])
      adv[leaf, t] = weights @ gain / len(same) ** 0.5
  return adv


@pytest.mark.parametrize('weights', [(1.0, 1.0), (0.0, 1.0)])
def test_advantages_are_those_of_the_leaves_below_each_token(weights):
  """Two trees of five leaves for each prompt; one forks twice at one token, and
  one has copies.
  """
  how, r = Tree(3, forks=2), np.random.default_rng(1)
  at = -np.sort(-r.integers(1, 5, (2 * B, 2)), axis=1)
  at[:2] = [2, 2], [0, 0]
  length = r.integers(5, C + 1, (2 * B, how.leaves))
  length[1] = 7
  there = jnp.asarray(np.arange(C) < length.reshape(-1, 1))
  node = how.numbered(how.nodes_of_forks(jnp.asarray(at), C), there, 10)
  group = np.repeat(np.arange(B), 10)
  reward = r.normal(size=length.shape)
  got = losses.tree(
    reward.ravel(), group, node + 100 * group[:, None], there,
    tree_global=weights[0], tree_local=weights[1],
  )  # fmt: skip
  fork = np.concatenate([np.zeros((2 * B, 1), int), at.repeat(2, 1)], axis=1)
  fork = np.where(fork > 0, fork, C)
  root = reward.reshape(B, 10).mean(1).repeat(2)
  want = [_advantages(*x, weights) for x in zip(fork, length, reward, root)]
  np.testing.assert_allclose(got, np.concatenate(want), atol=1e-5)


def test_a_row_with_few_places_forks_there_more_than_once():
  """It has no fork if it has one token, or ends with the end of a step."""
  tokens = jnp.array([[5, -1, -1], [5, 4, 5], [4, 5, -1]])
  entropy = jnp.array([[9.0, 8.0, 7.0], [9.0, 1.0, 2.0], [9.0, 0.0, 7.0]])
  for forks, ends, want in (
    (1, (), [[0], [2], [1]]),
    (1, (4,), [[0], [2], [1]]),
    (1, (5,), [[0], [1], [0]]),
    (2, (), [[0, 0], [2, 1], [1, 1]]),
    (3, (), [[0, 0, 0], [2, 2, 1], [1, 1, 1]]),
    (2, (5,), [[0, 0], [1, 1], [0, 0]]),
  ):
    np.testing.assert_array_equal(forks_of(tokens, entropy, ends, forks), want)


@pytest.mark.parametrize('way', ['columns', 'entropy', 'several steps'])
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
