"""The gated delta rule and Mamba-2 in chunks equal the recurrence in
float64.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_reason.models.parts import attention, delta


@dataclasses.dataclass(frozen=True)
class Shape:
  delta_heads: int = 2
  delta_groups: int = 3
  delta_key_dim: int = 5
  delta_value_dim: int = 4
  delta_taps: int = 3
  delta_rule: str = 'delta'
  dtype: str = 'float32'


C, N = Shape(), 2
MAMBA = Shape(delta_rule=delta.MAMBA)
WIDTH = 2 * C.delta_key_dim + C.delta_groups * C.delta_value_dim
TAPS = delta.Taps(
  jax.random.normal(jax.random.key(9), (C.delta_taps, C.delta_heads, WIDTH))
)
OF_MAMBA = TAPS.replace(
  bias=jax.random.normal(jax.random.key(8), (C.delta_heads, WIDTH)),
  skip=jax.random.normal(jax.random.key(7), (2, C.delta_groups, 1)),
)


def heads(t: int, strong: float = 1.0, seed: int = 0) -> delta.Heads:
  keys = jax.random.split(jax.random.key(seed), 3)
  by_head = N, t, C.delta_heads, C.delta_groups
  rates = jax.random.uniform(keys[1], by_head, minval=-1.0, maxval=1.0)
  return delta.Heads(
    mixed=jax.random.normal(keys[0], (N, t, C.delta_heads, WIDTH)),
    # The decay of some tokens is almost complete, and of others almost none.
    decay=-strong * jnp.exp(4 * rates),
    share=jax.random.uniform(keys[2], by_head),
  )


def on_paper(x: delta.Heads, ids: np.ndarray, mamba=False) -> np.ndarray:
  """Computes the recurrence one token at a time, f64; ids [N,T], 0: padding."""
  mixed, g, b = (np.asarray(a, np.float64) for a in (x.mixed, x.decay, x.share))
  out = np.zeros((*g.shape, C.delta_value_dim))
  for n, k in np.ndindex(N, C.delta_heads):
    seen, last = [], 0
    for t in np.flatnonzero(ids[n]):
      if ids[n, t] != last:
        seen, last = [], ids[n, t]
        memory = np.zeros((C.delta_groups, C.delta_key_dim, C.delta_value_dim))
      seen.append(mixed[n, t, k])
      taps = np.asarray(TAPS.weights, np.float64)[:, k]
      y = sum(w * u for w, u in zip(taps[::-1], seen[::-1]))
      y = y + np.float64(OF_MAMBA.bias[k]) if mamba else y
      y = y / (1 + np.exp(-y))
      q, key, v = np.split(y, [C.delta_key_dim, 2 * C.delta_key_dim])
      if not mamba:
        q, key = (a / np.sqrt(a @ a + 1e-6) for a in (q, key))
        q = q / C.delta_key_dim**0.5
      v = v.reshape(C.delta_groups, -1)
      memory = memory * np.exp(g[n, t, k])[:, None, None]
      known = 0 if mamba else np.einsum('h,ghu->gu', key, memory)
      change = b[n, t, k][:, None] * (v - known)
      memory = memory + key[:, None] * change[:, None]
      out[n, t, k] = np.einsum('h,ghu->gu', q, memory)
      out[n, t, k] += OF_MAMBA.skip[k] * v if mamba else 0
  return out


ROWS = {
  'a chunk': [[1] * 7] * 2,
  'several': [[1] * 150] * 2,
  'left-padded': [[0] * 60 + [1] * 90, [0] * 3 + [1] * 147],
  'packed': [
    [0] * 2 + [1] * 40 + [2] * 30 + [3] + [4] * 77,
    [1] * 64 + [2] * 64 + [3] * 20 + [0] * 2,
  ],
}


@pytest.fixture(scope='module')
def whole():
  def f(x, ids, of_rows, mamba=False):
    rows = attention.describe(ids if of_rows else ids > 0)
    c, taps = (MAMBA, OF_MAMBA) if mamba else (C, TAPS)
    return delta.over_rows(x, taps, rows, c, delta.empty(N, c))

  return jax.jit(f, static_argnums=(2, 3))


@pytest.mark.parametrize('name', ROWS)
@pytest.mark.parametrize('strong, mamba', [(0.01, 0), (1.0, 0), (1.0, 1)])
def test_chunks_are_the_recurrence(whole, name, strong, mamba):
  ids = np.array(ROWS[name])
  x = heads(ids.shape[1], strong)
  got, _ = whole(x, jnp.asarray(ids), name == 'packed', mamba)
  want = on_paper(x, ids, mamba)
  real = ids > 0
  most = 2e-5 if mamba else 3e-6  # keys of Mamba-2 are not of length 1
  np.testing.assert_allclose(got[real], want[real], atol=most)
  assert np.abs(want[real]).mean() > 0.05


def test_equal_keys_lose_no_digits():
  """Powers of the system grow to 1e17, but its inverse does not."""
  x = heads(64, 1e-4)
  x = x.replace(mixed=jnp.ones_like(x.mixed), share=jnp.ones_like(x.share))
  ids = np.ones((N, 64), int)
  rows = attention.describe(jnp.asarray(ids > 0))
  run = jax.jit(delta.over_rows, static_argnums=3)
  got, _ = run(x, TAPS, rows, C, delta.empty(N, C))
  np.testing.assert_allclose(got, on_paper(x, ids), atol=3e-6)


def test_one_token_some_tokens_and_chunks_go_on_from_one_another(whole):
  """Decodes two single tokens, then five columns of which one row has three
  tokens, then a chunk with two. The state equals that of one pass.
  """
  x = heads(9)
  ids = jnp.ones((N, 9), int)
  want, end = whole(x, ids, False)

  def part(a, b):
    return jax.tree.map(lambda y: y[:, a:b], x)

  state = delta.empty(N, C)
  there = jnp.ones(N, bool)
  for t in range(2):
    one = jax.tree.map(lambda y, t=t: y[:, t], x)
    out, new = delta.one_token(one, TAPS, there, C, state)
    np.testing.assert_allclose(out, want[:, t], atol=1e-5)
    _, same = delta.one_token(one, TAPS, ~there, C, state)
    jax.tree.map(np.testing.assert_array_equal, same, state)
    state = new
  has = jnp.arange(5) < 3
  out, state = delta.some_tokens(
    part(2, 7), TAPS, jnp.broadcast_to(has, (N, 5)), C, state
  )
  np.testing.assert_allclose(out[:, :3], want[:, 2:5], atol=1e-5)
  rows = attention.columns(attention.describe(ids > 0), 5, 9)
  out, state = delta.over_rows(part(5, 9), TAPS, rows, C, state)
  np.testing.assert_allclose(out, want[:, 5:], atol=1e-5)
  gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), state, end)
  assert max(jax.tree.leaves(gaps)) < 1e-5


@pytest.mark.parametrize('c, taps', [(C, TAPS), (MAMBA, OF_MAMBA)])
def test_rows_that_begin_together_need_no_choice_at_every_token(c, taps):
  """Three rows of each prompt: their states are copied once, or chosen."""
  tokens, prompt = heads(4), delta.empty(N, c)
  _, prompt = delta.some_tokens(tokens, taps, jnp.ones((N, 4), bool), c, prompt)
  new = jax.tree.map(lambda x: jnp.repeat(x, 3, axis=0), heads(2, seed=1))
  once = delta.begun(prompt, 3 * N)
  chosen = jax.tree.map(jnp.zeros_like, once)
  for t in range(2):
    one = jax.tree.map(lambda x, t=t: x[:, t], new)
    out, once = delta.decoded(one, taps, jnp.int32(t), c, prompt, once)
    at = jnp.full(3 * N, t)
    want, chosen = delta.decoded(one, taps, at, c, prompt, chosen)
    np.testing.assert_array_equal(out, want)
  jax.tree.map(np.testing.assert_array_equal, once, chosen)


def test_gradients_are_those_of_the_recurrence(whole):
  x, t = heads(70), 70
  ids = np.array([[0] * 5 + [1] * 30 + [2] * 35, [1] * 66 + [0] * 4])
  over = jax.random.normal(jax.random.key(3), on_paper(x, ids).shape)

  def by_chunk(x):
    out, _ = delta.over_rows(
      x, TAPS, attention.describe(jnp.asarray(ids)), C, delta.empty(N, C)
    )
    return jnp.sum(jnp.where((ids > 0)[..., None, None, None], out, 0) * over)

  def by_token(x):
    def step(carry, y):
      state, last = carry
      one, now = y
      fresh = delta.empty(N, C)
      state = delta.chosen((now != last) & (now > 0), fresh, state)
      out, state = delta.one_token(one, TAPS, now > 0, C, state)
      real = (now > 0)[:, None, None, None]
      return (state, now), jnp.where(real, out, 0)

    xs = jax.tree.map(lambda y: y.swapaxes(0, 1), (x, jnp.asarray(ids)))
    start = delta.empty(N, C), jnp.zeros(N, int)
    _, out = jax.lax.scan(step, start, xs, length=t)
    return jnp.sum(out.swapaxes(0, 1) * over)

  got, want = (jax.jit(jax.grad(f))(x) for f in (by_chunk, by_token))
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)
