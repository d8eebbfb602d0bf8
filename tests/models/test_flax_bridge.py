"""Flax modules as policies: the sampler's numbers equal the module's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from small import small_config, small_model

from jaxrl_reason import losses
from jaxrl_reason.base import Prompts, Reward, Trajectories
from jaxrl_reason.batch import make_batch
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import flax_bridge, logprobs
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.update import learner as learner_lib
from jaxrl_reason.update import step as step_lib

B, G, P, C, V, D = 3, 4, 5, 6, 16, 8
STOP = jnp.array([1])


def mix(x):
  """Computes the mean of all inputs so far, as a layer without parameters."""
  n = jnp.arange(1, x.shape[1] + 1)[:, None]
  return jnp.cumsum(x, axis=1) / n


class InLinen(linen.Module):
  @linen.compact
  def __call__(self, tokens):
    x = linen.Embed(V, D)(tokens)
    x = x + linen.Dense(D)(jax.nn.silu(linen.Dense(D)(mix(x))))
    return linen.Dense(V)(3 * x)


class InNnx(nnx.Module):
  def __init__(self, rngs):
    self.embed = nnx.Embed(V, D, rngs=rngs)
    self.inner = nnx.Linear(D, D, rngs=rngs)
    self.out = nnx.Linear(D, V, rngs=rngs)

  def __call__(self, tokens):
    x = self.embed(tokens)
    return self.out(3 * (x + jax.nn.silu(self.inner(mix(x)))))


def linen_policy():
  module = InLinen()
  params = module.init(jax.random.key(0), jnp.zeros((1, 2), int))['params']

  def apply(params, tokens):
    return module.apply({'params': params}, tokens)

  return *flax_bridge.from_linen(module, params), apply


def nnx_policy():
  module = InNnx(nnx.Rngs(0))
  graph, _ = nnx.split(module)

  def apply(params, tokens):
    return nnx.merge(graph, params)(tokens)

  return *flax_bridge.from_nnx(module), apply


class Noisy(InNnx):
  """A module that stores its Rngs and draws from them."""

  def __init__(self, rngs):
    super().__init__(rngs)
    self.dropout, self.rngs = nnx.Dropout(0.3, rngs=rngs), rngs

  def __call__(self, tokens):
    noise = jax.random.normal(self.rngs.noise(), (D,))
    x = self.embed(tokens) + noise
    return self.out(self.dropout(x + jax.nn.silu(self.inner(mix(x)))))


def test_a_module_may_hold_its_rngs():
  """The counts of its Rngs do not change in jit, outside of jit, in the
  sampler's loop and in a gradient. So all calls have equal results.
  """
  module = Noisy(nnx.Rngs(0, noise=1))
  model, params = flax_bridge.from_nnx(module)
  tokens = jnp.arange(2 * P).reshape(2, P)
  valid = jnp.ones((2, P), bool)
  first, again = (model.hidden(params, tokens, valid) for _ in range(2))
  np.testing.assert_array_equal(first, again)
  compiled = jax.jit(model.hidden)(params, tokens, valid)
  np.testing.assert_allclose(compiled, first, atol=1e-5)
  out = jax.jit(
    lambda p: sampler.generate(
      model, p, tokens, valid, jax.random.key(0), Sampling.make(), STOP,
      n_samples=2, max_new=C,
    )
  )(params)  # fmt: skip
  assert out.tokens.shape == (4, C)
  grads = jax.jit(
    jax.grad(lambda p: jnp.square(model.hidden(p, tokens, valid)).mean())
  )(params)
  assert all(np.any(g) for g in jax.tree.leaves(grads))
  module(tokens)  # still its own


def gemma_policy():
  """Returns a small Gemma 2 of the `gemma` package in Linen, with local and
  global layers and soft caps. Versions from 3.1 need `kauldron`.
  """
  package = pytest.importorskip('gemma.transformer')
  kinds = package.modules.AttentionType
  module = package.Transformer(
    package.TransformerConfig(
      num_layers=2,
      num_embed=V,
      embed_dim=D,
      hidden_dim=2 * D,
      num_heads=4,
      head_dim=8,
      num_kv_heads=2,
      final_logit_softcap=30.0,
      attn_logits_soft_cap=50.0,
      use_post_attn_norm=True,
      use_post_ffw_norm=True,
      attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
      sliding_window_size=4,  # shorter than the rows
    )
  )

  def apply(params, tokens):
    real = jnp.ones(tokens.shape, bool)
    where = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    mask = package.make_causal_attn_mask(real)
    return module.apply({'params': params}, tokens, where, None, mask)[0]

  tokens = jnp.zeros((1, 2), int)
  where, mask = jnp.arange(2)[None], jnp.ones((1, 2, 2), bool)
  params = module.init(jax.random.key(0), tokens, where, None, mask)['params']
  return flax_bridge.from_apply(apply, params), params, jax.jit(apply)


POLICIES = {'linen': linen_policy, 'nnx': nnx_policy, 'gemma': gemma_policy}


@pytest.fixture(scope='module', params=sorted(POLICIES))
def policy(request):
  """Returns (model, params, apply, prompts, rollout)."""
  model, params, apply = POLICIES[request.param]()
  tokens = jax.random.randint(jax.random.key(1), (B, P), 2, V)
  valid = jnp.arange(P) >= P - jnp.array([[5], [3], [1]])
  out = jax.jit(
    lambda p: sampler.generate(
      model,
      p,
      tokens,
      valid,
      jax.random.key(2),
      Sampling.make(),
      STOP,
      n_samples=G,
      max_new=C,
    )
  )(params)
  prompts = Prompts(tokens, valid, jnp.arange(B), {})
  return model, params, apply, prompts, out


def test_log_probs_are_the_modules_own(policy):
  """Row by row without padding, by the module."""
  model, params, apply, prompts, out = policy
  for row in range(B * G):
    prompt = prompts.tokens[row // G][prompts.valid[row // G]]
    n = int(out.length[row])
    ids = jnp.concatenate([prompt, out.tokens[row, :n]])
    logp = jax.nn.log_softmax(apply(params, ids[None])[0].astype(jnp.float32))
    at = len(prompt) - 1 + np.arange(n)
    want = logp[at, out.tokens[row, :n]]
    np.testing.assert_allclose(out.logp[row, :n], want, atol=1e-5)
  assert len(set(np.asarray(out.length).tolist())) > 1  # some stopped early


def batch_of(policy):
  _, _, _, prompts, out = policy
  score = (out.tokens[:, 0] % 3).astype(jnp.float32)
  reward = Reward(score, score[:, None], score >= 0)
  return make_batch(Trajectories(prompts, out, reward))


def test_the_trainer_agrees_with_the_sampler(policy):
  model, params, *_ = policy
  b = batch_of(policy)
  logp, *_ = logprobs.score(model, params, b, Sampling.make(), start=P)
  gap = jnp.where(b.mask, logp - b.sampler_logp, 0)
  assert jnp.abs(gap).max() < 1e-5


def test_an_update_is_the_modules_gradient(policy):
  """Compares with REINFORCE by hand: the sum of advantage x log-prob over the
  sampled tokens.
  """
  model, params, apply, *_ = policy
  b = batch_of(policy)
  settings = losses.resolve(
    {
      'advantage': 'reinforce',
      'policy': 'log_likelihood',
      'aggregation': 'token_sum',
    }
  )
  learner = learner_lib.Learner(model, settings, optax.sgd(0.1), P)
  state = learner_lib.init_state(learner, params)
  new, _ = jax.jit(
    lambda s, b: step_lib.update(learner, s, b, Sampling.make(), None)
  )(state, b)

  def by_hand(params):
    total = 0.0
    for row in range(B * G):
      ids = b.tokens[row][b.valid[row]]
      n = int(b.mask[row].sum())
      logp = jax.nn.log_softmax(apply(params, ids[None])[0])
      at = len(ids) - n - 1 + np.arange(n)
      total -= b.reward[row] * logp[at, ids[-n:]].sum()
    return total

  want = jax.tree.map(
    lambda p, g: p - 0.1 * g, params, jax.grad(by_hand)(params)
  )
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5),
    jax.tree.leaves(new.params),
    jax.tree.leaves(want),
  )


def test_our_forward_inside_flax():
  config, model, weights = small_model()
  tokens = jax.random.randint(jax.random.key(3), (2, 7), 0, config.vocab)
  hidden = model.hidden(weights, tokens, tokens >= 0)
  want = model.unembed(weights, hidden)
  module = flax_bridge.LinenTransformer(config)
  got = module.apply({'params': {'weights': weights}}, tokens)
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
  fresh = module.init(jax.random.key(0), tokens)['params']['weights']
  assert jax.tree.structure(fresh) == jax.tree.structure(weights)
  ours = flax_bridge.NnxTransformer(config, weights=weights)
  np.testing.assert_allclose(ours(tokens), want, rtol=1e-5, atol=1e-6)

  def loss(m):
    return m(tokens).sum()

  grads = jax.tree.leaves(nnx.grad(loss)(ours))
  assert len(grads) == len(jax.tree.leaves(weights))
  small = flax_bridge.NnxTransformer(small_config(), key=jax.random.key(0))
  assert small(tokens).shape == (2, 7, config.vocab)
