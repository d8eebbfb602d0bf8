"""Episodes that share their first turns have the samples, rewards and log-probs
of episodes that do not.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model
from test_turns import ENV, GEMMA, MOST, B, C, Toy, gaps, how, play

from jaxrl_reason import sharding
from jaxrl_reason.rollouts.episode_tree import forks_of
from jaxrl_reason.rollouts.tree import Tree

G = 8
WAYS = {
  'turns': Tree(2, turns=(1, 2)),
  'entropy': Tree(4),
  'several': Tree(2, forks=3),
}
SHAPES = {'plain': {}, 'windows': GEMMA}


@functools.cache
def _small(shape: str):
  """Returns (Model, params)."""
  return small_model(**SHAPES[shape])[1:]


@functools.cache
def _played(way: str | None, shape: str = 'plain'):
  model, params = _small(shape)
  tree = {} if way is None else {'tree': WAYS[way]}
  out = play(model, params, how(chunk=3), n_samples=G, **tree)
  return model, params, out


def _texts(out) -> list[list[bytes]]:
  """Returns the bytes that each row sampled in each of its turns."""
  spelled = Toy().token_bytes()
  spelled += [b''] * 64
  arrays = (np.asarray(x) for x in (out.tokens, out.turn, out.sampled))
  rows = []
  for tokens, turn, own in zip(*arrays):
    drawn = (tokens[(turn == i + 1) & own] for i in range(MOST))
    rows.append([b''.join(spelled[t] for t in x) for x in drawn])
  return rows


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('way', WAYS)
def test_log_probs_are_those_of_the_trainer(way, shape):
  model, params, out = _played(way, shape)
  assert out.sampled.any() and gaps(model, params, out).max() < 1e-5


@pytest.mark.parametrize('way', WAYS)
def test_first_leaves_are_the_episodes_without_a_tree(way):
  out, plain = _played(way)[2], _played(None)[2]
  first = slice(0, None, WAYS[way].leaves)
  for name in ('tokens', 'turn', 'sampled', 'length', 'truncated', 'logp'):
    got, want = (getattr(x, name)[first] for x in (out, plain))
    np.testing.assert_allclose(got, want, atol=1e-5, err_msg=name)
  for x, y in zip(*(jax.tree.leaves(x.episode) for x in (out, plain))):
    np.testing.assert_allclose(x[first], y[first], atol=1e-6)
  assert not np.array_equal(out.tokens, plain.tokens)


@pytest.mark.parametrize('way', WAYS)
def test_every_leaf_is_an_episode_of_its_own_turns(way):
  """Its rewards and events are those of its own text, whatever it shares. The
  leaves of a tree have one state of the environment, so all that come to an end
  have as many turns.
  """
  out = _played(way)[2]
  reward, done = (np.asarray(x) for x in (out.episode.reward, ~out.truncated))
  malformed = np.asarray(out.episode.events['malformed'])
  n_turns = np.isfinite(reward).sum(1)
  for row, texts in enumerate(_texts(out)):
    said = [sum(x[: ENV.width]) for x in texts]  # the bytes that it reads
    said = np.array(said)[: n_turns[row]]
    np.testing.assert_allclose(reward[row, : n_turns[row]], said * 0.01, 1e-5)
    assert malformed[row] == (said % 3 == 0).sum()
  ended = 0
  for at in range(0, B * G, WAYS[way].leaves):
    leaves = slice(at, at + WAYS[way].leaves)
    found = n_turns[leaves][done[leaves]]
    ended += len(found)
    assert len(set(found.tolist())) <= 1
  assert ended > 8


@pytest.mark.parametrize('way', WAYS)
def test_rows_share_whole_turns_and_no_other_tokens(way):
  out = _played(way)[2]
  node = np.asarray(out.node).reshape(B, G, C)
  arrays = tokens, turn, logp = [
    np.asarray(x).reshape(B, G, C) for x in (out.tokens, out.turn, out.logp)
  ]
  np.testing.assert_array_equal(node > 0, turn > 0)
  moved = (node[..., 1:] != node[..., :-1]) & (node[..., 1:] > 0)
  assert (turn[..., 1:] > turn[..., :-1])[moved].all() and moved.any()
  if WAYS[way].turns:
    assert set(turn[..., 1:][moved]) <= {i + 1 for i in WAYS[way].turns}
  for a in range(G):
    for b in range(a):
      same = (node[:, a] == node[:, b]) & (node[:, a] > 0)
      for x in arrays:
        np.testing.assert_array_equal(x[:, a][same], x[:, b][same])
      if a // WAYS[way].leaves != b // WAYS[way].leaves:
        assert not same.any()
  shared = WAYS[way].shared(out)
  assert 0 < shared < 1
  # Siblings are sampled apart.
  assert len(np.unique(tokens.reshape(B * G, C), axis=0)) > B * G // 2


def test_forks_are_before_the_turns_with_the_highest_entropies():
  """Only first tokens of turns after the first are compared, not replies."""
  turn = jnp.array([[1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0], [1, 2, 2, 3, 0, 0]])
  own = jnp.array([[1, 0, 1, 0, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])
  entropy = jnp.array([[9.0, 8, 1, 7, 2, 5], [9, 8, 0, 0, 0, 0], [0.0] * 6])
  given = turn, own > 0, entropy
  np.testing.assert_array_equal(forks_of(*given), [[4], [0], [1]])
  want = [[4, 4, 2], [0, 0, 0], [3, 1, 1]]
  np.testing.assert_array_equal(forks_of(*given, 3), want)


@pytest.mark.parametrize('way', ['entropy', 'several'])
def test_an_episode_without_a_fork_has_copies(way):
  out = _played(way)[2]
  n_turns = np.isfinite(np.asarray(out.episode.reward)).sum(1)[::4]
  node, alone = np.asarray(out.node), 0
  for row, n in zip(range(0, B * G, 4), n_turns):
    copies = [np.array_equal(node[row], node[row + i]) for i in (1, 2, 3)]
    assert copies == [n == 1] * 3
    alone += n == 1
  assert 0 < alone < B * G // 4


@pytest.mark.parametrize('way', ['turns', 'several'])
def test_eight_devices_play_as_one_does(way):
  model, params, want = _played(way)
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = play(model, params, how(chunk=3), n_samples=G, tree=WAYS[way])
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_array_equal(got.node, want.node)
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  np.testing.assert_array_equal(got.episode.reward, want.episode.reward)


def test_a_model_that_cannot_share_is_named():
  _, model, params = small_model()
  model = dataclasses.replace(model, fork=None)
  with pytest.raises(ValueError, match=r'rl.tree.width: .*Model.fork'):
    play(model, params, tree=WAYS['turns'], n_samples=G)
