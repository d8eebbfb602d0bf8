"""Adapters: the base is exact if they are off, only they are trained, and
exports are equal.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import config as config_lib
from jaxrl_reason import losses, sharding, trees
from jaxrl_reason.base import Batch
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, families, spec
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import optim, scoring, step

LORA = lora.Lora(rank=2, alpha=3.0)


def adapted(seed=0, **changes):
  """Returns (base Model, adapted Model, parameters with effective adapters)."""
  c, base, params = small_model(seed)
  model = adapters.attach(base, lora=dataclasses.replace(LORA, **changes))
  ab = spec.init(model.specs[lora.KEY], jax.random.key(7))
  ab = jax.tree.map(lambda x: x + 0.1, ab)
  return base, model, params | {lora.KEY: ab}


@pytest.fixture(scope='module')
def trio():
  return adapted()


@pytest.fixture(scope='module')
def rows():
  tokens = jax.random.randint(jax.random.key(1), (4, 9), 0, 16)
  valid = jnp.arange(9) >= jnp.array([[0], [2], [1], [0]])
  return tokens, valid


def logits(model, params, rows):
  return np.asarray(model.unembed(params, model.hidden(params, *rows)))


def test_weights_are_adapted_in_one_order(trio):
  """Otherwise processes compile different programs, and keep each of them."""
  _, _, params = trio
  seen = []
  lora._with(params, lambda w, a, b: seen.append(id(a)) or w)
  flat = trees.flatten(params[lora.KEY])
  assert seen == [id(x) for path, x in flat.items() if path.endswith('/a')]


def test_alpha_0_equals_the_base_exactly(rows):
  base, model, params = adapted(alpha=0.0)
  wanted = logits(base, lora.base_of(params), rows)
  np.testing.assert_array_equal(logits(model, params, rows), wanted)


def test_new_adapters_and_no_adapters_equal_the_base_exactly(trio, rows):
  base, model, params = trio
  wanted = logits(base, lora.base_of(params), rows)
  fresh = spec.init(model.specs, jax.random.key(0))[lora.KEY]
  for tree in (params | {lora.KEY: fresh}, model.adapters_off(params)):
    np.testing.assert_array_equal(logits(model, tree, rows), wanted)
  assert np.abs(logits(model, params, rows) - wanted).max() > 0.01


@pytest.mark.parametrize('rslora', [False, True])
def test_beside_equals_merged(rows, rslora):
  base, model, params = adapted(rslora=rslora)
  scale = 3.0 / (2**0.5 if rslora else 2)
  by_hand = trees.flatten(lora.base_of(params))
  for path in ('layers/attn/q', 'layers/attn/o'):
    a, b = (trees.flatten(params[lora.KEY])[f'{path}/{x}'] for x in 'ab')
    w = by_hand[path]
    by_hand[path] = w + scale * (a @ b).reshape(w.shape)
  whole = lora.merged(params, scale)
  for path in ('layers/attn/q', 'layers/attn/o'):
    np.testing.assert_allclose(
      trees.flatten(whole)[path], by_hand[path], rtol=1e-5, atol=1e-6
    )
  np.testing.assert_allclose(
    logits(model, params, rows), logits(base, whole, rows), atol=1e-4
  )


def test_sampler_and_trainer_agree(trio):
  _, model, params = trio
  prompts = jnp.arange(8).reshape(2, 4)
  sampling, key = Sampling.make(1.0), jax.random.key(3)
  out = sampler.generate(
    model, params, prompts, prompts >= 0, key, sampling,
    jnp.array([-1]), n_samples=2, max_new=5,
  )  # fmt: skip
  tokens = jnp.concatenate([jnp.repeat(prompts, 2, 0), out.tokens], axis=1)
  z = model.unembed(params, model.hidden(params, tokens, tokens >= 0))
  logp = jax.nn.log_softmax(z)[:, 3:-1]
  logp = jnp.take_along_axis(logp, out.tokens[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(out.logp, logp, atol=1e-5)


def make_learner(model, trainable, algorithm='grpo'):
  c = config_lib.Optimizer(lr=1e-2)
  settings = losses.resolve({'name': algorithm, 'kl_coef': 0.1})
  return learner_lib.Learner(
    model, settings, optim.make(c, 10), start=4, trainable=trainable
  )


def make_batch():
  n, t = 4, 9
  tokens = jax.random.randint(jax.random.key(5), (n, t), 0, 16)
  ones = jnp.ones((n, t), bool)
  return Batch(
    tokens=tokens, valid=ones, mask=ones.at[:, :4].set(False),
    reward=jnp.array([1.0, 0, 0, 1]), reward_parts=jnp.ones((n, 1)),
    reward_valid=ones[:, 0], group=jnp.array([0, 0, 1, 1]),
    truncated=~ones[:, 0], temperature=jnp.ones(n),
    sampler_logp=jnp.full((n, t), -2.0),
  )  # fmt: skip


@pytest.mark.parametrize('trainable', ['lora/.*', '.*norm', '.*'])
def test_only_trained_weights_change_and_have_state(trio, trainable):
  base, model, params = trio
  if trainable != 'lora/.*':
    model, params = base, lora.base_of(params)
  learner = make_learner(model, trainable)
  assert learner.reads_reference
  state = learner_lib.init_state(learner, params)
  chosen = {
    p for p in trees.flatten(params) if trees.re.fullmatch(trainable, p)
  }
  n = sum(trees.flatten(params)[p].size for p in chosen)
  assert 2 * n <= trees.n_params(state.opt_state) <= 2 * n + 5  # and counts
  # The reference is a copy of the trained weights, or the adapters off.
  n_ref = trees.n_params(state.ref_params)
  assert n_ref == (0 if model.adapters_off else n)
  update = jax.jit(
    lambda state, batch: step.update(
      learner, state, batch, Sampling.make(), jax.random.key(0)
    )
  )
  after, metrics = update(state, make_batch())
  before, now = trees.flatten(params), trees.flatten(after.params)
  moved = {p for p in before if (before[p] != now[p]).any()}
  assert moved and moved <= chosen
  assert moved == chosen or trainable == '.*'
  assert jnp.isfinite(metrics['grad_norm'])


def test_gradients_of_a_part_are_those_of_the_whole(trio):
  base, _, params = trio
  params = lora.base_of(params)

  def of(trainable):
    return trees.flatten(
      step.gradients(
        make_learner(base, trainable, 'dr_grpo'),
        params,
        make_batch().replace(ref_logp=jnp.zeros((4, 9))),
        jnp.array([1.0, -1, -1, 1]),
        Sampling.make(),
      )[0]
    )

  whole, part = of('.*'), of('.*attn/(q|o)')
  assert set(part) == {'layers/attn/q', 'layers/attn/o'}
  for path, grad in part.items():
    np.testing.assert_allclose(grad, whole[path], rtol=1e-5, atol=1e-7)


def test_the_reference_of_adapters_is_the_base(trio, rows):
  base, model, params = trio
  learner = make_learner(model, 'lora/.*')
  state = learner_lib.init_state(learner, params)
  found = scoring.add_arrays(learner, state, make_batch(), Sampling.make())
  plain = make_learner(base, '.*')
  wanted = scoring.add_arrays(
    plain,
    learner_lib.init_state(plain, lora.base_of(params)),
    make_batch(),
    Sampling.make(),
  )
  np.testing.assert_array_equal(found.ref_logp, wanted.ref_logp)


@pytest.mark.parametrize(
  ('targets', 'words'),
  [('.*query', 'matches no weight'), ('.*', 'matches embed, not a projection')],
)
def test_targets_without_a_match_are_refused(tiny, targets, words):
  with pytest.raises(ValueError, match=words):
    adapters.attach(tiny[1], lora=dataclasses.replace(LORA, targets=targets))


EXPERTS = dict(experts=4, experts_per_token=2, mlp=8, kv_heads=4)


def test_each_expert_has_its_adapter(rows, tmp_path):
  """Separate adapters equal merged ones for each expert, sampler equals trainer
  also with one expert per device, and gradients are those of merged weights.
  """
  c, base, params = small_model(**EXPERTS)
  model = adapters.attach(
    base, lora=dataclasses.replace(LORA, targets='.*mlp/.*n|.*up')
  )
  assert {
    p.rpartition('/')[0]
    for p in trees.flatten(spec.abstract(model.specs[lora.KEY]))
  } == {'layers/mlp/up', 'layers/mlp/down'}
  ab = spec.init(model.specs[lora.KEY], jax.random.key(7))
  ab = jax.tree.map(lambda x: x + 0.1, ab)
  a, b = (ab['layers']['mlp']['up'][x] for x in 'ab')
  assert a.shape == (3, 4, 16, 2) and b.shape == (3, 4, 2, 8)
  by_hand = trees.flatten(params)
  for name in ('up', 'down'):
    w = np.array(by_hand[f'layers/mlp/{name}'])
    for at in np.ndindex(3, 4):
      a, b = (np.asarray(ab['layers']['mlp'][name][x][at]) for x in 'ab')
      w[at] += LORA.scale * (a @ b)
    by_hand[f'layers/mlp/{name}'] = jnp.asarray(w)
  whole, params = trees.unflatten(by_hand), params | {lora.KEY: ab}
  rows = jax.tree.map(lambda x: jnp.concatenate([x, x]), rows)

  def loss(model):
    return lambda params: jnp.sum(jnp.sin(model.hidden(params, *rows)))

  got, grads = jax.jit(jax.value_and_grad(loss(model)))(params)
  want, full = jax.jit(jax.value_and_grad(loss(base)))(whole)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)
  # d/db = scale a^T dW.
  a = np.asarray(ab['layers']['mlp']['up']['a'])
  db = LORA.scale * np.einsum('leir,leio->lero', a, full['layers']['mlp']['up'])
  found = grads[lora.KEY]['layers']['mlp']['up']['b']
  np.testing.assert_allclose(found, db, rtol=1e-3, atol=1e-4 * np.abs(db).max())
  merged = jax.jit(lambda p: lora.merged(p, LORA.scale))(params)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
    merged, whole,
  )  # fmt: skip
  mesh = sharding.make_mesh((1, 4, 2))
  where = sharding.shardings(model.specs, mesh, sharding.TRAIN_RULES)
  up = where[lora.KEY]['layers']['mlp']['up']['b']
  assert up.shard_shape((3, 4, 2, 8)) == (3, 1, 2, 8)
  with jax.set_mesh(mesh):
    placed = jax.tree.map(jax.device_put, params, where)
    split = jax.jit(loss(model))(placed)
  np.testing.assert_allclose(split, got, rtol=1e-4, atol=1e-3)
  with pytest.raises(ValueError, match='mlp/down has an adapter per expert'):
    table = families.FAMILIES['qwen3_moe'].TENSORS
    lora.save_peft(tmp_path, params, LORA, table, model.specs)


@pytest.mark.parametrize('rslora', [False, True])
@pytest.mark.parametrize('targets', ['.*attn/(q|v)|.*mlp/.*', '.*attn/k'])
def test_fused_tensors_have_the_product_of_their_parts(
  rslora, targets, tmp_path
):
  """The written adapter, times its scale, is the change of the whole tensor by
  merged adapters, and zero at the parts without one.
  """
  load = pytest.importorskip('safetensors.numpy').load_file
  _, base, params = small_model(kv_heads=1)
  settings = dataclasses.replace(LORA, rslora=rslora, targets=targets)
  model = adapters.attach(base, lora=settings)
  ab = spec.init(model.specs[lora.KEY], jax.random.key(7))
  params |= {lora.KEY: jax.tree.map(lambda x: x + 0.1, ab)}
  table = families.FAMILIES['phi3'].TENSORS
  lora.save_peft(tmp_path, params, settings, table, model.specs)
  found = load(tmp_path / 'adapter_model.safetensors')
  told = json.loads((tmp_path / 'adapter_config.json').read_text())
  flat, whole = map(
    trees.flatten, (params, lora.merged(params, settings.scale))
  )
  adapted = {p.rpartition('/')[0] for p in trees.flatten(ab)}
  rows = [row for row in table if adapted & {*row.leaves}]
  assert len(found) == 2 * 3 * len(rows)
  for row in rows:
    name = row.name.removesuffix('.weight').format(1)
    a, b = (found[f'base_model.model.{name}.lora_{x}.weight'] for x in 'AB')
    rank = told['rank_pattern'].get(name, told['r'])
    assert a.shape[0] == b.shape[1] == rank
    alpha = told['alpha_pattern'].get(name, told['lora_alpha'])
    scale = alpha / (np.sqrt(rank) if rslora else rank)
    changes = [np.asarray(whole[x][1] - flat[x][1]) for x in row.leaves]
    wanted = [x.reshape(a.shape[1], -1).T for x in changes]
    np.testing.assert_allclose(scale * b @ a, np.concatenate(wanted), atol=1e-5)


def test_an_adapter_without_a_tensor_is_refused(trio, tmp_path):
  _, model, params = trio
  table = families.FAMILIES['phi3'].TENSORS
  table = [row for row in table if 'layers/mlp/down' not in row.leaves]
  with pytest.raises(ValueError, match='mlp/down has an adapter and no tensor'):
    lora.save_peft(tmp_path, params, LORA, table, model.specs)
  for kind in 'deepseek_v3', 'glm_moe_dsa', 'qwen3_next', 'dots1':
    rows = families.adapted_of({'model_type': kind})
    leaves = {x for row in rows for x in row.leaves}
    assert 'layers/attn/o' in leaves
    assert not leaves & {'layers/shared_mlp/up', 'dense_layers/mlp/up'}
  for kind, n in ('nemotron_h', 0), ('falcon_h1', 0), ('granitemoehybrid', 1):
    h = {'model_type': kind, 'hybrid_override_pattern': 'M-*'}
    names = [row.name for row in families.adapted_of(h)]
    assert sum(x.endswith('.out_proj.weight') for x in names) == n
    assert not any('backbone' in x for x in names)
