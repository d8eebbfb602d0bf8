"""Muon turns each projection's update into an orthogonal one; the rest is
AdamW's.
"""

import jax
import numpy as np
import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason import optim, trees
from jaxrl_reason.models import spec, transformer


def updates(tree, **changes):
  """The first updates of trainable leaves from random gradients."""
  c = config_lib.optimizer(1.0, warmup_steps=0, clip_norm=0.0, **changes)
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
    # Up to Nesterov momentum: signs of the first gradient.
    np.testing.assert_array_equal(np.sign(found[name]), np.sign(adam[name]))


@pytest.mark.parametrize('name', optim.OPTIMIZERS)
def test_frozen_parameters_need_no_state(name):
  c = transformer.Config(16, 2, 16, 24, 4, 2, 4)
  params = spec.init(transformer.build(c).specs, jax.random.key(1))
  chosen, _ = trees.split(params, '.*attn/(q|o)')
  assert set(updates(chosen, name=name)) == {'layers/attn/q', 'layers/attn/o'}
