"""Hidden states of rollouts: equal to a model whose later layers add nothing,
computed without an array of all layers, and compared within groups.
"""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from models import family_shapes
from models.family_shapes import config
from small import small_config

from jaxrl_reason import batch as batch_lib
from jaxrl_reason import sharding, trees
from jaxrl_reason.models import adapters, families, spec, transformer
from jaxrl_reason.models.adapters import steering
from jaxrl_reason.rewards.kernels import KERNELS, novelty
from jaxrl_reason.rollouts.hidden_states import HiddenStates
from jaxrl_reason.rollouts.views import HIDDEN, Views

SHAPES = {
  'small': small_config(),
  'loop': small_config(train_layers='scan'),
  # Windows, dense layers before those with experts, and delta-rule layers.
  **{name: config(name) for name in ('gpt_oss', 'glm4_moe', 'qwen3_next')},
}
OUTPUTS = 'o', 'o_bias', 'down', 'down_bias'  # weights that write to the stream


def test_a_repeated_period_may_end_before_other_layers():
  """The first six layers repeat a period, and none of them has attention."""
  deep = family_shapes.NEMOTRON | {'hybrid_override_pattern': 'M-M-M-*-'}
  h = family_shapes.SHARED | deep | {'model_type': 'nemotron_h'}
  c = families.from_hf(h)
  assert max(n for n, _ in c.periods_of(6)) == 3
  model, params = built(c)
  tokens, valid = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6), bool)
  for layer in range(c.layers):
    got = model.hidden_after(params, tokens, valid, layer)
    rest = dataclasses.replace(c, train_layers='unroll')
    want = transformer.build(rest).hidden_after(params, tokens, valid, layer)
    np.testing.assert_allclose(got, want, atol=1e-5)


def built(c):
  model = transformer.build(c)

  def shake(key, x):
    return x + 0.3 * jax.random.normal(key, x.shape)

  def make():
    params = spec.init(model.specs, jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(tree, map(shake, keys, leaves))

  return model, jax.jit(make)()


def without_layers_after(params, c, layer: int):
  """Returns the weights with no output of later layers, and a final norm of
  weight 1.
  """
  flat = trees.flatten(params)
  for path, x in flat.items():
    stack, _, name = path.partition('/')[0], None, path.rpartition('/')[2]
    if stack in c.stacks and name in OUTPUTS:
      keep = jnp.array([i <= layer for i in c.stacks[stack]])
      flat[path] = jnp.where(keep.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
  flat['final_norm'] = jnp.full(flat['final_norm'].shape, 1.0 - c.norm_offset)
  return trees.unflatten(flat)


@pytest.mark.parametrize('name', SHAPES)
def test_states_are_those_of_a_model_without_later_layers(name):
  c = SHAPES[name]
  model, params = built(c)
  tokens = jax.random.randint(jax.random.key(2), (3, 7), 0, c.vocab)
  valid = jnp.arange(7) >= jnp.array([[0], [2], [1]])
  whole = jax.jit(model.hidden)
  after = jax.jit(model.hidden_after, static_argnums=3)
  seen = []
  for layer in range(c.layers):
    want = whole(without_layers_after(params, c, layer), tokens, valid)
    got = np.asarray(after(params, tokens, valid, layer), np.float64)
    seen.append(got)
    got = got / np.sqrt(np.mean(got**2, axis=-1, keepdims=True) + c.norm_eps)
    real = np.asarray(valid)
    np.testing.assert_allclose(got[real], want[real], atol=2e-4)
  assert all(np.abs(a - b).max() > 0.05 for a, b in zip(seen, seen[1:]))
  last = after(params, tokens, valid, -1)
  np.testing.assert_array_equal(
    last, after(params, tokens, valid, c.layers - 1)
  )


def test_adapters_change_the_states():
  """A vector is added to the state after its own layer."""
  model = adapters.attach(L.MODEL, steering=True)
  vectors = jax.random.normal(jax.random.key(4), (2, 16))
  params = L.model_and_params()[1]
  tokens, valid = jnp.arange(6)[None], jnp.ones((1, 6), bool)
  plain = L.MODEL.hidden_after(params, tokens, valid, 0)
  steered = params | {steering.KEY: vectors}
  got = model.hidden_after(steered, tokens, valid, 0)
  np.testing.assert_allclose(got, plain + vectors[0], atol=1e-5)


def rollout():
  return L.sample(L.model_and_params()[1], L.prompts())


def states(token, layers=(1,), **how):
  """Returns the states [N,D] of `rollout`, through the view."""
  hidden = HiddenStates(L.MODEL, layers, token, **how)
  views = Views(L.MODEL, (HIDDEN,), L.P, hidden=hidden)

  @jax.jit
  def see(params, out):
    return views(params, L.prompts(), out, L.ROOT).views[HIDDEN]

  got = see(L.model_and_params()[1], rollout())
  width = 16 * len(layers)
  assert got.shape == (L.B, L.G, width)
  return np.asarray(got).reshape(-1, width)


@pytest.mark.parametrize('token', ['last', 'mean', 'prompt_last'])
def test_tokens_by_name(token):
  """Compares row by row, without padding."""
  out, given = rollout(), L.prompts()
  got = states(token)
  assert len(set(np.asarray(out.length).tolist())) > 1
  for i in range(0, L.B * L.G, 5):
    prompt = np.asarray(given.tokens)[i // L.G][
      np.asarray(given.valid)[i // L.G]
    ]
    text = np.asarray(out.tokens)[i, : int(out.length[i])]
    row = jnp.asarray([[*prompt, *text]])
    params = L.model_and_params()[1]
    x = L.MODEL.hidden_after(params, row, jnp.ones(row.shape, bool), 1)[0]
    want = {
      'last': x[-1],
      'mean': x[len(prompt) :].mean(axis=0),
      'prompt_last': x[len(prompt) - 1],
    }[token]
    np.testing.assert_allclose(got[i], want, atol=2e-5)


def test_states_of_several_layers_are_concatenated():
  got = states('mean', layers=(1, 0), parts=2)
  want = [states('mean', layers=(layer,)) for layer in (1, 0)]
  np.testing.assert_allclose(got, np.concatenate(want, axis=1), atol=1e-5)


def test_micro_batches_change_nothing():
  np.testing.assert_allclose(states('mean', parts=8), states('mean'), atol=1e-5)


@pytest.mark.parametrize('shape', [(8, 1, 1), (1, 2, 2, 2)])
def test_eight_devices_equal_one(shape):
  mesh = sharding.make_mesh(shape)
  want = states('mean')
  hidden = HiddenStates(L.MODEL, (1,), 'mean', 2)
  rows = batch_lib.rows_of(L.prompts(), rollout())
  mask = batch_lib.sampled_of(rows, rollout())
  with jax.set_mesh(mesh):
    where = sharding.shardings(L.MODEL.specs, mesh, sharding.TRAIN_RULES)
    params = L.model_and_params()[1]
    params = jax.tree.map(
      lambda x, s: jax.device_put(np.asarray(x), s), params, where
    )
    got = jax.jit(hidden)(params, *sharding.to_global((rows, mask), mesh))
  np.testing.assert_allclose(got, want, atol=2e-5)


def arrays(jaxpr):
  """Yields the shape of every array of a program, inner programs too."""
  for eqn in jaxpr.eqns:
    yield from (v.aval.shape for v in eqn.outvars)
    for inner in jax.core.jaxprs_in_params(eqn.params):
      yield from arrays(inner)


def test_no_array_has_the_states_of_several_layers():
  """The sizes N, T, D and L differ from each other and from all others."""
  c = small_config(layers=5, width=28, vocab=24)
  model = transformer.build(c)
  n, t, d = 6, L.P + L.C, 28
  like = jax.ShapeDtypeStruct
  rows = batch_lib.Rows(like((n, t), jnp.int32), like((n, t), bool))
  params, mask = spec.abstract(model.specs), like((n, t), bool)

  def largest(f):
    """Counts the states [D] in the largest array of states of tokens."""
    found = arrays(jax.make_jaxpr(f)(params, rows, mask).jaxpr)
    sizes = [np.prod(s) // d for s in found if t in s and s[-1] == d]
    return max(sizes)

  def every(params, rows, mask):
    own = params, rows.tokens, rows.valid
    return jnp.stack([model.hidden_after(*own, i) for i in range(c.layers)])

  assert largest(every) == c.layers * n * t
  for layers in ((0,), (2,), (-1,), (0, 2, -1)):
    assert largest(HiddenStates(model, layers, 'last')) == n * t


def test_a_model_without_layers_is_refused():
  model = dataclasses.replace(L.MODEL, hidden_after=None)
  with pytest.raises(ValueError, match='no layers that can be read'):
    HiddenStates(model, (0,), 'last')


# --- novelty ------------------------------------------------------------------

RNG = np.random.default_rng(0)
STATES = RNG.normal(size=(3, 5, 7)) + 4 * RNG.normal(size=(3, 1, 7))


def score(name, states, **knobs):
  f = KERNELS[name].score
  return np.asarray(f(None, None, {}, {'hidden': jnp.asarray(states)}, **knobs))


def relative(states):
  """Returns states minus their mean, over their root mean squared length."""
  x = states - states.mean(0)
  return x / np.sqrt((x**2).sum(1).mean())


@pytest.mark.parametrize('k', [1, 3, 9])
def test_neighbours_by_numpy(k):
  want = []
  for group in STATES:
    x = relative(group)
    for i in range(5):
      d = sorted(np.linalg.norm(x[i] - x[j]) for j in range(5) if j != i)
      want.append(np.mean(d[:k]))
  np.testing.assert_allclose(
    score('novelty_neighbours', STATES, k=k), want, 1e-5
  )


@pytest.mark.parametrize('ridge', [0.1, 1.0])
def test_volume_by_numpy(ridge):
  want = []
  for group in STATES:
    x = relative(group)
    inverse = np.linalg.inv(ridge * np.eye(7) + x.T @ x)
    want += [v @ inverse @ v for v in x]
  got = score('novelty_volume', STATES, ridge=ridge)
  np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize('name', ['novelty_neighbours', 'novelty_volume'])
def test_novelty_is_of_the_group_alone(name):
  """Scale and common part do not matter; the order of samples moves only
  their scores; the sample far from the others is the most novel.
  """
  got = score(name, STATES).reshape(3, 5)
  moved = 7.0 * STATES + RNG.normal(size=(3, 1, 7))
  np.testing.assert_allclose(score(name, moved).reshape(3, 5), got, rtol=1e-4)
  order = RNG.permutation(5)
  swapped = score(name, STATES[:, order]).reshape(3, 5)
  np.testing.assert_allclose(swapped, got[:, order], rtol=1e-4)
  far = STATES.copy()
  far[:, 2] += 20
  assert np.all(score(name, far).reshape(3, 5).argmax(axis=1) == 2)


@pytest.mark.parametrize('name', ['novelty_neighbours', 'novelty_volume'])
def test_equal_samples_have_no_novelty(name):
  equal = np.repeat(STATES[:, :1], 5, axis=1)
  rounded = equal * (1 + 1e-6 * RNG.normal(size=STATES.shape))
  for states in (equal, rounded, STATES[:, :1], np.zeros((2, 4, 3))):
    assert np.all(np.abs(score(name, states)) < 5e-3)


def test_a_volume_counts_equal_samples():
  """m copies of one of two opposite states: 1 / (1 + m) of a weight of 1."""
  states = np.zeros((1, 6, 3))
  states[0, :3, 0], states[0, 3:, 0] = 1, -1
  # All six are on one line, of squared length 1: 1 / (1 + 6).
  np.testing.assert_allclose(score('novelty_volume', states), 1 / 7, rtol=1e-5)


@pytest.mark.parametrize(
  'f, knobs',
  [(novelty.neighbours, {'k': 0}), (novelty.volume, {'ridge': 0.0})],
)
def test_bad_knobs_are_refused(f, knobs):
  with pytest.raises(ValueError, match=next(iter(knobs))):
    f(None, None, {}, {'hidden': jnp.zeros((1, 2, 3))}, **knobs)
