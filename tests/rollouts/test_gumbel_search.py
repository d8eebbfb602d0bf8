"""A search over the steps of completions: its samples, choices and values."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import small_model

from jaxrl_reason import sharding
from jaxrl_reason.base import Rows
from jaxrl_reason.evals import cell_settings
from jaxrl_reason.logits import Sampling
from jaxrl_reason.models import logprobs
from jaxrl_reason.rollouts import gumbel_search, sampler

pytest.importorskip('mctx')

B, G, P, C = 4, 2, 5, 7
STOP, V = jnp.array([0, 1]), 16
VALID = jnp.asarray(np.arange(P) >= P - np.array([[2], [5], [4], [1]]))
PROMPTS = jnp.asarray(np.random.default_rng(0).integers(2, V, (B, P)))
SAMPLING = Sampling.make(jnp.asarray([0.0, 2.0] * B), top_k=9)
HOW = gumbel_search.Search(simulations=6, candidates=3, tokens=3)
LEAVES = gumbel_search.BEGINNING, gumbel_search.CONTINUED, gumbel_search.ENDED
ROOM = dict(n_samples=G, max_new=C, row_ids=jnp.arange(B * G))
# The worth of every token, so that all beginnings have different values.
WORTH = jnp.asarray(np.random.default_rng(1).uniform(size=V))


@functools.cache
def small():
  return small_model(qk_norm=False, layers=2)[1:]


def judge(rows: Rows) -> jax.Array:
  """Returns the mean worth of the tokens of completions, f32 [N]."""
  own, valid = WORTH[rows.tokens[:, P:]], rows.valid[:, P:]
  return jnp.where(valid, own, 0).sum(axis=1) / C


@functools.cache
def searched(how=HOW, judge=judge):
  model, params = small()

  @jax.jit
  def run(params):
    given = model, params, PROMPTS, VALID, jax.random.key(3), SAMPLING, STOP
    rest = ROOM | dict(judge=judge)
    return gumbel_search.generate(how, *given, **rest)

  return run(params)


def plain():
  model, params = small()

  @jax.jit
  def run(params):
    given = model, params, PROMPTS, VALID, jax.random.key(3), SAMPLING, STOP
    return sampler.generate(*given, **ROOM, policy_logp=True, entropy=True)

  return run(params)


@pytest.mark.parametrize(
  'how',
  [
    gumbel_search.Search(1, 1, 3),
    gumbel_search.Search(2, 1, 2, leaf=gumbel_search.CONTINUED),
    gumbel_search.Search(1, 1, 7, ends=(4, 5, 6, 7)),
  ],
)
def test_one_candidate_is_the_sample_of_the_policy(how):
  out, want = searched(how), plain()
  names = 'tokens', 'sampled', 'length', 'truncated', 'turn', 'node'
  for name in names:
    np.testing.assert_array_equal(getattr(out, name), getattr(want, name))
  for name in 'logp', 'policy_logp', 'entropy':
    gap = getattr(out, name) - jnp.where(want.sampled, getattr(want, name), 0)
    assert np.abs(gap).max() < 1e-5, name
  made = out.views[gumbel_search.GENERATED]
  assert how.leaf == gumbel_search.CONTINUED or np.array_equal(made, out.length)


@pytest.mark.parametrize('leaf', LEAVES)
def test_log_probs_are_those_of_the_trainer(leaf):
  model, params = small()
  out, rows = searched(dataclasses.replace(HOW, leaf=leaf)), []
  for own, new in (PROMPTS, 'tokens'), (VALID, 'sampled'):
    repeated = jnp.repeat(own, G, axis=0)
    rows.append(jnp.concatenate([repeated, getattr(out, new)], axis=1))
  score = jax.jit(
    lambda p: logprobs.score(
      model, p, Rows(*rows, SAMPLING.temperature), SAMPLING, start=P
    )[0][:, P:]
  )
  gap = jnp.where(out.sampled, score(params) - out.logp, 0)
  assert out.sampled.any() and np.abs(gap).max() < 1e-5
  assert not np.array_equal(out.tokens, plain().tokens)
  greedy = slice(0, None, G)  # all candidates of these rows are equal
  np.testing.assert_array_equal(out.tokens[greedy], plain().tokens[greedy])


def test_eight_devices_search_as_one_does():
  want = searched()
  with jax.set_mesh(sharding.make_mesh((2, 2, 2))):
    got = searched.__wrapped__()
  for name in 'tokens', 'length', 'views':
    jax.tree.map(
      np.testing.assert_array_equal, getattr(got, name), getattr(want, name)
    )
  np.testing.assert_allclose(got.logp, want.logp, atol=1e-5)


def worth(out) -> np.ndarray:
  """Returns the judge's value of completions, in numpy."""
  own = np.where(out.sampled, np.asarray(WORTH)[out.tokens], 0)
  return own.sum(axis=1) / C


def test_a_step_is_the_best_of_its_candidates():
  """Each candidate has one simulation. The sampler samples the same candidates
  one by one.
  """
  model, params = small()
  how = gumbel_search.Search(simulations=4, candidates=4, tokens=3)
  rows = np.arange(B * G)

  @jax.jit
  def candidates(params, ids):
    given = PROMPTS, VALID, jax.random.key(3), SAMPLING, STOP
    room = dict(n_samples=G, max_new=how.tokens, row_ids=ids)
    return sampler.generate(model, params, *given, **room)

  ids = [rows] + [np.stack([rows, rows * 0 + k], axis=1) for k in (1, 2, 3)]
  found = [candidates(params, jnp.asarray(x)) for x in ids]
  best = np.argmax([worth(x) for x in found], axis=0)
  want = np.stack([x.tokens for x in found])[best, rows]
  out = searched(how)
  np.testing.assert_array_equal(out.tokens[:, : how.tokens], want)
  assert len(set(best)) > 2
  made = sum(np.asarray(x.length) for x in found)
  assert np.all(out.views[gumbel_search.GENERATED] >= made)


def late(rows: Rows) -> jax.Array:
  """Returns the worth of completions that have ended, and 0 of others."""
  valid, tokens = rows.valid[:, P:], rows.tokens[:, P:]
  ended = valid.all(axis=1) | jnp.any(valid & jnp.isin(tokens, STOP), axis=1)
  return jnp.where(ended, judge(rows), 0)


def test_more_simulations_look_further_ahead():
  """The judge has the value 0 for completions that have not ended. So more
  simulations are needed to compare the candidates of a first step.
  """
  few, many = (
    searched.__wrapped__(
      gumbel_search.Search(n, candidates=4, tokens=4), judge=late
    )
    for n in (4, 40)
  )
  gain = worth(many) - worth(few)
  sampled = np.asarray(SAMPLING.temperature) > 0
  assert gain[sampled].mean() > 0.02, gain
  assert np.all(gain[~sampled] == 0)


def test_the_value_of_completions_that_have_not_ended_can_be_zero():
  how = gumbel_search.Search(12, candidates=3, tokens=3)
  out = searched(dataclasses.replace(how, leaf=gumbel_search.ENDED))
  want, other = searched(how, late), searched(how)
  np.testing.assert_array_equal(out.tokens, want.tokens)
  assert not np.array_equal(out.tokens, other.tokens)


def right(rows: Rows) -> jax.Array:
  """Returns 1 for one completion in three and 0 for others, f32 [N]."""
  total = jnp.where(rows.valid[:, P:], rows.tokens[:, P:], 0).sum(axis=1)
  return (total % 3 == 0).astype(jnp.float32)


def test_a_search_ends_with_a_right_completion_that_it_has_sampled():
  """If each candidate has one simulation, a candidate of the next step is the
  continuation with which a correct beginning was judged.
  """
  how = gumbel_search.Search(4, candidates=4, tokens=2)
  how = dataclasses.replace(how, leaf=gumbel_search.CONTINUED)

  def value(out):
    tokens = jnp.concatenate([jnp.zeros((B * G, P), int), out.tokens], axis=1)
    valid = jnp.concatenate([jnp.ones((B * G, P), bool), out.sampled], axis=1)
    return np.asarray(right(Rows(tokens, valid)))

  got, sample = value(searched(how, right)), value(plain())
  sampled = np.asarray(SAMPLING.temperature) > 0
  assert np.all(got >= sample) and np.array_equal(got, sample) is False
  assert np.all(got[~sampled] == sample[~sampled]) and got[sampled].mean() > 0.7


@pytest.mark.parametrize(
  'given, words',
  [
    (dict(judge=''), 'a search needs a judge'),
    (dict(candidates=1), 'at least 2 candidates'),
    (dict(candidates=9), 'as many simulations as candidates'),
    (dict(simulations=0), 'as many simulations as candidates'),
    (dict(step_tokens=0), '--step_tokens=0 of 20'),
    (dict(step_tokens=20), 'judge_best@k'),
    (dict(power=2.0), 'cannot be combined with --power'),
    (dict(least=2), 'cannot be combined with --least'),
    (dict(presence_penalty=1.0), 'combined with --presence_penalty'),
  ],
)
def test_settings_that_a_search_cannot_have_are_refused(given, words):
  own = dict(judge='w', simulations=8, candidates=4, step_tokens=5)
  o = cell_settings.Options((), (), None, **own | given)
  with pytest.raises(ValueError, match=words):
    cell_settings._search(o, 20, {})
  o = cell_settings.Options((), (), None, **own, logit_bias={'a': 1.0})
  with pytest.raises(ValueError, match='combined with --chunk'):
    cell_settings._search(o, 20, {'chunk': 8, 'carry': 2})
  assert cell_settings._search(o, 20, {}) == dict(
    simulations=8, candidates=4, step_tokens=5, step_end=''
  )


def test_a_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'mctx', None)
  with pytest.raises(ImportError, match=r'pip install "jaxrl_reason\[mctx\]"'):
    gumbel_search.library()
