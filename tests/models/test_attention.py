"""Every attention kernel equals the reference, which equals NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason import sharding
from jaxrl_reason.models.parts import (
  attention,
  blocked,
  kernel_choice,
  layers,
  windows,
)

N, T, Q, K, H = 2, 140, 4, 2, 8  # 140: two blocks of 128 once padded

# Segments of every row: left padding; three sequences and padding after them.
LEFT = np.arange(T) >= np.array([[0], [37]])
PACKED = np.repeat([[1, 2, 3, 0], [1, 2, 3, 0]], 35, axis=1)
PACKED[1, :60] = 1


def config(**changes):
  shape = dict(heads=Q, kv_heads=K, head_dim=H)
  return small_config(**(shape | changes))


def inputs():
  shapes = [(N, T, Q, H), (N, T, K, H), (N, T, K, H), (N, T, Q, H)]
  keys = jax.random.split(jax.random.key(0), 4)
  return [2 * jax.random.normal(k, s) for k, s in zip(keys, shapes)]


@functools.partial(jax.jit, static_argnums=(0, 2))
def values_and_gradients(c, valid, windows, q, k, v, cotangent, which):
  """Returns the output of real tokens and d sum(output * cotangent)."""
  real = jnp.asarray(valid > 0)[..., None, None]

  def f(q, k, v):
    attend = attention.make(attention.describe(valid), c, windows)
    out = jnp.where(real, attend(q, k, v, which), 0)
    return jnp.sum(out * cotangent), out

  grads, out = jax.grad(f, argnums=(0, 1, 2), has_aux=True)(q, k, v)
  return out, *(jnp.where(real, g, 0) for g in grads)


def numpy_attention(c, segments, window, q, k, v):
  """Computes attention in float64, one token and head at a time."""
  q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
  out = np.zeros(q.shape)
  for i, t, h in np.ndindex(N, T, Q):
    first = max(0, t + 1 - (window or T))
    if window < 0:  # the start of the segment, and then of the token's chunk
      first = np.argmax(segments[i] == segments[i, t])
      first = range(first, t + 1, -window)[-1]
    near = np.arange(first, t + 1)
    seen = near[segments[i, near] == segments[i, t]]
    s = k[i, seen, h * K // Q] @ q[i, t, h] * c.score_scale
    if c.attention_cap:
      s = c.attention_cap * np.tanh(s / c.attention_cap)
    p = np.exp(s - s.max())
    out[i, t, h] = p @ v[i, seen, h * K // Q] / p.sum()
  return out


CASES = {
  'causal': (LEFT, 0, 0.0),
  'window': (LEFT, 9, 0.0),
  'cap': (PACKED, 0, 2.0),
  'packed window': (PACKED, 9, 0.0),
  'chunks': (LEFT, -9, 0.0),
  'packed chunks': (PACKED, -16, 0.0),
}


@pytest.mark.parametrize('case', CASES)
def test_reference_equals_numpy(case):
  valid, window, cap = CASES[case]
  c = config(attention='einsum', attention_cap=cap)
  q, k, v, g = inputs()
  got = values_and_gradients(c, valid, (window,), q, k, v, g, 0)[0]
  want = numpy_attention(c, valid.astype(int), window, q, k, v)
  want = np.where((valid > 0)[..., None, None], want, 0)
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
  """Makes rows of T, and their last queries, several blocks."""
  monkeypatch.setattr(blocked, 'QUERIES', 32)


@pytest.mark.parametrize('kind', ['xla', 'splash', 'blocked'])
@pytest.mark.parametrize('case', CASES)
def test_kernels_equal_the_reference(kind, case):
  valid, window, cap = CASES[case]
  if cap and kind == 'xla':
    return  # refused, see below

  def of(kind):
    return values_and_gradients(
      config(attention=kind, attention_cap=cap), valid, (window,), *inputs(), 0
    )

  for got, want in zip(of(kind), of('einsum')):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


SINKS = jnp.array([-2.0, 3.0, 0.5, 9.0])


@functools.cache
def with_sinks(kind):
  """Returns values narrower than keys, and all gradients, with sinks."""
  c, (q, k, v, g) = config(attention=kind), inputs()
  real = jnp.asarray(LEFT)[..., None, None]

  @jax.jit
  def f(*args):
    def loss(q, k, v, sinks):
      attend = attention.make(attention.describe(LEFT), c, (9,))
      out = jnp.where(real, attend(q, k, v, 0, sinks), 0)
      return jnp.sum(out * g[..., :6]), out

    return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*args)

  return f(q, k, v[..., :6], SINKS)


def test_sinks_take_their_share_of_a_softmax():
  """A sink is a key with a value of zeros, token by token in float64."""
  _, out = with_sinks('einsum')
  q, k, v, _ = (np.asarray(x, np.float64) for x in inputs())
  for i, t, h in [(0, 0, 0), (0, 139, 3), (1, 37, 1), (1, 90, 2)]:
    near = np.arange(max(0, t - 8), t + 1)
    near = near[LEFT[i, near]]
    s = k[i, near, h * K // Q] @ q[i, t, h] * H**-0.5
    p = np.exp(np.append(s, SINKS[h]))
    want = p[:-1] @ v[i, near, h * K // Q, :6] / p.sum()
    np.testing.assert_allclose(out[i, t, h], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('kind', ['splash', 'blocked'])
def test_kernels_with_sinks_and_narrow_values(kind):
  for got, want in zip(
    jax.tree.leaves(with_sinks(kind)), jax.tree.leaves(with_sinks('einsum'))
  ):
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize('kind', ['einsum', 'splash', 'blocked', 'xla'])
def test_queries_may_be_the_last_of_their_rows(kind):
  """Their results equal those of a computation with all queries."""
  c, (q, k, v, g), start = config(attention=kind), inputs(), 61
  rows = attention.describe(jnp.asarray(LEFT))

  @jax.jit
  def f(q, k, v):
    def part(q, k, v, first):
      attend = attention.make(rows, c, (9,), first)
      return attend(q[:, first:], k, v, 0)[:, start - first :]

    def loss(*args):
      return jnp.sum(part(*args) * g[:, start:])

    grads = [jax.grad(loss, (0, 1, 2))(q, k, v, i) for i in (0, start)]
    return *(part(q, k, v, i) for i in (0, start)), *grads

  whole, some, grad_whole, grad_some = f(q, k, v)
  np.testing.assert_allclose(some, whole, rtol=1e-4, atol=2e-5)
  for x, y in zip(grad_some, grad_whole):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize('kind', ['einsum', 'splash'])
def test_layers_of_several_windows_choose_theirs_inside_the_program(kind):
  """A traced index of the window equals a static window."""
  c, windows = config(attention=kind), (0, 9, -9)
  for which, window in enumerate(windows):
    got = values_and_gradients(c, LEFT, windows, *inputs(), jnp.int32(which))
    want = values_and_gradients(c, LEFT, (window,), *inputs(), 0)
    for x, y in zip(got, want):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


def test_sequences_in_one_row_are_independent():
  """Compares hidden states of packed rows, with any padding between them."""
  c, model, params = small_model(windows=(0, 3, 0))
  a, b = jax.random.randint(jax.random.key(3), (2, 6), 0, 16)
  row = jnp.concatenate([jnp.zeros(2, int), a, jnp.zeros(1, int), b[:4]])
  ids = jnp.array([0] * 2 + [1] * 6 + [0] + [2] * 4)
  got = model.hidden(params, row[None], ids[None])[0]

  def alone(x):
    return model.hidden(params, x[None], jnp.ones((1, len(x)), bool))

  np.testing.assert_allclose(got[2:8], alone(a)[0], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(got[9:], alone(b[:4])[0], rtol=1e-4, atol=1e-5)


def test_holes_are_not_the_start_of_a_chunk():
  """Chunks count tokens. Tokens of one chunk are in one segment of splash."""
  valid = jnp.ones((1, 12), bool).at[0, [0, 4, 5, 9]].set(False)
  rows = attention.describe(valid)
  ids = windows.chunk_ids(rows.segments, rows.positions, -3)
  np.testing.assert_array_equal(ids[0], [0, 1, 1, 1, 0, 0, 2, 2, 2, 0, 3, 3])


def test_holes_are_not_the_start_of_a_segment():
  ids = jnp.array([[0, 1, 0, 1, 2, 0, 2, 2]])
  rows = attention.describe(ids)
  np.testing.assert_array_equal(rows.positions[ids > 0], [0, 1, 0, 1, 2])


def test_splash_on_a_mesh_equals_one_device():
  """Rows over 'data' and 'fsdp', heads over 'tensor', queries over 'context';
  also sizes that do not divide.
  """
  c = config(attention='splash')
  q, k, v, g = (jnp.concatenate([x, x + 1]) for x in inputs())
  valid = np.concatenate([LEFT, LEFT[::-1]])
  want = values_and_gradients(c, valid, (0,), q, k, v, g, 0)
  for shape in ((2, 2, 2), (8, 1, 1), (1, 2, 2, 2), (2, 1, 1, 4)):
    with jax.set_mesh(sharding.make_mesh(shape)):
      got = values_and_gradients(c, valid, (0,), q, k, v, g, 0)
    for x, y in zip(got, want):
      np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'attention': 'flash'}, 'attention.*splash'),
    ({'attention': 'xla', 'attention_cap': 50.0}, 'attention_cap=50.*splash'),
    ({'attention': 'cudnn'}, 'bfloat16.*float32'),
    (
      {'attention': 'cudnn', 'dtype': 'bfloat16', 'head_dim': 6},
      'multiple of 8.* 6',
    ),
  ],
)
def test_unsupported_kernels_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    small_config(**changes)


def test_auto_is_the_reference_on_cpu_where_rows_are_short(monkeypatch):
  """One block of queries is the same program; several blocks need less memory
  for scores.
  """
  assert kernel_choice.resolve(config(), T) == 'blocked'
  inputs_, rows = inputs(), attention.describe(jnp.asarray(LEFT))

  def program(kind):
    attend = attention.make(rows, config(attention=kind), (9,))
    return str(jax.make_jaxpr(lambda *x: attend(*x, 0))(*inputs_[:3]))

  assert program('auto') != program('einsum')
  monkeypatch.setattr(blocked, 'QUERIES', 140)
  assert program('auto') == program('einsum')
  monkeypatch.setattr(sharding, 'n_context_shards', lambda: 2)
  assert kernel_choice.resolve(config(), T) == 'einsum'


def test_blocks_skip_most_masked_scores():
  for n in (2048, 1024, 8192, 300, 129, 128, 7):
    found = blocked.spans(n)
    assert found[0][0] == 0 and found[-1][1] == n
    assert all(a[1] == b[0] for a, b in zip(found, found[1:]))
    assert len(found) <= blocked.MOST
  scores = sum((b - a) * b for a, b in blocked.spans(2048))
  assert scores < 0.6 * 2048**2


def test_moved_columns_and_their_gradient_are_those_of_take_along_axis():
  x, w = jax.random.normal(jax.random.key(0), (2, 3, 7, 2, 4))
  first = jnp.array([0, 2, 5])[:, None]
  there, back = (jnp.arange(7) + first) % 7, (jnp.arange(7) - first) % 7

  def moved(f):
    return jax.jit(jax.value_and_grad(lambda x: (f(x) * w).sum()))

  ours = moved(lambda x: layers.reordered(x, there, back))(x)
  theirs = moved(
    lambda x: jnp.take_along_axis(x, there[..., None, None], axis=1)
  )(x)
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  hlo = jax.jit(jax.grad(lambda x: layers.reordered(x, there, back).sum()))
  assert 'scatter' not in hlo.lower(x).as_text()


@pytest.mark.parametrize(
  'columns, split, kernel',
  [(37, 1, 'einsum'), (128, 1, 'einsum'), (129, 1, 'splash'),
   (37, 2, 'splash')],
)  # fmt: skip
def test_auto_on_a_tpu_pads_no_row_to_a_tile(
  monkeypatch, columns, split, kernel
):
  """Splash needs tiles of 128. If it is set by name, rows are padded."""
  monkeypatch.setattr(sharding, 'platform', lambda: 'tpu')
  monkeypatch.setattr(sharding, 'n_context_shards', lambda: split)
  assert kernel_choice.resolve(config(), columns) == kernel
  asked = config(attention='splash')
  assert kernel_choice.resolve(asked, columns) == 'splash'
