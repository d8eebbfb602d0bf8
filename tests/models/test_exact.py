"""With `model.numerics='exact'`, a token has the same log-prob in all
computations.
"""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import exact_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from paths import ROOT
from small import small_config

from jaxrl_reason import sharding
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models.parts import (
  attention,
  blocked,
  exact_attention,
  exact_layers,
  fixed_point,
  stored,
)
from jaxrl_reason.rollouts import sampler
from jaxrl_reason.update import scoring


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize('terms', [70, 5000])
def test_a_product_depends_on_its_row_only(terms):
  """It does not depend on the order of terms, on other rows or on the split of
  sums.
  """
  x, w = normal(0, 9, terms).astype('bfloat16'), normal(1, terms, 6)
  want = exact_layers.wide(x, w)
  order = np.random.default_rng(0).permutation(terms)
  np.testing.assert_array_equal(exact_layers.wide(x[:, order], w[order]), want)
  np.testing.assert_array_equal(exact_layers.wide(x[3:4], w)[0], want[3])
  precise = np.asarray(x, np.float64) @ np.asarray(w, np.float64)
  rms = np.sqrt(np.mean(precise**2))
  rounded = np.asarray(x @ w.astype('bfloat16'), np.float64)
  error = np.abs(want - precise).max()
  assert error < 2e-3 * rms and error < np.abs(rounded - precise).max()


@pytest.mark.parametrize('terms', [70, 5000])
def test_int8_digits_have_the_same_products(monkeypatch, terms):
  """Digits have this dtype on TPUs."""
  x, w = normal(0, 9, terms).astype('bfloat16'), normal(1, terms, 6)
  rows, experts = x[:, :60], normal(2, 3, 60, 7)
  sizes = jnp.asarray([4, 0, 5])
  k = x[:8, :60].reshape(2, 4, 3, 20)

  def seen(which):
    del which
    return jnp.ones((2, 4, 4), bool)

  def results():
    for dtype in 'model', 'int8':
      how = dict(scale=0.4, cap=0.0, cache_dtype=dtype)
      yield exact_attention.whole(seen, **how)(k, k, k, 0)
    yield exact_layers.wide(x, w)
    yield exact_layers.grouped(rows, experts, sizes)

  want = list(results())
  monkeypatch.setattr(fixed_point, 'digit_dtype', lambda: jnp.int8)
  for got, expected in zip(results(), want):
    np.testing.assert_array_equal(got, expected)
  lost = x.at[0, 0].set(jnp.inf)
  bad = jnp.isnan(exact_layers.wide(lost, w))
  assert bad[0].all() and not bad[1:].any()


def test_digits_are_small_and_sum_to_the_number():
  x = normal(2, 40, 30) * jnp.exp2(normal(3, 40, 1) * 20)
  (first, second), grid = fixed_point.digits(x, 1)
  for digit in (first, second):
    assert jnp.abs(digit).max() <= 64 and (digit == jnp.round(digit)).all()
  back = grid * (first.astype('float32') + second.astype('float32') / 128)
  error = jnp.abs(back - x).max(axis=1) / jnp.abs(x).max(axis=1)
  assert error.max() <= 2.0**-13
  zero, one = fixed_point.digits(jnp.zeros((2, 3)), 1)[0], jnp.ones((1, 3))
  assert not any(z.any() for z in zero)
  assert jnp.isnan(exact_layers.wide(one.at[0, 0].set(jnp.nan), one.T)).all()


@pytest.mark.parametrize(
  'ours, theirs, x',
  [
    (fixed_point.exp, np.exp, np.linspace(-80, 80, 999)),
    (fixed_point.log, np.log, np.exp(np.linspace(-30, 30, 999))),
  ],
)
def test_functions_equal_those_of_numpy(ours, theirs, x):
  x = np.asarray(x, np.float32)
  got, want = np.asarray(jax.jit(ours)(x)), theirs(x.astype(np.float64))
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
  for n in (1, 3, 7, 15):  # sizes at which XLA's own exp differs on a CPU
    part = np.asarray(jax.jit(ours)(x[:n]))
    np.testing.assert_array_equal(part, got[:n])


def test_the_softmax_is_exact_for_many_small_numbers():
  """Sums over a vocabulary whose tail has most of the probability."""
  x = jnp.concatenate([jnp.zeros((2, 1)), jnp.full((2, 99_999), -9.0)], axis=1)
  want = jax.nn.logsumexp(x, axis=-1)
  np.testing.assert_allclose(fixed_point.logsumexp(x), want, rtol=1e-4)
  p = fixed_point.softmax(x)
  np.testing.assert_allclose(p, jax.nn.softmax(x), rtol=1e-3)
  g = jax.grad(lambda x: fixed_point.logsumexp(x).sum())(x)
  np.testing.assert_allclose(g, jax.nn.softmax(x), rtol=1e-3)


def attended(start, *, gradient=False):
  """Computes exact attention of two left-padded rows of 150 tokens, with a
  window of 90, from column `start` on.
  """
  c = small_config(numerics='exact', dtype='bfloat16')
  q, (k, v) = normal(5, 2, 150, 4, 12), normal(6, 2, 2, 150, 2, 12)
  rows = attention.describe(jnp.arange(150) >= jnp.asarray([[5], [60]]))
  real = (rows.segments > 0)[:, start:, None, None]

  @jax.jit
  def f(*heads):
    q, *kv = (x.astype(c.dtype) for x in heads)
    attend = attention.make(rows, c, (90,), start)
    out = attend(q[:, start:], *kv, 0).astype('float32')
    return jnp.where(real, out, 0)

  if gradient:
    return jax.grad(lambda *x: (f(*x) * q[:, start:]).sum(), (0, 1, 2))(q, k, v)
  return f(q, k, v)


@pytest.mark.parametrize('start', [0, 40])
def test_attention_in_loops_over_blocks_equals_attention_at_once(
  monkeypatch, start
):
  """Compares attention in two loops, with a shorter last block, and without
  loops.
  """
  want = attended(start)
  assert len(blocked.loops(150 - start)[0]) == 1
  monkeypatch.setattr(blocked, 'QUERIES', 32)
  assert [len(x) for x in blocked.loops(150 - start)] in ([3, 2], [2, 2])
  np.testing.assert_array_equal(attended(start), want)


def test_gradients_on_a_tpu_are_those_of_its_kernel(monkeypatch):
  """Splash does not write scores to memory."""
  c = small_config(numerics='exact', dtype='bfloat16')
  long, short = (attention.describe(jnp.ones((2, n), bool)) for n in (129, 128))
  want = attended(40, gradient=True)
  monkeypatch.setattr(attention, '_of_gradients', lambda *_: attention._splash)
  for got, expected in zip(attended(40, gradient=True), want):
    scale = jnp.abs(expected).max()
    np.testing.assert_allclose(got / scale, expected / scale, atol=0.02)
  monkeypatch.undo()
  assert attention._of_gradients(c, long) is attention._blocked
  monkeypatch.setattr(sharding, 'platform', lambda: 'tpu')
  assert attention._of_gradients(c, long) is attention._splash
  assert attention._of_gradients(c, short) is attention._blocked


def differences(how, parts=1, **settings):
  """Counts the sampled tokens of a llama whose log-probs differ."""
  _, model, params = exact_cases.model_of('llama', **how)
  sampling = Sampling.fixed(0.7, 0, 0.9, 0.0)
  rows, logp, sampled = exact_cases.rollout(
    model, params, sampling, routes=False, **settings
  )
  own = exact_cases.trained(model, params, rows, sampling, parts=parts)
  return int((logp != own)[sampled].sum()), int(sampled.sum())


def test_the_default_differs_and_exact_does_not():
  wrong, n = differences({'numerics': 'fast'})
  assert wrong > n / 2 > 5
  for how in {}, {'lora': True, 'base': 'int8'}:
    wrong, n = differences(how)
    assert wrong == 0 and n > 10
  wrong, n = differences({'numerics': 'fast', 'cache_dtype': 'int8'})
  assert wrong > n / 2


@pytest.mark.parametrize('prompts, samples, parts', [(1, 1, 1), (32, 2, 64)])
def test_one_row_and_64_rows_have_no_gap(prompts, samples, parts):
  """The trainer computes 64 sampled rows one by one."""
  wrong, n = differences({}, parts, shape=(prompts, samples))
  assert wrong == 0 and n >= prompts * samples


def plain_roundings(jaxpr):
  """Yields the equations that round f32 to bfloat16 in a way that a compiler
  may leave out (`fixed_point.to`).
  """
  made = {}
  for equation in jaxpr.eqns:
    name = equation.params.get('name', equation.primitive.name)
    made |= dict.fromkeys(equation.outvars, name)
    if equation.primitive.name == 'convert_element_type':
      (x,), (y,) = equation.invars, equation.outvars
      narrower = (x.aval.dtype, y.aval.dtype) == (jnp.float32, jnp.bfloat16)
      if narrower and made.get(x) not in ('reduce_precision', 'round'):
        yield equation
    for inner in jaxprs_in_params(equation.params):
      yield from plain_roundings(inner)


@pytest.mark.parametrize('family', exact_cases.FAMILIES)
def test_no_compiler_may_leave_out_a_rounding(family):
  """A compiler for GPUs left out the rounding of a router's bias in a loop over
  layers and not elsewhere.
  """
  _, model, params = exact_cases.model_of(family)
  sampling = Sampling.fixed(1.0, 0, 1.0, 0.0)
  rows = exact_cases.Sampled(
    jnp.ones((8, 16), int), jnp.ones((8, 16), bool), jnp.ones(8), None, None
  )

  def sampled(params):
    how = dict(n_samples=2, max_new=4)
    tokens, key = jnp.ones((4, 8), int), jax.random.key(0)
    given = tokens, tokens > 0, key, sampling, jnp.asarray([0, 1])
    return sampler.generate(model, params, *given, **how).logp

  def scored(params):
    learner = SimpleNamespace(
      model=model, packing=None, columns=dict(start=8, chunk=0)
    )
    return scoring.scores(learner, params, rows, sampling, 1)[0]

  for f in (sampled, scored):
    assert not list(plain_roundings(jax.make_jaxpr(f)(params).jaxpr))


def test_training_reads_keys_that_are_rounded_as_in_an_int8_cache():
  x = normal(4, 2, 3, 5, 7)
  x = x.at[0, 0, 0].set(0).astype('bfloat16')
  unit = np.abs(np.asarray(x, np.float32)).max(axis=-1, keepdims=True) / 127
  unit[unit == 0] = 1
  want = (np.round(np.asarray(x, np.float32) / unit) * unit).astype('bfloat16')
  got, pull = jax.vjp(lambda x: stored.straight_through(x, 'int8'), x)
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(pull(x)[0], x)
  seen = jnp.ones((2, 3, 3), bool)
  how = dict(scale=0.4, cap=0.0, cache_dtype='int8')
  out = exact_attention.whole(lambda _: seen, **how)(x, x, x, 0)
  scores = np.einsum('nqhd,nkhd->nhqk', x.astype('float32'), want) * 0.4
  p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
  values = np.einsum('nhqk,nkhd->nqhd', p, want.astype('float32'))
  np.testing.assert_allclose(out, values, atol=0.02)


@pytest.mark.parametrize('seed, cache_dtype', [(0, 'model'), (3, 'int8')])
def test_sampled_log_probs_are_the_trainers_bit_by_bit(seed, cache_dtype):
  settings, wrong = exact_cases.case(seed, cache_dtype)
  assert wrong == 0, settings


@pytest.mark.slow
@pytest.mark.parametrize('first', range(0, 100, 10))
def test_a_hundred_random_configurations(first):
  """With its default options, the compiler fuses more operations."""
  flags = '--xla_force_host_platform_device_count=8'
  command = [
    sys.executable,
    'tests/exact_cases.py',
    str(first),
    str(first + 10),
  ]
  out = subprocess.run(
    command,
    cwd=ROOT,
    env=os.environ | {'XLA_FLAGS': flags},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  ).stdout
  wrong = re.findall(r'^(\d+) (\d+) ', out, re.MULTILINE)
  assert len(wrong) == 10 and {n for _, n in wrong} == {'0'}, out


DELTA = dict(
  delta_layers=(0,),
  delta_heads=2,
  delta_groups=1,
  delta_key_dim=4,
  delta_value_dim=4,
  delta_taps=2,
)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'dtype': 'float32'}, "needs model.dtype='bfloat16', not 'float32'"),
    ({'attention': 'einsum'}, "needs model.attention='auto', not 'einsum'"),
    (DELTA, 'does not support model.delta_layers'),
    ({'norm_centered': True}, 'does not support model.norm_centered'),
    ({'mlp_scales': (0.5, 2.0)}, 'does not support model.mlp_scales'),
  ],
)
def test_settings_that_prevent_exactness_are_refused(changes, words):
  how = dict(numerics='exact', dtype='bfloat16')
  with pytest.raises(ValueError, match=re.escape(words)):
    small_config(**how | changes)
