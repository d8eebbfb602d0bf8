"""Eight devices in any mesh compute the numbers of one; invalid meshes are
refused.
"""

import re

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxrl_reason import sharding
from jaxrl_reason.logits import Sampling
from jaxrl_reason.planning import costs
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import step as step_lib

MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 2, 2, 2), (2, 1, 1, 4)]
# Each axis once. Runs of test_game_runs.py generate on (8, 1, 1).
GENERATING = [(1, 8, 1), (2, 2, 2), (2, 1, 1, 4)]
NEUTRAL = Sampling.make()
SETTINGS = {'kl_coef': 0.05, 'entropy_coef': 0.01}


def placed(learner, mesh):
  """Returns the initial state, laid out by the training rules."""
  state = L.state(learner)
  specs = sharding.shardings(learner.model.specs, mesh, sharding.TRAIN_RULES)
  where = sharding.state_shardings(state, specs, mesh, learner.offload)
  # Copies: a put may share the buffers that the step then donates.
  return jax.tree.map(
    lambda x, s: jax.device_put(np.asarray(x), s), state, where
  )


def keeping(step, start, rows):
  """Runs step(start, rows) and keeps the layout of the state."""
  where = jax.tree.map(lambda x: x.sharding, start)
  return programs.updating(step, 0, where)(start, rows)


def update(learner):
  return lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT)


@pytest.fixture(scope='module')
def expected():
  learner = L.learner(SETTINGS, micro_batches=2)
  batch = L.rollout_batch(learner)
  return learner, batch, *jax.jit(update(learner))(L.state(learner), batch)


def test_memories_of_groups_are_split_by_group():
  """Only caches of a loop over layers have the layers before the rows."""
  shapes = {
    'delay/groups/tokens': (16, 4),
    'replay/groups/rollout/routes': (8, 2, 3, 4, 5),
    'in_flight/slots/cache': (3, 8, 2, 3, 4),
    'refill/groups/reward': (12,),  # not divisible
    'delay/n': (),
  }
  state = {
    f'control/{k}': jax.ShapeDtypeStruct(x, jnp.float32)
    for k, x in shapes.items()
  }
  mesh = sharding.make_mesh((8, 1, 1))
  where = sharding.state_shardings(state, {}, mesh)
  parts = [where[f'control/{k}'].shard_shape(x) for k, x in shapes.items()]
  assert parts == [(2, 4), (1, 2, 3, 4, 5), (3, 1, 2, 3, 4), (12,), ()]


def updated_on(shape, learner, batch):
  """Returns (state, metrics) of the update on a mesh of eight devices."""
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    start = placed(learner, mesh)
    rows = sharding.to_global(batch, mesh)
    return keeping(update(learner), start, rows)


@pytest.mark.parametrize('shape', MESHES)
def test_update_on_eight_devices_equals_one(expected, shape):
  learner, batch, state, metrics = expected
  got, m = updated_on(shape, learner, batch)
  # SGD: the difference of the parameters is the gradient times lr.
  L.assert_close(got, state, rtol=1e-4, atol=1e-5)
  L.assert_close(m, metrics, rtol=1e-4, atol=1e-5)
  weight = got.params['layers']['mlp']['up']
  assert weight.sharding.spec == P(None, 'fsdp', 'tensor')
  shard = weight.addressable_shards[0].data.size
  assert shard * shape[1] * shape[2] == weight.size  # memory is really split


def fused(state, prompts):
  return L.fused(L.learner(SETTINGS), state, prompts)


@pytest.fixture(scope='module')
def stepped():
  """Returns the state and metrics after the fused step on one device."""
  return jax.jit(fused)(L.state(L.learner(SETTINGS)), L.prompts())


@pytest.mark.parametrize('shape', GENERATING)
def test_fused_step_on_eight_devices_equals_one(stepped, shape):
  """The step generates. Samples, rewards and the next state are equal."""
  want, m1 = stepped
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    start = placed(L.learner(SETTINGS), mesh)
    rows = sharding.to_global(L.prompts(), mesh)
    got, m8 = keeping(fused, start, rows)
  for name in ('tokens', 'reward_mean', 'length_mean', 'truncated'):
    np.testing.assert_allclose(m8[name], m1[name], rtol=1e-6)
  L.assert_close(m8, m1, rtol=1e-3, atol=1e-5)
  L.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_decoding_gathers_no_weight_per_token():
  """Weights split over fsdp are gathered once, before the loop over tokens."""
  learner = L.learner(SETTINGS)
  mesh = sharding.make_mesh((1, 8, 1))
  with jax.set_mesh(mesh):
    params = placed(learner, mesh).params
    rows = sharding.to_global(L.prompts(), mesh)
    text = jax.jit(L.sample).lower(params, rows).compile().as_text()
  gathers = [x for x in text.splitlines() if re.search(r'= .* all-gather', x)]
  assert any('sharding_constraint' in x for x in gathers)  # before the loop
  in_loop = [x for x in gathers if '/while/body/' in x]
  # The scan over layers, of prefill, is the only loop that gathers.
  assert not [x for x in in_loop if 'closed_call' not in x]


def test_chunks_of_logits_share_one_gathered_head():
  """The head is gathered once for all chunks, forward and backward."""
  mesh, gathers = sharding.make_mesh((1, 8, 1)), {}
  for chunk in (1, 4):
    learner = L.learner(SETTINGS, logprob_chunk=chunk)
    with jax.set_mesh(mesh):
      start = placed(learner, mesh)
      rows = sharding.to_global(L.rollout_batch(learner), mesh)
      where = jax.tree.map(lambda x: x.sharding, start)
      step = programs.updating(update(learner), 0, where)
      text = step.lower(start, rows).compile().as_text()
    head = sorted(learner.model.specs['head'].shape)
    gathers[chunk] = sum(
      n
      for c, n in costs.of(text, mesh).total().collectives.items()
      if c.kind == 'all-gather' and sorted(c.dims) == head
    )
  assert gathers[1] == gathers[4] > 0


def test_micro_batches_keep_their_rows_on_every_device():
  """With a reshape, the scanned axis would have the sharding of the rows."""
  from jaxrl_reason import batch as batch_lib

  mesh = sharding.make_mesh((8, 1, 1))
  with jax.set_mesh(mesh):
    x = sharding.to_global(np.zeros((32, 3), np.float32), mesh)
    parts = jax.jit(lambda x: batch_lib.split(x, 2))(x)
  assert parts.sharding.shard_shape(parts.shape) == (2, 2, 3)


def test_rows_does_nothing_without_a_mesh():
  x = jnp.ones((3, 2))
  assert sharding.rows(x) is x


def test_invalid_sharding_rules_are_refused():
  rules = sharding.TRAIN_RULES
  assert sharding.partition(('layers', 'embed', 'mlp'), rules) == P(
    None, 'fsdp', 'tensor'
  )
  with pytest.raises(ValueError, match='no sharding rule.*hedas'):
    sharding.partition(('hedas',), rules)
  with pytest.raises(ValueError, match='twice'):
    sharding.partition(('mlp', 'heads'), rules)
  with pytest.raises(ValueError, match='does not divide'):
    mesh = sharding.make_mesh((1, 1, 8))
    sharding.shardings(L.model_and_params()[0].specs, mesh, rules)


@pytest.mark.parametrize('shape', [(3, 1, 1), (-1, -1, 1), (2, 4)])
def test_impossible_meshes_are_refused(shape):
  with pytest.raises(ValueError, match='mesh='):
    sharding.make_mesh(shape)


def test_mesh_fills_in():
  assert dict(sharding.make_mesh((-1, 2, 1)).shape) == {
    'data': 4,
    'fsdp': 2,
    'tensor': 1,
    'context': 1,
  }


def test_a_context_axis_splits_queries_and_decoded_rows():
  """Scores are [rows, heads, T / c, T]; decoding has rows on every device."""
  learner = L.learner(SETTINGS)
  batch = L.rollout_batch(learner)
  mesh = sharding.make_mesh((1, 2, 1, 4))
  with jax.set_mesh(mesh):
    start = placed(learner, mesh)
    batch = sharding.to_global(batch, mesh)
    text = jax.jit(update(learner)).lower(start, batch).compile().as_text()
    rows = sharding.to_global(L.prompts(), mesh)
    decode = jax.jit(L.sample).lower(start.params, rows).compile().as_text()
  n, t = L.B * L.G, L.P + L.C
  assert f'f32[{n // 2},4,{t // 4},{t}]' in text
  assert not re.search(rf'f32\[{n // 2},4,{t},{t}\]', text)
  # The only activations that are gathered along T are keys and values.
  whole = rf'f32\[{n // 2},{t},16\]\S* all-gather'
  assert 'all-gather' in text and not re.search(whole, text)
  # Keys of completions [rows, kv heads, columns, width of a head].
  assert f'f32[{n // 8},4,{L.C},4]' in decode


def test_an_offloaded_reference_changes_nothing_and_stays_on_the_host(expected):
  _, batch, want, metrics = expected
  learner = L.learner(SETTINGS, micro_batches=2, reference_memory='host')
  got, m = updated_on((2, 4, 1), learner, batch)
  L.assert_close(m, metrics, rtol=1e-4, atol=1e-5)
  L.assert_close(got, want, rtol=1e-4, atol=1e-5)

  def kinds(tree):
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree)}

  assert kinds(got.ref_params) == {'pinned_host'}
  assert kinds(got.params) == {'device'}
