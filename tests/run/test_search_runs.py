"""`evaluate` with a search, by the value head of a run or by the verifier."""

import json
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from test_recipe_features import recipe

from jaxrl_reason import evaluate
from jaxrl_reason.evals import loading
from jaxrl_reason.run import prepare, train

pytest.importorskip('mctx')
pytestmark = pytest.mark.one_device

SUITE = 'task:arithmetic?min_ops=2&max_ops=3&modulus=3&ops=+-&n=6'
SEARCH = '--simulations=4', '--candidates=2', '--step_tokens=2'


@pytest.fixture(scope='module')
def valued(tmp_path_factory):
  """Trains a value head; returns (workdir, final state)."""
  where = tmp_path_factory.mktemp('valued')
  c = recipe(**{'rl.algorithm': 'ppo', 'rl.critic.optimizer.lr': 1e-2})
  c.rl.rewards = dict(
    coin=dict(reward='random', weight=1.0, kwargs=dict(p=0.5))
  )
  return where, train.run(c, where)


@pytest.fixture(scope='module')
def supervised(tmp_path_factory):
  """Trains without a value head; returns the workdir."""
  where = tmp_path_factory.mktemp('supervised')
  c = recipe(**{'stages': ('sft',), 'sft.steps': 80, 'sft.rows': 32})
  train.run(c, where)
  return where


def answers(where, out, *flags, search=(*SEARCH, '--judge={}')):
  """Evaluates; returns the path of the answers and their records."""
  common = [f'--model={where}', f'--suite={SUITE}', '--k=2', f'--out={out}']
  evaluate.main([*common, *(f.format(where) for f in search), *flags])
  (path,) = (out / 'answers').glob('*.jsonl')
  return path, [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope='module')
def searched(valued, tmp_path_factory):
  out = tmp_path_factory.mktemp('searched')
  return *answers(valued[0], out, '--top_logprobs=1'), out


def test_the_value_of_an_answer_is_that_of_its_last_trained_state(
  valued, searched
):
  where, state = valued
  path, found, out = searched
  params, tokenizer = state.critic.params, loading.load(str(where)).tokenizer
  model = prepare.prepare(recipe(), epath.Path(where)).model
  hidden_of = jax.jit(model.hidden)
  lasts = set()
  for row in found:
    ids = tokenizer.encode(row['prompt']) + row['top']['tokens']
    lasts.add(ids[-1] in tokenizer.eos_ids)
    end = len(ids) - 1 - (ids[-1] in tokenizer.eos_ids)
    tokens = np.array([ids + [0] * (40 - len(ids))])
    valid = np.arange(40) < len(ids)
    hidden = hidden_of(params['body'], tokens, valid[None])[0, end]
    value = float(np.float64(hidden) @ np.float64(params['value_head']))
    assert row['p_correct'] == pytest.approx(np.clip(value, 0, 1), abs=1e-4)
  values = {r['p_correct'] for r in found}
  assert len(values - {0, 1}) > 3 and lasts == {True, False}
  assert all(r['generated'] >= r['length'] for r in found)
  assert 'generated' in (out / 'table.md').read_text()
  settings = json.loads(path.with_suffix('.json').read_text())
  want = dict(simulations=4, candidates=2, step_tokens=2, step_end='')
  assert settings | want == settings


def test_a_resumed_search_is_the_uninterrupted_one(valued, searched, tmp_path):
  path, found, out = searched
  cut = tmp_path / 'cut'
  shutil.copytree(out, cut)
  again = cut / 'answers' / path.name
  lines = path.read_text().splitlines(keepends=True)
  again.write_text(''.join(lines[:7]) + lines[7][:30])
  _, rows = answers(valued[0], cut, '--top_logprobs=1')
  assert rows == found and len(found) == 18


def test_batch_and_devices_change_no_answer(valued, searched, tmp_path):
  _, found, _ = searched
  _, got = answers(valued[0], tmp_path, '--batch=8', '--mesh=2,2,2')
  for a, b in zip(got, found, strict=True):
    for key in 'problem', 'sample', 'completion', 'generated':
      assert a[key] == b[key]
    assert a['p_correct'] == pytest.approx(b['p_correct'], abs=1e-5)
    assert a['logp'] == pytest.approx(b['logp'], abs=2e-4)


VERIFIED = (
  '--simulations=4',
  '--candidates=4',
  '--step_tokens=2',
  '--leaf=verifier',
)


def right(found) -> np.ndarray:
  return np.array([row['verdict']['score'] for row in found])


def test_a_search_by_the_verifier_needs_no_judge(supervised, tmp_path):
  """The search keeps the correct samples of the policy. Eight devices, and a
  resumed search, return the same completions.
  """
  _, plain = answers(supervised, tmp_path / 'plain', search=())
  path, found = answers(supervised, tmp_path / 'one', search=VERIFIED)
  settings = json.loads(path.with_suffix('.json').read_text())
  assert settings['leaf'] == 'verifier' and 'judge' not in settings
  assert right(found).sum() > right(plain).sum() > 0
  assert np.all(right(found) >= right(plain)) and 'p_correct' not in found[0]
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:7]))
  devices = '--batch=8', '--mesh=2,2,2'
  for flags, out in ((), 'one'), (devices, 'eight'):
    _, again = answers(supervised, tmp_path / out, *flags, search=VERIFIED)
    for a, b in zip(again, found, strict=True):
      for key in 'problem', 'sample', 'completion', 'generated', 'verdict':
        assert a[key] == b[key]
