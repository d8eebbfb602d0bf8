"""Answers do not depend on the size of a unit and the number of devices."""

import jax
import jax.numpy as jnp
import learning
import numpy as np
import pytest

from jaxrl_reason import sharding
from jaxrl_reason.data import pipeline
from jaxrl_reason.evals import accuracy, answer_programs
from jaxrl_reason.evals import sampled_answers as answers
from jaxrl_reason.logits import Sampling
from jaxrl_reason.verifiers.verdict import Verdict

SOURCE = pipeline.TaskSource('arithmetic', 0, 'heldout', learning.KNOBS)
MODEL, PARAMS = learning.model_and_params()


def problems(n):
  return accuracy.make_set(SOURCE, n, learning.TOKENIZER, learning.P)


def odd(cases):
  """Returns verdicts that random text sometimes gets."""
  return [Verdict(float(len(t) % 2), extracted=t[-1:]) for t, _ in cases]


@pytest.mark.parametrize('shards', [1, 2, 8])
@pytest.mark.parametrize('samples', [range(1), range(5), range(1, 14)])
@pytest.mark.parametrize('rows', [1, 7, 24, 1000])
def test_units_contain_every_sample_exactly_once(shards, samples, rows):
  for n in (1, 5, 16):
    grid = answers.Grid.make(n, samples, rows, shards)
    assert grid.b % shards == 0
    assert grid.b * grid.s <= max(rows, shards)
    for first in (0, n // 2):
      units = list(grid.units(first))
      assert all(len(p) == grid.b and len(s) == grid.s for p, s in units)
      found = [(i, j) for p, s in units for i in p for j in s]
      found = [at for at in found if min(at) >= 0]
      want = {(i, j) for i in range(first, n) for j in samples}
      assert len(found) == len(want) and set(found) == want
      assert len(units) % grid.units_of_block == 0


def drawn(rows, devices=1, first=0, samples=range(6), n=7):
  """Returns the records of `answers.AnswerSampler` on some devices."""
  mesh = sharding.make_mesh((-1, 1, 1), jax.devices()[:devices])
  asked = problems(n)
  grid = answers.Grid.make(n, samples, rows, devices)
  generate = answer_programs.make_generate(
    MODEL, grid.s, learning.C, details=True
  )
  sampler = answers.AnswerSampler(
    generate, PARAMS, mesh=mesh, tokenizer=learning.TOKENIZER,
    sampling=Sampling.make(1.3), key=jax.random.key(3),
    stop=learning.STOP, grade=odd,
    budgets=(3,), about={'suite': 'x'},
  )  # fmt: skip
  with jax.set_mesh(mesh):
    return [r for b in sampler.blocks(asked, grid, first) for r in b]


def assert_same(a, b):
  assert len(a) == len(b)
  for x, y in zip(a, b):
    x, y = dict(x), dict(y)
    for name in ('logp', 'entropy'):  # sums in another order
      assert x.pop(name) == pytest.approx(y.pop(name), abs=2e-4)
    assert x == y


@pytest.fixture(scope='module')
def whole():
  return drawn(1000)


def test_records_contain_the_samples(whole):
  at = [(r['problem'], r['sample']) for r in whole]
  assert at == [(i, s) for i in range(7) for s in range(6)]
  assert {r['temperature'] for r in whole} == {0.0, 1.3}
  assert all((r['sample'] == 0) == (r['temperature'] == 0) for r in whole)
  assert len({r['completion'] for r in whole}) > 30
  assert all(r['suite'] == 'x' and r['logp'] < 0 for r in whole)
  assert all(0 < r['entropy'] <= np.log(24) for r in whole)
  plain = [
    r
    for r in whole
    if len(r['completion']) + (not r['truncated']) == r['length']
  ]  # of tokens that are a character each
  assert len(plain) > 5
  for r in plain:
    assert r['at_budget'] == {'3': float(len(r['completion'][:3]) % 2)}


@pytest.mark.parametrize('rows, devices', [(1, 1), (8, 1), (40, 8), (4, 2)])
def test_batch_and_devices_change_no_record(whole, rows, devices):
  assert_same(drawn(rows, devices), whole)


def test_remaining_samples_do_not_depend_on_the_interruption(whole):
  assert_same(drawn(8, first=3), whole[3 * 6 :])
  # More samples do not change the first ones.
  fewer = [r for r in whole if r['sample'] < 3]
  assert_same(drawn(8, samples=range(3)), fewer)


def test_log_probs_and_entropies_are_the_policys(whole):
  """Compares with one forward pass over the row at temperature 1."""
  from jaxrl_reason.base import Rows
  from jaxrl_reason.models import logprobs

  asked = problems(7)
  for row in (whole[0], whole[1], whole[16]):
    tokens, _ = asked.rows(np.array([row['problem']]))
    valid = asked.rows(np.array([row['problem']]))[1]
    ids = learning.TOKENIZER.encode(row['completion'])
    if not row['truncated']:
      ids = [*ids, learning.TOKENIZER.eos_ids[0]]
    if len(ids) != row['length']:
      continue  # a token that decodes to nothing
    tokens = jnp.concatenate([tokens, np.array([ids])], axis=1)
    valid = jnp.concatenate([valid, np.ones((1, len(ids)), bool)], axis=1)
    logp, entropy, _ = logprobs.score(
      MODEL, PARAMS, Rows(tokens, valid), learning.NEUTRAL
    )
    assert row['logp'] == pytest.approx(
      float(logp[0, learning.P :].sum()), abs=1e-3
    )
    assert row['entropy'] == pytest.approx(
      float(entropy[0, learning.P :].mean()), abs=1e-3
    )


def test_the_trainers_evaluation_is_the_same_in_pieces():
  def values(rows, devices):
    mesh = sharding.make_mesh((-1, 1, 1), jax.devices()[:devices])
    evaluate = accuracy.Evaluation(
      MODEL, learning.STOP, n_samples=3, max_new=learning.C,
      sampling=Sampling.fixed(), rows=rows, mesh=mesh,
      tokenizer=learning.TOKENIZER, grade=odd,
      key=jax.random.key(1),
    )  # fmt: skip
    with jax.set_mesh(mesh):
      found, rows = evaluate(PARAMS, problems(9), show=2)
    at = [(r['problem'], r['sample']) for r in rows]
    assert at == [(i, s) for i in range(9) for s in range(4)]
    assert [r['problem'] for r in rows if 'completion' in r] == [0] * 4 + [
      1
    ] * 4
    return found, rows

  want, shown = values(1000, 1)
  assert set(want) == {
    'greedy', 'pass@1', 'pass@2', 'pass@3', 'maj@3', 'cot_pass@1', 'cot_pass@2',
    'cot_pass@3', 'length', 'invalid', 'truncated',
  }  # fmt: skip
  assert [(r['problem'], r['sample']) for r in shown] == [
    (i, s) for i in range(9) for s in range(4)
  ]
  # Texts only of the first two problems.
  assert [r['problem'] for r in shown if 'completion' in r] == [0] * 4 + [1] * 4
  for rows, devices in ((4, 1), (2, 1), (16, 8)):
    found, same = values(rows, devices)
    assert found == want and same == shown
