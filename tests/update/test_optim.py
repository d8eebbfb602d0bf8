"""Muon makes each projection's update orthogonal; other parameters use
AdamW.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason import trees
from jaxrl_reason.models import spec, transformer, weights, zoo
from jaxrl_reason.update import optim


def updates(tree, **changes):
  """Returns the first updates of trainable leaves from random gradients."""
  c = config_lib.Optimizer(lr=1.0, warmup_steps=0, clip_norm=0.0, **changes)
  tx = optim.make(c, 10)
  keys = iter(jax.random.split(jax.random.key(0), 50))
  grads = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), tree)
  step = jax.jit(lambda tree, grads: tx.update(grads, tx.init(tree), tree)[0])
  return trees.flatten(step(tree, grads))


@pytest.mark.parametrize('experts', [0, 2])
def test_muon_orthogonalises_every_matrix(experts):
  c = transformer.Config(
    16, 2, 16, 24, 4, 2, 4, tied=False, experts=experts,
    experts_per_token=min(experts, 1),
  )  # fmt: skip
  params = spec.init(transformer.build(c).specs, jax.random.key(1))
  params, _ = trees.split(params, '.*(attn|mlp)/.*|embed|.*norm|head')
  found, adam = updates(params, name='muon'), updates(params, name='adamw')
  matrices = {'attn/q': (16, 16), 'attn/o': (16, 16), 'attn/k': (16, 8)}
  matrices |= {'mlp/gate': (16, 24), 'mlp/down': (24, 16)}
  for name, shape in matrices.items():
    stacked = found[f'layers/{name}'].reshape(-1, *shape)
    assert len(stacked) == 2 * max(experts, 1) ** ('mlp' in name)
    for matrix in np.asarray(stacked):
      s = np.linalg.svd(matrix)[1]
      assert s.min() > 0.5 * s.max()  # five Newton-Schulz steps: 0.7 to 1.2
      assert 0.1 < np.sqrt((matrix**2).mean()) < 0.3
  for name in ('embed', 'head', 'final_norm', 'layers/attn_norm'):
    # The updates have the signs of the first gradient.
    np.testing.assert_array_equal(np.sign(found[name]), np.sign(adam[name]))


# Arrays of layers that are no matrix from states to states.
NO_MATRICES = 'bias', 'conv', 'part', 'predict', 'correct'


@pytest.mark.parametrize('size', zoo.ZOO)
def test_muon_knows_the_matrices_of_every_kind_of_layer(size):
  specs = trees.flatten(weights.specs(zoo.ZOO[size]))
  for path, s in specs.items():
    n = len(s.shape) - spec.n_stacked(s)
    if f'/{weights.INDEX}/' in path:  # weights of an indexer are not trained
      continue
    if n > 1 and '/' in path and not path.endswith(NO_MATRICES):
      assert sum(optim.PROJECTIONS[path.rpartition('/')[2]]) == n, path


@pytest.mark.parametrize('name', sorted(set(optim.OPTIMIZERS) - {'sgd'}))
def test_weight_decay_is_times_the_learning_rate(name):
  c = transformer.Config(16, 2, 16, 24, 4, 2, 4, tied=False)
  params = spec.init(transformer.build(c).specs, jax.random.key(1))
  own = config_lib.Optimizer(
    name=name, lr=1e-2, warmup_steps=0, weight_decay=0.1
  )
  tx = optim.make(own, 10)
  zeros = jax.tree.map(jnp.zeros_like, params)
  found = trees.flatten(tx.update(zeros, tx.init(params), params)[0])
  for path, w in trees.flatten(params).items():
    rate = 0.0 if path.endswith('norm') else 1e-3
    np.testing.assert_allclose(found[path], -rate * w, rtol=1e-5, err_msg=path)


def test_weight_decay_skips_the_vectors_beside_a_model():
  names = 'steering', 'value_head', 'reward_head'
  assert not any(optim.decayed(dict.fromkeys(names, jnp.ones(3))).values())


def test_adafactor_keeps_its_means_in_float32():
  c = config_lib.Optimizer(name='adafactor', state_dtype='bfloat16')
  with pytest.raises(ValueError, match="set state_dtype='float32'"):
    optim.make(c, 10)


@pytest.mark.parametrize('name', optim.OPTIMIZERS)
def test_frozen_parameters_need_no_state(name):
  c = transformer.Config(16, 2, 16, 24, 4, 2, 4)
  params = spec.init(transformer.build(c).specs, jax.random.key(1))
  chosen, _ = trees.split(params, '.*attn/(q|o)')
  assert set(updates(chosen, name=name)) == {'layers/attn/q', 'layers/attn/o'}


def test_means_in_bfloat16_follow_those_in_float32():
  """They need half of the memory. After 40 updates they differ by rounding."""
  rng = np.random.default_rng(0)
  grads = rng.normal(0.3, 1, (40, 64)).astype(np.float32)
  after = {}
  for dtype in ('float32', 'bfloat16'):
    c = config_lib.Optimizer(lr=1e-2, warmup_steps=0, state_dtype=dtype)
    tx = optim.make(c, 40)
    w = {'w': jnp.zeros(64)}
    state = tx.init(w)
    for g in grads:
      change, state = tx.update({'w': g}, state, w)
      w = optax.apply_updates(w, change)
    after[dtype] = w['w'], state
  means = [x for x in jax.tree.leaves(after['bfloat16'][1]) if x.ndim]
  assert [x.dtype for x in means] == [jnp.bfloat16] * 2
  got, want = after['bfloat16'][0], after['float32'][0]
  assert 0 < np.abs(got - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'state_dtype': 'bfloat16', 'b2': 0.999}, 'b2=0.999.*at most 0.99'),
    ({'state_dtype': 'int8'}, "state_dtype='int8'"),
  ],
)
def test_means_that_rounding_would_keep_constant_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    optim.make(config_lib.Optimizer(lr=1e-2, **changes), 10)
