"""The kernels' attention to a cache equals the einsum's."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.models.parts import cached, cached_cudnn, stored

B, I, K, G, H, P, R, LAYERS = 2, 3, 2, 4, 16, 20, 300, 3
S = B * I


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def entry(seed, rows, columns, *, kept=2, dtype='model', layers=LAYERS):
  shape = (layers, rows, K, columns, H)
  return tuple(
    stored.store(normal(seed + i, *shape), dtype) for i in range(kept)
  )


def masks(by_row, seen):
  """Returns prompts with padding; `seen` of R own columns differs by row."""
  prompt = jnp.arange(P) >= jnp.array([0, 7])[:, None, None]
  own = (jnp.arange(R) < seen)[None, None]
  if by_row:
    far = jnp.arange(I)[None, :, None]
    prompt = prompt & (jnp.arange(P) > 2 * far)
    own = own & (jnp.arange(R) >= 40 * jnp.arange(S)[:, None, None])
    own = own | (jnp.arange(R) == 0)
  return prompt, own


@pytest.mark.parametrize('dtype', ['model', 'int8'])
@pytest.mark.parametrize('kept', [1, 2])
@pytest.mark.parametrize('by_row', [False, True])
@pytest.mark.parametrize('special', [{}, {'cap': 3.0, 'sinks': True}])
def test_the_kernel_is_the_einsum(dtype, kept, by_row, special):
  q = normal(0, S, K * G, H)
  prompt = entry(1, B, P, kept=kept, dtype=dtype)
  own = entry(5, S, R, kept=kept, dtype=dtype)
  special = dict(special)
  if special.pop('sinks', False):
    special['sinks'] = normal(9, K * G)
  both = masks(by_row, 131)

  @functools.partial(jax.jit, static_argnums=0)
  def by(by_kernel, at):
    args = q, prompt, own, at, *both
    read = cached.by_kernel if by_kernel else cached.attend
    return read(*args, scale=0.3, **({'cap': 0.0} | special))

  got, want = (by(kernel, jnp.int32(2)) for kernel in (True, False))
  np.testing.assert_allclose(got, want, atol=2e-6)
  other = by(False, jnp.int32(1))
  assert np.abs(got - other).max() > 0.1


def plain_kernel(q, keys, values, seen):
  """Computes `cached_cudnn.kernel` with the shapes that cuDNN takes."""
  assert q.shape[1] % 2 == 0 and keys.shape[1] % 2 == 0
  assert seen.shape[1:] == (1, q.shape[1], keys.shape[1])
  scores = jnp.einsum('nmkh,ntkh->nkmt', q, keys)
  scores = jnp.where(seen, scores, -1e30)
  out = jnp.einsum('nkmt,ntkh->nmkh', jax.nn.softmax(scores), values)
  return out, jax.nn.logsumexp(scores, axis=-1)


@pytest.mark.parametrize('by_row', [False, True])
@pytest.mark.parametrize('group, cut', [(4, 0), (3, 1)])
def test_the_calls_of_cudnn_are_the_einsum(group, cut, by_row):
  """This includes odd numbers of heads in a group, and of columns."""
  q = normal(0, S, K * group, H)
  prompt, own = entry(1, B, P - cut), entry(5, S, R - cut)
  seen, seen_own = masks(by_row, 131)
  args = q, prompt, own, jnp.int32(2), seen[..., cut:], seen_own[..., : R - cut]
  want = cached.attend(*args, scale=0.3)
  got = cached_cudnn.attend(*args, scale=0.3, cap=0.0, kernel=plain_kernel)
  np.testing.assert_allclose(got, want, atol=2e-6)


def test_jax_has_the_function_of_cudnn():
  """It is no public function of jax, so that another version may not have it.
  The call is checked here, since no test has a GPU.
  """
  from jax._src.cudnn import fused_attention_stablehlo as cudnn

  known = inspect.signature(cudnn.dot_product_attention)
  how = dict(mask='mask', scale=1.0, return_residual=True)
  known.bind('query', 'key', 'value', **how)
  assert known.parameters['qkv_layout'].default == 'BTNH'
