"""Experts: grouped products equal a loop, and routes can be replayed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_config, small_model

from jaxrl_reason import sharding
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import transformer, weights
from jaxrl_reason.models.parts import moe
from jaxrl_reason.rollouts import sampler

E, K, D, F = 4, 2, 6, 5
MOE = dict(experts=E, experts_per_token=K, mlp=8, expert_norm=True)


@pytest.fixture(scope='module')
def model():
  return small_model(**MOE)


def rows(seed=0, n=8, t=7):
  tokens = jax.random.randint(jax.random.key(seed), (n, t), 0, 16)
  valid = jnp.arange(t) >= jnp.arange(n)[:, None] % 4
  return tokens, valid


def test_weights_may_multiply_the_inputs_of_experts():
  """Computed in float64, token by token; scores choose where sigmoids are
  equal.
  """
  how = dict(router='sigmoid', expert_inputs=True, expert_norm=False)
  c = small_config(**MOE | how)
  x, p = experts()
  p['router'] *= 300  # so that most sigmoids are 0 or 1 in float32
  y, used = jax.jit(lambda x, p: moe.mlp(x, p, c))(x, p)
  x, p = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, p))
  for i, row in enumerate(x):
    scores, want = row @ p['router'], 0
    mine = np.argsort(-scores)[: c.experts_per_token]
    assert {*mine} == {*np.asarray(used['routes'][i]).tolist()}
    for e in mine:
      z = row / (1 + np.exp(-scores[e]))
      g = z @ p['gate'][e]
      want += (g / (1 + np.exp(-g)) * (z @ p['up'][e])) @ p['down'][e]
    np.testing.assert_allclose(y[i], want, rtol=1e-4, atol=1e-4)


def by_loop(x, p, k, normalise, routes=None):
  """Computes the layer in float64, token by token and expert by expert."""
  x, p = jax.tree.map(lambda a: np.asarray(a, np.float64), (x, p))
  y, used = np.zeros_like(x), []
  for i, row in enumerate(x):
    scores = row @ p['router']
    prob = np.exp(scores - scores.max())
    prob /= prob.sum()
    mine = np.argsort(-prob)[:k] if routes is None else routes[i]
    total = prob[mine].sum() if normalise else 1.0
    for e in mine:
      g = row @ p['gate'][e]
      out = (g / (1 + np.exp(-g)) * (row @ p['up'][e])) @ p['down'][e]
      y[i] += prob[e] / total * out
    used.append(mine)
  return y, np.array(used)


def experts(n=E, seed=0):
  keys = jax.random.split(jax.random.key(seed), 5)
  p = {
    'router': jax.random.normal(keys[0], (D, n)),
    'gate': jax.random.normal(keys[1], (n, D, F)),
    'up': jax.random.normal(keys[2], (n, D, F)),
    'down': jax.random.normal(keys[3], (n, F, D)),
  }
  return jax.random.normal(keys[4], (9, D)), p


@pytest.mark.parametrize('normalise', [False, True])
@pytest.mark.parametrize('replay', [False, True])
def test_equals_a_loop_over_tokens(normalise, replay):
  x, p = experts()
  c = small_config(**MOE | {'expert_norm': normalise})
  # Replayed: experts that are not the best, one of them used by all tokens.
  routes = np.stack([np.arange(9) % 3, np.full(9, 3)], 1) if replay else None
  want, used = by_loop(x, p, K, normalise, routes)
  given = None if routes is None else jnp.asarray(routes)
  f = jax.jit(lambda x, p, given: moe.mlp(x, p, c, given))
  y, out = f(x, p, given)
  np.testing.assert_allclose(y, want, rtol=2e-4, atol=2e-5)
  np.testing.assert_array_equal(np.sort(out['routes']), np.sort(used))


def test_no_token_is_dropped_if_all_use_one_expert():
  x, p = experts()
  routes = jnp.zeros((9, 1), int)
  c = small_config(**MOE)
  f = jax.jit(lambda x, p: moe.grouped_mlp(x, p, routes, c, E))
  y = f(x, p)[:, 0]
  one = {k: p[k][0] for k in ('gate', 'up', 'down')}
  want = (jax.nn.silu(x @ one['gate']) * (x @ one['up'])) @ one['down']
  np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  'dtype, tolerance', [('float32', 1e-5), ('bfloat16', 0.05)]
)
def test_gradients_are_those_of_every_expert_on_every_token(dtype, tolerance):
  """A token uses one expert twice, and one expert is unused. No sum uses a
  scatter, which is slow on TPUs.
  """
  x, p = jax.tree.map(lambda a: a.astype(dtype), experts())
  routes = jnp.stack([jnp.arange(9) % 2, jnp.full(9, 1)], 1)

  def loss(x, p, mlp):
    return jnp.sum(jnp.square(mlp(x, p)).astype(jnp.float32) * (x > 0)[:, None])

  def sparse(x, p):
    return moe.grouped_mlp(x, p, routes, small_config(**MOE), E)

  def dense(x, p):
    x, p = jax.tree.map(lambda a: a.astype(jnp.float32), (x, p))
    act = jax.nn.silu(jnp.einsum('md,edf->mef', x, p['gate']))
    y = act * jnp.einsum('md,edf->mef', x, p['up'])
    y = jnp.einsum('mef,efd->med', y, p['down'])
    return jnp.take_along_axis(y, routes[..., None], axis=1)

  got, want = (jax.grad(loss, (0, 1))(x, p, f) for f in (sparse, dense))
  for a, b in zip(*map(jax.tree.leaves, (got, want))):
    b = np.asarray(b, np.float32)
    a = np.asarray(a, np.float32)
    np.testing.assert_allclose(a, b, atol=tolerance * (abs(b).max() + 1e-6))
  program = jax.make_jaxpr(jax.grad(loss, (0, 1)), static_argnums=2)
  assert 'scatter-add' not in str(program(x, p, sparse))


@pytest.mark.parametrize('n', [8, 512], ids=['few', 'many'])
@pytest.mark.parametrize('shape', [(1, 4, 2), (2, 4, 1)])
def test_a_split_by_expert_changes_nothing(shape, n):
  """Devices exchange the tokens if there are few, and otherwise the weights.
  Values and gradients are equal.
  """
  _, p = experts()
  x = jax.random.normal(jax.random.key(7), (n, D))
  c = small_config(**MOE | {'mlp': F})

  def f(p, x):
    y, _ = moe.mlp(x, p, c)
    return jnp.sum(jnp.sin(y)), y

  both = jax.jit(jax.grad(f, has_aux=True))
  want = both(p, x)
  mesh = sharding.make_mesh(shape)

  def put(x, *axes):
    return jax.device_put(np.asarray(x), jax.NamedSharding(mesh, jax.P(*axes)))

  with jax.set_mesh(mesh):
    split = {k: put(v, 'fsdp') for k, v in p.items() if k != 'router'}
    split['router'] = put(p['router'])
    args = split, put(x, ('data', 'fsdp'))
    text = both.lower(*args).compile().as_text()
    got = both(*args)
  assert ('reduce-scatter' in text) and 'all-gather' in text
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
    got,
    want,
  )


def test_a_row_that_is_not_finite_changes_no_other():
  _, p = experts(16)
  c = small_config(**MOE | {'experts': 16, 'mlp': F})
  x = jax.random.normal(jax.random.key(7), (16, D))
  x = x.at[3].set(jnp.inf)
  routes = jnp.arange(32).reshape(16, K) % 16
  f = jax.jit(lambda p, x: moe.mlp(x, p, c, routes)[0])
  want = f(p, x)
  with jax.set_mesh(sharding.make_mesh((1, 8, 1))):
    got = f(p, x)
  others = np.arange(16) != 3
  np.testing.assert_allclose(got[others], want[others], atol=1e-5)
  assert np.isfinite(want[others]).all() and not np.isfinite(got[3]).any()


@pytest.mark.parametrize('kind', ['plain', 'biases', 'of_inputs'])
@pytest.mark.parametrize('uses', ['spread', 'one expert'])
def test_a_device_with_few_or_all_uses_computes_the_same(kind, uses):
  """With eight devices there is room for half of the uses. Values and gradients
  are those of one device, also if a device owns all uses.
  """
  n_experts, n = 16, 16
  how = MOE | {'experts': n_experts, 'mlp': F}
  _, p = experts(n_experts)
  if kind == 'biases':
    keys = jax.random.split(jax.random.key(3), 3)
    for name, key in zip(moe.PROJECTIONS, keys):
      shape = n_experts, p[name].shape[-1]
      p[name + '_bias'] = jax.random.normal(key, shape)
  if kind == 'of_inputs':
    how |= dict(router='sigmoid', expert_inputs=True, expert_norm=False)
  c = small_config(**how)
  x = jax.random.normal(jax.random.key(7), (n, D))
  routes = jnp.arange(n * K).reshape(n, K) % n_experts
  if uses == 'one expert':
    routes = jnp.tile(jnp.arange(K), (n, 1))

  def f(p, x):
    y, _ = moe.mlp(x, p, c, routes)
    return jnp.sum(jnp.sin(y)), y

  both = jax.jit(jax.grad(f, has_aux=True))
  want = both(p, x)
  with jax.set_mesh(sharding.make_mesh((1, 8, 1))):
    got = both(p, x)
    text = str(jax.make_jaxpr(both)(p, x))
  assert 'cond[' in text
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4),
    got,
    want,
  )


def test_few_uses_are_named_by_the_rows_that_they_have_room_for():
  """Sixteen devices have one use each if balanced, and room for eight."""
  _, p = experts(1)
  c = small_config(**MOE | {'mlp': F})
  x, one = jnp.ones((16, D)), jnp.ones((16, 1))
  mine = jnp.where(jnp.arange(16) == 3, 0, 1)[:, None]
  f = jax.jit(lambda x: moe._of_own(x, p, mine, one, c, 1, 16))
  assert 'own_rows_of_8' in f.lower(x).as_text(debug_info=True)


def test_replaying_its_own_routes_changes_nothing(model):
  """Compares values and gradients, including those of the router."""
  _, m, params = model

  def loss(params, routes=None):
    h, aux = m.hidden_routed(params, *rows(), routes)
    return jnp.sum(jnp.sin(h) * rows()[1][..., None]), aux['routes']

  f = jax.jit(jax.value_and_grad(loss, has_aux=True))
  (a, routes), da = f(params)
  (b, again), db = f(params, routes)
  assert routes.shape == (8, 7, 3, K)
  np.testing.assert_array_equal(routes, again)
  np.testing.assert_allclose(a, b, rtol=1e-6)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), da, db
  )
  assert np.any(da['layers']['mlp']['router'])
  (other, _), _ = f(params, (routes + 1) % E)
  assert abs(other - a) > 1e-3


def test_sampled_routes_are_those_of_the_full_forward(model):
  """Compares routes of prompt and completion, without padding."""
  _, m, params = model
  tokens, valid = rows(n=4)
  out = jax.jit(
    lambda params: sampler.generate(
      m,
      params,
      tokens,
      valid,
      jax.random.key(3),
      Sampling.make(),
      jnp.array([-1]),
      n_samples=2,
      max_new=5,
      routes=True,
    )
  )(params)
  whole = jnp.concatenate([jnp.repeat(tokens, 2, 0), out.tokens], 1)
  mask = jnp.pad(jnp.repeat(valid, 2, 0), ((0, 0), (0, 5)), constant_values=1)
  hidden = jax.jit(m.hidden_routed)
  _, aux = hidden(params, whole, mask)
  real = np.asarray(mask)[:, :-1]  # the last token was never decoded
  assert out.routes.shape == aux['routes'].shape == (8, 12, 3, K)
  np.testing.assert_array_equal(
    np.sort(out.routes[:, :-1])[real], np.sort(aux['routes'][:, :-1])[real]
  )
  replayed, _ = hidden(params, whole, mask, out.routes)
  logits = m.unembed(params, replayed)[:, 6:-1]
  logp = jnp.take_along_axis(
    jax.nn.log_softmax(logits), out.tokens[..., None], 2
  )
  np.testing.assert_allclose(out.logp, logp[..., 0], atol=1e-5)


@pytest.mark.parity
def test_load_balance_equals_transformers_layer_by_layer(model):
  torch = pytest.importorskip('torch')
  theirs = pytest.importorskip(
    'transformers.models.qwen3_moe.modeling_qwen3_moe'
  )
  logits = jax.random.normal(jax.random.key(0), (2, 8, 7, E))
  probs = jax.nn.softmax(logits)
  valid = rows()[1]
  routes = jax.lax.top_k(probs, K)[1]
  balance = jax.vmap(moe.load_balance, (0, 0, None))
  got = balance(routes, probs, valid).mean()
  want = [
    theirs.load_balancing_loss_func(
      (torch.tensor(np.asarray(x)).reshape(-1, E),),
      E,
      K,
      torch.tensor(np.asarray(valid)),
    )
    for x in logits
  ]
  np.testing.assert_allclose(got, np.mean(want), rtol=1e-5)
  _, m, params = model
  aux = jax.jit(m.hidden_routed)(params, *rows())[1]
  assert aux['load_balance'] > K  # perfectly balanced would be K


def test_experts_are_split_over_devices():
  c, m, params = small_model(**MOE, kv_heads=4)
  mesh = sharding.make_mesh((1, 4, 2))
  where = sharding.shardings(weights.specs(c), mesh, sharding.TRAIN_RULES)
  up = where['layers']['mlp']['up']
  assert up.shard_shape((3, E, 16, 8)) == (3, 1, 16, 4)
  want = jax.jit(m.hidden)(params, *rows())
  with jax.set_mesh(mesh):
    placed = jax.tree.map(jax.device_put, params, where)
    got = jax.jit(m.hidden)(placed, *sharding.to_global(rows(), mesh))
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_flops_count_the_experts_a_token_uses(model):
  c, m, _ = model
  dense = dataclasses.replace(c, experts=0, experts_per_token=0)
  dense = transformer.build(dense)
  more = m.flops_per_token(0) - dense.flops_per_token(0)
  assert more == 2 * 3 * (16 * E + (K - 1) * 3 * 16 * 8)
