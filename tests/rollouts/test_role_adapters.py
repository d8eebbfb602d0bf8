"""Adapters of roles on one base: each row has those of its own role."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_two_players as games
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import adapters, logprobs, spec
from jaxrl_reason.models.adapters import frozen as frozen_lib
from jaxrl_reason.models.adapters import lora
from jaxrl_reason.rollouts import role_adapters
from jaxrl_reason.update import packing

LORA = lora.Lora(rank=2, alpha=3.0)
ROLES = 3
N, T = 6, 9


def adapted(roles=ROLES, frozen='float32', **shape):
  """Returns (the model of one role, the model of all roles, parameters by role,
  the parameters of all roles).
  """
  _, base, params = small_model(**shape)
  kind = dict(frozen_dtype=frozen, trainable='lora/.*')
  one = adapters.attach(base, lora=LORA, **kind)
  own = dataclasses.replace(LORA, roles=roles)
  every = adapters.attach(base, lora=own, **kind)
  if frozen != 'float32':
    stored = lora.base_of(one.specs)
    params = frozen_lib.init(stored, jax.random.key(2))
  apart = []
  for i in range(roles):
    ab = spec.init(one.specs[lora.KEY], jax.random.key(7 + i))
    apart.append(jax.tree.map(lambda x, i=i: x + 0.1 * (i + 1), ab))
  joined = jax.tree_util.tree_map_with_path(_joined, *apart)
  shapes = jax.tree.map(lambda s: s.shape, spec.abstract(every.specs))
  assert jax.tree.map(jnp.shape, joined) == shapes[lora.KEY]
  by_role = [params | {lora.KEY: ab} for ab in apart]
  return one, every, by_role, params | {lora.KEY: joined}


def _joined(path, *parts):
  return jnp.concatenate(parts, axis=-1 if path[-1].key == 'a' else -2)


def rows():
  tokens = jax.random.randint(jax.random.key(1), (N, T), 0, 16)
  valid = jnp.arange(T) >= jnp.array([0, 2, 1, 0, 3, 1])[:, None]
  role = jnp.array([0, 2, 1, 1, 0, 2])
  ones = jnp.ones(N)
  return Batch(
    tokens=tokens, valid=valid, mask=valid, reward=ones,
    reward_parts=ones[:, None], reward_valid=ones > 0,
    group=jnp.zeros(N, jnp.int32), truncated=ones < 0, temperature=ones,
    sampler_logp=None, role=role,
  )  # fmt: skip


@pytest.mark.parametrize('frozen', ['float32', 'int8'])
@pytest.mark.parametrize('how', [None, packing.Packing(2 * T)])
def test_a_row_is_computed_with_the_adapters_of_its_role(how, frozen):
  one, every, by_role, params = adapted(frozen=frozen)
  batch = rows()

  def logp(model, params, batch):
    return packing.fit(
      how, batch, batch,
      lambda rows, packed: logprobs.score(
        model, params, rows, Sampling.fixed(), packed
      )[0],
    )  # fmt: skip

  got = logp(every, params, batch)
  alone = adapters.of_role(every, 1, ROLES)
  far = []
  for i, own in enumerate(by_role):
    want = logp(one, own, batch.replace(role=None))
    there = np.asarray(batch.valid)  # packed, a first token has no own state
    there = there[:, 1:] & there[:, :-1]
    gap = np.abs(np.where(there, (got - want)[:, 1:], 0)).max(axis=1)
    assert gap[batch.role == i].max() < 1e-5
    far.append(gap[batch.role != i].min())
    if i == 1:
      picked = logp(alone, params, batch.replace(role=None))
      np.testing.assert_array_equal(picked, want)
  assert min(far) > 1e-2


def test_a_row_trains_the_adapters_of_its_role_alone():
  one, every, by_role, params = adapted()
  batch, c = rows(), ROLES

  def loss(ab, model, params, batch):
    given = params | {lora.KEY: ab}
    logp = logprobs.score(model, given, batch, Sampling.fixed())[0]
    return jnp.where(batch.valid, logp, 0).sum()

  for i in range(ROLES):
    chosen = jnp.flatnonzero(batch.role == i)
    own = jax.tree.map(lambda x, at=chosen: x[at], batch)
    grad = jax.grad(loss)(params[lora.KEY], every, params, own)
    want = jax.grad(loss)(
      by_role[i][lora.KEY], one, by_role[i], own.replace(role=None)
    )
    for k in range(ROLES):
      part = lora.of_role({lora.KEY: grad}, k, c)[lora.KEY]
      for x, y in zip(*map(jax.tree.leaves, (part, want)), strict=True):
        if k == i:
          np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
        else:
          assert not np.asarray(x).any()


def test_adapters_of_several_roles_need_a_role():
  _, every, _, params = adapted()
  batch = rows()
  for f in (every.hidden, every.prefill):
    rest = () if f is every.hidden else (1, 4, 4)
    with pytest.raises(ValueError, match='adapters of 3 roles'):
      f(params, batch.tokens, batch.valid, *rest)
  with pytest.raises(ValueError, match='adapters of 3 roles'):
    every.decode_params(params)
  off = every.adapters_off(params)
  assert lora.KEY not in off
  every.hidden(lora.of_rows(off, batch.role), batch.tokens, batch.valid)


def test_norm_of_the_products_of_adapters():
  ab = adapted()[2][0][lora.KEY]
  total = 0.0
  for name in ('q', 'k', 'v', 'o'):
    a, b = (np.asarray(ab['layers']['attn'][name][x]) for x in 'ab')
    total += ((a @ b) ** 2).sum()
  for name in ('gate', 'up', 'down'):
    a, b = (np.asarray(ab['layers']['mlp'][name][x]) for x in 'ab')
    total += ((a @ b) ** 2).sum()
  got = role_adapters.product_norm(ab)
  assert float(got) == pytest.approx(total**0.5, rel=1e-5)


def players():
  """Returns (model of one role, model of both, parameters by role, all)."""
  one, every, by_role, params = adapted(2, kv_heads=4, tied=False)
  return games.biased(one), games.biased(every), by_role, params


def test_players_sample_with_their_own_adapters():
  """Sampler and trainer agree for each player, and the adapters of the other
  player give other log-probs. Eight devices play the same games.
  """
  one, every, by_role, params = players()
  out, prompts = games.play(every, params, by_role=True), games.asked()
  assert out.role.tolist() == [0, 1] * (games.B * games.G // 2)
  rows = games.rows_of(prompts, out)

  def gap(model, *given):
    score = functools.partial(logprobs.score, model, start=games.P)
    logp = jax.jit(score)(*given, Sampling.make())[0][:, games.P :]
    return jnp.abs(jnp.where(out.sampled, logp - out.logp, 0))

  assert gap(every, params, rows).max() < 1e-5
  for i in (0, 1):
    far = gap(one, by_role[i], rows.replace(role=None))
    assert far[i::2].max() < 1e-5 and far[1 - i :: 2].max() > 1e-2
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = games.play(every, params, by_role=True, segments=2)
  np.testing.assert_array_equal(got.tokens, out.tokens)
  np.testing.assert_array_equal(got.turn, out.turn)
  np.testing.assert_array_equal(got.node, out.node)
  np.testing.assert_allclose(got.logp, out.logp, atol=1e-5)


def test_players_with_equal_adapters_play_the_games_of_one_adapter():
  """The order of rows during the games changes no row."""
  one, every, by_role, _ = players()
  ab = by_role[0][lora.KEY]
  same = jax.tree_util.tree_map_with_path(_joined, ab, ab)
  want = games.play(one, by_role[0])
  got = games.play(every, by_role[0] | {lora.KEY: same}, by_role=True)
  for name in 'tokens sampled turn node length truncated'.split():
    np.testing.assert_array_equal(
      getattr(got, name), getattr(want, name), err_msg=name
    )
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)
  np.testing.assert_array_equal(got.episode.reward, want.episode.reward)


def test_adapters_of_experts_are_refused():
  """Experts multiply rows in another order. Attention of such a model may have
  adapters of roles.
  """
  shape = dict(experts=4, experts_per_token=2)
  batch = rows()
  for targets, refused in (('.*attn/(q|v)', False), ('.*mlp/up', True)):
    _, base, _ = small_model(**shape)
    own = dataclasses.replace(LORA, roles=ROLES, targets=targets)
    model = adapters.attach(base, lora=own)

    def score(params, model=model):
      return logprobs.score(model, params, batch, Sampling.fixed())[0]

    params = spec.abstract(model.specs)
    if refused:
      with pytest.raises(ValueError, match='leave it out of lora.targets'):
        jax.eval_shape(score, params)
    else:
      assert jax.eval_shape(score, params).shape == (N, T)
