"""Packed rows and cut columns change the computation, but not its results."""

import dataclasses

import jax
import jax.numpy as jnp
import learning as L
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Batch, Rows
from jaxrl_reason.logits import Automaton, Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.run.rl import programs
from jaxrl_reason.update import packing, scoring
from jaxrl_reason.update import step as step_lib

NEUTRAL = Sampling.make()
T = L.P + L.C
PACKING = packing.Packing(length=T + 10, sizes=4)
LENGTHS = packing.Lengths(start=L.P, sizes=4)


@pytest.fixture(scope='module')
def batch():
  """Returns lengths 1 to C, few of them long."""
  batch = L.rollout_batch(L.learner())
  lengths = jnp.array([1, 2, 1, 3, 2, 1, 2, 5, 8, 1, 2, 3, 1, 1, 2, 4] * 2)
  short = jnp.arange(T) < L.P + lengths[:, None]
  return batch.replace(valid=batch.valid & short, mask=batch.mask & short)


def plain_first_fit(lengths, room):
  """Computes row and offset by the textbook algorithm in Python."""
  used, at = [], {}
  for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
    row = next(
      (r for r, n in enumerate(used) if n + lengths[i] <= room), len(used)
    )
    used += [0] * (row == len(used))
    at[i] = row, used[row]
    used[row] += lengths[i]
  return [at[i] for i in range(len(lengths))]


def test_other_columns_are_not_cut():
  """A teacher's prompt, and the parts of a reward, may be as wide as rows."""
  wide, n = jnp.ones((2, T)), jnp.ones(2)
  same = dict.fromkeys('tokens valid mask sampler_logp'.split(), wide)
  same |= dict.fromkeys('reward reward_valid group truncated'.split(), n)
  other = dict.fromkeys(('reward_parts', 'teacher_tokens'), wide)
  rows = Batch(**same, **other, temperature=n, teacher_valid=wide)
  cut, adv, selected = packing._cut((rows, wide, {'a': wide}), T, L.P)
  for x in (cut.tokens, cut.mask, cut.sampler_logp, adv, selected['a']):
    assert x.shape == (2, L.P)
  for x in (cut.reward_parts, cut.teacher_tokens, cut.teacher_valid):
    assert x.shape == (2, T)


@pytest.mark.parametrize('seed', range(5))
def test_first_fit_is_the_textbooks_and_never_needs_more_rows(seed):
  rng = np.random.default_rng(seed)
  how = packing.Packing(length=int(rng.integers(20, 50)), sizes=1)
  lengths = rng.integers(1, 21, 40)
  rows = how.most(40, 20)
  got = packing.first_fit(jnp.asarray(lengths), how.length, rows)
  want = plain_first_fit(lengths.tolist(), how.length)
  np.testing.assert_array_equal(np.stack(got[:2], 1), want)
  # The longest there can be fill all rows, and fit.
  row, offset, _ = packing.first_fit(jnp.full(40, 20), how.length, rows)
  assert row.max() == rows - 1 and offset.max() + 20 <= how.length


def test_unpacking_inverts_packing(batch):
  which, options = PACKING.options(batch)
  _, packed = options[int(which)](None)
  back = packed.unpack(packed.pack(batch.tokens))
  np.testing.assert_array_equal(back, jnp.where(batch.valid, batch.tokens, 0))
  assert jnp.sum(packed.segments > 0) == batch.valid.sum()
  ids = packed.segments * (T * L.B * L.G) + packed.source // T
  for row in np.asarray(ids):  # one sequence a segment, in one piece
    ends = np.flatnonzero(np.diff(row)) + 1
    assert len(set(row)) == len(ends) + 1


def test_the_smallest_size_that_holds_a_batch_is_taken(batch):
  """There are at most as many sizes as configured, and the largest one fits any
  batch.
  """

  def f(rows, packed):
    return packed.source.size

  def cost(valid):
    rows = batch.replace(valid=valid)
    return int(
      packing.fit(PACKING, rows, (), lambda rows, p: jnp.int32(f(rows, p)))
    )

  everything = jnp.ones_like(batch.valid)
  assert cost(everything) >= everything.size
  tokens = int(batch.valid.sum())
  assert tokens <= cost(batch.valid) < 0.8 * everything.size
  assert len(PACKING.options(batch.replace(valid=everything))[1]) == 4

  def width(valid):
    rows = batch.replace(valid=valid)
    return int(
      packing.fit(LENGTHS, rows, valid, lambda v, _: jnp.int32(v.shape[1]))
    )

  assert width(everything) == T
  for longest, want in ((1, 2), (2, 2), (3, 4), (6, 6), (8, 8)):
    valid = jnp.arange(T) < L.P + jnp.array([[1], [longest]])
    assert width(valid) == L.P + want


TWO = {
  'packed': dataclasses.replace(PACKING, sizes=2),
  'cut': dataclasses.replace(LENGTHS, sizes=2),
}


def update(learner, batch):
  """Returns (state, metrics) of one step."""
  f = jax.jit(lambda s, b: step_lib.update(learner, s, b, NEUTRAL, L.ROOT))
  return f(L.state(learner), batch)


def test_updates_equal_the_padded_one(batch):
  """The updates have two minibatches of two micro-batches. Compares reference,
  old log-probs, loss, gradient and metrics.
  """
  settings = {'kl_coef': 0.1, 'entropy_coef': 0.01}
  plain = L.learner(settings, minibatches=2, micro_batches=2)
  want = update(plain, batch)
  for how in TWO.values():
    L.assert_close(update(dataclasses.replace(plain, packing=how), batch), want)


def test_pretraining_has_no_loss_on_the_first_token_of_a_sequence(batch):
  """No token precedes it, neither padding nor the end of another sequence."""
  plain = L.learner({'advantage': 'reinforce', 'policy': 'log_likelihood'})
  plain = dataclasses.replace(plain, start=1)
  packed = dataclasses.replace(PACKING, sizes=2)
  rows = {'tokens': batch.tokens[None], 'valid': batch.valid[None]}
  found = [
    programs.pretrain_steps(how, L.state(how), rows, L.ROOT)
    for how in (plain, dataclasses.replace(plain, packing=packed))
  ]
  L.assert_close(found[1], found[0])
  first = jnp.argmax(batch.valid, axis=1)[:, None] == jnp.arange(T)
  assert (batch.valid & first).sum() == len(batch.tokens)
  masked = batch.replace(mask=batch.valid & ~first)
  want = gradient(plain, masked.replace(reward=jnp.ones_like(batch.reward)))[1]
  np.testing.assert_allclose(found[0][1]['loss'][0], want['loss'], rtol=1e-5)


def gradient(learner, batch):
  adv = step_lib.advantages(learner, batch)
  params = L.model_and_params()[1]
  return step_lib.gradients(learner, params, batch, adv, NEUTRAL)


def test_a_loss_of_whole_sequences_sees_them_whole(batch):
  """The ratio of GSPO is one number per sequence. Here it is off-policy."""
  batch = batch.replace(old_logp=batch.sampler_logp - 0.1 * batch.mask)
  plain = L.learner({'name': 'gspo'})
  got = dataclasses.replace(plain, packing=TWO['packed'])

  def f(learner):
    return jax.jit(lambda b: gradient(learner, b))(batch)

  L.assert_close(f(got), f(plain))


def test_packing_on_a_mesh_equals_one_device(batch):
  plain = L.learner()
  want = jax.jit(lambda b: gradient(plain, b))(batch)
  learner = L.learner(packing=TWO['packed'], micro_batches=2)
  mesh = sharding.make_mesh((2, 4, 1))
  with jax.set_mesh(mesh):
    got = jax.jit(lambda b: gradient(learner, b))(
      sharding.to_global(batch, mesh)
    )
  L.assert_close(got, want)


def test_packed_scores_with_chunks_temperatures_and_routes(batch):
  """Uses a mixture of experts with replayed routes, and one temperature per
  row.
  """
  _, model, params = small_model(
    vocab=24, layers=2, experts=4, experts_per_token=2, windows=(0, 5)
  )
  shape = (*batch.tokens.shape, 2, 2)
  routes = jax.random.randint(jax.random.key(0), shape, 0, 4)
  temperature = jnp.linspace(0.5, 1.5, batch.tokens.shape[0])
  which, options = PACKING.options(batch)
  _, packed = options[int(which)](None)
  rows = Rows(batch.tokens, batch.valid, temperature, routes)

  def of(**changes):
    return logprobs.score(
      model, params, rows, Sampling.make(top_k=5), start=L.P, **changes
    )[:2]

  wanted = batch.mask
  for got, want in zip(of(packed=packed, chunk=5), of()):
    got, want = (jnp.where(wanted, x, 0) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


def test_a_grammar_has_the_same_states_in_packed_rows(batch):
  model, params = L.MODEL, L.model_and_params()[1]
  vocab = params['embed'].shape[0]
  edges = np.random.default_rng(0).integers(-4, 5, (5, vocab)).clip(-1)
  grammar = Automaton(jnp.asarray(edges, jnp.int32), jnp.zeros(5, bool))
  sampling = Sampling.fixed(automaton=grammar)
  which, options = PACKING.options(batch)
  _, packed = options[int(which)](None)

  def of(sampling, **changes):
    given = model, params, batch, sampling
    logp = logprobs.score(*given, start=L.P, **changes)[0]
    return jnp.where(batch.mask, logp, 0)

  want = of(sampling)
  got = of(sampling, packed=packed, chunk=5)
  np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)
  assert float(jnp.abs(want - of(NEUTRAL)).max()) > 0.1


@pytest.mark.parametrize('how', [None, PACKING, LENGTHS])
def test_passes_without_gradient_keep_the_order_of_rows(batch, how):
  learner = L.learner(packing=how)
  params = L.model_and_params()[1]
  want = logprobs.score(L.MODEL, params, batch, NEUTRAL, start=L.P)[:2]
  got = scoring.scores(learner, params, batch, NEUTRAL, 4)
  for x, y in zip(got, want):
    x, y = (jnp.where(batch.mask, z, 0) for z in (x, y))
    np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5)


def test_rows_shorter_than_a_sequence_are_refused():
  with pytest.raises(ValueError, match='of 5 tokens .* of 6'):
    packing.Packing(length=5, sizes=1).most(2, 6)
