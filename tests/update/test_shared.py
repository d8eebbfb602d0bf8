"""Computing a prompt once for its samples, or also the beginnings that samples
have in common, does not change the results.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
import test_algorithms as algorithms
from small import small_model

from jaxrl_reason import losses, sharding
from jaxrl_reason.base import Episode, Rows
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, logprobs, shared
from jaxrl_reason.models.adapters import frozen, lora
from jaxrl_reason.update import packing
from jaxrl_reason.update import step as step_lib

NEUTRAL = Sampling.make()
N, T = L.B * L.G, L.P + L.C
SHARED = packing.Shared(L.P, 1, L.G, L.B)
TREE = packing.Tree(L.P, 2, L.G, L.B)
BOTH = pytest.mark.parametrize('how', [SHARED, TREE], ids=['shared', 'tree'])


def slow(*case):
  return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture(scope='module')
def batch():
  """Returns lengths 1 to C, few of them long. The samples 0 and 1 of a prompt
  share three tokens, and 2 and 3 one, unless they end before.
  """
  batch = L.rollout_batch(L.learner())
  tokens = batch.tokens.reshape(L.B, L.G, T)
  tokens = tokens.at[:, 1, : L.P + 3].set(tokens[:, 0, : L.P + 3])
  tokens = tokens.at[:, 3, : L.P + 1].set(tokens[:, 2, : L.P + 1])
  batch = batch.replace(tokens=tokens.reshape(N, T))
  lengths = jnp.array([1, 2, 1, 3, 2, 1, 2, 5, 8, 1, 2, 3, 1, 1, 2, 4] * 2)
  short = jnp.arange(T) < L.P + lengths[:, None]
  return batch.replace(valid=batch.valid & short, mask=batch.mask & short)


def gradient(learner, batch, params=None):
  """Returns (gradient, metrics) of a minibatch, with log-probs of the loss."""
  params = L.model_and_params()[1] if params is None else params

  def f(batch):
    adv = step_lib.advantages(learner, batch)
    return step_lib.gradients(learner, params, batch, adv, NEUTRAL)

  return jax.jit(f)(batch)


@pytest.fixture(scope='module')
def apart(batch):
  """Returns a function: number of micro-batches -> (learner, gradient of rows
  apart).
  """

  def f(micro_batches):
    learner = L.learner(micro_batches=micro_batches)
    return learner, gradient(learner, batch)

  return functools.cache(f)


@BOTH
@pytest.mark.parametrize('micro_batches', [slow(1), 2, slow(4), slow(16)])
def test_gradients_equal_those_of_rows_apart(batch, apart, micro_batches, how):
  """Micro-batches have whole groups, or half a group."""
  plain, want = apart(micro_batches)
  got = gradient(dataclasses.replace(plain, packing=how), batch)
  L.assert_close(got, want, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize('how', [SHARED, slow(TREE)], ids=['shared', 'tree'])
def test_updates_equal_those_of_rows_apart(batch, how):
  """The updates have two minibatches, which mix the groups. Compares reference,
  old log-probs, loss, gradient and metrics.
  """
  settings = {'kl_coef': 0.1, 'entropy_coef': 0.01}
  plain = L.learner(settings, minibatches=2, logprob_chunk=3)
  mixed = dataclasses.replace(how, shuffled=True)

  def update(how):
    learner = dataclasses.replace(plain, packing=how)
    f = functools.partial(step_lib.update, learner)
    return jax.jit(f)(L.state(learner), batch, NEUTRAL, L.ROOT)

  L.assert_close(update(mixed), update(None))


# One preset for every set of arrays that losses read. The updates of the other
# presets differ only in the computation with log-probs.
READERS = {losses.resolve({'name': k}).needs: k for k in losses.PRESETS}
TAUGHT = {'teacher_logp', 'teacher_kl'}  # tests/update/test_teacher.py
MET = {k for needs, k in READERS.items() if not needs & TAUGHT}
QUICK = {'tbrm'}  # whole logits


def of_two_turns(batch):
  """Returns two turns; the second begins at the third token of a completion."""
  second = jnp.arange(T) >= L.P + 2
  turn = jnp.where(batch.valid & (jnp.arange(T) >= L.P), 1 + second, 0)
  reward = jax.random.uniform(jax.random.key(7), (N, 2))
  there = jnp.arange(1, 3) <= turn.max(axis=1, keepdims=True)
  reward = jnp.where(there, reward, jnp.nan)
  episode = Episode(reward, jnp.ones(N, bool), {})
  return batch.replace(turn=turn, episode=episode)


@pytest.mark.parametrize(
  'name',
  [k if k in QUICK else slow(k) for k in sorted(MET | QUICK)],
)
def test_presets_equal_those_of_rows_apart(batch, name):
  """Compares a whole update of two micro-batches, with a critic if needed."""
  learner = algorithms.learner(name, micro_batches=2)
  if 'is_offpolicy' in learner.needs:
    batch = batch.replace(
      is_offpolicy=batch.mask & (jnp.arange(N) % 4 == 3)[:, None]
    )
  batch = batch.replace(greedy_reward=jnp.ones(N), pass_rate=jnp.ones(N) / 2)
  if 'segment_reward' in learner.needs:
    batch = of_two_turns(batch)

  def update(how):
    f = functools.partial(
      step_lib.update, dataclasses.replace(learner, packing=how)
    )
    return jax.jit(f)(L.state(learner), batch, NEUTRAL, L.ROOT)

  want = update(None)
  for how in (SHARED, TREE):
    L.assert_close(update(how), want)


def tail(batch, params, model, how, routes=None, **changes):
  """Returns log-probs, entropies and the balance of experts, with the
  gradient.
  """
  temperature = jnp.repeat(jnp.linspace(0.5, 1.5, L.B), L.G)

  @jax.jit
  def f(params):
    rows = Rows(batch.tokens, batch.valid, temperature, routes)

    def loss(params):
      out = logprobs.score(
        model, params, rows, Sampling.make(top_k=5), how, start=L.P, **changes
      )
      logp, entropy, balance = out
      logp, entropy = (jnp.where(batch.mask, x, 0) for x in (logp, entropy))
      balance = 0.0 if balance is None else balance
      total = jnp.sum(logp * jnp.cos(jnp.arange(T))) + balance
      return total + 0.1 * jnp.sum(entropy), (logp, entropy, balance)

    return jax.grad(loss, has_aux=True)(params)

  return f(params)


def layout(batch, how):
  which, options = how.options(batch)
  return options[int(which)](batch)[1]


MODELS = {
  'windows': dict(windows=(0, 5), layers=2, attention_cap=2.0),
  'narrow window': dict(windows=(3, 3), layers=2),
  'chunks': dict(windows=(-4, 0), layers=2),
  'caps': dict(attention_cap=2.0, logit_cap=3.0),
  'xla': dict(attention='xla'),
  'unrolled, remat': dict(train_layers='unroll', remat='full'),
  'sinks': dict(sinks=True, layers=2),
  'latent': dict(
    kv_heads=4, kv_rank=6, rope_dim=2, value_dim=3, qk_norm=False, layers=2
  ),
  'indexer': dict(
    kv_heads=4,
    kv_rank=6,
    q_rank=5,
    rope_dim=2,
    value_dim=3,
    qk_norm=False,
    layers=2,
    index_topk=4,
    index_heads=2,
    index_dim=3,
  ),
  'delta rule': dict(
    delta_layers=(0, 2),
    delta_heads=2,
    delta_groups=2,
    delta_key_dim=3,
    delta_value_dim=4,
    delta_taps=3,
    norm_eps=0.1,
  ),
  'convolution': dict(
    delta_layers=(0, 2),
    delta_heads=2,
    delta_groups=1,
    delta_value_dim=5,
    delta_taps=4,
  ),
  'sandwich norms': dict(norm_place='sandwich', norm_offset=1.0),
  'streams': dict(
    layers=2,
    streams=3,
    low_rank=2,
    layer_inputs=4,
    layer_inputs_vocab=20,
    mlp_sparsity=(0.5, 0.0),
    norm_eps=0.1,
  ),
}


@pytest.mark.parametrize(
  'case', [k if k in ('windows', 'xla') else slow(k) for k in MODELS]
)
def test_models_of_every_kind(batch, case):
  changes = dict(vocab=24) | MODELS[case]
  _, model, params = small_model(**changes)
  want = tail(batch, params, model, None)
  for how in (SHARED, TREE):
    got = tail(batch, params, model, layout(batch, how))
    # The kernels 'xla' and 'einsum' differ by 3e-6 on the same rows.
    L.assert_close(got, want, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize(
  'how, replayed', [slow(SHARED, False), (SHARED, True), (TREE, False)]
)
def test_experts_choose_and_balance_as_for_rows_apart(batch, how, replayed):
  """A prompt, or a shared token, counts for each of its rows in the load."""
  _, model, params = small_model(
    vocab=24, layers=2, experts=4, experts_per_token=2
  )
  routes = None
  if replayed:
    shape = (L.B, L.G, T, 2, 2)
    routes = jax.random.randint(jax.random.key(0), shape, 0, 4)
    routes = routes.at[:, :, : L.P].set(routes[:, :1, : L.P])
    routes = routes.reshape(N, T, 2, 2)
  got = tail(batch, params, model, layout(batch, how), routes)
  want = tail(batch, params, model, None, routes)
  L.assert_close(got, want, rtol=1e-4, atol=2e-6)


def test_adapters_over_int8_weights(batch):
  target = dict(frozen_dtype='int8', trainable='lora/.*')
  model = adapters.attach(L.MODEL, lora=lora.Lora(2, 4.0), **target)
  params = frozen.init(model.specs, jax.random.key(0))
  params['lora'] = jax.tree.map(lambda x: x + 0.1, params['lora'])
  plain = dataclasses.replace(L.learner(), model=model, trainable='lora/.*')
  shared = dataclasses.replace(plain, packing=SHARED)
  got, want = (gradient(x, batch, params) for x in (shared, plain))
  L.assert_close(got, want, rtol=1e-4, atol=2e-6)


@BOTH
@pytest.mark.parametrize(
  'shape', [slow((8, 1, 1)), slow((1, 2, 2, 2)), (2, 2, 1, 2)]
)
def test_meshes_equal_one_device(batch, apart, shape, how):
  plain, want = apart(2)
  mesh = sharding.make_mesh(shape)
  with jax.set_mesh(mesh):
    got = gradient(
      dataclasses.replace(plain, packing=how),
      sharding.to_global(batch, mesh),
    )
  L.assert_close(got, want)


def flops(model, params, batch, how) -> float:
  """Counts FLOPs of log-probs and their gradient in the compiled program, by
  XLA.
  """

  def f(params):
    rows = Rows(batch.tokens, batch.valid)
    out = logprobs.score(model, params, rows, NEUTRAL, how, start=L.P)
    return jnp.sum(jnp.where(batch.mask, out[0], 0))

  return jax.jit(jax.grad(f)).lower(params).compile().cost_analysis()['flops']


def test_flops_fall_by_the_share_of_tokens(batch):
  """The model has wide layers, so every token has the same cost."""
  _, model, params = small_model(
    vocab=24, width=64, mlp=256, layers=2, train_layers='unroll'
  )
  whole = flops(model, params, batch, None)
  share = (L.P / L.G + L.C) / T
  once = flops(model, params, batch, layout(batch, SHARED))
  assert once < 1.05 * share * whole
  share = (L.P / L.G + L.C / TREE.sizes) / T
  assert flops(model, params, batch, layout(batch, TREE)) < 1.1 * share * whole


def test_rows_share_the_tokens_before_they_differ():
  """Rows with other prompts share nothing, and padding is no token."""
  tokens = jnp.asarray([[5, 6, 7], [5, 6, 8], [5, 6, 7], [5, 6, 0]])
  valid = tokens > 0
  same = (jnp.asarray([0, 0, 1, 0]),)
  which, found = shared.beginnings(tokens, valid, same, 1, [6, 7, 12])
  assert int(which) == 1  # 7 distinct tokens
  (source,), (place,) = found[1].source, found[1].place
  assert source.tolist() == [0, 1, 2, 5, 6, 7, 8]
  assert place.tolist() == [[0, 1, 2], [0, 1, 3], [4, 5, 6], [0, 1, 7]]
  assert found[1].rows.tolist() == [[3, 3, 1], [3, 3, 1], [1] * 3, [3, 3, 1]]
  np.testing.assert_array_equal(
    found[1].spread(found[1].gather(tokens)), tokens
  )


def test_rows_of_a_shuffled_part_find_their_prompts():
  """For any rows, each has its own prompt, and the number of prompt slots is
  sufficient.
  """
  rng = np.random.default_rng(0)
  how = packing.Shared(3, 1, 4, 6, shuffled=True)
  for n in (1, 2, 5, 8, 24):
    index = jnp.asarray(rng.permutation(np.repeat(np.arange(6), 4))[:n])
    sizes = how.most(n)
    assert sizes[-1] >= len(np.unique(index))
    which, found = shared.layout(index, 3, 1, sizes)
    assert sizes[int(which)] >= len(np.unique(index))
    assert int(which) == 0 or sizes[int(which) - 1] < len(np.unique(index))
    rows = index[:, None] * jnp.ones((1, 5), int)
    prompts = found[int(which)].prompts(rows)
    np.testing.assert_array_equal(
      found[int(which)].for_rows(prompts)[:, 0], index
    )
    assert found[int(which)].uses.sum() == n


@pytest.mark.parametrize('n, most', [(8, 2), (2, 1), (4, 1), (6, 3), (1, 1)])
def test_rows_in_runs_never_have_more_prompts(n, most):
  """Any n consecutive rows of runs of 4, from the starts of parts of n rows."""
  found = packing.Shared(3, 1, 4, 6).most(n)
  runs = np.repeat(np.arange(6), 4)
  seen = {len(np.unique(runs[i : i + n])) for i in range(0, 24 - n + 1, n)}
  assert found == [most] and max(seen) <= most


def test_a_model_of_whole_rows_is_refused():
  model = dataclasses.replace(L.MODEL, hidden_shared=None)
  with pytest.raises(ValueError, match='rl.padding=.*whole rows only'):
    dataclasses.replace(L.learner(packing=SHARED), model=model)
